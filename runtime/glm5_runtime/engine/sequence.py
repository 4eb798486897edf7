"""A request on its way through the engine: its tokens, how far they are computed, its pages. Engine thread only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from glm5_runtime.engine.blocks import first_name, next_name
from glm5_runtime.engine.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable

    from glm5_runtime.engine.blocks import PageName
    from glm5_runtime.engine.queues import Client, Tier
    from glm5_runtime.engine.request import Output, Request, SamplingParams, TokenLogprob


@dataclass(slots=True, eq=False)
class Sequence:
    """Mutable state of one request. `tokens` is prompt plus answer; the first `computed` of them have cache rows in `pages`."""

    request: Request
    sink: Callable[[Output], None]
    stop_ids: frozenset[int]
    seed: int
    adapter: int = 0  # number of the adapter that it holds
    sampling: Sampling = field(init=False)
    tokens: list[int] = field(init=False)
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    named: int = 0  # of its pages, so many are known to the pool by name
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    produced: int = 0
    scheduled: float | None = None  # when its first step began; a preemption doesn't change it
    cached: int = 0  # tokens that the prefix cache held then
    drafts: list[int] = field(default_factory=list)  # guesses of what follows, computed with the next token to be checked
    places: dict[tuple[int, ...], int] = field(default_factory=dict)  # what stood where, for guesses from the text itself
    learnt: int = 0  # tokens that `places` knows
    # What the scheduler notes; nobody else writes these.
    tier: Tier = field(init=False)
    client: Client = field(init=False)
    number: int = 0  # order of arrival
    replica: int = 0  # the data rank that has its pages
    rank: tuple[int, int] | None = None  # priority, then order of first admission
    running: bool = False
    reading: bool = False  # it runs and its prompt isn't planned to the end
    awaits: PageName | None = None  # the last page that another is reading for it
    _names: list[PageName] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)
        self.sampling = Sampling(self.request, self.seed)

    @property
    def params(self) -> SamplingParams:
        """The request's sampling parameters."""
        return self.request.params

    @property
    def pending(self) -> int:
        """Tokens not computed yet: 1 while decoding, one or more while the prompt (or, after a preemption, everything) is read."""
        return len(self.tokens) - self.computed

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether prompt rows still need logits; after a preemption those already taken are kept."""
        return self.params.prompt_logprobs is not None and len(self.prompt_logprobs) < self.prompt_length

    def page_names(self, page_size: int) -> list[PageName]:
        """Names of the pages that its tokens fill, computed or not."""
        for start in range(len(self._names) * page_size, len(self.tokens) - page_size + 1, page_size):
            before = self._names[-1] if self._names else first_name(self.request.cache_salt, self.adapter)
            self._names.append(next_name(before, self.tokens[start : start + page_size]))
        return self._names

    def append(self, token: int) -> None:
        """Add a produced token."""
        self.tokens.append(token)
        self.produced += 1
        self.sampling.append(token)
