"""Whole runs on tiny-glm5 in this process: a file of settings, rows made by hand, the real loop."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import torch

from glm5_runtime.train.build import build
from glm5_runtime.train.checkpoint import Checkpoints
from glm5_runtime.train.config import TrainConfig
from glm5_runtime.train.distributed.ranks import ALONE
from glm5_runtime.train.loop import Trainer
from tests.runtime.train.conftest import TINY
from tests.runtime.train.rows import make_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from glm5_runtime.train.build import Trainee
    from glm5_runtime.train.data.example import Example
    from glm5_runtime.train.distributed.ranks import Ranks
    from glm5_runtime.train.progress import Progress

LENGTHS = [17, 40, 33, 70, 25, 90, 64, 31, 48, 22]


@dataclass
class Rows:
    """Batches of equal size in an order that the epoch decides; the rest of an epoch is left out."""

    rows: Sequence[Example]
    size: int = 4

    def epoch(self, number: int) -> list[list[Example]]:
        order = list(self.rows)
        random.Random(number).shuffle(order)
        return [order[at : at + self.size] for at in range(0, len(order) - self.size + 1, self.size)]


@dataclass
class Told:
    """A reporter that remembers; `then` may do something after a step, such as fail."""

    then: Callable[[Progress], None] | None = None
    seen: list[Progress] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __call__(self, progress: Progress) -> None:
        self.seen.append(progress)
        if self.then is not None:
            self.then(progress)

    @property
    def losses(self) -> list[float]:
        return [progress.loss for progress in self.seen if progress.loss is not None]


def settings(folder: Path, **changes: Any) -> TrainConfig:  # noqa: ANN401 - any section of the file
    """A file of settings that is quick; sections given are laid over it."""
    raw: dict[str, Any] = {
        "model": TINY,
        "data": {"files": ["rows.jsonl"]},
        "lora": {"rank": 16, "alpha": 32, "dropout": 0.1},
        "training": {"steps": 6, "batch_size": 4, "dtype": "fp32", "learning_rate": 2e-3, "device": "cpu"},
        "checkpoint": {"directory": folder / "checkpoints", "every_steps": 100},
        "output": folder / "adapter",
    }
    for section, values in changes.items():
        raw[section] = raw.get(section, {}) | values if isinstance(values, dict) else values
    if raw.get("method") == "full":
        raw.pop("lora")
    return TrainConfig.model_validate(raw)


@dataclass
class Run:
    """One run that has ended, or failed with what `trainer.run` raised."""

    trainee: Trainee
    trainer: Trainer
    told: Told

    @property
    def losses(self) -> list[float]:
        return self.told.losses


def prepare(
    config: TrainConfig,
    rows: Sequence[Example] | None = None,
    held_back: Sequence[Sequence[Example]] = (),
    *,
    then: Callable[[Progress], None] | None = None,
    change: Callable[[Trainee], None] | None = None,
    ranks: Ranks = ALONE,
) -> Run:
    trainee = build(config, torch.device("cpu"), ranks)
    if change is not None:
        change(trainee)
    told = Told(then)
    checkpoints = Checkpoints(config.checkpoint.directory, config.checkpoint.keep, ranks)
    batches = Rows(rows or make_rows(LENGTHS), config.training.batch_size)
    return Run(trainee, Trainer(trainee.model, config, batches, held_back, checkpoints, report=told, ranks=ranks), told)


def train(config: TrainConfig, **given: Any) -> Run:  # noqa: ANN401 - those of `prepare`
    run = prepare(config, **given)
    run.trainer.run()
    return run
