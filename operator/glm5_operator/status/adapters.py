"""Where the adapters of a service have arrived: what its pods answer, as the status has it.

Called by the service controller, and read by `deployment`. Pods' answers (`GET /health/adapters`) are data from outside: each field is
checked, and what isn't of its type counts as not said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glm5_operator.status.conditions import clipped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from glm5_operator.plan.adapters import AdaptersPlan, PlannedAdapter

MOST_MESSAGE = 300
SAME_SHARE = 1e-5
"""The plan rounds shares to six places."""
LOADED, LOADING, FAILED, WAITING = "Loaded", "Loading", "Failed", "Waiting"


@dataclass(frozen=True, slots=True)
class Counts:
    """What a pod has counted since its process began."""

    requests: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """One adapter in one pod."""

    name: str
    sha256: str
    state: str
    message: str
    share: float
    counts: Counts


@dataclass(frozen=True, slots=True)
class PodAnswer:
    """One ready pod of a service.

    Attributes:
        name: the pod's.
        uid: likewise.
        held: its adapters by name; None when it didn't answer.
        base: what the model itself has answered.
    """

    name: str
    uid: str
    held: Mapping[str, Held] | None = None
    base: Counts = Counts()


def read_answer(name: str, uid: str, answer: Mapping[str, Any] | None) -> PodAnswer:
    """What a pod answered; `answer` is None when it didn't."""
    if answer is None:
        return PodAnswer(name, uid)
    listed = answer.get("adapters")
    held = [_held(item) for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    return PodAnswer(name, uid, {item.name: item for item in held if item.name}, _counts(answer.get("base")))


def has(pod: PodAnswer, name: str, sha256: str) -> bool:
    """The pod answers by this adapter under this name, with these weights where they are known."""
    held = (pod.held or {}).get(name)
    return held is not None and held.state == LOADED and sha256 in {"", held.sha256}


def share_waits(pods: Sequence[PodAnswer], name: str, sha256: str, share: float) -> str:
    """Until when it doesn't answer that part of the requests for the model's own name; empty when every one of `pods` has taken it up."""
    if not pods:
        return "waits for a ready pod to take up the share"
    having = sum(has(pod, name, sha256) and abs((pod.held or {})[name].share - share) < SAME_SHARE for pod in pods)
    return "" if having == len(pods) else f"waits for {len(pods) - having} of {len(pods)} pods to take up the share"


def adapter_reports(plan: AdaptersPlan, pods: Sequence[PodAnswer]) -> list[dict[str, Any]]:
    """`status.adapters`; `pods` are the ready ones."""
    return [_report(adapter, pods) for adapter in plan.adapters]


def is_settled(reports: Sequence[Mapping[str, Any]]) -> bool:
    """Nothing is on its way to a pod."""
    return all(report["state"] == WAITING or (report["state"] == LOADED and not report.get("message")) for report in reports)


def are_silent(pods: Sequence[PodAnswer]) -> bool:
    """None of them answers, so asking again soon costs time and brings nothing: a network policy is in the way, say."""
    return bool(pods) and all(pod.held is None for pod in pods)


def _report(adapter: PlannedAdapter, pods: Sequence[PodAnswer]) -> dict[str, Any]:
    report: dict[str, Any] = {"name": adapter.name, "source": adapter.source, "share": adapter.share}
    report |= {name: value for name, value in (("path", adapter.path), ("sha256", adapter.sha256)) if value}
    if adapter.left_out:
        return report | {"state": WAITING, "message": adapter.left_out}
    having = sum(has(pod, adapter.name, adapter.sha256) for pod in pods)
    counted = report | {"pods": having, "of": len(pods)}
    if pods and having == len(pods):
        seen = {pod.held[adapter.name].sha256 for pod in pods if pod.held}
        waits = share_waits(pods, adapter.name, adapter.sha256, adapter.share)
        known = {"sha256": seen.pop()} if len(seen) == 1 and not adapter.sha256 else {}
        return counted | {"state": LOADED} | known | ({"message": waits} if waits else {})
    refusing = first_refusal(pods, adapter.name)
    if refusing:
        return counted | {"state": FAILED, "message": refusing}
    silent = sum(pod.held is None for pod in pods)
    why = "no pod is ready" if not pods else f"{silent} pods don't answer" if silent else ""
    return counted | {"state": LOADING} | ({"message": why} if why else {})


def first_refusal(pods: Sequence[PodAnswer], name: str) -> str:
    """Why a pod can't load an adapter, in its words; empty when none says so."""
    for pod in pods:
        held = (pod.held or {}).get(name)
        if held is not None and held.state == FAILED:
            return clipped(f"pod {pod.name}: {held.message or 'it failed'}", MOST_MESSAGE)
    return ""


def _held(item: Mapping[str, Any]) -> Held:
    share = item.get("share")
    return Held(
        name=_text(item.get("name")),
        sha256=_text(item.get("sha256")),
        state=_text(item.get("state")),
        message=clipped(" ".join(_text(item.get("message")).split()), MOST_MESSAGE),
        share=float(share) if isinstance(share, int | float) and not isinstance(share, bool) and math.isfinite(share) else 0.0,
        counts=_counts(item),
    )


def _counts(item: object) -> Counts:
    if not isinstance(item, dict):
        return Counts()
    return Counts(_number(item.get("requests")), _number(item.get("failures")))


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
