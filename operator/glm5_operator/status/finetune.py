"""The whole `.status` of a GLM5FinetuneJob, from its course, its plan and its pods.

Called by the fine-tuning controller. What has happened is the course's (`course`); this tells it: conditions, progress, cards.
Ready is True only when the run has ended well. A run that goes on is Reconciling, one that failed is Stalled for good.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.plan.attempt import AttemptPlan
from glm5_operator.status import conditions as c
from glm5_operator.status.conditions import Condition, Truth, moment, stamp
from glm5_operator.status.course import FINISHED, Course, Stage
from glm5_operator.status.ends import is_ended, last_word
from glm5_operator.status.pods import condition, is_true
from glm5_operator.status.progress import Heard, progress_fields
from glm5_operator.status.scheduling import read_unschedulable
from glm5_operator.status.waiting import why_waiting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from glm5_operator.plan.facts import Finding
    from glm5_operator.status.causes import Cause
    from glm5_operator.status.check import Check
    from glm5_operator.status.service import WriteFault

PLANNED: Final = "Planned"
ADVISED: Final = "Advised"
SCHEDULED: Final = "Scheduled"
TRAINING: Final = "Training"
DATA_VALID: Final = "DataValid"
CHECKPOINT_VERIFIED: Final = "CheckpointVerified"
PUBLISHED: Final = "Published"


@dataclass(frozen=True, slots=True)
class Told:
    """What the status is told from, beside the object itself.

    Attributes:
        course: where the job is.
        plan: of the attempt that is due; None when none was made.
        advice: what about the spec is allowed but unwise.
        pods: the pods of its Jobs.
        held: extended resources that its pods on nodes hold.
        faults: this pass's failed writes.
        heard: how far the newest attempt's trainer says it is.
        check: what came of the check before the first attempt.
        refused: why pods that are missing can't be created.
    """

    course: Course
    plan: AttemptPlan | None = None
    advice: tuple[Finding, ...] = ()
    pods: Sequence[Mapping[str, Any]] = ()
    held: Mapping[str, int] = field(default_factory=dict)
    faults: Sequence[WriteFault] = ()
    heard: Heard | None = None
    check: Check | None = None
    refused: Cause | None = None


def finetune_status(job: Mapping[str, Any], told: Told, now: datetime) -> dict[str, Any]:
    """Compute the status. `job` is the object as the API server gave it."""
    previous = job.get("status") or {}
    generation = job["metadata"]["generation"]
    verdict = _verdict(job, told)
    fields = _fields(job, previous, told)
    explained = (
        _planned(previous, told),
        _advised(told),
        _data_valid(fields, told),
        _scheduled(told),
        _training(told),
        _checkpoint_verified(fields),
        _published(told),
        _finished(told),
    )
    known = [item for item in explained if item is not None]
    return fields | {
        "observedGeneration": generation,
        "conditions": c.dated((*verdict, *known), previous.get("conditions") or (), generation, now),
    }


def invalid_status(job: Mapping[str, Any], finding: Finding, now: datetime) -> dict[str, Any]:
    """The status of a spec that can't be read: everything that was known stays."""
    previous = job.get("status") or {}
    generation = job["metadata"]["generation"]
    verdict = c.stuck(finding.reason, finding.message)
    types = {item.type for item in verdict}
    old = previous.get("conditions") or ()
    kept = [dict(item) for item in old if item.get("type") not in types]
    return {**previous, "observedGeneration": generation, "conditions": c.dated(verdict, old, generation, now) + kept}


def _verdict(job: Mapping[str, Any], told: Told) -> tuple[Condition, ...]:
    """Ready, Reconciling and Stalled. The order of the questions is the rule."""
    course, record = told.course, told.course.record
    if told.faults:
        fault = min(told.faults, key=lambda item: (item.retryable, item.reason, item.message))
        return c.failing(fault.reason, fault.message, job) if fault.retryable else c.stuck(fault.reason, fault.message)
    if course.stage is Stage.FINISHED:
        good = record.outcome == "Succeeded"
        return c.settled("Succeeded", record.message) if good else c.stuck(record.reason, record.message)
    if course.stage is Stage.SUSPENDED:
        return c.on_its_way("Suspended", "set spec.policy.suspend to false to go on")
    if course.stage is Stage.ENDING:
        return c.on_its_way("AttemptEnding", _ending(told))
    if course.stage is Stage.CLEARING:
        return c.on_its_way("AttemptEnding", course.message)
    if course.stage is Stage.WAITING:
        last = record.history[-1]
        when = stamp(record.retry) if record.retry else ""
        return c.on_its_way("Retrying", f"attempt {record.attempt} ended by {last['cause']}, the next begins at {when}: {last['message']}")
    if told.refused is not None and course.stage in {Stage.CHECKING, Stage.RUNNING}:
        return c.on_its_way(told.refused.reason.value, told.refused.message)
    if course.stage is Stage.CHECKING and not (told.plan and told.plan.stalled):
        return c.on_its_way(told.check.reason if told.check else "Checking", course.message)
    if course.stage in {Stage.DUE, Stage.CHECKING}:
        return _due(told)
    return _running(told)


