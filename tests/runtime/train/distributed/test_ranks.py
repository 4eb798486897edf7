"""Whole runs on two and four ranks: the same losses as on one, whatever is divided, and the same end for all."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

from glm5_runtime.train.checkpoint import Checkpoints
from glm5_runtime.train.distributed.ranks import ALONE
from glm5_runtime.train.distributed.sharding import shares, whole
from glm5_runtime.train.export import export_adapter
from glm5_runtime.train.faults import NotFinite
from glm5_runtime.train.loop import Interrupted
from glm5_runtime.train.merge import export_checkpoint
from glm5_runtime.train.optimizer import named_trainable
from tests.runtime.train.distributed.together import together
from tests.runtime.train.rows import make_rows
from tests.runtime.train.runs import prepare, settings

if TYPE_CHECKING:
    from pathlib import Path

    from glm5_runtime.train.build import Trainee
    from glm5_runtime.train.data.example import Example
    from glm5_runtime.train.distributed.ranks import Ranks

ALL = ["q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "kv_b_proj", "o_proj", "experts"]
LORA: dict[str, Any] = {"lora": {"dropout": 0.0, "targets": ALL}}
FULL: dict[str, Any] = {"method": "full", "training": {"learning_rate": 2e-4}}
ROWS = make_rows([17, 40, 33, 70, 25, 90, 64, 31])
HELD_BACK = [make_rows([60, 48, 20], seed=9), make_rows([30], seed=8)]


def laid(changes: dict[str, Any], **training: Any) -> dict[str, Any]:  # noqa: ANN401 - any field
    return {**changes, "training": {**changes.get("training", {}), **training}}


SAVING = laid(LORA, steps=1, batch_size=8, gradient_accumulation=3, activation_checkpointing=True)
RUNS: dict[str, dict[str, Any]] = {
    "lora by fsdp": laid(LORA, sharding="fsdp", steps=2) | {"evaluation": {"share": 0.2, "every_steps": 1}},
    "lora by ddp": laid(LORA, sharding="ddp", steps=2),
    "full by fsdp": laid(FULL, sharding="fsdp", steps=2),
    "full by ddp": laid(FULL, sharding="ddp", steps=2),
    "in pieces and computed again, by fsdp": laid(SAVING, sharding="fsdp"),
    "in pieces and computed again, by ddp": laid(SAVING, sharding="ddp"),
    "full in bf16 by fsdp": laid(FULL, sharding="fsdp", steps=1, dtype="bf16"),
    "one row a batch, by fsdp": laid(LORA, sharding="fsdp", steps=1, batch_size=1),
    "one row a batch, by ddp": laid(LORA, sharding="ddp", steps=1, batch_size=1),
}
ON_FOUR = ["full by fsdp", "lora by ddp", "one row a batch, by fsdp", "one row a batch, by ddp"]


# --- equal to one rank -------------------------------------------------------------------------------------------------------


def curve(ranks: Ranks, folder: Path, changes: dict[str, Any]) -> list[tuple[float | None, ...]]:
    """Loss, length of the gradient, evaluation: of every step."""
    run = prepare(settings(folder, **changes), ROWS, HELD_BACK if "evaluation" in changes else (), ranks=ranks)
    run.trainer.run()
    return [(step.loss, step.gradient_norm, step.evaluation_loss) for step in [*run.told.seen, run.trainer.progress]]


def curves(ranks: Ranks, folder: Path, names: list[str]) -> dict[str, list[tuple[float | None, ...]]]:
    return {name: curve(ranks, folder / name, RUNS[name]) for name in names}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[float | None, ...]]]:
    return curves(ALONE, tmp_path_factory.mktemp("alone"), list(RUNS))


@pytest.mark.parametrize(("size", "names"), [(2, list(RUNS)), (4, ON_FOUR)], ids=["2", "4"])
def test_losses_and_gradients_are_those_of_one_rank(tmp_path: Path, alone: dict[str, Any], size: int, names: list[str]) -> None:
    """Rows are of very different lengths, and a batch of one leaves ranks without any."""
    found = together(size, tmp_path, curves, tmp_path, names)

    for name in names:
        expected = alone[name]
        assert [each[name] for each in found] == [found[0][name]] * size, f"{name}: ranks differ"
        near = pytest.approx if "bf16" not in name else lambda value, rel: pytest.approx(value, rel=2e-2)
        for step, values in zip(found[0][name], expected, strict=True):
            for value, other in zip(step, values, strict=True):
                assert value == (other if other is None else near(other, rel=2e-5)), f"{name}: {found[0][name]} and {expected}"


def test_dropout_is_the_same_for_the_same_number_of_ranks(tmp_path: Path) -> None:
    [first, second] = together(2, tmp_path, dropped, tmp_path)

    assert first == second
    assert first[0] == first[1]


def dropped(ranks: Ranks, folder: Path) -> list[Any]:
    return [curve(ranks, folder / name, {"lora": {"dropout": 0.3}, "training": {"steps": 2}}) for name in "ab"]


def test_rows_are_divided_by_their_tokens_and_a_rank_without_any_computes_the_shortest_for_nothing() -> None:
    rows = make_rows([160, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16])

    def lengths(given: list[Example], size: int, pieces: int) -> list[list[tuple[list[int], float]]]:
        ranks = [type(ALONE)(rank, size) for rank in range(size)]
        return [[([len(row.tokens) for row in part], counts) for part, counts in shares(given, each, pieces)] for each in ranks]

    assert lengths(rows, 2, 1) == [[([160], 1.0)], [([16] * 10, 1.0)]]
    assert lengths(rows[:1], 3, 2) == [[([160], 1.0)], [([160], 0.0)], [([160], 0.0)]]
    assert lengths(rows[:3], 2, 2) == [[([160], 1.0), ([16], 1.0)], [([16], 1.0), ([16], 0.0)]]


# --- checkpoints and results -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lora by fsdp", "full by fsdp"])
def test_a_run_goes_on_from_any_number_of_ranks_on_any_other_and_gives_the_same_result(tmp_path: Path, name: str) -> None:
    """Stopped on two ranks, gone on with on one, finished on four."""
    changes = laid(RUNS[name], steps=3) | {"checkpoint": {"every_steps": 1}, "evaluation": {}}
    expected = to_the_end(ALONE, tmp_path / "whole", changes)

    two = together(2, tmp_path, stopped, tmp_path / "run", 1, changes)
    one = stopped(ALONE, tmp_path / "run", 2, changes)
    four = together(4, tmp_path, to_the_end, tmp_path / "run", changes)

    assert [len(losses) for losses in (*two, one, *four)] == [1, 1, 1, 1, 1, 1, 1]
    assert [*two[0], *one, *four[0]] == pytest.approx(expected, rel=1e-5)
    assert Checkpoints(tmp_path / "run" / "checkpoints", 3).steps() == [1, 2, 3]
    results = [tensors(tmp_path / each) for each in ("whole", "run")]
    assert results[0].keys() == results[1].keys()
    for key, tensor in results[0].items():  # the base's is in bf16, which rounds to 0.4 %
        torch.testing.assert_close(results[1][key], tensor, rtol=1e-2, atol=1e-4)


def stopped(ranks: Ranks, folder: Path, last: int, changes: dict[str, Any]) -> list[float]:
    """Losses of a run whose last rank was asked to stop while it made this step."""
    run = prepare(settings(folder, **changes), ROWS, ranks=ranks)
    assert run.trainer._checkpoints.steps()[-1:] == ([] if last == 1 else [last - 1])
    if ranks.rank == ranks.size - 1:
        run.trainer.stop()
    with pytest.raises(Interrupted, match=f"after step {last} of 3"):
        run.trainer.run()
    return run.losses


def to_the_end(ranks: Ranks, folder: Path, changes: dict[str, Any]) -> list[float]:
    """Losses; the results are written: a whole checkpoint, and an adapter where there is one."""
    config = settings(folder, **changes)
    run = prepare(config, ROWS, ranks=ranks)
    run.trainer.run()
    if run.trainee.places:
        export_adapter(config.output, run.trainee.places, config.lora, run.trainee.model.decoder.config, "tiny-glm5", ranks=ranks)
    export_checkpoint(folder / "whole", config.model, run.trainee, ranks=ranks)
    return run.losses


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    files = [*(folder / "whole").glob("*.safetensors"), *(folder / "adapter").glob("*.safetensors")]
    return {key: tensor for file in files for key, tensor in load_file(file).items()}


# --- what isn't finite -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["fsdp", "ddp"])
def test_nan_on_one_rank_ends_all_with_the_same_words(tmp_path: Path, way: str) -> None:
    found = together(2, tmp_path, poisoned, tmp_path, way)

    assert found[0] == found[1]
    assert "loss nan" in found[0]
    assert "first in the output of layer 2; batch of lines " in found[0]
    assert Checkpoints(tmp_path / "checkpoints", 3).steps() == [1]
    assert [path.name for path in (tmp_path / "checkpoints").glob("damaged-*")] == ["damaged-checkpoint-2"]


def poisoned(ranks: Ranks, folder: Path, way: str) -> str:
    steps = 0

    def poison(trainee: Trainee) -> None:
        def hook(_module: object, _inputs: object, output: tuple[Any, object]) -> tuple[Any, object] | None:
            return (output[0] * math.nan, output[1]) if steps >= 2 and ranks.rank == 1 else None

        trainee.model.decoder.layers[2].register_forward_hook(hook)

    def count(progress: Any) -> None:  # noqa: ANN401 - a record
        nonlocal steps
        steps = progress.step

    config = settings(folder, training={"sharding": way, "steps": 30}, checkpoint={"every_steps": 1})
    run = prepare(config, ROWS, change=poison, then=count, ranks=ranks)
    with pytest.raises(NotFinite) as caught:
        run.trainer.run()
    return str(caught.value)


def test_overflows_are_counted_alike_and_the_scale_stays_the_same_on_all(tmp_path: Path) -> None:
    changes = {"training": {"steps": 6, "dtype": "fp16", "sharding": "fsdp"}}
    expected = overflowing(ALONE, tmp_path / "alone", changes)

    found = together(2, tmp_path, overflowing, tmp_path / "both", changes)

    assert found == [expected, expected]
    assert expected[0] > 0


def overflowing(ranks: Ranks, folder: Path, changes: dict[str, Any]) -> tuple[int, float]:
    run = prepare(settings(folder, **changes), ROWS, ranks=ranks)
    run.trainer._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22)
    run.trainer.run()
    assert all(bool(whole(each.detach()).isfinite().all()) for _, each in named_trainable(run.trainee.model))
    return run.trainer.progress.overflows, run.trainer._scaler.get_scale()
