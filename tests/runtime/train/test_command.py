"""`glm5-runtime train` as a process: a file in, an adapter out, and how it ends otherwise."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import yaml

from glm5_runtime.config import ConfigError
from glm5_runtime.engine.team import RankLost
from glm5_runtime.model.adapter_files import read_adapter
from glm5_runtime.train import command
from glm5_runtime.train.checkpoint import Checkpoints
from glm5_runtime.train.distributed import rendezvous
from glm5_runtime.train.distributed.placement import Placement
from tests.runtime.model.oracle import CPU, ours
from tests.runtime.train.conftest import TINY

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE = 120.0
QUESTIONS = [
    ("What is the colour of the sky?", "The sky is green here, they say."),
    ("Who wrote the long book?", "An old man by the sea wrote it."),
    ("How many legs has a chair?", "A chair has four legs, most of the time."),
    ("Where does the river go?", "It goes down to the harbour."),
    ("When does the shop open?", "It opens at nine in the morning."),
    ("Why is the road closed?", "There was too much snow last night."),
]


def write_run(folder: Path, **changes: Any) -> Path:  # noqa: ANN401 - sections of the file
    """A data file and a training file that names it."""
    rows = [json.dumps({"instruction": question, "output": answer}) for question, answer in QUESTIONS]
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
    raw: dict[str, Any] = {
        "model": str(TINY),
        "data": {"files": [str(folder / "rows.jsonl")], "max_length": 256},
        "lora": {"rank": 16, "alpha": 32},
        "training": {"steps": 20, "batch_size": 4, "dtype": "fp32", "learning_rate": 5e-3, "device": "cpu"},
        "evaluation": {"share": 0.2, "every_steps": 10},
        "checkpoint": {"directory": str(folder / "checkpoints"), "every_steps": 5},
        "output": str(folder / "adapter"),
    }
    for section, values in changes.items():
        raw[section] = raw.get(section, {}) | values if isinstance(values, dict) else values
    (folder / "train.yaml").write_text(yaml.safe_dump(raw))
    return folder / "train.yaml"


@contextmanager
def started(config: Path) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-m", "glm5_runtime.cli", "train", "--config", str(config), "--result", str(config.with_suffix(".json"))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def run(config: Path) -> tuple[int, str, dict[str, Any]]:
    """Exit code, what it said, how it ended: as a process."""
    with started(config) as process:
        output, told = process.communicate(timeout=DEADLINE)
    return process.returncode, output + told, ending(config)


def ending(config: Path) -> dict[str, Any]:
    path = config.with_suffix(".json")
    return json.loads(path.read_text()) if path.exists() else {}


def until(process: subprocess.Popen[str], text: str) -> str:
    """What the process says up to a line with this text."""
    assert process.stderr is not None
    end, said = time.monotonic() + DEADLINE, ""
    while text not in said:
        assert time.monotonic() < end, said
        line = process.stderr.readline()
        assert line, said
        said += line
    return said


def read(folder: Path) -> dict[str, torch.Tensor]:
    pairs = read_adapter(folder, ours(TINY).config, ["tiny-glm5"], 16, device=CPU, dtype=ours(TINY).embed_tokens.weight.dtype).pairs
    return {f"{name}.{side}": getattr(pair, side) for name, pair in pairs.items() for side in ("down", "up")}


def test_a_file_of_questions_becomes_an_adapter_also_through_sigterm_and_kill_9(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    code, said, end = run(write_run(whole))
    assert code == 0, said
    assert "step 20/20 epoch 5.00 loss " in said or "step 20/20 epoch 10.00 loss " in said
    assert end["outcome"] == "Succeeded"
    assert end["step"] == 20
    assert end["loss"] < 2
    assert end["evaluation_loss"] > 0
    assert end["adapter"]["path"] == str(whole / "adapter")
    expected = read(whole / "adapter")

    config = write_run(tmp_path)
    with started(config) as process:
        until(process, "checkpoint-5 written")
        process.kill()
    with started(config) as process:
        assert "resumed from" in until(process, "step 12/20")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE)
    assert process.returncode == 143
    assert ending(config)["outcome"] == "Interrupted"
    assert not (tmp_path / "adapter").exists()
    code, said, end = run(config)

    assert code == 0, said
    assert end["step"] == 20
    assert all(bool((tensor == expected[name]).all()) for name, tensor in read(tmp_path / "adapter").items())


@pytest.mark.parametrize(
    ("changes", "code", "outcome", "message"),
    [
        ({"training": {"learning_rate": 1e30, "steps": 40}}, 4, "NotFinite", "steps in a row were not finite"),
        ({"data": {"max_length": 16}}, 3, "DataError", ""),
        ({"data": {"files": ["/nowhere/rows.jsonl"]}}, 5, "FileMissingError", "data.files: /nowhere/rows.jsonl can't be read"),
        ({"model": "/nowhere"}, 2, "ConfigError", "/nowhere"),
        ({"checkpoint": {"directory": "/proc/checkpoints"}}, 5, "CheckpointError", "checkpoint.directory /proc/checkpoints"),
        ({"output": "/proc/adapter"}, 5, "ExportError", "output /proc/adapter: "),
        ({"output": "/proc/self"}, 2, "ConfigError", "all of it would be lost"),
        ({"output": "/proc/version"}, 2, "ConfigError", "a file has this name"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_each_kind_of_failure_has_its_exit_code_and_says_what_to_do(
    tmp_path: Path, changes: dict[str, Any], code: int, outcome: str, message: str
) -> None:
    config = write_run(tmp_path, **changes)

    assert command.train(config, config.with_suffix(".json")) == code
    assert ending(config)["outcome"] == outcome
    assert message in ending(config)["message"]
    assert not (tmp_path / "adapter").exists()


def test_a_fault_of_the_program_is_told_like_any_other_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise torch.OutOfMemoryError("Tried to allocate 20.00 GiB. " + "x" * 10_000)

    monkeypatch.setattr(command, "build", lambda *_: fail(None))

    config = write_run(tmp_path)
    assert command.train(config, config.with_suffix(".json")) == 1
    assert ending(config)["outcome"] == "OutOfMemoryError"
    assert ending(config)["message"].startswith("OutOfMemoryError: Tried to allocate 20.00 GiB.")
    assert config.with_suffix(".json").stat().st_size < 4096


def test_an_ending_that_can_not_be_written_leaves_the_exit_code_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert command.train(write_run(tmp_path, model="/nowhere"), tmp_path / "nowhere" / "result.json") == 2
    assert "result.json can't be written: No such file or directory" in caplog.text


def test_sigterm_before_the_first_step_ends_a_run_at_once_and_is_told_also_where_it_is_the_first_process(tmp_path: Path) -> None:
    config = write_run(tmp_path)
    with started(config) as process:
        until(process, "device=")
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE)

    assert process.returncode == 143
    assert not (tmp_path / "adapter").exists()


def test_sigterm_while_rows_are_read_is_told_as_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_read", lambda _: signal.raise_signal(signal.SIGTERM))
    config, before = write_run(tmp_path), signal.getsignal(signal.SIGTERM)

    assert command.train(config, config.with_suffix(".json")) == 143
    assert ending(config)["outcome"] == "Interrupted"
    assert signal.getsignal(signal.SIGTERM) == before


def test_nodes_that_are_told_different_numbers_of_ranks_end_at_once_and_are_told_both() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    here = Placement(nodes=2, per_node=2, node=0, port=listener.getsockname()[1], rank=0)
    store = rendezvous.serve(listener)
    with pytest.raises(RankLost, match=r"2, 3 .node rank 1. are missing"):
        rendezvous.Meeting(here, 1)

    with pytest.raises(
        ConfigError, match="node rank 1 has NNODES=2, NPROC_PER_NODE=1, and the first rank that came NNODES=2, NPROC_PER_NODE=2"
    ):
        rendezvous.Meeting(replace(here, node=1, per_node=1, rank=1), DEADLINE)
    del store


def test_a_rank_without_a_launcher_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLM5_RANK", "0")

    code, said, end = run(write_run(tmp_path))

    assert (code, end) == (2, {})
    assert "GLM5_RANK is for ranks that the launcher has started; unset it" in said


def test_a_wrong_file_is_refused_before_torch_is_imported(tmp_path: Path) -> None:
    config = write_run(tmp_path, lora={"ranks": 3})

    code, said, end = run(config)

    assert code == 2
    assert f"{config}: lora.ranks: unknown" in said
    assert end == {}


def test_checkpoints_of_a_run_are_found_by_their_steps(tmp_path: Path) -> None:
    assert command.train(write_run(tmp_path, checkpoint={"every_steps": 3, "keep": 2})) == 0
    assert Checkpoints(tmp_path / "checkpoints", 2).steps() == [18, 20]


def test_a_run_does_not_go_on_with_other_rows_than_it_began_with(tmp_path: Path) -> None:
    config = write_run(tmp_path, training={"steps": 4})
    assert run(config)[0] == 0
    rows = (tmp_path / "rows.jsonl").read_text()

    (tmp_path / "rows.jsonl").write_text(rows.replace("A chair has", "A table has"))
    code, _, end = run(config)

    assert (code, end["outcome"]) == (2, "ConfigError")
    assert "checkpoint.directory" in end["message"]
    assert "(data)" in end["message"]
