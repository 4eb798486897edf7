"""Image references and whether they are taken: the one table to which CRDs, settings and chart are held."""

from __future__ import annotations

TAGS = {
    "0.1.0": True,
    "v1": True,
    "20261129": True,
    "v0.23.0-a3-openeuler": True,
    "glm5-a3": True,
    "v1-mainline": True,
    "latest": False,
    "latest-910b": False,
    "910b-latest": False,
    "latest-vllm-a3-ubuntu": False,
    "v1.latest": False,
    "v1_latest": False,
    "nightly": False,
    "nightly-a3": False,
    "nightly-releases-v0.18.0": False,
    "main-a3": False,
    "master.310p": False,
    "stable": False,
    "dev": False,
}
"""Tags without a digest."""

IMAGES = {
    **{f"registry.example:5000/team/glm5-runtime:{tag}": taken for tag, taken in TAGS.items()},
    **{f"glm5-runtime:{tag}@sha256:{'a' * 64}": True for tag in TAGS},
    "registry.example/main/latest-tools/nightly-runtime:1.0": True,
    "localhost:5000/glm5:v1": True,
    "m.daocloud.io/quay.io/ascend/vllm-ascend:v0.23.0": True,
    "swr.cn-south-1.myhuaweicloud.com/ascendhub/x@sha256:" + "a" * 64: True,
    "glm5-runtime": False,
    "registry.example:5000/glm5-runtime": False,
    "glm5-runtime:": False,
    "GLM5:1.0": False,
    "glm5 runtime:1.0": False,
    "glm5-runtime@sha256:" + "A" * 64: False,
    "glm5-runtime@sha512:" + "a" * 64: False,
    "https://registry.example/glm5:1.0": False,
    "glm5:1.0\nlatest": False,
    "glm5:1.0\n": False,
}
"""Whole references."""
