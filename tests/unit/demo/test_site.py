"""Which cluster the demo takes, and what it says when there is none."""

import os
from pathlib import Path

import pytest

from demo import site as places
from tests.cluster.errors import UnavailableError


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """kubectl and helm that say with which KUBECONFIG and words they were called; with a file `none` beside them there is no context."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("kubectl", "helm"):
        program = folder / name
        program.write_text(
            f'#!/bin/sh\ntest -e {folder}/none && echo "error: current-context is not set" >&2 && exit 1\necho "$KUBECONFIG|$*"\n'
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


@pytest.mark.parametrize(("value", "place"), [(None, "kind"), ("", "kind"), ("kind", "kind"), ("current", "current")])
def test_the_variable_cluster_names_the_place(value: str | None, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLUSTER", raising=False)
    if value is not None:
        monkeypatch.setenv("CLUSTER", value)
    assert places.chosen() == place


def test_any_other_place_is_an_error_that_names_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTER", "Current")
    with pytest.raises(UnavailableError, match=r"CLUSTER=Current.*kind.*current"):
        places.chosen()


def test_several_kubeconfigs_are_left_to_kubectl_and_helm(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "absent", tmp_path / "second"
    second.touch()
    monkeypatch.setenv("KUBECONFIG", f"{first}{os.pathsep}{second}")
    place = places.current_site()
    assert place.kubectl("get", "pods").strip() == f"{first}{os.pathsep}{second}|get pods"
    assert place.helm("list").strip() == f"{first}{os.pathsep}{second}|list"


def test_without_a_kubeconfig_the_message_names_the_file_and_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(UnavailableError, match=r"no kubeconfig at .*absent; set KUBECONFIG, or run `make demo` without CLUSTER"):
        places.current_site()


def test_without_a_current_context_the_message_says_how_to_choose_one(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (programs / "none").touch()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path))
    with pytest.raises(UnavailableError, match="no current context; choose one with `kubectl config use-context NAME`"):
        places.current_site()
