"""Versions that stand in two places agree, and the image definitions keep to what an old engine builds."""

import re
from pathlib import Path

import pytest
import yaml

from tests.cluster import versions
from tests.cluster.images import reference
from tests.cluster.site_packages import requirement_lines
from tests.cluster.tools import API_TOOLS, KIND_TOOLS, NODE_TOOLS, SOURCES, TOOLS

REPOSITORY = Path(__file__).parents[3]


def pinned(module: str, path: str) -> str:
    found = re.search(rf"^\s*(?:require )?{re.escape(path)} (v\S+)", (SOURCES / module / "go.mod").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def test_programs_and_image_tags_have_the_versions_of_the_go_modules() -> None:
    assert pinned("kubernetes", "k8s.io/kubernetes") == versions.KUBERNETES
    assert f"{pinned('etcd', 'go.etcd.io/etcd/server/v3')[1:]}-0" == versions.ETCD_TAG
    assert pinned("coredns", "github.com/coredns/coredns") == versions.COREDNS_TAG
    assert pinned("fake", "k8s.io/kubelet").replace("v0.", "v1.") == versions.KUBERNETES
    assert versions.KINDEST_NODE.endswith(versions.KUBERNETES)


@pytest.mark.parametrize("module", sorted({spec.module for spec in TOOLS.values()}))
def test_every_go_module_pins_sums_and_replaces_nothing_with_a_local_folder(module: str) -> None:
    assert (SOURCES / module / "go.sum").stat().st_size > 0
    assert not re.search(r"=> \.", (SOURCES / module / "go.mod").read_text())


def test_every_listed_program_is_known() -> None:
    assert set(API_TOOLS) | set(KIND_TOOLS) | set(NODE_TOOLS) == set(TOOLS)


def test_the_dockerfile_uses_nothing_that_the_classic_builder_lacks() -> None:
    text = (REPOSITORY / "Dockerfile").read_text()
    assert not re.search(r"^#\s*syntax=|--mount=|<<[A-Z]|COPY --chmod|COPY --link|FROM --platform", text, re.MULTILINE)
    assert re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE) == ["operator-build", "operator", "runtime-build", "runtime"]
    assert text.count("USER 1000:1000") == 2


def test_image_names_carry_the_version_of_the_project() -> None:
    assert (reference("operator"), reference("runtime")) == ("glm5-operator:0.1.0", "glm5-runtime:0.1.0")


def test_with_a_cpu_index_the_cuda_packages_are_left_out() -> None:
    default, cpu = requirement_lines(None), requirement_lines("https://index.invalid/cpu")
    assert any(line.startswith("nvidia-") for line in default)
    assert not any(line.startswith(("nvidia-", "cuda-", "triton")) for line in cpu)
    assert any(line.startswith("torch==") for line in cpu)


def test_the_kind_configuration_has_a_control_plane_and_two_workers_for_each_purpose() -> None:
    config = yaml.safe_load((REPOSITORY / "manifests" / "kind.yaml").read_text())
    purposes = [node.get("labels", {}).get("example.com/cards-for") for node in config["nodes"] if node["role"] == "worker"]
    assert config["nodes"][0]["role"] == "control-plane"
    assert purposes == ["inference", "inference", "training", "training"]
