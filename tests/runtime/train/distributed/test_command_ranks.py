"""The `train` command on several ranks: one that is asked to stop stops all, one that is killed ends all; once with its launcher."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from glm5_runtime.train import command
from glm5_runtime.train.checkpoint import Checkpoints
from glm5_runtime.train.config import read_config
from glm5_runtime.train.progress import Lines
from tests.runtime.train.distributed.test_launcher import free_port
from tests.runtime.train.distributed.together import together
from tests.runtime.train.test_command import ending, write_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from glm5_runtime.train.distributed.placement import Placement
    from glm5_runtime.train.progress import Progress

LIMIT = 240.0
"""Seconds for a run of real processes, each of which imports torch first."""


def run(placement: Placement, config: Path, number: int, step: int, rank: int) -> tuple[int, dict[str, Any]]:
    """Exit code and ending; this rank gets the signal after that step."""

    class Signalling(Lines):
        def __call__(self, progress: Progress) -> None:
            if progress.step == step and placement.rank == rank:
                os.kill(os.getpid(), number)

    command.reporter = Signalling  # type: ignore[assignment] # this process is one rank's alone
    result = config.with_name(f"{placement.rank}.json")
    return command.train(config, result, None, placement), json.loads(result.read_text())


@pytest.mark.parametrize("way", ["fsdp", "ddp"])
def test_sigterm_to_one_rank_ends_all_after_the_same_step_with_a_checkpoint(tmp_path: Path, way: str) -> None:
    config = write_run(tmp_path, training={"sharding": way})

    found = together(2, tmp_path, run, config, signal.SIGTERM, 3, 1, meet=False)

    for code, told in found:
        assert code == 143
        assert (told["outcome"], told["step"]) == ("Interrupted", 4)
    assert Checkpoints(read_config(config).checkpoint.directory, 3).steps() == [4]


def test_a_rank_that_is_killed_while_a_checkpoint_is_written_is_what_the_others_lost(tmp_path: Path) -> None:
    """Not a fault of the disk, though it is the checkpoint's exchange that fails."""
    config = write_run(tmp_path, checkpoint={"every_steps": 1})

    [(code, told), gone, _] = together(3, tmp_path, run, config, signal.SIGKILL, 3, 1, meet=False, killed=1)

    assert gone is None
    assert code == 6
    assert told["outcome"] == "RankLost"
    assert told["message"].startswith("a rank can't be reached: ")
    assert told["step"] in {3, 4}


def test_a_run_of_real_processes_goes_on_after_kill_9_of_a_rank_and_names_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The command line, its launcher and two ranks; what they leave is gone on with on one."""
    config = write_run(tmp_path, training={"steps": 9})

    with launched(config) as process:
        until(process, "checkpoint-5 written")
        os.kill(children(process.pid)[-1], signal.SIGKILL)
        process.communicate(timeout=LIMIT)
    assert process.returncode == 137
    assert ending(config) == {"outcome": "RankKilled", "message": "rank 1 (node rank 0) has ended with SIGKILL"}
    assert not (tmp_path / "adapter").exists()

    with caplog.at_level("INFO"):
        assert command.train(config, config.with_suffix(".json")) == 0
    assert "checkpoint-5: step 5 of 9" in caplog.text
    assert ending(config)["step"] == 9
    assert (tmp_path / "adapter" / "adapter_model.safetensors").exists()


def test_of_two_nodes_one_is_told_to_end_and_both_end_after_the_same_step_with_a_checkpoint_of_it(tmp_path: Path) -> None:
    """As when one pod of an attempt is evicted: two launchers, and no checkpoint but the one that is asked for."""
    config = write_run(tmp_path, training={"steps": 5000}, checkpoint={"every_steps": 5000})
    port = free_port()

    with launched(config, node=0, port=port) as first, launched(config, node=1, port=port) as second:
        until(first, "step 3/5000")
        second.terminate()
        first.communicate(timeout=LIMIT)
        second.communicate(timeout=LIMIT)

    assert (first.returncode, second.returncode) == (143, 143)
    told = [json.loads((tmp_path / f"end-{node}.json").read_text()) for node in (0, 1)]
    assert [each["outcome"] for each in told] == ["Interrupted", "Interrupted"]
    newest = Checkpoints(read_config(config).checkpoint.directory, 3).newest()
    assert newest is not None
    assert newest.step >= 3
    assert [each["step"] for each in told] == [newest.step, newest.step]


@contextmanager
def launched(config: Path, node: int | None = None, port: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """Two ranks of this machine; with `node` and `port` the one of one of two nodes, which ends with `end-NODE.json`."""
    result = config.with_suffix(".json") if node is None else config.with_name(f"end-{node}.json")
    arguments = [sys.executable, "-m", "glm5_runtime.cli", "train", "--config", str(config), "--result", str(result)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NPROC_PER_NODE": "2", "MASTER_PORT": ""}
    if node is not None:
        environment |= {"NPROC_PER_NODE": "1", "NNODES": "2", "NODE_RANK": str(node), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def until(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    end, said = time.monotonic() + LIMIT, ""
    while text not in said:
        assert time.monotonic() < end, said
        line = process.stderr.readline()
        assert line, said
        said += line


def children(pid: int) -> list[int]:
    """Of the launcher, in the order of their ranks."""
    return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
