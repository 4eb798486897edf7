"""Temporary folders go with their owners: real processes, real locks."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from glm5_runtime.engine.own_folder import OwnFolder

if TYPE_CHECKING:
    from pathlib import Path

OWNER = "import sys; from glm5_runtime.engine.own_folder import OwnFolder; print(OwnFolder('mine-').path, flush=True); sys.stdin.read()"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder, empty."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)  # asks again
    return tmp_path


def test_the_next_start_removes_a_killed_ones_folder_and_leaves_a_living_ones(folder: Path) -> None:
    other = folder / "other-1"
    other.mkdir()
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        path = folder / owner.stdout.readline().strip()
        (path / "rendezvous").write_text("x")

        first = OwnFolder("mine-")
        assert path.exists()
        owner.kill()
        owner.wait()
        second = OwnFolder("mine-")

        assert sorted(folder.iterdir()) == sorted([first.path, second.path, other])


def test_a_folder_that_another_start_took_for_one_without_owner_is_made_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    lock, taken = fcntl.flock, []

    def late(descriptor: int, how: int) -> None:
        if not taken:  # between making and locking
            taken.extend(folder.iterdir())
            taken[0].rmdir()
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    made = OwnFolder("mine-")

    assert made.path.exists()
    assert made.path not in taken


def test_removed_twice_and_with_its_contents(folder: Path) -> None:
    made = OwnFolder("mine-")
    (made.path / "rendezvous").write_text("x")
    made.remove()
    made.remove()

    assert list(folder.iterdir()) == []
