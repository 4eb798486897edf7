"""The section `rl` of a GLM5FinetuneJob: how answers are made, what they are worth, how far one step may go.

Read by `finetune`. The docstring of a field is what `kubectl explain` prints; names and meanings are those of the runtime's training file.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from .common import Model
from .rules import validations

RewardKind = Literal["rule", "http"]
RewardRule = Literal["exact", "contains", "starts-with", "regex"]
Estimator = Literal["k1", "k2", "k3"]
Aggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]


class RewardSpec(Model):
    """What an answer is worth."""

    model_config = ConfigDict(json_schema_extra=validations("reward-rule", "reward-http"))

    kind: RewardKind
    """rule: 1 for an answer that passes and 0 for another, by the text behind the reasoning. http: a service scores."""
    rule: RewardRule | None = None
    """With kind rule: what the answer must be, hold or begin with; regex: a match in it, whose first group, if there is one, must be the
    row's own answer. Default: exact.
    """
    pattern: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """With kind rule: the text or pattern to look for. Default: the row's own answer, its last assistant turn."""
    url: Annotated[str, Field(max_length=1024, json_schema_extra=validations("reward-url"))] | None = None
    """With kind http: gets a JSON list of {prompt, answer, reference} by POST, and answers with a list of as many numbers."""
    timeout: Annotated[float, Field(ge=0.001, le=3600)] | None = None
    """With kind http: seconds that one request may take in all. Default: 60."""
    retries: Annotated[int, Field(ge=0, le=20)] | None = None
    """With kind http: times that a request is sent again. Default: 3."""


class KLSpec(Model):
    """What the distance to the base model costs."""

    coefficient: Annotated[float, Field(ge=0, le=10)]
    """Of the estimate, added to each token's loss. 0: it is not worked out."""
    estimator: Estimator | None = None
    """k1: unbiased, any sign. k2: half its square. k3: unbiased and never negative. Default: k3."""


class RlSpec(Model):
    """Learning from the model's own answers: prompts are the rows without their last assistant turn."""

    group: Annotated[int, Field(ge=1, le=256)] | None = None
    """Answers for each prompt of a batch; grpo needs at least 2. Default: 8."""
    max_new_tokens: Annotated[int, Field(ge=1, le=131072)] | None = None
    """Longest answer, tokens. Default: 512."""
    temperature: Annotated[float, Field(ge=0.05, le=5)] | None = None
    """Of the choice of tokens. Default: 1."""
    epochs: Annotated[int, Field(ge=1, le=16)] | None = None
    """Passes over a step's answers. Default: 1."""
    minibatches: Annotated[int, Field(ge=1, le=64)] | None = None
    """Parts that a pass is cut into, each an update of the optimiser. Default: 1."""
    clip_low: Annotated[float, Field(ge=0, le=1)] | None = None
    """A token's probability counts down to 1 - clipLow times that of its choice. Default: 0.2."""
    clip_high: Annotated[float, Field(ge=0, le=10)] | None = None
    """And up to 1 + clipHigh times. Default: 0.2."""
    kl: KLSpec | None = None
    """What the distance to the base model costs. Default: nothing."""
    entropy: Annotated[float, Field(ge=0, le=1)] | None = None
    """What a nat of entropy is worth; above 0 keeps the answers varied. Default: 0."""
    aggregation: Aggregation | None = None
    """How tokens' losses become one: all tokens alike; answers' sums or means, averaged. Default: token-mean."""
    length_penalty: Annotated[float, Field(ge=0, le=1)] | None = None
    """Taken from an answer's score for each of its tokens. Default: 0."""
    divide_by_spread: bool | None = None
    """With grpo: whether advantages are divided by the group's standard deviation. Default: true."""
    gamma: Annotated[float, Field(ge=0, le=1)] | None = None
    """With ppo: what a score counts one token earlier. Default: 1."""
    lam: Annotated[float, Field(ge=0, le=1)] | None = None
    """With ppo: between the next token's value alone and the whole rest of the answer. Default: 0.95."""
    value_weight: Annotated[float, Field(ge=0, le=10)] | None = None
    """With ppo: of the value head's loss beside the policy's. Default: 0.5."""
    value_clip: Annotated[float, Field(ge=0.001, le=100)] | None = None
    """With ppo: how far a value may move from the old one and still gain. Default: 0.2."""
    reward: RewardSpec
    """What an answer is worth."""
