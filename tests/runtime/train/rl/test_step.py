"""Whole runs of grpo and ppo by the loop, on the real policy, engine and rewards."""

from __future__ import annotations

import math
from statistics import mean
from typing import TYPE_CHECKING, Any

import pytest
import torch

from glm5_runtime.train.faults import NotFinite
from glm5_runtime.train.optimizer import named_trainable
from glm5_runtime.train.rl.policy import PolicyModel
from glm5_runtime.train.rl.rollout import Prompt
from glm5_runtime.train.rl.run import run as run_rows
from tests.runtime.train.rl.runs import CPU, NO_E, renderer, rows_of, settings, train
from tests.runtime.train.rows import share_numbers
from tests.runtime.train.runs import Told

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from glm5_runtime.train.build import Trainee
    from glm5_runtime.train.progress import Progress
    from glm5_runtime.train.rl.rollout import Answer
    from tests.runtime.train.runs import Run


def facts(run: Run, name: str) -> list[float]:
    return [progress.rl[name] for progress in run.told.seen if progress.rl is not None]


def weights(run: Run) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in named_trainable(run.trainee.model)}


@pytest.mark.parametrize("method", ["grpo", "ppo"])
def test_answers_get_better_by_what_they_are_rewarded_for(tmp_path: Path, method: str) -> None:
    """From one in six to most; with advantages of the wrong sign it goes to none."""
    rows = rows_of(tmp_path)

    run = train(settings(tmp_path, method, training={"steps": 16, "schedule": "constant", "learning_rate": 5e-3}), rows)

    rewards = facts(run, "reward")
    assert mean(rewards[-4:]) > mean(rewards[:2]) + 0.35, rewards


@pytest.mark.parametrize("method", ["grpo", "ppo"])
def test_two_passes_in_two_updates_learn_too_and_move_away_from_the_answers_own_policy(tmp_path: Path, method: str) -> None:
    rows = rows_of(tmp_path)

    run = train(settings(tmp_path, method, rl={"epochs": 2, "minibatches": 2}, training={"steps": 8}), rows)

    rewards = facts(run, "reward")
    assert mean(rewards[-3:]) > mean(rewards[:2]) + 0.3, rewards
    assert max(facts(run, "clipped")) > 0
    assert max(facts(run, "kl")) > 1e-3


@pytest.mark.parametrize("method", ["grpo", "ppo"])
def test_a_run_that_is_stopped_goes_on_as_if_it_had_not_been(tmp_path: Path, method: str) -> None:
    config = {"rl": {"epochs": 2, "kl": {"coefficient": 0.1}}, "checkpoint": {"every_steps": 2}}
    rows = rows_of(tmp_path)
    whole = train(settings(tmp_path, method, **config), rows)
    assert len(whole.told.seen) == 4

    def stop(progress: Progress) -> None:
        if progress.step == 3:
            raise KeyboardInterrupt

    again: dict[str, Any] = {**config, "checkpoint": {"every_steps": 2, "directory": tmp_path / "other"}}
    with pytest.raises(KeyboardInterrupt):
        train(settings(tmp_path, method, **again), rows, then=stop)
    resumed = train(settings(tmp_path, method, **again), rows)

    assert [each.step for each in resumed.told.seen] == [3, 4]
    assert [each.rl for each in resumed.told.seen] == [each.rl for each in whole.told.seen[2:]]
    assert resumed.losses == whole.losses[2:]
    assert all(torch.equal(one, weights(resumed)[name]) for name, one in weights(whole).items())


def test_the_first_update_of_a_step_finds_the_policy_that_made_the_answers(tmp_path: Path) -> None:
    run = train(settings(tmp_path, training={"steps": 3}), rows_of(tmp_path))

    assert facts(run, "kl") == pytest.approx([0.0] * 3, abs=1e-5)
    assert facts(run, "clipped") == [0.0] * 3


