"""Processes of a cluster: found again by later runs, and no other process is ever taken for one of them."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.processes import Identity, Processes, free_ports
from tests.cluster.shell import wait_for


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    book = Processes(tmp_path / "run")
    yield book
    book.stop_all(grace=1)


def test_a_later_run_finds_and_ends_what_an_earlier_one_started(processes: Processes) -> None:
    processes.start("sleeper", ["sleep", "600"])
    later = Processes(processes.folder)
    assert later.alive("sleeper")
    later.stop("sleeper")
    assert not processes.alive("sleeper")
    assert later.names() == []


def test_a_process_that_ignores_sigterm_is_killed(processes: Processes) -> None:
    processes.start("stubborn", ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"])
    wait_for("its trap", lambda: "ready" in processes.tail("stubborn"), timeout=5)
    processes.stop("stubborn", grace=0.2)
    assert not processes.alive("stubborn")


def test_a_stranger_with_a_reused_id_is_left_alone(processes: Processes) -> None:
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        identity = Identity.of(stranger.pid)
        assert identity is not None
        record = {"pid": identity.pid, "started": str(int(identity.started) - 1), "boot": identity.boot}
        (processes.folder / "old.json").write_text(json.dumps(record))
        assert not processes.alive("old")
        processes.stop("old")
        assert stranger.poll() is None
        assert processes.names() == []
    finally:
        stranger.kill()
        stranger.wait()


def test_a_record_from_before_a_reboot_names_nobody(processes: Processes) -> None:
    identity = Identity.of(os.getpid())
    assert identity is not None
    record = {"pid": identity.pid, "started": identity.started, "boot": "another"}
    (processes.folder / "old.json").write_text(json.dumps(record))
    assert not processes.alive("old")


def test_an_unreadable_record_is_cleaned_away(processes: Processes) -> None:
    (processes.folder / "broken.json").write_text('{"pid": ')
    processes.stop_all()
    assert processes.names() == []


def test_a_program_that_is_killed_shows_as_dead(processes: Processes) -> None:
    processes.start("victim", ["sleep", "600"])
    identity = processes.identity("victim")
    assert identity is not None
    os.kill(identity.pid, signal.SIGKILL)
    wait_for("its death", lambda: not processes.alive("victim"), timeout=5)


def test_a_program_that_does_not_exist_is_said_at_once(processes: Processes) -> None:
    with pytest.raises(ClusterError, match="no-such-program"):
        processes.start("absent", ["no-such-program"])


def test_free_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20
