"""Putting the step of grpo or ppo together: engine, rewards and buffer around a policy. Called by the command and by benchmarks."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glm5_runtime.engine.load import torch_device
from glm5_runtime.text.tokens import TextTokenizer
from glm5_runtime.train.checkpoint import Checkpoints
from glm5_runtime.train.loop import Trainer
from glm5_runtime.train.rl.policy import PolicyModel, build_policy
from glm5_runtime.train.rl.rewards import scorer
from glm5_runtime.train.rl.rollout import Prompt, Rollouts
from glm5_runtime.train.rl.step import RlStep

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from glm5_runtime.train.config import TrainConfig
    from glm5_runtime.train.data.example import Example
    from glm5_runtime.train.forward import TrainingModel
    from glm5_runtime.train.progress import Progress, Reporter
    from glm5_runtime.train.rl.rewards import Scorer


@contextmanager
def learning(config: TrainConfig, model: TrainingModel, rows: Iterable[Example], score: Scorer | None = None) -> Iterator[RlStep]:
    """What `Trainer` is given as `learn`. `model` is `build_policy`'s; `rows` are all that may come, for the longest prompt.

    `score`: in the place of what `rl.reward` says. Raises ConfigError, WeightsError.
    """
    assert isinstance(model, PolicyModel)
    assert config.rl is not None, "the method has the section"
    longest = max((len(Prompt.of(row).tokens) for row in rows), default=0)
    device = model.decoder.embed_tokens.weight.device
    score = score or scorer(config, TextTokenizer.from_dir(config.model), device)
    at_once = config.training.batch_size * config.rl.group
    rollouts = Rollouts(model.decoder, config.rl, config.training.seed, longest_prompt=longest, at_once=at_once)
    try:
        yield RlStep(model, config, rollouts, score, longest_prompt=longest)
    finally:
        rollouts.close()


@dataclass(frozen=True)
class InOrder:
    """Rows as `loop.Batches`: so many at a time, in their order, the same in every epoch."""

    rows: Sequence[Example]
    size: int

    def epoch(self, number: int) -> Sequence[Sequence[Example]]:
        """The last batch may be smaller."""
        return [self.rows[at : at + self.size] for at in range(0, len(self.rows), self.size)]


def run(config: TrainConfig, rows: Sequence[Example], report: Reporter, score: Scorer | None = None) -> Progress:
    """A whole run on rows in memory, in their order, for benchmarks: nothing is published. `report` is called after every step."""
    model = build_policy(config, torch_device(config.training.device)).model
    checkpoints = Checkpoints(config.checkpoint.directory, config.checkpoint.keep)
    batches = InOrder(rows, config.training.batch_size)
    with learning(config, model, rows, score) as learn:
        return Trainer(model, config, batches, [], checkpoints, report=report, learn=learn).run()