def test_the_distance_to_the_base_is_nothing_at_first_and_is_kept_small_by_its_weight(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    held, free = (
        train(
            settings(tmp_path, rl={"kl": {"coefficient": weight}}, training={"steps": 8}, checkpoint={"directory": tmp_path / name}), rows
        )
        for name, weight in (("held", 5.0), ("free", 1e-6))
    )

    assert facts(free, "kl_to_base")[0] == pytest.approx(0.0, abs=1e-5)
    assert facts(free, "kl_to_base")[-1] > 0.05
    assert facts(held, "kl_to_base")[-1] < facts(free, "kl_to_base")[-1] / 3


def test_the_base_is_the_model_without_its_adapters(tmp_path: Path) -> None:
    """Adapters far from zero: the distance is large from the first step on."""

    def change(trainee: Trainee) -> None:
        share_numbers(None, dict(trainee.places))

    run = train(settings(tmp_path, rl={"kl": {"coefficient": 0.1}}, training={"steps": 1}), rows_of(tmp_path), change=change)

    assert facts(run, "kl_to_base")[0] > 0.05
    assert facts(run, "kl")[0] == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("method", ["grpo", "ppo"])
def test_micro_batches_give_the_same_update(tmp_path: Path, method: str) -> None:
    rows = rows_of(tmp_path)
    runs = [
        train(
            settings(
                tmp_path,
                method,
                rl={"aggregation": "seq-mean-token-mean", "entropy": 0.01},
                training={"steps": 1, "gradient_accumulation": pieces},
                checkpoint={"directory": tmp_path / str(pieces)},
            ),
            rows,
        )
        for pieces in (1, 3)
    ]

    assert runs[1].losses == pytest.approx(runs[0].losses, abs=1e-5)
    assert runs[1].told.seen[0].gradient_norm == pytest.approx(runs[0].told.seen[0].gradient_norm, rel=1e-3)


def test_the_value_head_learns_what_answers_are_worth(tmp_path: Path) -> None:
    """Every answer is worth 0.5, and gamma is 1: so is every state."""

    def score(answers: Sequence[Answer]) -> list[float]:
        return [0.5] * len(answers)

    config = settings(tmp_path, "ppo", rl={"epochs": 4, "value_weight": 1.0, "value_clip": 10.0}, training={"steps": 6})
    run = train(config, rows_of(tmp_path), score)

    losses = facts(run, "value_loss")
    assert losses[0] > 0.03
    assert losses[-1] < losses[0] / 5
    model = run.trainee.model
    assert isinstance(model, PolicyModel)
    assert model.value_head is not None
    assert model.value_head.weight.dtype == torch.float32


def test_grpo_has_no_value_head_and_the_adapters_are_all_that_changes(tmp_path: Path) -> None:
    run = train(settings(tmp_path, training={"steps": 2}), rows_of(tmp_path))

    assert all(".adapters." in name for name in weights(run))


def test_steps_tell_reward_length_and_how_many_ended(tmp_path: Path) -> None:
    run = train(settings(tmp_path, rl={"reward": {**NO_E, "pattern": "no such text"}}, training={"steps": 1}), rows_of(tmp_path))

    progress = run.trainer.progress
    assert progress.rl is not None
    assert progress.rl["reward"] == 0.0
    assert progress.rl["reward_spread"] == 0.0
    assert 1 <= progress.rl["answer_tokens"] <= 12
    assert 0 <= progress.rl["ended"] <= 1
    assert 0 < progress.rl["entropy"] < math.log(2048)
    assert progress.to_json()["rl"] == progress.rl
    assert " reward 0.000 " in str(progress)
    # Answers that are all alike teach nothing.
    assert progress.loss == 0.0
    assert progress.gradient_norm == 0.0
    assert progress.tokens == sum(len(row.tokens) for row in prompts_only(tmp_path)) * 8 + round(progress.rl["answer_tokens"] * 32)


def prompts_only(folder: Path) -> list[Any]:
    return [Prompt.of(row) for row in rows_of(folder)]


def test_values_that_are_not_finite_end_the_run_before_they_are_learned_from(tmp_path: Path) -> None:
    def change(trainee: Trainee) -> None:
        assert isinstance(trainee.model, PolicyModel)
        assert trainee.model.value_head is not None
        with torch.no_grad():
            trainee.model.value_head.bias.fill_(torch.nan)

    with pytest.raises(NotFinite, match=r"step 1: .*value"):
        train(settings(tmp_path, "ppo"), rows_of(tmp_path), change=change)


def test_a_benchmark_runs_steps_on_rows_in_memory(tmp_path: Path) -> None:
    told = Told()

    last = run_rows(
        settings(tmp_path, training={"steps": 2, "batch_size": 3}), rows_of(tmp_path), told, lambda answers: [1.0] * len(answers)
    )

    assert [each.step for each in told.seen] == [1, 2]
    assert last.rl is not None
    assert last.rl["reward"] == 1.0


def test_bf16_learns_too(tmp_path: Path) -> None:
    run = train(settings(tmp_path, training={"steps": 12, "dtype": "bf16"}), rows_of(tmp_path))

    rewards = facts(run, "reward")
    assert mean(rewards[-3:]) > mean(rewards[:2]) + 0.3, rewards
    assert renderer() is not None
    assert run.trainee.model.decoder.embed_tokens.weight.device == CPU
