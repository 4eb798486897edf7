"""The planner's golden files, and the node-need table they must agree with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.plan.regenerate import GOLDEN, pods, rendered
from tests.unit.plan.stand_in import run

# facts of the vllm-ascend documentation, typed in by hand: nodes on A3, nodes on A2 (0 = not documented), longest context on A3.
NODE_NEEDS = {
    "glm-5.1-w4a8": (1, 1, 200000),
    "glm-5.1-w8a8": (1, 0, 40960),
    "glm-5.1-w8a8-200k": (2, 0, 200000),
    "glm-5.1-bf16": (2, 4, 8192),
    "glm-5.2-w4a8c8": (1, 2, 135000),
    "glm-5.2-w8a8": (1, 2, 40960),
    "glm-5.2-w8a8c8": (2, 4, 202752),
    "glm-5.2-bf16": (2, 4, 8192),
}
# The single-node launch recipes: tensor, data, sequences, length, batched tokens, utilisation, drafts.
LAUNCHES = {
    "vllm-glm-5.1-w4a8-a3": (16, 1, 16, 200000, 4096, 0.95, 3),
    "vllm-glm-5.1-w8a8-a3": (16, 1, 16, 40960, 4096, 0.95, 3),
    "vllm-glm-5.1-w4a8-a2": (8, 1, 8, 32768, 4096, 0.95, 3),
    "vllm-glm-5.2-w4a8c8-a3": (8, 2, 12, 135000, 8192, 0.92, 3),
    "vllm-glm-5.2-w4a8c8-a3-1m": (16, 1, 32, 1024000, 16384, 0.80, 3),
}


@pytest.mark.parametrize("path", sorted(rendered()), ids=str)
def test_plans_are_as_the_golden_files_say(path: Path) -> None:
    golden = GOLDEN / path
    assert golden.exists(), "run `python -m tests.unit.plan.regenerate` and read what it wrote"
    assert rendered()[path] == golden.read_text(encoding="utf-8"), "run `python -m tests.unit.plan.regenerate` and read the difference"


def test_no_golden_file_is_left_over() -> None:
    assert {path.relative_to(GOLDEN) for path in GOLDEN.rglob("*.yaml")} == set(rendered())


@pytest.mark.parametrize("name", NODE_NEEDS)
def test_sizing_agrees_with_the_table_of_node_needs(name: str) -> None:
    on_a3, on_a2, longest = NODE_NEEDS[name]
    columns = yaml.safe_load((GOLDEN / "sizing" / f"{name}.yaml").read_text(encoding="utf-8"))["servers"]

    assert (columns["A3"]["nodes"], columns["A3"]["maxTokens"]) == (on_a3, longest)
    assert columns["A2"].get("nodes", 0) == on_a2


@pytest.mark.parametrize("name", LAUNCHES)
def test_golden_pods_launch_what_the_recipes_say(name: str, tmp_path: Path) -> None:
    tensor, data, sequences, length, batched, utilization, drafts = LAUNCHES[name]
    container = golden_container(name)
    options: dict[str, Any] = run(container, tmp_path).said["options"]

    assert (options["--tensor-parallel-size"], options["--data-parallel-size"]) == (tensor, data)
    assert (options["--max-num-seqs"], options["--max-model-len"], options["--max-num-batched-tokens"]) == (sequences, length, batched)
    assert options["--gpu-memory-utilization"] == utilization
    assert options["--speculative-config"] == {"num_speculative_tokens": drafts, "method": "deepseek_mtp", "enforce_eager": True}
    assert options["--enable-expert-parallel"] is True
    assert options["--quantization"] == "ascend"
    assert options["--compilation-config"]["cudagraph_mode"] == "FULL_DECODE_ONLY"
    assert container["resources"]["limits"]["huawei.com/Ascend910"] == str(tensor * data)


@pytest.mark.parametrize("name", [name for name in pods() if name.startswith("vllm")])
def test_golden_pods_mount_model_and_driver_read_only(name: str) -> None:
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in golden_container(name)["volumeMounts"]}
    read_only = {path for path, value in mounts.items() if value}

    assert {"/usr/local/Ascend/driver/lib64", "/usr/local/dcmi", "/usr/local/bin/npu-smi", "/etc/ascend_install.info"} <= read_only
    assert any(path.startswith("/models/") for path in read_only)


def golden_container(name: str) -> dict[str, Any]:
    documents = yaml.safe_load_all((GOLDEN / "pods" / f"{name}.yaml").read_text(encoding="utf-8"))
    deployment = next(document for document in documents if document and document["kind"] == "Deployment")
    container: dict[str, Any] = deployment["spec"]["template"]["spec"]["containers"][0]
    return container
