"""Several schedulers as one: with data-parallel attention each group of ranks has sequences, places and cache pages of its own.

The engine uses it like a scheduler. A request goes where the fewest are, of equal ones where most of its beginning is in the cache, and
stays there. All replicas are planned together, since their ranks compute each step together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from glm5_runtime.engine.queues import Tier
    from glm5_runtime.engine.scheduler import Scheduler, Step
    from glm5_runtime.engine.sequence import Sequence


class Replicas:
    """The schedulers of data ranks 0, 1, …, alike but for their sequences."""

    def __init__(self, schedulers: Rows[Scheduler]) -> None:
        self._schedulers = schedulers

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Those of one: all have the same."""
        return self._schedulers[0].tiers

    @property
    def running(self) -> list[Sequence]:
        """Of all."""
        return [sequence for scheduler in self._schedulers for sequence in scheduler.running]

    @property
    def alive(self) -> list[Sequence]:
        """Of all."""
        return [sequence for scheduler in self._schedulers for sequence in scheduler.alive]

    @property
    def has_work(self) -> bool:
        """Whether any sequence is unfinished."""
        return any(scheduler.has_work for scheduler in self._schedulers)

    @property
    def usage(self) -> float:
        """Share of all pages held, 0..1."""
        return sum(scheduler.usage for scheduler in self._schedulers) / len(self._schedulers)

    @property
    def preemptions(self) -> int:
        """Of all."""
        return sum(scheduler.preemptions for scheduler in self._schedulers)

    @property
    def prefix_queries(self) -> int:
        """Of all."""
        return sum(scheduler.prefix_queries for scheduler in self._schedulers)

    @property
    def prefix_hits(self) -> int:
        """Of all."""
        return sum(scheduler.prefix_hits for scheduler in self._schedulers)

    def add(self, sequence: Sequence) -> None:
        """Choose its replica and queue it there."""

        def order(replica: int) -> tuple[int, int]:
            scheduler = self._schedulers[replica]
            return len(scheduler.alive), -scheduler.known(sequence)

        sequence.replica = min(range(len(self._schedulers)), key=order)
        self._schedulers[sequence.replica].add(sequence)

    def remove(self, sequence: Sequence, *, spoiled: bool = False) -> None:
        """As the scheduler's."""
        self._schedulers[sequence.replica].remove(sequence, spoiled=spoiled)

    def find(self, request_id: str) -> Sequence | None:
        """The sequence of a request, wherever it is."""
        return next((found for scheduler in self._schedulers if (found := scheduler.find(request_id))), None)

    def schedule(self) -> list[Step]:
        """The next step's work of all."""
        return [step for scheduler in self._schedulers for step in scheduler.schedule()]
