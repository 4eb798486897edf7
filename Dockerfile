# The two images of this project. No BuildKit features: Debian's engine 20.10 builds them, and buildx builds them for both
# architectures: docker buildx build --platform linux/amd64,linux/arm64 --target operator .
#
#   docker build --target operator -t glm5-operator:0.1.0 .
#   docker build --target runtime -t glm5-runtime:0.1.0 --build-arg TORCH_INDEX_URL=<index with CPU builds of torch> .
#   docker build --target runtime -t glm5-runtime:0.1.0-910b --build-arg RUNTIME_EXTRA=npu \
#     --build-arg TORCH_INDEX_URL=<index with CPU builds of torch> \
#     --build-arg RUNTIME_BASE=quay.io/ascend/cann:9.1.0-910b-ubuntu22.04-py3.11 .
#
# Without a network: put the wheels of requirements/*.txt and of the build backend into wheelhouse/, and nothing else is asked.
# A base needs python3 = 3.11 with venv, bash, and useradd.
ARG OPERATOR_BASE=python:3.11-slim-bookworm
ARG RUNTIME_BASE=python:3.11-slim-bookworm

FROM ${OPERATOR_BASE} AS operator-build
COPY requirements/operator.txt wheelhouse* /build/wheels/
WORKDIR /build/wheels
RUN if ls *.whl >/dev/null 2>&1; then printf '[global]\nno-index = true\nfind-links = /build/wheels\n' > /etc/pip.conf; fi \
 && python3 -m venv /opt/glm5 \
 && /opt/glm5/bin/pip install --no-cache-dir --disable-pip-version-check --no-compile --no-deps -r operator.txt
COPY pyproject.toml README.md LICENSE /build/source/
COPY operator /build/source/operator
COPY runtime /build/source/runtime
# Compiled is only what starting the operator imports: the Kubernetes client alone would add 50 MB of what it never does.
RUN /opt/glm5/bin/pip install --no-cache-dir --disable-pip-version-check --no-compile --no-deps /build/source \
 && /opt/glm5/bin/pip uninstall --yes pip setuptools \
 && /opt/glm5/bin/python -c "import glm5_operator.__main__, glm5_operator.app, glm5_operator.agent.__main__"

FROM ${OPERATOR_BASE} AS operator
RUN (getent group 1000 || groupadd --gid 1000 glm5) \
 && (getent passwd 1000 || useradd --uid 1000 --gid 1000 --create-home --shell /usr/sbin/nologin glm5)
COPY --from=operator-build /opt/glm5 /opt/glm5
ENV PATH=/opt/glm5/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 1000:1000
WORKDIR /tmp
ENTRYPOINT ["glm5-operator"]

FROM ${RUNTIME_BASE} AS runtime-build
# all: everything that serving needs. none: only this project; torch and the rest are mounted and PYTHONPATH names them.
ARG RUNTIME_PACKAGES=all
# npu: torch_npu too, for a base with CANN.
ARG RUNTIME_EXTRA=""
# An index with CPU builds of torch; empty takes torch from the default index (on amd64 the CUDA build, ten times larger).
ARG TORCH_INDEX_URL=""
COPY requirements/runtime.txt requirements/npu.txt wheelhouse* /build/wheels/
WORKDIR /build/wheels
# CANN's own Python packages are in the base's site-packages: hence --system-site-packages.
RUN if ls *.whl >/dev/null 2>&1; then printf '[global]\nno-index = true\nfind-links = /build/wheels\n' > /etc/pip.conf; fi \
 && python3 -m venv --system-site-packages /opt/glm5 \
 && if [ -n "$TORCH_INDEX_URL" ]; then sed -i -E '/^(nvidia-|cuda-|triton)/d' runtime.txt; fi \
 && if [ "$RUNTIME_PACKAGES" = all ]; then \
      /opt/glm5/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps \
        ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} -r runtime.txt ${RUNTIME_EXTRA:+-r "$RUNTIME_EXTRA.txt"}; fi
COPY pyproject.toml README.md LICENSE /build/source/
COPY operator /build/source/operator
COPY runtime /build/source/runtime
# A torch that doesn't fit (a CUDA build without its libraries, say) fails here and not in a pod.
RUN /opt/glm5/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps /build/source \
 && if [ "$RUNTIME_PACKAGES" = all ]; then TORCH_DEVICE_BACKEND_AUTOLOAD=0 /opt/glm5/bin/python -c "import torch, glm5_runtime.cli"; fi
# The engine's command in pods. CANN's libraries are found through its environment scripts, which a login shell would source
# and a container's command doesn't.
RUN printf '%s\n' '#!/bin/bash' \
      'for script in /usr/local/Ascend/ascend-toolkit/set_env.sh /usr/local/Ascend/nnal/atb/set_env.sh; do' \
      '  if [ -r "$script" ]; then source "$script"; fi' \
      'done' \
      'exec /opt/glm5/bin/python -m glm5_runtime.cli "$@"' > /opt/glm5/bin/glm5-runtime

FROM ${RUNTIME_BASE} AS runtime
# The driver's device nodes belong to gid 1000, and HCCL looks its user up in the passwd file.
RUN (getent group 1000 || groupadd --gid 1000 HwHiAiUser) \
 && (getent passwd 1000 || useradd --uid 1000 --gid 1000 --create-home --shell /usr/sbin/nologin HwHiAiUser)
COPY --from=runtime-build /opt/glm5 /opt/glm5
# A model of GLM-5's architecture, 5 MB: `source: image:///models/tiny-glm5` checks a card end to end without any weights.
COPY tests/fixtures/tiny-glm5/*.json tests/fixtures/tiny-glm5/model.safetensors /models/tiny-glm5/
ENV PATH=/opt/glm5/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 1000:1000
WORKDIR /tmp
ENTRYPOINT ["glm5-runtime"]
