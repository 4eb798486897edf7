"""What a canary counts: requests and failures of an adapter beside those of what else answers for the model, summed over pods.

Used by `deployment`. A process counts from zero when it starts, so each pod's last numbers are kept: what is less than them is counted from
zero, and sums never go back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from glm5_operator.status.adapters import PodAnswer

Numbers = tuple[int, int, int, int]
"""Requests and failures of the adapter, then of the others."""

FIELDS = ("requests", "failures", "otherRequests", "otherFailures")
MOST_PODS = 1024


@dataclass(frozen=True, slots=True)
class Tally:
    """The sums since the canary began, and the last numbers of each pod by its uid."""

    sums: Numbers = (0, 0, 0, 0)
    pods: Mapping[str, Numbers] = field(default_factory=dict)

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Self:
        """From `status.deployment.canary`."""
        listed = report.get("pods") or ()
        return cls(_numbers(report), {str(item.get("pod")): _numbers(item) for item in listed})

    def as_json(self) -> dict[str, Any]:
        """As `status.deployment.canary` has it."""
        pods = [{"pod": uid, **dict(zip(FIELDS, numbers, strict=True))} for uid, numbers in sorted(self.pods.items())[:MOST_PODS]]
        return {**dict(zip(FIELDS, self.sums, strict=True)), **({"pods": pods} if pods else {})}

    @property
    def requests(self) -> int:
        """Of the adapter."""
        return self.sums[0]

    @property
    def failures(self) -> int:
        """Of the adapter."""
        return self.sums[1]

    @property
    def excess(self) -> float:
        """How much larger the share of the adapter's requests that fail is than that of the others."""
        requests, failures, other_requests, other_failures = self.sums
        return _rate(failures, requests) - _rate(other_failures, other_requests)

    @property
    def told(self) -> str:
        """In words."""
        requests, failures, other_requests, other_failures = self.sums
        return f"{failures} of its {requests} requests failed, {other_failures} of {other_requests} without it"


def tally(before: Tally, pods: Sequence[PodAnswer], live: frozenset[str], adapter: str, *, counts_before: bool = False) -> Tally:
    """What was counted since `before`. With `counts_before` nothing is: the canary begins, and what pods have counted is before it.

    A pod that doesn't answer at the moment keeps its last numbers; one that has gone is forgotten, its part of the sums stays.
    """
    last = {uid: numbers for uid, numbers in before.pods.items() if uid in live}
    sums = before.sums
    for pod in pods:
        if pod.held is None:
            continue
        now = _seen(pod, adapter)
        if not counts_before:
            sums = _added(sums, _since(last.get(pod.uid, (0, 0, 0, 0)), now))
        last[pod.uid] = now
    return Tally(sums, last)


def _seen(pod: PodAnswer, adapter: str) -> Numbers:
    """Others are the model itself and every adapter that answers for its name."""
    held = dict(pod.held or {})
    mine = held.pop(adapter, None)
    others = [pod.base, *(one.counts for one in held.values() if one.share > 0)]
    return (
        mine.counts.requests if mine else 0,
        mine.counts.failures if mine else 0,
        sum(one.requests for one in others),
        sum(one.failures for one in others),
    )


def _since(last: Numbers, now: Numbers) -> Numbers:
    """Of a process that has started anew all that it has counted. Each half by itself: an adapter may have been loaded anew alone."""
    mine = now[:2] if now[0] < last[0] or now[1] < last[1] else (now[0] - last[0], now[1] - last[1])
    others = now[2:] if now[2] < last[2] or now[3] < last[3] else (now[2] - last[2], now[3] - last[3])
    return (*mine, *others)


def _added(left: Numbers, right: Numbers) -> Numbers:
    return (left[0] + right[0], left[1] + right[1], left[2] + right[2], left[3] + right[3])


def _rate(failures: int, requests: int) -> float:
    return failures / requests if requests else 0.0


def _numbers(item: Mapping[str, Any]) -> Numbers:
    first, second, third, fourth = (int(item.get(name) or 0) for name in FIELDS)
    return (first, second, third, fourth)
