"""Who computes what in the next step. Pure: no tensor, no clock, no thread.

One token budget a step. Running sequences come first, in order of admission, then waiting ones in order of arrival. A prompt takes what
the budget leaves, and nobody is admitted behind one that isn't read to its end: so all running but the last are decoding, and a long
prompt slows nobody's stream. Pages that hold a prompt's beginning already are shared instead of computed. When pages run out the newest
running sequence gives its pages up and is computed again later (preemption by recompute). One sequence of full length always fits the
cache, so the first in line always advances.
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

    def __init__(self, pool: PagePool, page_size: int, max_sequences: int, max_batched_tokens: int, *, prefix_cache: bool = True) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.pool = pool
        self._page_size = page_size
        self._max_sequences = max_sequences
        self._max_batched_tokens = max_batched_tokens
        self._prefix_cache = prefix_cache

    @property
    def has_work(self) -> bool:
        """Whether any sequence is unfinished."""
        return bool(self.running or self.waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence, *, spoiled: bool = False) -> None:
        """Forget a finished or aborted sequence and free its pages at once; `spoiled`: what they hold is good for nobody."""
        (self.running if sequence in self.running else self.waiting).remove(sequence)
        if spoiled:
            self.pool.forget(sequence.pages)
        else:
            self._name_pages(sequence)
        self.pool.give_back(sequence.pages)

    def find(self, request_id: str) -> Sequence | None:
        """The sequence of a request, wherever it is."""
        return next((s for s in (*self.running, *self.waiting) if s.request.id == request_id), None)

    def schedule(self) -> list[Step]:
        """The next step's work; empty only when there is none."""
        for sequence in self.running:
            self._name_pages(sequence)
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
            known = self._known_pages(sequence)
            missing = self._missing_pages(sequence, sequence.pending) - len(known)
            if missing > self.pool.free - self.pool.unheld(known):
                return
            self.running.append(self.waiting.popleft())
            self._begin(sequence, known)
            count = min(sequence.pending, budget)
            sequence.pages.extend(self.pool.take(self._missing_pages(sequence, count)))
            plan.append(Step(sequence, count))
            budget -= count

    def _known_pages(self, sequence: Sequence) -> list[int]:
        """Pages that hold the sequence's beginning. Its last token is always computed: somebody has to say what comes next."""
        if not self._may_share(sequence):
            return []
        names = sequence.page_names(self._page_size)
        return self.pool.find(names[: (len(sequence.tokens) - 1) // self._page_size])

    def _may_share(self, sequence: Sequence) -> bool:
        return self._prefix_cache and not sequence.wants_prompt_logprobs  # rows that aren't computed have no logits

    def _begin(self, sequence: Sequence, known: list[int]) -> None:
        self.pool.share(known)
        sequence.pages, sequence.named = known, len(known)
        sequence.computed = len(known) * self._page_size
        if self._may_share(sequence) and sequence.scheduled is None:  # as vLLM counts: not those that come back after a preemption
            self.prefix_queries += len(sequence.tokens)
            self.prefix_hits += sequence.computed

    def _name_pages(self, sequence: Sequence) -> None:
        """Let others find what the last step completed."""
        full = sequence.computed // self._page_size
        if not self._prefix_cache or full == sequence.named:
            return
        names = sequence.page_names(self._page_size)
        for place in range(sequence.named, full):
            self.pool.name(sequence.pages[place], names[place])
        sequence.named = full

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
        sequence.computed = sequence.named = 0
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def _missing_pages(self, sequence: Sequence, count: int) -> int:
        return -(-(sequence.computed + count) // self._page_size) - len(sequence.pages)
