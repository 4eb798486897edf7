"""A snapshot of the engine for health checks and metrics. No torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What the engine did since it started; taken without stopping it, so counters may be one step apart.

    `kv_usage` is the share of cache pages in use (0..1). `last_progress` is `time.monotonic()` of the last finished
    step, or of the moment work reached an idle engine: an engine with work is stuck when it grows old.
    `tokens_since_start` counts every produced token, the warm-up's too; the totals count only requests.
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

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished: only then does an old `last_progress` mean trouble."""
        return self.running + self.waiting > 0
