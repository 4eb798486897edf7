"""Reinforcement learning on tiny-glm5 in this process: questions as rows, the real policy, engine and rewards."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from glm5_runtime.train.checkpoint import Checkpoints
from glm5_runtime.train.config import TrainConfig
from glm5_runtime.train.data import reading
from glm5_runtime.train.data.labels import Renderer
from glm5_runtime.train.loop import Trainer
from glm5_runtime.train.rl.policy import PolicyModel, build_policy
from glm5_runtime.train.rl.rollout import Prompt, Rollouts
from glm5_runtime.train.rl.run import learning
from tests.runtime.train.conftest import TINY
from tests.runtime.train.runs import Rows, Run, Told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from glm5_runtime.train.build import Trainee
    from glm5_runtime.train.data.example import Example
    from glm5_runtime.train.progress import Progress
    from glm5_runtime.train.rl.rewards import Scorer

CPU = torch.device("cpu")
QUESTIONS = {"Say yes": "Yes, I do", "What is a river?": "Water", "Tell me of the sea": "It is wide", "Who are you?": "A model"}
NO_E = {"kind": "rule", "rule": "regex", "pattern": r"^[^e]+$"}
"""An answer that has something in it, and no letter e: one in six of the untrained model's."""


@cache
def renderer() -> Renderer:
    return Renderer.from_dir(TINY)


def rows_of(folder: Path, questions: dict[str, str] | None = None) -> list[Example]:
    """Rows as the command reads them."""
    path = folder / "questions.jsonl"
    asked = QUESTIONS if questions is None else questions
    path.write_text("".join(json.dumps({"instruction": question, "output": answer}) + "\n" for question, answer in asked.items()))
    data, _ = reading.load([path], renderer(), reading.ReadingConfig(1024))
    return list(data)


def settings(folder: Path, method: str = "grpo", **changes: Any) -> TrainConfig:  # noqa: ANN401 - any section of the file
    raw: dict[str, Any] = {
        "model": TINY,
        "method": method,
        "data": {"files": [folder / "questions.jsonl"]},
        "lora": {"rank": 16, "alpha": 32},
        "rl": {"group": 8, "max_new_tokens": 12, "reward": NO_E},
        "training": {"steps": 4, "batch_size": 4, "dtype": "fp32", "learning_rate": 3e-3, "device": "cpu"},
        "checkpoint": {"directory": folder / "checkpoints", "every_steps": 100},
        "output": folder / "adapter",
    }
    for section, values in changes.items():
        raw[section] = raw.get(section, {}) | values if isinstance(values, dict) else values
    return TrainConfig.model_validate(raw)


@dataclass
class Made:
    """A policy and an engine around it."""

    trainee: Trainee
    model: PolicyModel
    rollouts: Rollouts


@contextmanager
def rolling(config: TrainConfig, rows: Sequence[Example]) -> Iterator[Made]:
    trainee = build_policy(config, CPU)
    assert isinstance(trainee.model, PolicyModel)
    assert config.rl is not None
    longest = max(len(Prompt.of(row).tokens) for row in rows)
    rollouts = Rollouts(trainee.model.decoder, config.rl, config.training.seed, longest_prompt=longest, at_once=len(rows) * config.rl.group)
    trainee.model.eval()
    try:
        yield Made(trainee, trainee.model, rollouts)
    finally:
        rollouts.close()


def train(
    config: TrainConfig,
    rows: Sequence[Example],
    score: Scorer | None = None,
    change: Callable[[Trainee], None] | None = None,
    then: Callable[[Progress], None] | None = None,
) -> Run:
    """A whole run by the loop."""
    trainee = build_policy(config, CPU)
    if change is not None:
        change(trainee)
    told = Told(then)
    checkpoints = Checkpoints(config.checkpoint.directory, config.checkpoint.keep)
    with learning(config, trainee.model, rows, score) as learn:
        trainer = Trainer(trainee.model, config, Rows(rows, config.training.batch_size), [], checkpoints, report=told, learn=learn)
        trainer.run()
    return Run(trainee, trainer, told)
