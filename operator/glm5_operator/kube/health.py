"""Is the operator making progress? What /healthz and /readyz answer, from signs of life instead of from "the process runs".

Fed by `app` (watch activity, loop lag, queue); pure: time is a parameter. /healthz fails only for what a restart can cure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glm5_operator.kube.queue import WorkQueue

LAG_LIMIT: Final = 10.0  # s; a loop this late would lose the lease next
STUCK_FACTOR: Final = 2.0  # of the reconcile timeout, which ends a slow one; longer than that means the timeout itself doesn't work


@dataclass(slots=True)
class Health:
    """Last signs of life."""

    dead_after: float
    reconcile_timeout: float
    started: float
    last_tick: float = 0.0
    seen: dict[tuple[str, str], float] = field(default_factory=dict)  # by kind and namespace: each has a watch of its own
    synced: bool = False

    def expect(self, kind: str, now: float, namespace: str = "") -> None:
        """From now on this watch must show signs of life; without a namespace it is the one of the whole cluster."""
        self.seen.setdefault((kind, namespace), now)

    def sign_of_life(self, kind: str, now: float, namespace: str = "") -> None:
        """The watch delivered something or was (re)opened. In a namespace that has no watch of its own it is the whole cluster's."""
        watch = (kind, namespace) if (kind, namespace) in self.seen else (kind, "")
        if watch in self.seen:
            self.seen[watch] = now

    def tick(self, now: float) -> None:
        """The event loop ran."""
        self.last_tick = now

    def watch_ages(self, now: float) -> Mapping[tuple[str, ...], float]:
        """Kind → seconds since the last sign of life, of its most silent watch, for the metrics."""
        ages: dict[tuple[str, ...], float] = {}
        for (kind, _), moment in self.seen.items():
            ages[kind,] = max(ages.get((kind,), 0.0), now - moment)
        return ages

    def live_faults(self, now: float, queue: WorkQueue, *, working: bool) -> list[str]:
        """Why a restart is due; empty is healthy. A standby (`working` false) isn't judged by its queue."""
        faults = [
            f"the watch of {kind}{f' in namespace {namespace}' if namespace else ''} gave no sign of life for {now - moment:.0f} s"
            for (kind, namespace), moment in sorted(self.seen.items())
            if now - moment > self.dead_after
        ]
        if now - self.last_tick > LAG_LIMIT:
            faults.append(f"the event loop has not run for {now - self.last_tick:.0f} s")
        limit = self.reconcile_timeout * STUCK_FACTOR
        if working and queue.longest_running(now) > limit:
            faults.append(f"a reconcile has been running for {queue.longest_running(now):.0f} s")
        if working and queue.oldest_due(now) > limit and queue.sizes()["running"] == 0:
            faults.append(f"a key has been due for {queue.oldest_due(now):.0f} s and no worker takes it")
        return faults

    def ready_faults(self, now: float) -> list[str]:
        """Why this process isn't ready to lead; empty is ready. A warm standby is ready: rolling updates wait for that."""
        return [] if self.synced else [f"the cache isn't complete after {now - self.started:.0f} s"]