def _ending(told: Told) -> str:
    """Who is asked takes its time; who has failed takes the others with it."""
    job, attempt = told.course.job or {}, told.course.record.attempt
    asked = [moment(pod["metadata"].get("deletionTimestamp")) for pod in _current(told) if not is_ended(pod)]
    until = max((end for end in asked if end is not None), default=None)
    if until is None or is_true(job, "FailureTarget") or is_true(job, "Failed"):
        return f"attempt {attempt} has failed; its other ranks are being ended"
    return f"attempt {attempt} was asked to end: it has until {stamp(until)} for the step under way and a checkpoint"


def _due(told: Told) -> tuple[Condition, ...]:
    plan = told.plan or AttemptPlan()
    if plan.stalled:
        return c.stuck(plan.stalled.reason, plan.stalled.message)
    if plan.waits:
        return c.on_its_way(plan.waits.reason, plan.waits.message)
    return c.on_its_way("Starting", "the pods of the attempt are being created")


def _running(told: Told) -> tuple[Condition, ...]:
    wanted, running = _wanted(told), _counted(told)
    if wanted and running == wanted:
        return c.on_its_way("Training", f"attempt {told.course.record.attempt}: {running} of {wanted} pods run")
    scheduled = _scheduled(told)
    if scheduled.status is Truth.FALSE:
        return c.on_its_way(scheduled.reason, scheduled.message)
    return c.on_its_way("Starting", f"{running} of {wanted} pods run{why_waiting(_current(told))}")


def _planned(previous: Mapping[str, Any], told: Told) -> Condition | None:
    """What the last plan said; between plans it stays as it was."""
    plan = told.plan
    if plan is None:
        old: Mapping[str, Any] | None = next((item for item in previous.get("conditions") or () if item.get("type") == PLANNED), None)
        return Condition(PLANNED, Truth(old["status"]), old["reason"], old.get("message") or "") if old else None
    if plan.stalled:
        return Condition(PLANNED, Truth.FALSE, plan.stalled.reason, plan.stalled.message)
    resolved = plan.resolved
    return Condition(
        PLANNED, Truth.TRUE, "Planned", f"{resolved.nodes} pods, {resolved.cards} {resolved.resource_name}" if resolved else ""
    )


def _advised(told: Told) -> Condition:
    """True when nothing about the spec is known to go wrong."""
    if not told.advice:
        return Condition(ADVISED, Truth.TRUE, "Advised", "")
    return Condition(ADVISED, Truth.FALSE, "Unwise", "; ".join(item.message for item in told.advice))


def _data_valid(fields: Mapping[str, Any], told: Told) -> Condition:
    """Settings, model and data were looked at before any card was taken."""
    record, found = told.course.record, fields.get("dataCheck")
    if found is not None:
        numbers = [
            f"{found[name]} {word}" for name, word in (("read", "rows read"), ("kept", "kept"), ("skipped", "skipped")) if name in found
        ]
        return Condition(DATA_VALID, Truth.TRUE, "Valid", ", ".join(numbers))
    if record.outcome == "Failed" and record.attempt == 0:
        return Condition(DATA_VALID, Truth.FALSE, record.reason, record.message)
    if record.attempt:
        return Condition(DATA_VALID, Truth.UNKNOWN, "NotChecked", "the run began before it could be checked")
    return Condition(DATA_VALID, Truth.UNKNOWN, told.course.stage.value, told.course.message)


def _scheduled(told: Told) -> Condition:
    course, plan = told.course, told.plan
    if course.stage in {Stage.DUE, Stage.CHECKING} and plan is not None and (plan.waits or plan.stalled):
        finding = plan.waits or plan.stalled
        assert finding is not None
        return Condition(SCHEDULED, Truth.FALSE, finding.reason, finding.message)
    if course.stage not in {Stage.RUNNING, Stage.DUE}:
        return Condition(SCHEDULED, Truth.FALSE, course.stage.value, course.message)
    if course.job is not None and (course.job.get("spec") or {}).get("suspend"):
        queue = (course.job["metadata"].get("labels") or {}).get(names.KUEUE_QUEUE_LABEL, "")
        return Condition(SCHEDULED, Truth.FALSE, "Queued", f"queue {queue} of Kueue has yet to give it its cards")
    if told.refused is not None:
        return Condition(SCHEDULED, Truth.FALSE, told.refused.reason.value, told.refused.message)
    wanted, pods = _wanted(told), _current(told)
    bound = sum(bool((pod.get("spec") or {}).get("nodeName")) for pod in pods)
    for pod in pods:
        refused = condition(pod, "PodScheduled") or {}
        if refused.get("status") == "False" and refused.get("message"):
            reason, message = read_unschedulable(str(refused["message"]), pod)
            return Condition(SCHEDULED, Truth.FALSE, reason.value, f"{bound} of {wanted} pods have a node; {message}")
    enough = bool(wanted) and bound == wanted
    return Condition(SCHEDULED, Truth.of(enough) if enough else Truth.UNKNOWN, "Scheduled" if enough else "Pending", f"{bound} of {wanted}")


