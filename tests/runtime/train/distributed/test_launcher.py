"""The launcher with ranks that do nothing but end, each in its way; real processes and signals. And how ranks meet."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from torch._C._distributed_c10d import HashStore

from glm5_runtime.config import ConfigError
from glm5_runtime.engine.team import RankLost
from glm5_runtime.train.distributed import launcher, rendezvous
from glm5_runtime.train.distributed.launcher import End, explaining
from glm5_runtime.train.distributed.placement import Placement, placement_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.process import BaseProcess

LIMIT = 30.0
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.runtime.train.distributed.test_launcher"])


def launch(placement: Placement, folder: Path, plan: dict[int, object], cores: list[set[int]]) -> None:
    """In a process of its own: the launcher, which ends with what it gives."""
    own = {str(rank): plan[rank] for rank in placement.ranks}
    command = [sys.executable, str(Path(__file__).parent / "plain_rank.py"), str(folder), json.dumps(own)]
    os._exit(launcher.launch(placement, command, ["--first"], cores, result=folder / "result.json", seconds=LIMIT))


class Launched:
    """Launchers of all nodes of a run."""

    def __init__(self, folder: Path, plan: dict[int, object], nodes: int = 1, port: int = 0) -> None:
        per_node = len(plan) // nodes
        self.folders = [folder / f"node-{node}" for node in range(nodes)]
        self.processes: list[BaseProcess] = []
        cores = [set(os.sched_getaffinity(0))] * per_node
        for node, own in enumerate(self.folders):
            own.mkdir(parents=True)
            placement = Placement(nodes, per_node, node, "127.0.0.1", port)
            self.processes.append(_context.Process(target=launch, args=(placement, own, plan, cores)))
            self.processes[-1].start()

    def pid(self, rank: int, node: int = 0) -> int:
        """Of a rank, once it is there."""
        path = self.folders[node] / f"there-{rank}"
        wait(path.exists, f"rank {rank} never came")
        return int(path.read_text().split()[0])

    def code(self, node: int = 0) -> int | None:
        """The launcher's, when it has ended."""
        self.processes[node].join(LIMIT)
        return self.processes[node].exitcode

    def ending(self, node: int = 0) -> dict[str, Any]:
        ending: dict[str, Any] = json.loads((self.folders[node] / "result.json").read_text())
        return ending


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    launched: list[Launched] = []

    def begin(*given: Any, **named: Any) -> Launched:  # noqa: ANN401 - those of Launched
        launched.append(Launched(tmp_path, *given, **named))
        return launched[-1]

    yield begin
    for each in launched:
        for process in each.processes:
            process.kill()
            process.join()


