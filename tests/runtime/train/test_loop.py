"""The loop on the real model: what a step learns, what it leaves out, when it ends."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.amp.grad_scaler import GradScaler

from glm5_runtime.config import ConfigError
from glm5_runtime.train.config import TrainingConfig
from glm5_runtime.train.faults import MOST_IN_A_ROW, NotFinite
from glm5_runtime.train.optimizer import adamw, named_trainable, rate_factor
from tests.runtime.train.rows import make_rows
from tests.runtime.train.runs import LENGTHS, prepare, settings, train

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from glm5_runtime.train.build import Trainee
    from glm5_runtime.train.progress import Progress
    from tests.runtime.train.runs import Run


def weights(run: Run) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in named_trainable(run.trainee.model)}


def test_the_loss_of_a_few_rows_falls_to_nothing_much(tmp_path: Path) -> None:
    config = settings(
        tmp_path,
        lora={"targets": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj", "experts"], "alpha": 64},
        training={"steps": 60, "batch_size": 2, "learning_rate": 5e-3},
    )

    run = train(config, rows=make_rows([24, 30]))

    assert run.losses[0] > 8
    assert run.losses[-1] < run.losses[0] / 3


def test_the_same_seed_gives_the_same_losses_to_the_last_bit_and_another_seed_others(tmp_path: Path) -> None:
    first, second = (train(settings(tmp_path / name, training={"dtype": "bf16"})) for name in "ab")
    other = train(settings(tmp_path / "c", training={"dtype": "bf16", "seed": 1}))

    assert first.losses == second.losses
    assert first.losses[1:] != other.losses[1:]
    assert all(torch.equal(one, weights(second)[name]) for name, one in weights(first).items())


@pytest.mark.parametrize("pieces", [2, 3, 4])
def test_a_batch_cut_into_micro_batches_gives_the_same_steps(tmp_path: Path, pieces: int) -> None:
    """The rows have very different numbers of learned tokens, so a mean of means would not do."""
    rows = make_rows([16, 120, 40, 70, 33, 21, 90, 18])
    whole = train(settings(tmp_path / "whole", lora={"dropout": 0.0}), rows=rows)

    cut = train(settings(tmp_path / "cut", lora={"dropout": 0.0}, training={"gradient_accumulation": pieces}), rows=rows)

    assert cut.losses == pytest.approx(whole.losses, abs=2e-4)


@pytest.mark.parametrize("method", ["lora", "full"])
def test_activation_checkpointing_changes_nothing_with_dropout_on(tmp_path: Path, method: str) -> None:
    plain = train(settings(tmp_path / "plain", method=method))

    saving = train(settings(tmp_path / "saving", method=method, training={"activation_checkpointing": True}))

    assert saving.losses == plain.losses


@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_shorter_types_learn_what_fp32_learns_and_keep_what_is_trained_in_fp32(tmp_path: Path, method: str, dtype: str) -> None:
    rate = {"learning_rate": 2e-4} if method == "full" else {}
    truth = train(settings(tmp_path / "fp32", method=method, training=rate))

    run = prepare(settings(tmp_path / dtype, method=method, training={"dtype": dtype, **rate}))
    run.trainer._scaler = GradScaler("cpu", init_scale=256.0, enabled=dtype == "fp16")  # no overflow, which leaves a step out
    run.trainer.run()

    assert run.losses == pytest.approx(truth.losses, abs=0.05)
    assert {parameter.dtype for _, parameter in named_trainable(run.trainee.model)} == {torch.float32}
    router = run.trainee.model.decoder.layers[1].mlp.gate
    assert router.weight.dtype == torch.float32


def test_full_training_reaches_every_parameter_but_those_that_only_choose(tmp_path: Path) -> None:
    run = prepare(settings(tmp_path, method="full"))
    before = weights(run)

    run.trainer.run()

    unchanged = {name for name, parameter in weights(run).items() if torch.equal(parameter, before[name])}
    frozen = {name for name, parameter in run.trainee.model.named_parameters() if not parameter.requires_grad}
    assert unchanged == set()
    assert all("indexer" in name or name.endswith("e_score_correction_bias") for name in frozen)
    assert len(frozen) > 10


def test_decay_acts_on_matrices_alone(tmp_path: Path) -> None:
    config = settings(tmp_path, method="full", training={"weight_decay": 0.3})
    run = prepare(config)

    decayed, kept = adamw(run.trainee.model, config.training).param_groups

    assert {parameter.dim() for parameter in decayed["params"]} == {2, 3}
    assert {parameter.dim() for parameter in kept["params"]} == {1}
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.3, 0.0)


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0.0, [1, 1, 1, 1]),
        ("constant", 0.5, [0.5, 1, 1, 1]),
        ("linear", 0.0, [1, 0.75, 0.5, 0.25]),
        ("cosine", 0.0, [1, 0.853553, 0.5, 0.146447]),
        ("cosine", 0.5, [0.5, 1, 1, 0.5]),
        ("linear", 0.01, [1, 1, 2 / 3, 1 / 3]),
    ],
)
def test_the_rate_of_each_step(schedule: Any, warmup: float, expected: list[float]) -> None:  # noqa: ANN401 - one of three words
    rising = TrainingConfig(warmup=warmup).rising(4)

    assert [rate_factor(step, 4, schedule, rising) for step in range(4)] == pytest.approx(expected, abs=1e-5)


def test_a_warm_up_of_so_many_steps_is_as_long_whatever_the_run() -> None:
    assert [TrainingConfig(warmup_steps=30).rising(total) for total in (100, 1000)] == [30, 30]


def test_a_long_gradient_is_shortened_to_the_clip(tmp_path: Path) -> None:
    run = prepare(settings(tmp_path, training={"steps": 1, "clip": 0.01}))
    run.trainer.run()

    clipped = torch.nn.utils.get_total_norm([p.grad for _, p in named_trainable(run.trainee.model) if p.grad is not None])

    assert run.trainer.progress.gradient_norm is not None
    assert run.trainer.progress.gradient_norm > 0.1
    assert float(clipped) == pytest.approx(0.01, rel=1e-3)


# --- what isn't finite ------------------------------------------------------------------------------------------------------


class Poison:
    """Puts NaN into the output of a layer in some steps."""

    def __init__(self, layer: int, steps: range) -> None:
        self.layer, self.steps, self.step = layer, steps, 0

    def install(self, trainee: Trainee) -> None:
        def hook(_module: object, _inputs: object, output: tuple[Tensor, object]) -> tuple[Tensor, object] | None:
            return (output[0] * math.nan, output[1]) if self.step in self.steps else None

        trainee.model.decoder.layers[self.layer].register_forward_hook(hook)

    def count(self, progress: Progress) -> None:
        self.step = progress.step


def test_one_step_with_nan_is_left_out_with_a_warning_and_training_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    poison = Poison(2, range(3, 4))

    run = train(settings(tmp_path), change=poison.install, then=poison.count)

    assert [math.isfinite(loss) for loss in run.losses] == [True, True, True, False, True, True]
    assert run.trainer.progress.skipped == 1
    assert run.trainer.progress.overflows == 0
    [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "step 4: loss nan" in warning
    assert "first in the output of layer 2;" in warning
    assert all(bool(tensor.isfinite().all()) for tensor in weights(run).values())
    assert run.told.seen[3].to_json()["loss"] is None


def test_nan_without_end_stops_the_run_and_names_step_layer_and_rows(tmp_path: Path) -> None:
    poison = Poison(1, range(2, 100))
    run = prepare(settings(tmp_path, training={"steps": 50}, checkpoint={"every_steps": 2}), change=poison.install, then=poison.count)

    with pytest.raises(NotFinite, match=rf"step {2 + MOST_IN_A_ROW}: loss nan.*the output of layer 1; batch of lines \d") as caught:
        run.trainer.run()

    assert "lower the learning rate" in str(caught.value)
    assert len(run.told.seen) == 2 + MOST_IN_A_ROW - 1
    assert run.trainer._checkpoints.steps() == []  # the weights after step 2 are those that gave NaN


def test_a_rate_out_of_all_proportion_stops_the_run_and_leaves_the_last_good_checkpoint(tmp_path: Path) -> None:
    """D11: the run used to go on with a loss of 0.0 for hours and succeed."""
    good = settings(tmp_path, training={"steps": 100}, checkpoint={"every_steps": 1})

    def stop(progress: Progress) -> None:
        if progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(good, then=stop)
    wild = settings(tmp_path, training={"steps": 100, "learning_rate": 1e30}, checkpoint={"every_steps": 1})
    run = prepare(wild)
    with pytest.raises(NotFinite):
        run.trainer.run()

    saved = run.trainer._checkpoints.newest()
    assert saved is not None
    assert saved.step == 2
    again = train(settings(tmp_path, training={"steps": 5}, checkpoint={"every_steps": 1}))
    assert [progress.step for progress in again.told.seen] == [3, 4, 5]
    assert all(loss < 12 for loss in again.losses)


def test_fp16_halves_its_scale_until_gradients_fit_and_counts_that(tmp_path: Path) -> None:
    run = prepare(settings(tmp_path, training={"steps": 12, "dtype": "fp16"}))
    run.trainer._scaler = GradScaler("cpu", init_scale=2.0**24)

    run.trainer.run()

    progress = run.trainer.progress
    assert progress.overflows > 0
    assert progress.skipped == 0
    assert run.trainer._scaler.get_scale() == 2.0 ** (24 - progress.overflows)
    assert run.losses[-1] < run.losses[0]


# --- evaluation and the end -------------------------------------------------------------------------------------------------


def test_training_stops_when_the_held_back_rows_get_no_better_and_ends_with_the_best_weights(tmp_path: Path) -> None:
    """Rows of random tokens: what is learned of some says nothing of others, whose loss soon rises."""
    rows = make_rows([40, 44, 50, 41])
    held_back = [make_rows([60, 48], seed=9)]
    config = settings(tmp_path, training={"steps": 200, "learning_rate": 2e-2}, evaluation={"share": 0.2, "every_steps": 2, "patience": 2})

    run = prepare(config, rows=rows, held_back=held_back)
    run.trainer.run()

    losses = {progress.step: progress.evaluation_loss for progress in run.told.seen}
    last = run.trainer.progress
    assert last.step < 200
    best = run.trainer._state.best_step
    assert best == last.step - 4
    assert run.trainer.evaluate() == pytest.approx(run.trainer._state.best_loss, abs=1e-6)
    assert losses[best + 1] == pytest.approx(run.trainer._state.best_loss, abs=1e-6)


def test_an_evaluation_draws_nothing_at_random(tmp_path: Path) -> None:
    held_back = [make_rows([60, 48], seed=9)]
    seen = train(settings(tmp_path / "with", evaluation={"share": 0.2, "every_steps": 1}), held_back=held_back)
    unseen = train(settings(tmp_path / "without"))

    assert seen.trainer.evaluate() == seen.trainer.evaluate()
    assert seen.losses == unseen.losses


def test_progress_says_how_far_it_is(tmp_path: Path) -> None:
    config = settings(tmp_path, training={"steps": None, "epochs": 3}, checkpoint={"every_steps": 2})

    run = train(config, rows=make_rows(LENGTHS))

    assert [(p.step, p.total, p.epoch) for p in run.told.seen] == [
        (1, 6, 0.5),
        (2, 6, 1.0),
        (3, 6, 1.5),
        (4, 6, 2.0),
        (5, 6, 2.5),
        (6, 6, 3.0),
    ]
    last = run.told.seen[-1]
    assert last.eta_seconds == 0
    assert last.tokens_per_second > 0
    assert last.tokens == sum(LENGTHS[i] for i in range(len(LENGTHS))) * 3 - left_out(run)
    assert str(last).startswith("step 6/6 epoch 3.00 loss ")


def left_out(run: Run) -> int:
    """Tokens of the two rows that are left over in each epoch."""
    batches = run.trainer._batches
    return 3 * sum(LENGTHS) - sum(len(row.tokens) for number in range(3) for batch in batches.epoch(number) for row in batch)


def test_no_rows_are_an_error_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no batch"):
        prepare(settings(tmp_path, training={"batch_size": 50}))
