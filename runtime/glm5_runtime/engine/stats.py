"""A snapshot of the engine for health checks and metrics. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper bounds of the histogram of tokens in a step: vLLM's buckets."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What the engine did since it started; taken without stopping it, so counters may be one step apart.

    `kv_usage` is the share of cache pages in use (0..1). `last_progress` is `time.monotonic()` of the last finished
    step, or of the moment work reached an idle engine: an engine with work is stuck when it grows old.
    `tokens_since_start` counts every produced token, the warm-up's too; the totals count only requests. `step_tokens` counts steps by
    the tokens computed in them: one entry for each bound of STEP_TOKENS, one for larger ones; `step_tokens_sum` is all their tokens.
    `drafts` counts sequences' steps with guesses, `draft_tokens` the guesses, `accepted_drafts` the right ones by their place.
    `max_adapters` is 0 without adapters; the others name those with requests in the batch, and with requests that wait.
    `prefix_queries` are tokens of prompts looked for in the prefix cache, `prefix_hits` those found there.
    """

    running: int
    waiting: int
    kv_usage: float
    prompt_tokens: int
    generation_tokens: int
    last_progress: float
    tokens_since_start: int
    alive: bool
    preemptions: int
    step_tokens: tuple[int, ...] = (0,) * (len(STEP_TOKENS) + 1)
    step_tokens_sum: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_drafts: tuple[int, ...] = ()
    max_adapters: int = 0
    running_adapters: tuple[str, ...] = ()
    waiting_adapters: tuple[str, ...] = ()

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished: only then does an old `last_progress` mean trouble."""
        return self.running + self.waiting > 0