def wait(until: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + LIMIT
    while not until():
        assert time.monotonic() < end, otherwise
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True


# --- how the launcher ends ---------------------------------------------------------------------------------------------------


def test_all_end_well(start: Callable[..., Launched]) -> None:
    run = start({0: 0, 1: 0})

    assert run.code() == 0
    assert run.ending() == {"outcome": "Told", "message": "rank 0 says 0"}
    assert [(run.folders[0] / f"given-{rank}").read_text() for rank in (0, 1)] == ["--first", ""]


def test_the_rank_that_failed_is_the_code_and_the_result_and_the_others_are_ended(start: Callable[..., Launched]) -> None:
    run = start({0: "hang", 1: 4})

    assert run.code() == 4
    assert run.ending()["message"] == "rank 1 says 4"
    assert is_gone(run.pid(0))


def test_a_killed_rank_explains_those_that_lost_it(start: Callable[..., Launched]) -> None:
    run = start({0: "lost", 1: "hang"})

    os.kill(run.pid(1), signal.SIGKILL)

    assert run.code() == 137
    assert run.ending() == {"outcome": "RankKilled", "message": "rank 1 (node rank 0) has ended with SIGKILL"}


def test_sigterm_is_handed_on_and_ranks_take_their_time(start: Callable[..., Launched]) -> None:
    run = start({0: "wait", 1: "wait"})
    pids = [run.pid(0), run.pid(1)]

    os.kill(run.processes[0].pid or 0, signal.SIGTERM)

    assert run.code() == 143
    assert all(map(is_gone, pids))


def test_ranks_end_when_their_launcher_is_killed(start: Callable[..., Launched]) -> None:
    run = start({0: "hang", 1: "hang"})
    pids = [run.pid(0), run.pid(1)]

    os.kill(run.processes[0].pid or 0, signal.SIGKILL)

    wait(lambda: all(map(is_gone, pids)), "a rank outlived its launcher")


@pytest.mark.parametrize("failing", [0, 1])
def test_another_nodes_launcher_ends_as_one_that_lost_a_rank_and_names_it(start: Callable[..., Launched], failing: int) -> None:
    """Also where the ranks themselves notice nothing, as when an exchange between cards waits for its time-out."""
    plan: dict[int, object] = {0: "hang", 1: "hang", 2: "hang", 3: "hang"}
    plan[2 * failing + 1] = "hang"
    run = start(plan, nodes=2, port=free_port())
    for rank in plan:
        run.pid(rank, rank // 2)

    os.kill(run.pid(2 * failing + 1, failing), signal.SIGKILL)

    assert run.code(failing) == 137
    assert run.code(1 - failing) == 6
    message = f"rank {2 * failing + 1} (node rank {failing}) has ended with SIGKILL"
    assert run.ending(1 - failing) == {"outcome": "RankLost", "message": message}


def test_a_run_that_needs_a_port_that_is_taken_says_so(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        placement = Placement(2, 1, 0, "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(ConfigError, match=f"MASTER_PORT {placement.port}: Address already in use"):
            launcher.launch(placement, [], [], [], result=None, seconds=1)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@pytest.mark.parametrize(
    ("codes", "rank"),
    [
        ([6, 4], 1),
        ([6, 143, 5], 2),
        ([6, 143], 1),
        ([0, 6], 1),
        ([0, 0], 0),
        ([137, 4], 0),
    ],
)
def test_which_end_explains_the_others(codes: list[int], rank: int) -> None:
    assert explaining([End(number, code) for number, code in enumerate(codes)]).rank == rank
    if not any(codes):
        assert explaining([End(number, 0) for number in reversed(range(len(codes)))]).rank == 0
    assert explaining([End(9, 137, by_us=True), *(End(number, code) for number, code in enumerate(codes) if code)]).rank != 9 or not any(
        codes
    )


# --- how ranks meet ----------------------------------------------------------------------------------------------------------


def test_missing_ranks_are_named_with_their_nodes() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    placement = Placement(3, 2, 0, "127.0.0.1", listener.getsockname()[1])
    store = rendezvous.serve(listener)
    store.set("here/2", "")
    store.set("here/4", "")
    store.set("here/5", "")

    with pytest.raises(RankLost, match=r"^ranks 1 \(node rank 0\) and 3 \(node rank 1\) are missing: not there within 1 s$"):
        rendezvous.Meeting(placement.as_rank(0, placement.port), 1)


def test_nobody_waits_for_a_node_that_has_ended_before_it_came() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    placement = Placement(2, 1, 0, "127.0.0.1", listener.getsockname()[1])
    store = rendezvous.serve(listener)
    rendezvous.tell_ending(store, 1, 2, "rank 1 (node rank 1) has ended with exit code 2")

    with pytest.raises(RankLost, match=r"rank 1 \(node rank 1\) has ended with exit code 2"):
        rendezvous.Meeting(placement.as_rank(0, placement.port), LIMIT)


def test_a_name_that_is_not_known_yet_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    placement = Placement(1, 1, 0, "127.0.0.1", listener.getsockname()[1])
    store = rendezvous.serve(listener)
    real, tries = socket.create_connection, []

    def unknown(*given: Any, **named: Any) -> socket.socket:  # noqa: ANN401 - socket's own
        tries.append(given)
        if len(tries) < 3:
            raise socket.gaierror(-2, "Name or service not known")
        return real(*given, **named)

    monkeypatch.setattr(rendezvous.socket, "create_connection", unknown)
    monkeypatch.setattr(rendezvous, "_AGAIN", 0.0)

    rendezvous.connect(placement, LIMIT).set("here", "")

    assert len(tries) == 3
    assert store.get("here") == b""


def test_a_master_that_never_answers_is_named() -> None:
    with pytest.raises(RankLost, match=r"node rank 0 is missing: nothing answers at 127.0.0.1:\d+ within 0 s"):
        rendezvous.connect(Placement(2, 1, 1, "127.0.0.1", free_port()), 0)


def test_a_node_without_a_sign_of_life_is_lost_one_that_has_not_begun_or_has_ended_well_is_not() -> None:
    now = [0.0]
    store = HashStore()
    here, other = (rendezvous.Signs(store, node, [1 - node], lambda: now[0]) for node in (0, 1))

    assert here.lost(15) is None
    other.give()
    assert here.lost(15) is None
    now[0] = 14
    assert here.lost(15) is None
    other.give()
    assert here.lost(15) is None
    now[0] = 30
    assert here.lost(15) == "node rank 1 has given no sign of life for 15 s"
    other.end(0, "")
    assert here.lost(15) is None
    assert here.all_ended()


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"NNODES": "two"}, "NNODES='two' is no number from 1 to 1024"),
        ({"NNODES": "2", "NODE_RANK": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "NODE_RANK='2' is no number from 0 to 1"),
        ({"NNODES": "2", "MASTER_PORT": "29500"}, "MASTER_ADDR and MASTER_PORT don't say where the ranks meet"),
        ({"NPROC_PER_NODE": "0", "MASTER_PORT": "-1"}, "NPROC_PER_NODE='0' is no number from 1 to 64; MASTER_PORT='-1'"),
    ],
)
def test_variables_that_cannot_be_are_all_told(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        placement_of(environ)


def test_a_rank_reads_its_place_from_what_the_launcher_tells_it() -> None:
    node = placement_of({"NNODES": "2", "NPROC_PER_NODE": "4", "NODE_RANK": "1", "MASTER_ADDR": "first.svc", "MASTER_PORT": "29500"})

    assert (node.size, node.rank, list(node.ranks)) == (8, None, [4, 5, 6, 7])
    assert placement_of(node.as_rank(6, 29500).variables()) == node.as_rank(6, 29500)
    assert node.as_rank(6, 29500).local == 2
    assert placement_of({}) == Placement()
