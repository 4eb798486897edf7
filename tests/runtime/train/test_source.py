"""Batches of an epoch from rows in memory, packed and not; and what is held back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from glm5_runtime.train.config import TrainingConfig
from glm5_runtime.train.data.batches import filled
from glm5_runtime.train.data.dataset import Dataset
from glm5_runtime.train.packing import pack
from glm5_runtime.train.source import Source, split
from tests.runtime.model.oracle import CPU
from tests.runtime.train.rows import make_rows
from tests.runtime.train.runs import prepare, settings

if TYPE_CHECKING:
    from tests.runtime.train.runs import Run

LENGTHS = [20, 31, 60, 17, 44, 90, 23, 35, 128, 28, 19, 70, 16, 40, 52]
PACKED = {"packing": True, "batch_size": 2, "steps": 8}


def source(folder: Path, lengths: list[int] = LENGTHS, **training: Any) -> Source:  # noqa: ANN401 - fields of the section
    data = Dataset()
    for row in make_rows(lengths):
        data.append(row)
    config = settings(folder, data={"max_length": 128})
    return Source(data, range(len(lengths)), config.model_copy(update={"training": TrainingConfig(**training)}))


def lines(source: Source, epoch: int) -> list[list[int]]:
    return [[row.line for row in batch] for batch in source.epoch(epoch)]


@pytest.mark.parametrize(
    "training",
    [{"batch_size": 3}, PACKED, {"batch_tokens": 256}, {"packing": True, "batch_tokens": 256}],
    ids=["rows", "packed rows", "tokens", "packed tokens"],
)
def test_an_epoch_has_each_row_once_in_an_order_that_follows_from_seed_and_epoch(tmp_path: Path, training: dict[str, Any]) -> None:
    first = lines(source(tmp_path, **training), 0)

    assert sorted(line for batch in first for line in batch) == list(range(1, len(LENGTHS) + 1))
    assert lines(source(tmp_path, **training), 0) == first
    assert lines(source(tmp_path, **training), 1) != first
    assert lines(source(tmp_path, **training, seed=1), 0) != first


def test_packed_rows_are_filled_up_to_the_longest_length_and_a_batch_has_so_many_of_them(tmp_path: Path) -> None:
    batches = source(tmp_path, **PACKED).epoch(0)

    tokens = [sum(filled(len(row.tokens)) for row in batch) for batch in batches]
    assert max(tokens) <= 2 * 128
    assert len(batches) == -(-sum(map(filled, LENGTHS)) // 256)
    assert len(source(tmp_path, batch_size=2).epoch(0)) == 8


def test_a_row_longer_than_a_packed_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="an example of 200 tokens doesn't fit"):
        source(tmp_path, [200], **PACKED).epoch(0)


def test_rows_packed_together_give_the_loss_and_gradients_of_each_alone(tmp_path: Path) -> None:
    """No token sees another row: one that did would predict otherwise."""
    made = source(tmp_path, **PACKED)
    run = prepare(settings(tmp_path, lora={"dropout": 0.0}))
    rows = made.epoch(0)[0]
    assert len(rows) > 2

    def gradients(parts: list[list[Any]]) -> tuple[float, torch.Tensor]:
        run.trainee.model.zero_grad()
        total = sum((run.trainee.model(pack(part, CPU)) for part in parts), torch.zeros(()))
        total.backward()
        return total.item(), torch.cat([each.grad.flatten() for each in run.trainee.model.parameters() if each.grad is not None])

    together, slope = gradients([rows])
    alone, expected = gradients([[row] for row in rows])

    assert together == pytest.approx(alone, rel=1e-5)
    assert float((slope - expected).norm() / expected.norm()) < 1e-4


def test_a_packed_run_stopped_in_the_middle_of_an_epoch_goes_on_with_the_same_losses(tmp_path: Path) -> None:
    whole = packed_run(tmp_path / "whole")
    whole.trainer.run()
    assert len(whole.losses) == 8
    assert len(source(tmp_path, **PACKED).epoch(0)) == 4
    config = {"checkpoint": {"directory": tmp_path / "stopped", "every_steps": 100}}
    stopped = packed_run(tmp_path / "whole", **config)
    stopped.told.then = lambda progress: stopped.trainer.stop() if progress.step == 6 else None
    with pytest.raises(Exception, match="asked to stop after step 6"):
        stopped.trainer.run()
    resumed = packed_run(tmp_path / "whole", **config)
    resumed.trainer.run()

    assert stopped.losses + resumed.losses == whole.losses


def packed_run(folder: Path, **changes: Any) -> Run:  # noqa: ANN401 - sections of the file
    run = prepare(settings(folder, data={"max_length": 128}, training=PACKED, **changes))
    run.trainer._batches = source(folder, **PACKED)
    return run


# --- what is held back --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.01, 0.1, 0.3, 0.5])
def test_all_examples_of_a_row_are_on_one_side(share: float) -> None:
    rows = [row for row in range(40) for _ in range(1 + row % 3)]

    for seed in range(20):
        kept, held = split(rows, share, seed)

        assert sorted(kept + held) == list(range(len(rows)))
        assert not {rows[at] for at in kept} & {rows[at] for at in held}
        assert len({rows[at] for at in held}) == max(1, round(40 * share))
    assert split(rows, share, 3) == split(rows, share, 3)
    assert split(rows, share, 3) != split(rows, share, 4)


def test_without_a_share_nothing_is_held_back() -> None:
    assert split([0, 0, 1], 0.0, 7) == ([0, 1, 2], [])
