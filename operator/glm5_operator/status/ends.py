"""Why an attempt of a fine-tuning job ended: each pod's end read for its cause, and the one that explains the others.

Used by `course`. The sources, in the order in which they are believed: what Kubernetes did to the pod, kubelet's reason, the exit code,
error codes of cards in the end of the log.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.health.sources.runtime_errors import Kind, evidence
from glm5_operator.status.conditions import clipped, moment
from glm5_operator.status.pods import condition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Cause(StrEnum):
    """The most telling first: when ranks of one attempt end differently, the first of these explains the others."""

    CONFIGURATION = "Configuration"
    DATA = "Data"
    NUMERICAL = "NumericalError"
    OUT_OF_MEMORY = "OutOfMemory"
    CARD_FAULT = "CardFault"
    STORAGE = "Storage"
    REWARD = "Reward"
    NODE_LOST = "NodeLost"
    PREEMPTED = "Preempted"
    SUPERSEDED = "Superseded"
    UNKNOWN = "Unknown"
    POD_DELETED = "PodDeleted"
    RANK_LOST = "RankLost"
    SUSPENDED = "Suspended"


PASSING: Final = frozenset(Cause) - {Cause.CONFIGURATION, Cause.DATA, Cause.NUMERICAL, Cause.OUT_OF_MEMORY}
"""The next attempt may do better."""

FREE: Final = frozenset({Cause.PREEMPTED, Cause.SUPERSEDED, Cause.SUSPENDED})
"""Of these somebody else decided: they cost no attempt."""

SPEAKS_LATER: Final = timedelta(seconds=15)
"""After the first failed pod: the rank that knows why may end a moment after those that only lost it."""

LOST_AFTER: Final = timedelta(seconds=30)
"""Beside the 40 s after which Kubernetes calls a silent node not ready."""

MOST_MESSAGE: Final = 500
_MOST_LATE: Final = 3
_GRAVITY: Final = {cause: place for place, cause in enumerate(Cause)}
_PREEMPTIONS: Final = {"PreemptionByScheduler", "EvictionByEvictionAPI", "DeletionByTaintManager"}
_EXIT_CODES: Final = {
    2: Cause.CONFIGURATION,
    3: Cause.DATA,
    4: Cause.NUMERICAL,
    5: Cause.STORAGE,
    6: Cause.RANK_LOST,
    7: Cause.SUPERSEDED,
    8: Cause.REWARD,
    9: Cause.CONFIGURATION,
}
"""Of `glm5-runtime train`; `tests/contract` holds them to the runtime's own table."""


@dataclass(frozen=True, slots=True)
class PodEnd:
    """How one pod ended."""

    cause: Cause
    message: str
    node: str
    exit_code: int | None
    time: datetime | None


