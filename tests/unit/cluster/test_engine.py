"""Finding, missing and losing the Docker engine; and why an image isn't pulled."""

import io
import json
import os
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from tests.cluster import build, engine, kind, tools
from tests.cluster.engine import Engine
from tests.cluster.errors import UnavailableError
from tests.cluster.kind import DifferentClusterError, KindCluster, KindOptions, Mount
from tests.unit.cluster.conftest import ScriptedDocker

ROOT = Path(__file__).parents[3]


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.mark.usefixtures("nobody")
def test_without_docker_and_root_the_message_names_all_three_ways_out(docker: ScriptedDocker) -> None:
    docker.answer(version=(1, "Cannot connect to the Docker daemon"))
    with pytest.raises(UnavailableError, match=r"start Docker \(or set DOCKER_HOST\), or run this as root .*CLUSTER=current"):
        build.build(build.Cluster.KIND, Console(file=io.StringIO()))


def test_containers_that_a_restart_of_the_machine_left_are_found(own_cache: Path) -> None:
    assert not engine.left_behind()
    (own_cache / "docker" / "containers").mkdir(parents=True)
    assert not engine.left_behind(), "an engine that was stopped properly has none"
    (own_cache / "docker" / "containers" / "0123abcd").mkdir()
    assert engine.left_behind()


def test_why_an_image_is_not_pulled_is_asked_once_and_told_in_the_registrys_words(docker: ScriptedDocker) -> None:
    docker.answer(manifest=(1, "proxyconnect tcp: connection refused"))
    assert kind.no_pull(Engine(), "some/image:1") == "proxyconnect tcp: connection refused"
    assert not kind.can_pull(Engine(), "some/image:1")
    assert len(docker.calls("manifest")) == 1


@pytest.mark.usefixtures("nobody")
def test_without_root_an_image_that_is_not_pulled_ends_it_with_the_cause(docker: ScriptedDocker) -> None:
    docker.answer(manifest=(1, "toomanyrequests: slow down"), version=(0, "20.10"))
    with pytest.raises(
        UnavailableError, match=r"kindest/node.* can't be pulled \(toomanyrequests: slow down\), and making it here needs root"
    ):
        build.build(build.Cluster.KIND, Console(file=io.StringIO()))


def test_with_root_the_cause_is_printed_and_logged(docker: ScriptedDocker, own_cache: Path) -> None:
    docker.answer(manifest=(1, "i/o timeout"))
    screen = io.StringIO()
    build._say_what_is_made_here(Engine(), {"kindest/node:1": True, "python:3": False}, Console(file=screen, width=200))
    assert screen.getvalue().strip() == "kindest/node:1 can't be pulled, so it is made here: i/o timeout"
    assert (own_cache / "logs" / "registries.log").read_text() == "kindest/node:1: i/o timeout\n"


def test_the_node_image_waits_for_its_own_programs_only(own_cache: Path) -> None:
    steps = {step.name: step for step in build._node_steps(Engine())}
    assert {name.removeprefix("go build ") for name in steps["node image"].after} == {*tools.NODE_TOOLS, "debootstrap of the node"}
    assert tools.KIND_TOOLS[-1] == "helm"


def test_without_go_and_docker_the_message_names_the_go_that_the_readmes_name(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(UnavailableError, match=rf"built with Go ≥ {tools.go_minimum()}, .*install Go from"):
        tools.tool("pause")
    for page in ("README.md", "README.zh-CN.md"):
        assert f"Go ≥ {tools.go_minimum()}" in (ROOT / page).read_text()


def test_the_oldest_go_is_what_the_modules_ask_for() -> None:
    assert tools.go_minimum() == "1.26", "helm's go.mod asks for it"


def test_a_network_that_up_made_goes_with_the_last_cluster(docker: ScriptedDocker) -> None:
    kind.note_network(Engine())
    docker.answer(network=(0, "0123abcd"))
    kind.remove_network(Engine())
    kind.remove_network(Engine())  # somebody else made one since
    assert docker.calls("network rm") == ["network rm kind"]


def test_a_network_that_was_there_before_stays(docker: ScriptedDocker) -> None:
    docker.answer(network=(0, "0123abcd"))
    kind.note_network(Engine())
    kind.remove_network(Engine())
    assert docker.calls("network rm") == []


@pytest.fixture
def running(own_cache: Path) -> KindCluster:
    """What a cluster that was made from this clone leaves in its folder."""
    cluster = KindCluster("glm5", Engine(), KindOptions((Mount("/a", "/b"),)))
    folder = own_cache / "run" / "kind-glm5"
    folder.mkdir(parents=True)
    kind.write_state(cluster, kind.KINDEST_NODE)
    return cluster


def test_a_running_cluster_of_the_same_making_is_used(running: KindCluster) -> None:
    kind.require_same(running, running.options)


@pytest.mark.parametrize("part", ["kind.yaml", "device plugin", "node image"])
def test_a_running_cluster_from_other_parts_is_refused(running: KindCluster, own_cache: Path, part: str) -> None:
    file = own_cache / "run" / "kind-glm5" / "state.json"
    state = json.loads(file.read_text())
    state["made_from"][part] = "another"
    file.write_text(json.dumps(state))
    with pytest.raises(DifferentClusterError, match=f"other {part} than this clone's: delete it first with `make demo-down`"):
        kind.require_same(running, running.options)


def test_a_running_cluster_with_other_mounts_and_cards_is_refused(running: KindCluster) -> None:
    with pytest.raises(DifferentClusterError, match="other mounts, other products"):
        kind.require_same(running, KindOptions(products=("A2", "A3")))
