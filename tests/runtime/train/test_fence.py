"""Two attempts at the same folders: once the later one has begun, nothing of the earlier one appears."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from glm5_runtime.config import ConfigError
from glm5_runtime.train import command
from glm5_runtime.train.checkpoint import Checkpoints
from glm5_runtime.train.export import publish
from glm5_runtime.train.fence import Fence, Superseded, attempt_of
from tests.runtime.train.test_command import ending, write_run

if TYPE_CHECKING:
    from pathlib import Path


def checkpoints(folder: Path, attempt: int | None) -> Checkpoints:
    return Checkpoints(folder, 2, fence=Fence(folder, attempt))


def test_a_checkpoint_of_an_earlier_attempt_does_not_appear(tmp_path: Path) -> None:
    early = checkpoints(tmp_path, 1)
    early.save(1, {"x": torch.ones(2)}, {})
    early.wait()
    late = checkpoints(tmp_path, 2)

    early.save(2, {"x": torch.ones(2)}, {})
    with pytest.raises(Superseded, match=f"attempt 2 has taken over {tmp_path}; this one is attempt 1"):
        early.wait()
    late.save(3, {"x": torch.ones(2)}, {})
    late.wait()

    assert late.steps() == [1, 3]
    assert not list(tmp_path.glob(".writing-*"))


def test_an_earlier_attempt_that_comes_late_ends_at_once_and_takes_nothing_away(tmp_path: Path) -> None:
    checkpoints(tmp_path, 10)
    (tmp_path / ".writing-5-1").mkdir()

    with pytest.raises(Superseded):
        checkpoints(tmp_path, 9)

    assert (tmp_path / ".writing-5-1").exists()
    assert (tmp_path / "attempt").read_text() == "10\n"


def test_the_same_attempt_may_come_again_and_one_without_a_number_is_not_fenced(tmp_path: Path) -> None:
    for attempt in (3, 3, None, 4):
        found = checkpoints(tmp_path, attempt)
        found.save(found.steps()[-1] + 1 if found.steps() else 1, {"x": torch.ones(2)}, {})
        found.wait()

    assert found.steps() == [3, 4]
    assert (tmp_path / "attempt").read_text() == "4\n"


def test_a_result_of_an_earlier_attempt_does_not_replace_a_later_ones(tmp_path: Path) -> None:
    fence = Fence(tmp_path, 1)
    publish(tmp_path / "adapter", lambda folder: (folder / "x").write_text("late") and None, Fence(tmp_path, 2))
    Fence(tmp_path, 2).claim()

    with pytest.raises(Superseded):
        publish(tmp_path / "adapter", lambda folder: (folder / "x").write_text("early") and None, fence)

    assert (tmp_path / "adapter" / "x").read_text() == "late"


def test_a_run_that_is_superseded_has_its_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLM5_ATTEMPT", "1")
    config = write_run(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "attempt").write_text("2\n")

    assert command.train(config, config.with_suffix(".json")) == 7
    assert ending(config)["outcome"] == "Superseded"
    assert not (tmp_path / "adapter").exists()


@pytest.mark.parametrize("text", ["one", "-1", "1.5", "٣a"])
def test_an_attempt_that_is_no_number_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match="GLM5_ATTEMPT"):
        attempt_of({"GLM5_ATTEMPT": text})
    assert attempt_of({}) is None
    assert attempt_of({"GLM5_ATTEMPT": " 12 "}) == 12
