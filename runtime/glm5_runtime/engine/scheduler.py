"""Who computes what in the next step. Pure: no tensor, no clock, no thread.

One token budget a step. Running sequences come first, in order of admission, then waiting ones in order of arrival. A prompt takes what
the budget leaves, and nobody is admitted behind one that isn't read to its end: so all running but the last are decoding, and a long
prompt slows nobody's stream. When pages run out the newest running sequence gives its pages up and is computed again later (preemption
by recompute). One sequence of full length always fits the cache, so the first in line always advances.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glm5_runtime.engine.blocks import PagePool
    from glm5_runtime.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Step:
    """`count` next tokens of a sequence to compute in this step."""

    sequence: Sequence
    count: int

    @property
    def completes(self) -> bool:
        """Whether all tokens are computed after it, so that the next one can be chosen."""
        return self.count == self.sequence.pending


class Scheduler:
    """Waiting and running sequences and their pages."""

    def __init__(self, pool: PagePool, page_size: int, max_sequences: int, max_batched_tokens: int) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.pool = pool
        self._page_size = page_size
        self._max_sequences = max_sequences
        self._max_batched_tokens = max_batched_tokens

    @property
    def has_work(self) -> bool:
        """Whether any sequence is unfinished."""
        return bool(self.running or self.waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a finished or aborted sequence and free its pages at once."""
        (self.running if sequence in self.running else self.waiting).remove(sequence)
        self.pool.give_back(sequence.pages)

    def find(self, request_id: str) -> Sequence | None:
        """The sequence of a request, wherever it is."""
        return next((s for s in (*self.running, *self.waiting) if s.request.id == request_id), None)

    def schedule(self) -> list[Step]:
        """The next step's work; empty only when there is none."""
        plan: list[Step] = []
        budget = self._max_batched_tokens
        for sequence in list(self.running):
            count = min(sequence.pending, budget)
            if count and sequence in self.running and self._make_room(sequence, count):
                plan.append(Step(sequence, count))
                budget -= count
        self._admit(plan, budget)
        return plan

    def _admit(self, plan: list[Step], budget: int) -> None:
        """Move waiting sequences to running, in order, while budget, places and pages for all their tokens last.

        One preempted in this very step can't come back in it: the pages it gave up are fewer now, and it needs as many.
        """
        while self.waiting and budget and len(self.running) < self._max_sequences:
            sequence = self.waiting[0]
            if self._missing_pages(sequence, sequence.pending) > self.pool.free:
                return
            self.running.append(self.waiting.popleft())
            count = min(sequence.pending, budget)
            sequence.pages.extend(self.pool.take(self._missing_pages(sequence, count)))
            plan.append(Step(sequence, count))
            budget -= count

    def _make_room(self, sequence: Sequence, count: int) -> bool:
        """Take the pages for `count` more tokens, from the newest sequences if need be; False when it was itself preempted.

        Work is planned from the oldest on and given up from the newest back, so nobody who is planned loses pages.
        """
        missing = self._missing_pages(sequence, count)
        while missing > self.pool.free:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.pages.extend(self.pool.take(missing))
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.pool.give_back(sequence.pages)
        sequence.computed = 0
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def _missing_pages(self, sequence: Sequence, count: int) -> int:
        return -(-(sequence.computed + count) // self._page_size) - len(sequence.pages)