def last_word(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object of the trainer's termination message; empty when there is none."""
    text = str(_terminated(pod).get("message") or "")
    try:
        word = json.loads(text)
    except ValueError:
        return {}
    return word if isinstance(word, dict) else {}


def is_ended(pod: Mapping[str, Any]) -> bool:
    """The pod has ended for good and holds nothing."""
    return (pod.get("status") or {}).get("phase") in {"Failed", "Succeeded"}


def pod_end(pod: Mapping[str, Any], *, node_is_lost: bool) -> PodEnd | None:
    """Why this pod failed; None while it may go on, and when it ended well."""
    status, node = pod.get("status") or {}, str((pod.get("spec") or {}).get("nodeName") or "")
    deleted = bool(pod["metadata"].get("deletionTimestamp"))
    if status.get("phase") == "Succeeded" or not (status.get("phase") == "Failed" or deleted or node_is_lost):
        return None
    ended = _terminated(pod)
    code = ended.get("exitCode")
    cause, why = _cause(pod, ended, deleted=deleted, node_is_lost=node_is_lost)
    message = clipped(f"pod {pod['metadata']['name']} on node {node or '?'}: {why}", MOST_MESSAGE)
    time = moment(ended.get("finishedAt")) or moment(pod["metadata"].get("deletionTimestamp"))
    return PodEnd(cause, message, node, int(code) if code is not None else None, time)


def pod_ends(pods: Iterable[tuple[Mapping[str, Any], bool]]) -> list[PodEnd]:
    """The ends of an attempt's pods, each given with whether its node is lost.

    The Job's controller deletes the other pods as soon as one has failed: that is no cause, and who is told to end at once after another's
    failure was not deleted by somebody.
    """
    ends = [(pod, end) for pod, lost in pods if (end := pod_end(pod, node_is_lost=lost)) is not None]
    first = min((end.time for pod, end in ends if end.time and not pod["metadata"].get("deletionTimestamp")), default=None)
    return [end for pod, end in ends if not (end.cause is Cause.POD_DELETED and first and (_told_to_end(pod) or first) >= first)]


def latecomers(pods: Iterable[Mapping[str, Any]]) -> str:
    """Pods whose trainer never ran, and what they wait for, in words; empty when all ran.

    Who waited in vain for a rank can't know why it didn't come: HCCL's time-out names the victim.
    """
    found = sorted(
        (pod["metadata"]["name"], _waits_for(pod)) for pod in pods if (pod.get("status") or {}).get("phase", "Pending") == "Pending"
    )
    return clipped("; ".join(f"pod {name} hadn't started: {why}" for name, why in found[:_MOST_LATE]), MOST_MESSAGE)


def _waits_for(pod: Mapping[str, Any]) -> str:
    scheduled = condition(pod, "PodScheduled") or {}
    if scheduled.get("status") != "True":
        return f"no node takes it ({scheduled.get('message') or scheduled.get('reason') or 'not looked at yet'})"
    states = (pod.get("status") or {}).get("containerStatuses") or ()
    waiting: Mapping[str, Any] = next((item["state"]["waiting"] for item in states if (item.get("state") or {}).get("waiting")), {})
    return f"{waiting.get('reason') or 'ContainerCreating'} {waiting.get('message') or ''}".strip()


def explaining(ends: Iterable[PodEnd]) -> PodEnd | None:
    """The end that explains the others: by its cause, then the earliest."""
    return min(ends, key=lambda end: (_GRAVITY[end.cause], end.time is None, end.time, end.message), default=None)


def _cause(pod: Mapping[str, Any], ended: Mapping[str, Any], *, deleted: bool, node_is_lost: bool) -> tuple[Cause, str]:
    status = pod.get("status") or {}
    disrupted = condition(pod, "DisruptionTarget") or {}
    by = str(disrupted.get("reason") or "") if disrupted.get("status") == "True" else ""
    if node_is_lost or by == "DeletionByPodGC" or status.get("reason") in {"NodeLost", "Shutdown", "Terminated"}:
        return Cause.NODE_LOST, "its node is gone, down or doesn't report"
    if by in _PREEMPTIONS or status.get("reason") == "Preempting":
        return Cause.PREEMPTED, f"it had to make room ({by or 'Preempting'}): {disrupted.get('message') or status.get('message') or ''}"
    if status.get("reason") == "UnexpectedAdmissionError":
        return Cause.CARD_FAULT, f"the node could not give it its cards: {status.get('message') or ''}"
    if ended:
        return _of_trainer(pod, ended, deleted=deleted)
    if deleted:
        return Cause.POD_DELETED, "somebody deleted it"
    return Cause.UNKNOWN, f"{status.get('reason') or 'Failed'}: {status.get('message') or 'no reason given'}"


def _of_trainer(pod: Mapping[str, Any], ended: Mapping[str, Any], *, deleted: bool) -> tuple[Cause, str]:
    word, code = last_word(pod), ended.get("exitCode")
    said = str(word.get("message") or "") or _tail(str(ended.get("message") or "")) or "it said nothing"
    how = f"exit code {code}: {said}"
    if ended.get("reason") == "OOMKilled":
        return (
            Cause.OUT_OF_MEMORY,
            "it needed more main memory than its limit: raise spec.model.memory (of a new job), or train in smaller pieces",
        )
    if code in _EXIT_CODES:
        return _EXIT_CODES[code], how
    if found := evidence(said):
        if found.memory:
            return Cause.OUT_OF_MEMORY, f"a card's memory was not enough ({how})"
        if found.kind is Kind.PEER:
            return Cause.RANK_LOST, how
        if found.elsewhere:
            return Cause.CARD_FAULT, how
    if deleted and (code in {0, 143} or (code == 137 and not word)):  # with a word it was a rank that was killed, and the launcher says so
        return Cause.POD_DELETED, "somebody deleted it"
    return Cause.UNKNOWN, how


def _told_to_end(pod: Mapping[str, Any]) -> datetime | None:
    """When its deletion was asked for; the timestamp on it is when its grace is over."""
    until = moment(pod["metadata"].get("deletionTimestamp"))
    return until - timedelta(seconds=int(pod["metadata"].get("deletionGracePeriodSeconds") or 0)) if until else None


def _terminated(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    states = (pod.get("status") or {}).get("containerStatuses") or ()
    trainer: Mapping[str, Any] = next((item for item in states if item.get("name") == names.TRAINER_CONTAINER), {})
    return (trainer.get("state") or {}).get("terminated") or {}


def _tail(text: str) -> str:
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]", "", text).splitlines() if line.strip()]
    tail = " | ".join(lines[-4:])
    return tail if len(tail) <= MOST_MESSAGE else "…" + tail[-MOST_MESSAGE:]
