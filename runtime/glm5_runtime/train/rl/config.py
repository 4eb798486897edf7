"""The training file's section `rl`: how answers are made, what they are worth, how far one step may go. No torch here."""

from __future__ import annotations

import re
from pathlib import Path  # noqa: TC003 - pydantic resolves annotations at run time
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from glm5_runtime.train.section import Section

KL = Literal["k1", "k2", "k3"]
Aggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]

_Weight = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class RuleReward(Section):
    """1 for an answer that passes, 0 for another. What is looked at is the text behind the reasoning, trimmed."""

    kind: Literal["rule"]
    rule: Literal["exact", "contains", "starts-with", "regex"] = "exact"
    """What the answer must be, hold or begin with. regex: a match somewhere in it, whose first group, if the pattern has one, must be the
    row's own answer."""
    pattern: str | None = None
    """The text or pattern to look for. Default: the row's own answer, its last assistant turn."""

    @model_validator(mode="after")
    def _can_be_looked_for(self) -> Self:
        if self.rule == "regex":
            if self.pattern is None:
                raise ValueError("rule regex needs a pattern")
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ValueError(f"pattern {self.pattern[:80]!r} is no regular expression: {error}") from error
        elif self.pattern is not None and not self.pattern:
            raise ValueError("pattern is empty: every answer would pass")
        return self


class HttpReward(Section):
    """A service scores: it gets a JSON list of {prompt, answer, reference} and answers with a list of as many numbers."""

    kind: Literal["http"]
    url: str = Field(pattern=r"^https?://[^\s/]")
    timeout: float = Field(60.0, gt=0, le=3600, allow_inf_nan=False)
    """Seconds that one request may take in all."""
    retries: int = Field(3, ge=0, le=20)
    """Times that a request is sent again, after a time-out, a lost connection, or status 429 or 5xx."""


class ModelReward(Section):
    """Another checkpoint scores: the mean log-probability that it gives the answer's tokens.

    GLM-5's checkpoints have no head for scores, so trained reward models are asked over HTTP.
    """

    kind: Literal["model"]
    checkpoint: Path
    """Folder; the same architecture and tokenizer as the model's."""


Reward = Annotated[RuleReward | HttpReward | ModelReward, Field(discriminator="kind")]


class KLConfig(Section):
    """What the distance to the base model costs."""

    coefficient: _Weight = 0.0
    """Of the estimate, added to each token's loss. 0: it is not worked out."""
    estimator: KL = "k3"
    """k1: unbiased, any sign. k2: half its square. k3: unbiased and never negative."""


class RlConfig(Section):
    """Learning from the model's own answers: prompts are the rows without their last assistant turn, which is the reference answer."""

    group: int = Field(8, ge=1, le=256)
    """Answers for each prompt of a batch."""
    max_new_tokens: int = Field(512, ge=1, le=1 << 17)
    """Longest answer, tokens. A longer one is cut, and scored as it is."""
    temperature: float = Field(1.0, ge=0.05, le=5, allow_inf_nan=False)
    """Of the choice of tokens, and of the log-probabilities that are compared."""
    epochs: int = Field(1, ge=1, le=16)
    """Passes over a step's answers."""
    minibatches: int = Field(1, ge=1, le=64)
    """Parts that a pass is cut into, each an update of the optimiser."""
    clip_low: _Share = 0.2
    """A token's probability counts down to 1 - clip_low times that of its choice …"""
    clip_high: _Weight = 0.2
    """… and up to 1 + clip_high times."""
    kl: KLConfig = KLConfig()
    entropy: float = Field(0.0, ge=0, le=1, allow_inf_nan=False)
    """What a nat of entropy is worth; above 0 keeps the answers varied."""
    aggregation: Aggregation = "token-mean"
    """How tokens' losses become one: all tokens alike; answers' sums or means, averaged."""
    length_penalty: float = Field(0.0, ge=0, le=1, allow_inf_nan=False)
    """Taken from an answer's score for each of its tokens."""
    reward: Reward = RuleReward(kind="rule")
    divide_by_spread: bool = True
    """With grpo: advantages are divided by the group's standard deviation. false: Dr.GRPO."""
    gamma: _Share = 1.0
    """With ppo: what a score counts one token earlier."""
    lam: _Share = 0.95
    """With ppo: between the next token's value alone (0) and the whole rest of the answer (1)."""
    value_weight: _Weight = 0.5
    """With ppo: of the value head's loss beside the policy's."""
    value_clip: float = Field(0.2, gt=0, le=100, allow_inf_nan=False)
    """With ppo: how far a value may move from the old one and still gain."""


_OF_ONE_METHOD = {"grpo": ("divide_by_spread",), "ppo": ("gamma", "lam", "value_weight", "value_clip")}


def faults(rl: RlConfig, method: str) -> list[str]:
    """What doesn't go with the method, with the fields' names."""
    found = [
        f"rl.{name} belongs to method {owner}; remove it or change the method"
        for owner, names in _OF_ONE_METHOD.items()
        if owner != method
        for name in names
        if name in rl.model_fields_set
    ]
    if method == "grpo" and rl.group < 2:
        found.append("rl.group: grpo compares answers to the same prompt, so there must be at least 2")
    return found
