"""What came of the check of a run's settings and data, from the status, its Job and the Job's pods. Pure.

Used by `course` and `finetune`. What was found good is in the status, and what was found bad is the outcome of the run; the Job is only
needed until then.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.status.conditions import stamp
from glm5_operator.status.ends import Cause, is_ended, last_word, pod_end
from glm5_operator.status.pods import is_true
from glm5_operator.status.progress import believed
from glm5_operator.status.waiting import why_waiting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

_NUMBERS: Final[dict[str, tuple[str, type]]] = {"read": ("read", int), "kept": ("kept", int), "skipped": ("skipped", int)}


class Reason(StrEnum):
    """Why a run has ended before its first attempt, beside the causes of ends."""

    CHECK_FAILED = "CheckFailed"
    """It could not be made, however often it was tried."""


class CheckState(StrEnum):
    """How far the check is."""

    NEEDED = "Needed"
    STALE = "Stale"
    """Its Job is there and looks at another spec, or is on its way out: first it has to go."""
    RUNNING = "Running"
    GOOD = "Good"
    BAD = "Bad"


@dataclass(frozen=True, slots=True)
class Check:
    """What is known.

    Attributes:
        state: how far it is.
        reason: of BAD: Data, Configuration or CheckFailed.
        message: why it is bad, or what it waits for.
        record: of GOOD: what the status keeps of it.
        job: its Job, when there is one.
    """

    state: CheckState
    reason: str = ""
    message: str = ""
    record: Mapping[str, Any] | None = None
    job: Mapping[str, Any] | None = None


def read_check(
    status: Mapping[str, Any], digest: str, job: Mapping[str, Any] | None, pods: Sequence[Mapping[str, Any]], now: datetime
) -> Check:
    """Read it. `digest`: of what is to be checked now; `pods`: those of the check's Job."""
    told = status.get("dataCheck") or {}
    if told.get("digest") == digest:
        return Check(CheckState.GOOD, record=told, job=job)
    if job is None:
        return Check(CheckState.NEEDED, message="the check of settings and data is to be made")
    metadata = job["metadata"]
    if metadata.get("deletionTimestamp") or (metadata.get("labels") or {}).get(names.CHECK_LABEL) != digest:
        return Check(CheckState.STALE, message="an earlier check makes room")
    if is_true(job, "Complete") or is_true(job, "SuccessCriteriaMet"):
        return Check(CheckState.GOOD, record=_record(digest, pods, now), job=job)
    if is_true(job, "Failed"):
        reason, message = _failure(job, pods)
        return Check(CheckState.BAD, reason, message, job=job)
    return Check(CheckState.RUNNING, message=_station(pods), job=job)


def _record(digest: str, pods: Sequence[Mapping[str, Any]], now: datetime) -> dict[str, Any]:
    words = (last_word(pod) for pod in pods if (pod.get("status") or {}).get("phase") == "Succeeded")
    numbers: Mapping[str, Any] = next((found for word in words if (found := believed(word.get("data"), _NUMBERS))), {})
    return {"digest": digest, "time": stamp(now), **numbers}


def _failure(job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """What the data or the settings are refused for; else why no try came to an end."""
    ends = [end for pod in pods if (end := pod_end(pod, node_is_lost=False)) is not None]
    for cause in (Cause.CONFIGURATION, Cause.DATA):
        if said := next((end.message for end in ends if end.cause is cause), ""):
            return cause.value, said
    conditions = (job.get("status") or {}).get("conditions") or ()
    why = next((str(item.get("message") or "") for item in conditions if item.get("type") == "Failed"), "")
    last = max(ends, key=lambda end: (end.time is not None, end.time), default=None)
    return Reason.CHECK_FAILED.value, f"settings and data could not be checked: {last.message if last else why}"


def _station(pods: Sequence[Mapping[str, Any]]) -> str:
    """What the try under way does or waits for, and how earlier ones ended."""
    failed = [end.message for pod in pods if (end := pod_end(pod, node_is_lost=False)) is not None]
    living = [pod for pod in pods if not is_ended(pod)]
    again = f"; tried again after: {failed[-1]}" if failed else ""
    return f"settings and data are being checked{why_waiting(living)}{again}"
