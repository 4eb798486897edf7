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
from glm5_operator.status.ends import Cause, PodEnd, is_ended, last_word, pod_end
from glm5_operator.status.pods import is_true
from glm5_operator.status.progress import believed
from glm5_operator.status.waiting import suspended_by_others, why_waiting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

_NUMBERS: Final[dict[str, tuple[str, type]]] = {"read": ("read", int), "kept": ("kept", int), "skipped": ("skipped", int)}


class Reason(StrEnum):
    """Why the first attempt has to wait for the check."""

    CHECKING = "Checking"
    JOB_SUSPENDED = "JobSuspended"
    """By somebody else, and nobody else will resume it."""
    CHECK_FAILED = "CheckFailed"
    """It could not be made so far: that says nothing about the run, so it is tried again for as long as it takes."""


class CheckState(StrEnum):
    """How far the check is."""

    NEEDED = "Needed"
    STALE = "Stale"
    """Its Job is there and looks at another spec, has no tries left, or is on its way out: first it has to go."""
    RUNNING = "Running"
    GOOD = "Good"
    BAD = "Bad"


@dataclass(frozen=True, slots=True)
class Check:
    """What is known.

    Attributes:
        state: how far it is.
        reason: of BAD: Data or Configuration; until it is over, of this module.
        message: why it is bad, or what it waits for.
        record: of GOOD: what the status keeps of it.
        job: its Job, when there is one.
    """

    state: CheckState
    reason: str = Reason.CHECKING
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
        return _failure(job, pods)
    return _station(job, pods)


def _record(digest: str, pods: Sequence[Mapping[str, Any]], now: datetime) -> dict[str, Any]:
    words = (last_word(pod) for pod in pods if (pod.get("status") or {}).get("phase") == "Succeeded")
    numbers: Mapping[str, Any] = next((found for word in words if (found := believed(word.get("data"), _NUMBERS))), {})
    return {"digest": digest, "time": stamp(now), **numbers}


def _failure(job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> Check:
    """What the data or the settings are refused for; else no try came to an end, and another Job tries on."""
    ends = _ends(pods)
    for cause in (Cause.CONFIGURATION, Cause.DATA):
        if said := next((end.message for end in ends if end.cause is cause), ""):
            return Check(CheckState.BAD, cause.value, f"{said}; correct it in a new job", job=job)
    conditions = (job.get("status") or {}).get("conditions") or ()
    why = next((str(item.get("message") or "") for item in conditions if item.get("type") == "Failed"), "")
    message = f"settings and data could not be checked, and are tried anew: {ends[-1].message if ends else why}"
    return Check(CheckState.STALE, Reason.CHECK_FAILED, message)


def _station(job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> Check:
    """What the try under way does or waits for, and how earlier ones ended."""
    if suspended := suspended_by_others(job):
        return Check(CheckState.RUNNING, Reason.JOB_SUSPENDED, suspended, job=job)
    ends, living = _ends(pods), [pod for pod in pods if not is_ended(pod)]
    message = f"settings and data are being checked{why_waiting(living)}"
    if not ends:
        return Check(CheckState.RUNNING, message=message, job=job)
    if ends[-1].cause in {Cause.CONFIGURATION, Cause.DATA}:  # no try follows: it was made, and its Job is about to be called failed
        return Check(CheckState.RUNNING, message=f"settings and data were checked and are refused: {ends[-1].message}", job=job)
    tries = "1 try" if len(ends) == 1 else f"{len(ends)} tries"
    again = f"{message}; {tries} failed, others follow; the last: {ends[-1].message}"
    return Check(CheckState.RUNNING, Reason.CHECK_FAILED, again, job=job)


def _ends(pods: Sequence[Mapping[str, Any]]) -> list[PodEnd]:
    """How tries have failed, the last one last."""
    ends = [end for pod in pods if (end := pod_end(pod, node_is_lost=False)) is not None]
    return sorted(ends, key=lambda end: (end.time.timestamp() if end.time else 0.0, end.message))
