"""A request on its way through the engine: its tokens, how far they are computed, its pages. Engine thread only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from glm5_runtime.engine.request import Output, Request, SamplingParams, TokenLogprob


@dataclass(slots=True, eq=False)
class Sequence:
    """Mutable state of one request. `tokens` is prompt plus answer; the first `computed` of them have cache rows in `pages`."""

    request: Request
    sink: Callable[[Output], None]
    stop_ids: frozenset[int]
    seed: int
    tokens: list[int] = field(init=False)
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    produced: int = 0
    scheduled: float | None = None  # when its first step began; a preemption doesn't change it

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)

    @property
    def params(self) -> SamplingParams:
        """The request's sampling parameters."""
        return self.request.params

    @property
    def pending(self) -> int:
        """Tokens not computed yet: 1 while decoding, more while the prompt (or, after a preemption, everything) is read."""
        return len(self.tokens) - self.computed

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether prompt rows still need logits; after a preemption those already taken are kept."""
        return self.params.prompt_logprobs is not None and len(self.prompt_logprobs) < self.prompt_length

    def append(self, token: int) -> None:
        """Add a produced token."""
        self.tokens.append(token)
        self.produced += 1