def _training(told: Told) -> Condition:
    course = told.course
    if course.stage is not Stage.RUNNING:
        reason = course.record.reason or "Failed" if course.stage is Stage.FINISHED else course.stage.value
        return Condition(TRAINING, Truth.FALSE, reason, course.message)
    wanted, running = _wanted(told), _counted(told)
    enough = bool(wanted) and running == wanted
    return Condition(
        TRAINING, Truth.of(enough), "Training" if enough else "Starting", f"{running} of {wanted} pods run{why_waiting(_current(told))}"
    )


def _finished(told: Told) -> Condition:
    record = told.course.record
    if not record.outcome:
        return Condition(FINISHED, Truth.FALSE, "NotYet", "")
    return Condition(FINISHED, Truth.TRUE, record.reason, record.message)


def _checkpoint_verified(fields: Mapping[str, Any]) -> Condition:
    """There is a checkpoint whose files were read back and are what its manifest says: the next attempt begins there."""
    newest: Mapping[str, Any] = fields.get("checkpoint") or {}
    if "sha256" not in newest:
        return Condition(CHECKPOINT_VERIFIED, Truth.FALSE, "NotYet", "")
    return Condition(CHECKPOINT_VERIFIED, Truth.TRUE, "Verified", f"step {newest['step']}, manifest sha256 {newest['sha256']}")


def _published(told: Told) -> Condition:
    """The result lies where spec.output says. Only the trainer knows, and says so with its last word."""
    record = told.course.record
    if record.outcome == "Succeeded":
        return Condition(PUBLISHED, Truth.TRUE, "Published", "the result is in spec.output")
    return Condition(PUBLISHED, Truth.FALSE, "Failed" if record.outcome else "NotYet", "")


def _fields(job: Mapping[str, Any], previous: Mapping[str, Any], told: Told) -> dict[str, Any]:
    """Everything but conditions. Progress that nobody tells any more stays as it was told last."""
    record, plan = told.course.record, told.plan
    resolved = plan.resolved.model_dump(mode="json", by_alias=True, exclude_none=True) if plan and plan.resolved else None
    resolved = resolved or previous.get("resolved")
    resource = (resolved or {}).get("resourceName")
    fields = {
        "attempt": record.attempt or None,
        "failures": record.failures or None,
        "startTime": stamp(record.started) if record.started else None,
        "completionTime": stamp(record.completed) if record.completed else None,
        "outcome": record.outcome or None,
        "retryTime": stamp(record.retry) if record.retry and told.course.stage is Stage.WAITING else None,
        "ending": dict(record.ending) if record.ending and told.course.stage is Stage.ENDING else None,
        "history": [dict(item) for item in record.history] or None,
        "dataCheck": _data_check(previous, told),
        "cardsHeld": told.held.get(resource, 0) if resource else None,
        "resolved": resolved,
        **progress_fields(
            previous,
            str(job["spec"].get("output") or ""),
            [word for pod in _current(told) if (word := last_word(pod))],
            told.heard,
            attempt=record.attempt,
            trains=told.course.stage is Stage.RUNNING,
        ),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _data_check(previous: Mapping[str, Any], told: Told) -> dict[str, Any] | None:
    """What was found good; once an attempt was begun nothing is checked any more, and it stays."""
    if told.check is not None and told.check.record is not None:
        return dict(told.check.record)
    return previous.get("dataCheck") if told.course.record.attempt else None


def _current(told: Told) -> list[Mapping[str, Any]]:
    """Pods of the newest attempt."""
    job = told.course.job
    uid = job["metadata"]["uid"] if job is not None else ""
    return [pod for pod in told.pods if any(item.get("uid") == uid for item in pod["metadata"].get("ownerReferences") or ())]


def _wanted(told: Told) -> int:
    job = told.course.job
    return int((job.get("spec") or {}).get("completions") or 0) if job is not None else 0


def _counted(told: Told) -> int:
    """Pods whose trainer runs, or has ended well already."""
    return sum(_runs(pod) for pod in _current(told))


def _runs(pod: Mapping[str, Any]) -> bool:
    status = pod.get("status") or {}
    states = status.get("containerStatuses") or ()
    return status.get("phase") == "Succeeded" or (
        status.get("phase") == "Running" and bool(states) and all("running" in (item.get("state") or {}) for item in states)
    )
