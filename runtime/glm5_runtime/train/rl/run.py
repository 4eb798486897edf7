"""Putting the step of grpo or ppo together: engine, rewards and buffer around a policy. Called by the command and by benchmarks."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from glm5_runtime.text.tokens import TextTokenizer
from glm5_runtime.train.rl.policy import PolicyModel
from glm5_runtime.train.rl.rewards import scorer
from glm5_runtime.train.rl.rollout import Prompt, Rollouts
from glm5_runtime.train.rl.step import RlStep

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from glm5_runtime.train.config import TrainConfig
    from glm5_runtime.train.data.example import Example
    from glm5_runtime.train.forward import TrainingModel
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
