"""A fair, deduplicating queue of keys: which object is looked at next, and when again. Pure: time and randomness are parameters.

Driven by `workers`; fed by events. Three rules hold whatever comes in (tests/unit/kube/test_queue.py checks them for random histories):
a key is never with two workers; a key added while a worker has it runs once more afterwards; the queue is first come, first served
by key, so one busy object can't starve the others.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from glm5_operator.kube.types import Key, Outcome, OutcomeKind

if TYPE_CHECKING:
    from collections.abc import Mapping


class Random(Protocol):
    """The part of `random.Random` that jitter needs."""

    def random(self) -> float:
        """A number in [0, 1)."""
        ...


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays after failures: `base`, doubled with each, at most `longest`, each shortened by up to half so that a crowd spreads out.

    When `budget` failures in a row are used up, it goes on at about `recheck`: what was in the way (a quota, a policy, a webhook)
    isn't ours and sends no event when it goes.
    """

    base: float
    longest: float
    budget: int
    recheck: float

    def delay(self, failures: int, rng: Random) -> float:
        """Seconds to wait after so many failures in a row."""
        return min(self.longest, self.base * 2.0 ** min(failures - 1, 30)) * (0.5 + 0.5 * rng.random())

    def slow_delay(self, rng: Random) -> float:
        """Seconds to wait when the budget is used up."""
        return self.recheck * (0.8 + 0.4 * rng.random())


class Budget(StrEnum):
    """How a key stands with its budget of failures after a run."""

    LEFT = "left"
    USED_UP = "used up"  # by this very run
    BEYOND = "beyond"  # was used up before, and this slow recheck failed too


class WorkQueue:
    """Keys that are due, keys that wait for their time, keys that a worker has."""

    def __init__(self, backoff: Backoff, rng: Random) -> None:
        self._backoff = backoff
        self._rng = rng
        self._due: OrderedDict[Key, float] = OrderedDict()  # key → since when it has been due
        self._waiting: dict[Key, float] = {}  # key → when it becomes due
        self._heap: list[tuple[float, int, Key]] = []  # may hold outdated entries; `_waiting` decides
        self._running: dict[Key, float] = {}  # key → since when
        self._again: dict[Key, float] = {}  # keys that were added while running → their time
        self._failures: dict[Key, int] = {}
        self._order = itertools.count()

    def add(self, key: Key, now: float, delay: float = 0.0) -> None:
        """Have the key looked at `delay` from now, or sooner if that is planned already. News start a fresh budget."""
        time = now + delay
        if key in self._running:
            self._again[key] = min(time, self._again.get(key, time))
            return
        self._refill(key)
        if key not in self._due:
            self._plan(key, time, now)

    def take(self, now: float) -> tuple[Key, float] | None:
        """The next key and how long it waited since it was due; the caller must `finish` it."""
        self._ripen(now)
        if not self._due:
            return None
        key, since = self._due.popitem(last=False)
        self._running[key] = now
        return key, now - since

    def finish(self, key: Key, outcome: Outcome, now: float) -> Budget:
        """Give the key back, and say how it stands with its budget of failures."""
        del self._running[key]
        budget = Budget.LEFT
        time: float | None = None if outcome.after is None else now + outcome.after.total_seconds()
        if outcome.kind is OutcomeKind.RETRY:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            if failures >= self._backoff.budget:
                budget = Budget.USED_UP if failures == self._backoff.budget else Budget.BEYOND
                time = max(time or now, now + self._backoff.slow_delay(self._rng))
            elif time is None:
                time = now + self._backoff.delay(failures, self._rng)
        else:
            self._failures.pop(key, None)
        added = self._again.pop(key, None)
        if added is not None:
            self._refill(key)
        times = [moment for moment in (time, added) if moment is not None]
        if times:
            self._plan(key, min(times), now)
        return budget

    def next_time(self, now: float) -> float | None:
        """When `take` will next have something: now or earlier if a key is due, None if nothing is planned."""
        self._ripen(now)
        if self._due:
            return now
        return self._heap[0][0] if self._heap else None

    def sizes(self) -> Mapping[str, int]:
        """Keys that are due, delayed, running."""
        return {"due": len(self._due), "delayed": len(self._waiting), "running": len(self._running)}

    def oldest_due(self, now: float) -> float:
        """How long the first key in the line has been due; 0 for an empty line."""
        return now - next(iter(self._due.values())) if self._due else 0.0

    def longest_running(self, now: float) -> float:
        """How long the slowest worker has had its key."""
        return now - min(self._running.values()) if self._running else 0.0

    def _refill(self, key: Key) -> None:
        """A fresh budget for a key that used its own up; one that still has some keeps counting, or busy objects would never run out."""
        if self._failures.get(key, 0) >= self._backoff.budget:
            del self._failures[key]

    def _plan(self, key: Key, time: float, now: float) -> None:
        if key in self._waiting and self._waiting[key] <= time:
            return
        self._waiting.pop(key, None)
        if time <= now:
            self._due[key] = time
            return
        self._waiting[key] = time
        heapq.heappush(self._heap, (time, next(self._order), key))

    def _ripen(self, now: float) -> None:
        """Move what has become due into the line, and keep the heap's head true."""
        while self._heap:
            time, _, key = self._heap[0]
            outdated = self._waiting.get(key) != time
            if not outdated and time > now:
                return
            heapq.heappop(self._heap)
            if not outdated:
                del self._waiting[key]
                self._due[key] = time
