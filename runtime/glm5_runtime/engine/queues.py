"""Who waits and in which order: context tiers, priorities, clients. Used by the scheduler only; holds no pages and computes nothing.

A tier serves requests up to a length. It has its part of places, pages and step tokens, so that short questions find room whatever long
documents do. Within a tier the lower priority number is first; within a priority those that were preempted come first, then clients take
turns: whoever has had the fewest tokens is next (a virtual token counter). Within a client, arrival decides.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence as Rows

    from glm5_runtime.config import ContextTier
    from glm5_runtime.engine.sequence import Sequence


@dataclass(slots=True, eq=False)
class Client:
    """Whoever sends requests: tokens computed for it, and its unfinished requests."""

    served: int = 0
    alive: int = 0


class Line:
    """Waiting sequences of one tier; iterating gives them in the order in which they are due."""

    def __init__(self) -> None:
        self._queues: dict[int, dict[Client | None, deque[Sequence]]] = {}  # by priority, by client; None: those that were preempted

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __iter__(self) -> Iterator[Sequence]:
        for priority in sorted(self._queues):
            queues = self._queues.get(priority, {})
            yield from tuple(queues.get(None, ()))
            yield from _in_turn([(client, queue) for client, queue in queues.items() if client is not None])

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence behind its client's others."""
        self._queue(sequence, sequence.client).append(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Queue one that was preempted: it had its turn, so it comes before all that are new."""
        self._queue(sequence, None).appendleft(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take one out, wherever it is."""
        queues = self._queues[sequence.request.priority]
        key = sequence.client if sequence.rank is None else None
        queues[key].remove(sequence)
        if not queues[key]:
            del queues[key]
        if not queues:
            del self._queues[sequence.request.priority]

    def _queue(self, sequence: Sequence, key: Client | None) -> deque[Sequence]:
        return self._queues.setdefault(sequence.request.priority, {}).setdefault(key, deque())


def _in_turn(queues: list[tuple[Client, deque[Sequence]]]) -> Iterator[Sequence]:
    """Sequences of several clients, each time of the one that has had the fewest tokens, counting those it would get by then."""
    heap = []
    for client, queue in queues:
        each = iter(tuple(queue))
        first = next(each)
        heap.append((client.served, first.number, first, each))
    heapify(heap)
    while heap:
        served, _, sequence, rest = heap[0]
        yield sequence
        following = next(rest, None)
        if following is None:
            heappop(heap)
        else:
            heapreplace(heap, (served + sequence.pending, following.number, following, rest))


@dataclass(slots=True, eq=False)
class Tier:
    """One class of requests. `places` and `pages` are its own for as long as it needs them; others use what it leaves idle.

    Of its pages all but the longest request's own are divided, so that one request of any tier always fits.
    """

    name: str
    length: float
    share: float
    places: int
    pages: int
    smaller: tuple[Tier, ...]
    running: int = 0
    held: int = 0  # pages, counted once for each holder
    reading: list[Sequence] = field(default_factory=list)  # prompts not read to their end: one, and above it more urgent ones
    owed: bool = False  # its next request found no room although the tier has less than its part
    line: Line = field(default_factory=Line)

    @property
    def is_over(self) -> bool:
        """Whether it has its part of places or pages, or more."""
        return self.running >= self.places or self.held > self.pages

    def kept_places(self) -> int:
        """Places that smaller tiers don't use now and shall find when they need them."""
        return sum(max(0, tier.places - tier.running) for tier in self.smaller)

    def kept_pages(self) -> int:
        """The same for pages."""
        return sum(max(0, tier.pages - tier.held) for tier in self.smaller)


def make_tiers(tiers: Rows[ContextTier], places: int, pages: int, page_size: int) -> tuple[Tier, ...]:
    """Tiers of ascending length that divide so many places and pages; one for everything when none are named."""
    if not tiers:
        return (Tier("", float("inf"), 1.0, places, pages, ()),)
    spare = max(0, pages - -(-tiers[-1].length // page_size))
    made: list[Tier] = []
    for tier in tiers:
        assert tier.share is not None, "given by complete_tiers"
        own = 1 + int(tier.share * (places - len(tiers)))
        made.append(Tier(tier.name, tier.length, tier.share, own, int(tier.share * spare), tuple(made)))
    return tuple(made)
