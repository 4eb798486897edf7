"""Checkpoints on a real disk: going on is as if nothing had happened, a kill leaves nothing that is used, damage is found."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import random
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from glm5_runtime.config import ConfigError
from glm5_runtime.train import checkpoint
from glm5_runtime.train.checkpoint import CheckpointError, Checkpoints
from glm5_runtime.train.fence import Fence
from glm5_runtime.train.optimizer import named_trainable
from tests.runtime.train import killed
from tests.runtime.train.conftest import TINY
from tests.runtime.train.runs import prepare, settings, train

if TYPE_CHECKING:
    from collections.abc import Callable

    from glm5_runtime.train.progress import Progress

KILLS = 20


class Stopped(Exception):  # noqa: N818 - no error
    pass


def stop_after(step: int) -> Callable[[Progress], None]:
    def then(progress: Progress) -> None:
        if progress.step == step:
            raise Stopped

    return then


# --- going on ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "stops"),
    [
        ({}, [1, 2, 3, 5]),
        ({"method": "full", "training": {"learning_rate": 1e-4, "dtype": "fp16", "gradient_accumulation": 2}}, [3]),
    ],
    ids=["lora", "full in fp16 and in pieces"],
)
def test_a_run_stopped_anywhere_goes_on_with_the_losses_of_one_that_was_not(
    tmp_path: Path, changes: dict[str, object], stops: list[int]
) -> None:
    """An epoch has two batches: steps 1, 3, 5 are in the middle of one."""
    every = {"checkpoint": {"every_steps": 1, "keep": 2}}
    whole = train(settings(tmp_path / "whole", **changes, **every))
    expected = dict(named_trainable(whole.trainee.model))

    for stop in stops:
        config = settings(tmp_path / f"stopped-{stop}", **changes, **every)
        first = prepare(config, then=stop_after(stop + 1))  # the step after the checkpoint is lost
        with pytest.raises(Stopped):
            first.trainer.run()
        first.trainer._checkpoints.wait()

        second = train(config)

        assert [progress.step for progress in second.told.seen] == list(range(stop + 1, 7))
        assert first.losses[:stop] + second.losses == whole.losses
        assert second.trainer._scaler.state_dict() == whole.trainer._scaler.state_dict()
        assert second.told.seen[-1].tokens == whole.told.seen[-1].tokens
        assert all(torch.equal(parameter, expected[name]) for name, parameter in named_trainable(second.trainee.model))


def test_a_run_that_has_ended_does_nothing_when_it_is_started_again(tmp_path: Path) -> None:
    first = train(settings(tmp_path))

    again = train(settings(tmp_path))

    assert again.told.seen == []
    weights = dict(named_trainable(first.trainee.model))
    assert all(torch.equal(parameter, weights[name]) for name, parameter in named_trainable(again.trainee.model))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"lora": {"rank": 32}}, "rank"),
        ({"lora": {"targets": ["o_proj"]}}, "targets"),
        ({"training": {"seed": 5}}, "seed"),
        ({"training": {"batch_size": 2}}, "batch_size"),
        ({"evaluation": {"share": 0.5}}, "share"),
    ],
)
def test_checkpoints_of_a_run_with_other_settings_are_not_taken(tmp_path: Path, changes: dict[str, object], named: str) -> None:
    train(settings(tmp_path, training={"steps": 1}))

    with pytest.raises(ConfigError, match=rf"other settings or data \({named}\); name another folder"):
        train(settings(tmp_path, **changes))


def test_only_the_newest_stay_and_the_best(tmp_path: Path) -> None:
    found = Checkpoints(tmp_path, keep=2)
    found.kept_step = 3
    for step in range(1, 13):
        found.save(step, {"x": torch.full((4,), float(step))}, {})
    found.wait()

    assert found.steps() == [3, 11, 12]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("name", ["checkpoint-007", "checkpoint-\u0665", "checkpoint-00"])
def test_a_folder_whose_name_only_looks_like_a_checkpoints_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    found = Checkpoints(tmp_path, keep=1)
    for step in (8, 9):
        found.save(step, {"x": torch.zeros(4)}, {})
    found.wait()

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "checkpoint-9"])


def test_what_is_saved_is_what_was_there_at_the_call_though_training_goes_on(tmp_path: Path) -> None:
    found = Checkpoints(tmp_path, keep=2)
    tensor = torch.zeros(1 << 20)
    found.save(1, {"x": tensor}, {"loss": 0.5})
    tensor += 1
    found.wait()

    saved = found.newest()
    assert saved is not None
    loaded = torch.ones(1 << 20)
    found.load(saved, {"x": loaded})
    assert float(loaded.max()) == 0.0
    assert saved.state == {"loss": 0.5}


# --- damage -----------------------------------------------------------------------------------------------------------------


def cut_off(path: Path) -> None:
    file = next(path.glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-100])


def flip_a_bit(path: Path) -> None:
    file = next(path.glob("*.distcp"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def as_in_the_case(path: Path) -> None:
    """D12's third folder: one file, cut off, and nothing beside it."""
    cut_off(path)
    keep = next(path.glob("*.distcp"))
    for each in path.iterdir():
        if each != keep:
            each.unlink()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a file cut off": cut_off,
    "one bit": flip_a_bit,
    "no metadata": lambda path: (path / ".metadata").unlink(),
    "no state": lambda path: (path / "state.json").unlink(),
    "another state": lambda path: (path / "state.json").write_text("{}"),
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "half a manifest": lambda path: (path / "manifest.json").write_text('{"files": {'),
    "an odd manifest": lambda path: (path / "manifest.json").write_text('{"files": [1]}'),
    "a file too many": lambda path: (path / "__1_0.distcp").write_bytes(b"x"),
    "a file cut off and nothing beside it": as_in_the_case,
    "nothing in it": lambda path: [each.unlink() for each in path.iterdir()],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_newest_checkpoint_is_named_and_set_aside_and_the_one_before_it_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], object]
) -> None:
    """D12. The numbers decide what is newest, not the names; other folders are left alone."""
    found = Checkpoints(tmp_path, keep=3)
    for step in (8, 9, 10):
        found.save(step, {"x": torch.full((1000,), float(step))}, {"step": step})
    found.wait()
    (tmp_path / "checkpoint-best").mkdir()
    damage(tmp_path / "checkpoint-10")

    newest = found.newest()

    assert newest is not None
    assert (newest.step, newest.state) == (9, {"step": 9})
    [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"{tmp_path / 'checkpoint-10'}: " in warning
    assert (tmp_path / "damaged-checkpoint-10").is_dir()
    assert found.steps() == [8, 9]
    found.save(10, {"x": torch.zeros(1000)}, {})
    found.wait()
    assert found.steps() == [8, 9, 10]


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = settings(tmp_path, training={"steps": 3}, checkpoint={"every_steps": 1})
    whole = train(config)
    cut_off(config.checkpoint.directory / "checkpoint-3")

    with caplog.at_level(logging.INFO):
        again = train(config)

    assert again.losses == whole.losses[-1:]
    assert f"resumed from {config.checkpoint.directory / 'checkpoint-2'}: step 2 of 3" in caplog.messages


def test_with_all_checkpoints_damaged_the_run_begins_anew(tmp_path: Path) -> None:
    config = settings(tmp_path, training={"steps": 3}, checkpoint={"every_steps": 1})
    whole = train(config)
    for path in config.checkpoint.directory.iterdir():
        cut_off(path)

    assert train(config).losses == whole.losses


def test_checkpoints_of_another_trainer_are_set_aside_by_name_and_nothing_of_them_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The files of case D12: 10 and 20 whole, 30 cut off and without its state, and none of them ours."""
    config = settings(tmp_path, training={"steps": 2})
    shutil.copytree(TINY.parent / "checkpoints" / "interrupted", config.checkpoint.directory)

    train(config)

    set_aside = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [f"checkpoint-{step}" in message for step, message in zip((30, 20, 10), set_aside, strict=True)] == [True] * 3
    left = {path.name: len(list(path.iterdir())) for path in config.checkpoint.directory.glob("damaged-*")}
    assert left == {"damaged-checkpoint-10": 3, "damaged-checkpoint-20": 3, "damaged-checkpoint-30": 1}
    assert Checkpoints(config.checkpoint.directory, 3).steps() == [2]


def test_what_a_kill_left_behind_is_removed_by_the_next_run(tmp_path: Path) -> None:
    for name in (".writing-30-77", ".leaving-10"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.json").write_text("{}")
    (tmp_path / ".mine").mkdir()

    Checkpoints(tmp_path, 3)

    assert [path.name for path in tmp_path.iterdir()] == [".mine"]


def test_a_full_disk_is_said_to_be_full_and_the_checkpoint_before_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Checkpoints(tmp_path, 3)
    found.save(1, {"x": torch.zeros(4)}, {})
    found.wait()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint, "_write_synced", full)
    found.save(2, {"x": torch.zeros(4)}, {})
    with pytest.raises(CheckpointError, match="the disk is full; make room"):
        found.save(3, {"x": torch.zeros(4)}, {})

    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]
    found.wait()  # told once


def test_of_two_runs_in_one_folder_the_later_to_write_ends_and_leaves_the_others_checkpoint(tmp_path: Path) -> None:
    class Overtaken(Fence):
        def check(self) -> None:  # the last thing before a checkpoint appears
            write(tmp_path / "elsewhere")
            (tmp_path / "elsewhere" / "checkpoint-1").rename(tmp_path / "checkpoint-1")

    def write(folder: Path) -> None:
        other = Checkpoints(folder, 3)
        other.save(1, {"x": torch.ones(4)}, {})
        other.wait()

    found = Checkpoints(tmp_path, 3)
    found._fence = Overtaken(tmp_path, None)
    found.save(1, {"x": torch.zeros(4)}, {})

    with pytest.raises(CheckpointError, match="another run has written this checkpoint meanwhile; give each run a folder of its own"):
        found.wait()
    into = {"x": torch.zeros(4)}
    found.load(found.at(1), into)
    assert torch.equal(into["x"], torch.ones(4))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(CheckpointError, match=r"file/checkpoints: Not a directory"):
        Checkpoints(tmp_path / "file" / "checkpoints", 3)


# --- kill -9 ----------------------------------------------------------------------------------------------------------------


def test_kill_9_at_any_moment_loses_no_checkpoint_that_was_complete(tmp_path: Path) -> None:
    """A real process, killed while it writes; the next one goes on from what is there."""
    chance = random.Random(4)
    complete = while_writing = 0
    for _ in range(KILLS):
        process, told = killed.start(tmp_path)
        assert told.poll(60)
        end = time.monotonic() + chance.uniform(0, 0.3)
        while (left := end - time.monotonic()) > 0:
            if told.poll(left):
                complete = told.recv()  # EOFError: the process ended by itself, because what it found was not what was saved
        process.kill()
        process.join()
        with contextlib.suppress(EOFError):
            while True:
                complete = told.recv()
        while_writing += any(path.name.startswith(".") for path in tmp_path.iterdir())

        newest = Checkpoints(tmp_path, 2).newest()

        assert (newest.step if newest else 0) in {complete, complete + 1}
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith("damaged")] == []
    assert while_writing >= KILLS // 4
    assert complete >= 3


def test_a_manifest_names_every_file_with_its_size_and_hash(tmp_path: Path) -> None:
    train(settings(tmp_path, training={"steps": 1}))
    path = tmp_path / "checkpoints" / "checkpoint-1"

    manifest = json.loads((path / "manifest.json").read_text())

    assert manifest["step"] == 1
    assert set(manifest["files"]) == {each.name for each in path.iterdir()} - {"manifest.json"}
    assert {".metadata", "state.json"} < set(manifest["files"])


def test_a_checkpoint_of_a_smaller_model_is_refused_not_half_read(tmp_path: Path) -> None:
    found = Checkpoints(tmp_path, 3)
    found.save(1, {"x": torch.zeros(4)}, {})
    found.wait()
    saved = found.newest()
    assert saved is not None

    for wanted in ({"x": torch.zeros(5)}, {"x": torch.zeros(4), "y": torch.zeros(1)}):
        with pytest.raises(CheckpointError, match="doesn't fit this run"):
            found.load(saved, wanted)
    shutil.rmtree(saved.path)
