# Everything goes through here; `make` alone lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo demo-down test test-unit test-api test-e2e lint format crds verify lock images bench bench-control-plane bench-engine bench-train bench-health cluster-up cluster-down

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
PY := $(VENV)/bin/python
UV := $(VENV)/bin/uv
CLUSTER ?= kind
N ?= 1000
# Several torch processes on few cores stand in each other's way; torch_npu without CANN must not break `import torch`.
export OMP_NUM_THREADS ?= 1
export TORCH_DEVICE_BACKEND_AUTOLOAD ?= 0
export CLUSTER
# Tests start hundreds of processes, and without stored bytecode each would compile what it imports (torch: seconds).
unexport PYTHONDONTWRITEBYTECODE
# uv and the other programs of the environment are found by name.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  \033[1m%-20s\033[0m %s\n", $$1, $$2}'

demo: $(VENV)/.tools  ## a real Kubernetes, the operator, a served GLM-5 answer, and what it learns (CLUSTER=current uses your kubeconfig)
	@$(PY) -m demo up

demo-down: $(VENV)/.tools  ## take the demo away; cache, .venv and packages stay for the next one (README says which)
	@$(PY) -m demo down

test: test-unit test-api test-e2e  ## all tests, on real parts

test-unit: $(VENV)/.dev  ## planner, status, runtime and model tests; no cluster
	$(PY) -m pytest tests/unit tests/runtime tests/contract

test-api: $(VENV)/.dev  ## the operator against a real API server
	$(PY) -m tests.cluster build --only api
	$(PY) -m pytest tests/api

test-e2e: $(VENV)/.dev  ## the whole, on kind with real kubelets
	$(PY) -m tests.cluster build
	$(PY) -m pytest tests/e2e

lint: $(VENV)/.dev  ## ruff, mypy, import contracts, generated files up to date
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(MAKE) --no-print-directory verify

format: $(VENV)/.dev  ## format the code and mend what ruff can mend
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

crds: $(VENV)/.dev  ## write all generated files: CRDs, chart copies, RBAC, reference pages
	$(PY) hack/generate.py

verify: $(VENV)/.dev  ## generated files are what the code says; writes nothing
	$(PY) hack/generate.py --check

lock: $(VENV)/.uv  ## pin dependencies anew (requirements/*.txt)
	hack/lock.sh

images: $(VENV)/.tools  ## build the operator and runtime images
	$(PY) -m tests.cluster images

bench: bench-control-plane bench-engine bench-train bench-health  ## all benchmarks

bench-control-plane: $(VENV)/.dev  ## N services (N=1000) against a real API server
	$(PY) -m tests.cluster build --only api
	$(PY) -m benchmarks.control_plane --services $(N)

bench-engine: $(VENV)/.dev  ## the engine against transformers and itself (PARTS="decode1 prefill" for some)
	$(PY) -m benchmarks.engine $(foreach part,$(PARTS),--part $(part))

bench-train: $(VENV)/.dev  ## training against PEFT, TRL and verl's formulas (PARTS="sft gae" for some; RECOVERY=FILE: what test-e2e printed)
	$(PY) -m benchmarks.train $(foreach part,$(PARTS),--part $(part)) $(if $(RECOVERY),--recovery $(RECOVERY))

bench-health: $(VENV)/.dev  ## from a fault to capacity back, and what watching costs (PARTS="walk agent" for some)
	$(PY) -m benchmarks.health $(foreach part,$(PARTS),--part $(part))

cluster-up: $(VENV)/.tools  ## the demo's kind cluster alone
	$(PY) -m tests.cluster kind up

cluster-down: $(VENV)/.tools  ## take it down
	$(PY) -m tests.cluster kind down

# Demo and cluster tool need no torch; tests do. Both stamps share one environment and one package cache.
$(VENV)/.uv:
	@hack/venv.sh $(PYTHON) $(VENV)
	@touch $@

$(VENV)/.tools: $(VENV)/.uv requirements/operator.txt pyproject.toml
	@echo "installing the operator's packages"
	@$(UV) pip install -q --python $(PY) -r requirements/operator.txt
	@$(UV) pip install -q --python $(PY) --no-deps -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.tools requirements/dev.txt
	@echo "installing test packages (torch among them: some minutes the first time)"
	@$(UV) pip install -q --python $(PY) -r requirements/dev.txt
	@touch $@
