"""How busy the machine was while something was measured, and how much of that was the measurement itself. Used by the engine's benchmarks.

A thread reads /proc once a second: at that pace it takes less than a thousandth of a core.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.process import machine_cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PERIOD = 1.0  # seconds
_TICKS = os.sysconf("SC_CLK_TCK")
_WALKS = 5


@dataclass(frozen=True, slots=True)
class Moment:
    """One reading of the clock and of two counters, all in seconds since some beginning.

    Attributes:
        clock: the time.
        machine: CPU seconds of all processes, those that a hypervisor took away included.
        own: CPU seconds of the benchmark's processes, ended ones included.
    """

    clock: float
    machine: float
    own: float


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Shares of all cores, 0 to 1, over the whole time.

    Attributes:
        seconds: how long it was.
        cores: how many the machine has.
        busy: what all processes used.
        own: what the benchmark's used.
        others_at_most: what others used in that second in which they used most.
    """

    seconds: float
    cores: int
    busy: float
    own: float
    others_at_most: float

    @property
    def others(self) -> float:
        """What others used; the two counters are rounded differently, so a little less than nothing is nothing."""
        return max(0.0, self.busy - self.own)

    @classmethod
    def of(cls, moments: Sequence[Moment], cores: int) -> Utilisation:
        """From readings in their order, two at least."""

        def shares(begin: Moment, end: Moment) -> tuple[float, float]:
            time_of_cores = max(end.clock - begin.clock, 1e-9) * cores
            # What a process of ours has used goes with it where nobody waited for it: that is no time that others used.
            return (end.machine - begin.machine) / time_of_cores, max(0.0, end.own - begin.own) / time_of_cores

        first, last = moments[0], moments[-1]
        busy, _ = shares(first, last)
        used = sum(max(0.0, end.own - begin.own) for begin, end in itertools.pairwise(moments))
        own = used / (max(last.clock - first.clock, 1e-9) * cores)
        steps = [pair for pair in itertools.pairwise(moments) if pair[1].clock - pair[0].clock >= PERIOD / 2]  # counters are coarse
        others = [all_ - ours for all_, ours in itertools.starmap(shares, steps or [(first, last)])]
        return cls(last.clock - first.clock, cores, busy, own, max(0.0, *others))


@dataclass
class Watch:
    """What has been read so far."""

    moments: list[Moment] = field(default_factory=list)

    def look(self) -> None:
        """Read once."""
        self.moments.append(Moment(time.monotonic(), machine_cpu_seconds(), tree_cpu_seconds(os.getpid())))

    @property
    def utilisation(self) -> Utilisation:
        """Of the time between the first and the last reading."""
        return Utilisation.of(self.moments, os.cpu_count() or 1)


@contextmanager
def watched() -> Iterator[Watch]:
    """Watch the machine within the block, beside this process and its children; complete after it."""
    watch, over = Watch(), threading.Event()

    def keep_looking() -> None:
        while not over.wait(PERIOD):
            watch.look()

    watch.look()
    thread = threading.Thread(target=keep_looking, name="utilisation", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()
        watch.look()


def tree_cpu_seconds(root: int, proc: Path = Path("/proc")) -> float:
    """CPU seconds of a process and all below it, those that have ended and were waited for included.

    A process that ends while the tree is read is nowhere, or counted twice: read until two walks find the same ones.
    """
    found = _walk(root, proc)
    for _ in range(_WALKS):
        before, found = found, _walk(root, proc)
        if before.keys() == found.keys():
            break
    return sum(found.values())


def _walk(pid: int, proc: Path) -> dict[int, float]:
    folder = proc / str(pid)
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        children = [int(word) for task in (folder / "task").iterdir() for word in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return {}
    found = {pid: sum(map(int, fields[11:15])) / _TICKS}  # user and system time, its own and that of children it has waited for
    for child in children:
        found |= _walk(child, proc)
    return found
