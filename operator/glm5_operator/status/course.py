"""What is to happen next with a fine-tuning job: pure, from its status, its Jobs, its pods and the state of nodes.

Called by the fine-tuning controller. A job that has ended stays so: its outcome stands in the status, in a ConfigMap of its own, and in
the finished Job, and each of them alone is enough. Nothing is remembered anywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.api.common import format_duration
from glm5_operator.api.finetune_status import MOST_HISTORY
from glm5_operator.status.check import Check, CheckState
from glm5_operator.status.conditions import moment, stamp
from glm5_operator.status.ends import (
    FREE,
    LOST_AFTER,
    PASSING,
    SPEAKS_LATER,
    Cause,
    PodEnd,
    explaining,
    is_ended,
    last_word,
    latecomers,
    pod_ends,
)
from glm5_operator.status.pods import condition
from glm5_operator.status.progress import Heard, reached

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from glm5_operator.api.finetune import GLM5FinetuneJobSpec

FINISHED: Final = "Finished"
"""The condition whose reason and message are those of the outcome."""
FIRST_WAIT: Final = timedelta(seconds=5)
LONGEST_WAIT: Final = timedelta(minutes=5)
MOST_SUPERSEDED: Final = 5
"""In a row: from here on they count. Somebody else writes into the job's folder, and each attempt takes all cards to find that."""
SOON_AGAIN: Final = timedelta(minutes=1)
LONGEST_PREEMPTED: Final = timedelta(seconds=30)
"""Between attempts that are preempted within SOON_AGAIN of one another, which this must be shorter than."""

Json = dict[str, Any]


class Reason(StrEnum):
    """Why a job has ended, beside the causes of its attempts."""

    SUCCEEDED = "Succeeded"
    ATTEMPTS_USED_UP = "AttemptsUsedUp"
    DEADLINE_EXCEEDED = "DeadlineExceeded"


class Stage(StrEnum):
    """Where a job is."""

    FINISHED = "Finished"
    SUSPENDED = "Suspended"
    CHECKING = "Checking"
    RUNNING = "Running"
    ENDING = "Ending"
    CLEARING = "Clearing"
    WAITING = "Waiting"
    DUE = "Due"


@dataclass(frozen=True, slots=True)
class Seen:
    """What the cache has of one fine-tuning job.

    Attributes:
        jobs: its Jobs, one an attempt as long as they are there.
        pods: all pods of those Jobs, ended ones too.
        outcome: data of the ConfigMap that records the end; empty when there is none.
        lost_nodes: of the nodes that its pods are on, those that are gone or not ready.
        gone_nodes: those that are gone altogether.
        sick_nodes: those with cards in remedy: whoever was sent away from there was so for a failed card.
        heard: how far the newest attempt's trainer said it was.
        check: what came of the check before the first attempt; None when none is to be made.
    """

    jobs: Sequence[Mapping[str, Any]] = ()
    pods: Sequence[Mapping[str, Any]] = ()
    outcome: Mapping[str, str] = field(default_factory=dict)
    lost_nodes: frozenset[str] = frozenset()
    gone_nodes: frozenset[str] = frozenset()
    sick_nodes: frozenset[str] = frozenset()
    heard: Heard | None = None
    check: Check | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """What must not be forgotten: the fields of the status that decide.

    Attributes:
        attempt: number of the newest attempt, 0 before the first.
        failures: ended attempts that cost one.
        history: ended attempts as the status has them, newest last.
        outcome: Succeeded or Failed once the job has ended.
        reason: of the outcome.
        message: of the outcome.
        started: when the first attempt was created.
        completed: when the job ended.
        retry: when the next attempt may begin.
        ending: what explains best, of what was seen, why the newest attempt is ending. A pod that was evicted is gone before its Job
            has failed, and what it said with it.
    """

    attempt: int = 0
    failures: int = 0
    history: tuple[Json, ...] = ()
    outcome: str = ""
    reason: str = ""
    message: str = ""
    started: datetime | None = None
    completed: datetime | None = None
    retry: datetime | None = None
    ending: Json | None = None

    @property
    def ended(self) -> bool:
        """The newest attempt has ended, and how is told."""
        return self.attempt == 0 or any(item.get("attempt") == self.attempt for item in self.history)


@dataclass(frozen=True, slots=True)
class Course:
    """Where a job is, and what follows.

    Attributes:
        stage: where it is.
        record: what the status must say.
        job: the Job that stays (it runs, or shows how its attempt ended); None: whatever is there goes.
        until: when time alone changes the stage.
        message: why, where the stage doesn't say it all.
    """

    stage: Stage
    record: Record
    job: Mapping[str, Any] | None = None
    until: datetime | None = None
    message: str = ""


def course(status: Mapping[str, Any], spec: GLM5FinetuneJobSpec, seen: Seen, now: datetime) -> Course:
    """Decide. `seen` must be complete: that a Job is missing means here that somebody deleted it."""
    record, newest = _record(status, seen), newest_of(seen.jobs)
    check = seen.check if record.attempt == 0 else None
    if check is not None and newest is None:
        newest = check.job if record.outcome or check.state is CheckState.BAD else None  # it stays for its logs
    if record.outcome:
        return _finished(record, spec, newest, now)
    if check is not None and check.state is CheckState.BAD:
        return _failed(record, (check.reason, check.message), spec, newest, now)
    if record.ended:
        return _between(record, spec, seen, newest, now)
    if newest is None:
        ended = _with_end(record, PodEnd(Cause.POD_DELETED, "its Job was deleted", "", None, None), seen, now)
        return _after_end(ended, spec, seen, None, now)
    if _job_is(newest, "Complete") or _job_is(newest, "SuccessCriteriaMet"):
        done = replace(record, outcome="Succeeded", reason=Reason.SUCCEEDED.value, message="the run has ended", completed=now)
        return _finished(done, spec, newest, now)
    return _under_way(record, spec, seen, newest, now)


def _under_way(record: Record, spec: GLM5FinetuneJobSpec, seen: Seen, newest: Mapping[str, Any], now: datetime) -> Course:
    """An attempt that has a Job and no end yet."""
    ends = _ends(record, newest, seen, now)
    # A Job fails when all its pods have ended; who seems to live is news that has yet to come, and may have the cause with it.
    awaited = any(not is_ended(pod) and _node(pod) not in seen.lost_nodes for pod in seen.pods if _attempt(pod) == _attempt(newest))
    end, until = _end(newest, ends, now, awaited=awaited)
    if end is not None:
        kept = newest if _job_is(newest, "Failed") else None
        return _after_end(_with_end(record, end, seen, now), spec, seen, kept, now)
    if spec.suspended:
        suspended = _with_end(record, PodEnd(Cause.SUSPENDED, "spec.policy.suspend is true", "", None, None), seen, now)
        return Course(Stage.SUSPENDED, replace(suspended, retry=None))
    if _is_late(record, spec, now):
        return _failed(record, (Reason.DEADLINE_EXCEEDED, _late(spec)), spec, None, now)
    if until is not None:
        best = explaining(ends)
        ending = replace(record, ending=_entry(record, best, seen, now) if best else None)
        return Course(Stage.ENDING, ending, newest, min(until, _deadline(record, spec) or until))
    return Course(Stage.RUNNING, record, newest, _first(_deadline(record, spec), _next_loss(seen, now)))


def _between(record: Record, spec: GLM5FinetuneJobSpec, seen: Seen, newest: Mapping[str, Any] | None, now: datetime) -> Course:
    """No attempt is under way. The Job of the last one stays for its logs, if it has ended by itself."""
    kept = newest if newest is not None and _job_is(newest, "Failed") else None
    if _is_late(record, spec, now):
        return _failed(record, (Reason.DEADLINE_EXCEEDED, _late(spec)), spec, kept, now)
    late = _deadline(record, spec)
    if spec.suspended:
        return Course(Stage.SUSPENDED, replace(record, retry=None), kept, late)
    living = sorted(pod["metadata"]["name"] for pod in seen.pods if not is_ended(pod) and _node(pod) not in seen.lost_nodes)
    if living:
        return Course(Stage.CLEARING, record, kept, late, f"pod {living[0]} of attempt {record.attempt} has yet to end")
    if record.retry is not None and now < record.retry:
        return Course(Stage.WAITING, record, kept, _first(record.retry, late))
    if record.attempt == 0 and seen.check is not None:
        if seen.check.state is not CheckState.GOOD:
            return Course(Stage.CHECKING, record, message=seen.check.message)
        kept = seen.check.job  # until the status surely says what it found
    return Course(Stage.DUE, record, kept, late)


def _after_end(record: Record, spec: GLM5FinetuneJobSpec, seen: Seen, kept: Mapping[str, Any] | None, now: datetime) -> Course:
    """An attempt has just ended: is there another?"""
    last = record.history[-1]
    if Cause(last["cause"]) not in PASSING:
        return _failed(record, (str(last["cause"]), str(last["message"])), spec, kept, now)
    if record.failures >= spec.max_attempts:
        message = f"{record.failures} attempts failed, the last by {last['cause']}: {last['message']}"
        return _failed(record, (Reason.ATTEMPTS_USED_UP, message), spec, kept, now)
    return _between(record, spec, seen, kept, now)


def _failed(record: Record, why: tuple[str, str], spec: GLM5FinetuneJobSpec, kept: Mapping[str, Any] | None, now: datetime) -> Course:
    reason, message = why
    return _finished(replace(record, outcome="Failed", reason=str(reason), message=message, completed=now, retry=None), spec, kept, now)


def _finished(record: Record, spec: GLM5FinetuneJobSpec, newest: Mapping[str, Any] | None, now: datetime) -> Course:
    """Nothing runs again; what shows how it ended stays for a while. A Job that still runs (the status was restored, say) goes."""
    goes = (record.completed or now) + spec.ttl
    is_over = newest is not None and any(_job_is(newest, kind) for kind in ("Complete", "SuccessCriteriaMet", "Failed"))
    kept = newest if is_over and now < goes else None
    return Course(Stage.FINISHED, record, kept, goes if kept is not None else None)


def _ends(record: Record, job: Mapping[str, Any], seen: Seen, now: datetime) -> list[PodEnd]:
    """The ends of the attempt's pods, and the one that was told of pods that are gone by now."""
    pods = [pod for pod in seen.pods if _attempt(pod) == _attempt(job)]
    ends = [_for_its_card(end, seen) for end in pod_ends((pod, _is_lost(pod, seen, now)) for pod in pods)]
    if late := latecomers(pods):
        ends = [replace(end, message=f"{end.message}; {late}") if end.cause is Cause.RANK_LOST else end for end in ends]
    told = record.ending
    if told is not None and told.get("attempt") == record.attempt:
        message, node = str(told.get("message") or ""), str(told.get("node") or "")
        ends = [end for end in ends if not message.startswith(end.message)]  # it was told when latecomers were still there
        ends.append(PodEnd(Cause(told["cause"]), message, node, told.get("exitCode"), moment(told["time"])))
    return ends


def _for_its_card(end: PodEnd, seen: Seen) -> PodEnd:
    """The remedy of a node evicts pods, as a drain or a preemption does; only the node tells them apart."""
    if end.node not in seen.sick_nodes or end.cause not in {Cause.PREEMPTED, Cause.POD_DELETED}:
        return end
    return replace(end, cause=Cause.CARD_FAULT, message=f"{end.message}; node {end.node} is in remedy for a failed card")


def _end(job: Mapping[str, Any], ends: Sequence[PodEnd], now: datetime, *, awaited: bool) -> tuple[PodEnd | None, datetime | None]:
    """How the attempt ended; else, if it is ending, until when the other ranks may say more."""
    if ends and (job.get("spec") or {}).get("suspend"):
        return PodEnd(Cause.PREEMPTED, "its Job was suspended: Kueue gave its cards to somebody else", "", None, None), None
    failing = _condition(job, "FailureTarget") or _condition(job, "Failed")
    deleted = job["metadata"].get("deletionTimestamp")
    if not (ends or failing or deleted):
        return None, None
    began = [end.time for end in ends if end.time is not None]
    since = min([*began, *([_time(failing)] if failing and _time(failing) else [])], default=None)  # type: ignore[type-var]
    is_over = (_condition(job, "Failed") is not None and not awaited) or deleted or any(end.cause is Cause.NODE_LOST for end in ends)
    if not is_over:
        until = (since or now) + SPEAKS_LATER
        if since is None or now < until:
            return None, until
    found = explaining(ends)
    if found is None:
        why = "its Job was deleted" if deleted else f"its Job failed: {(failing or {}).get('message') or 'no pod is left that says why'}"
        found = PodEnd(Cause.POD_DELETED if deleted else Cause.UNKNOWN, why, "", None, None)
    return found, None


def _with_end(record: Record, end: PodEnd, seen: Seen, now: datetime) -> Record:
    """The record with the end of its newest attempt, and when the next may begin."""
    if end.time is not None:  # of a pod that was asked to end the time is known by which it must have; it may have before
        end = replace(end, time=min(end.time, now))
    history = (*record.history, _entry(record, end, seen, now))
    superseded = end.cause is Cause.SUPERSEDED and len(_row(history)) >= MOST_SUPERSEDED
    failures = record.failures + (superseded or end.cause not in FREE)
    retry = now + _wait(end.cause, failures, history)
    return replace(record, failures=failures, history=history[-MOST_HISTORY:], retry=retry, ending=None)


def _wait(cause: Cause, failures: int, history: Sequence[Json]) -> timedelta:
    """Doubles with each end that cost an attempt, and with each Superseded in a row; what was preempted again and again waits a little."""
    if cause is Cause.PREEMPTED:
        times = [moment(item["time"]) for item in _row(history)]
        gaps = [newer - older for newer, older in pairwise(times) if newer is not None and older is not None]
        quick = sum(1 for _ in takewhile(lambda gap: gap <= SOON_AGAIN, gaps))
        return min(LONGEST_PREEMPTED, _doubled(quick)) if quick else timedelta(0)
    if cause is Cause.SUPERSEDED:
        return _doubled(len(_row(history)))
    return timedelta(0) if cause in FREE else _doubled(failures)


def _doubled(count: int) -> timedelta:
    return min(LONGEST_WAIT, FIRST_WAIT * (1 << min(10, max(0, count - 1))))


def _row(history: Sequence[Json]) -> list[Json]:
    """The newest ends that have one cause, newest first."""
    return list(takewhile(lambda item: item["cause"] == history[-1]["cause"], reversed(history)))


def _entry(record: Record, end: PodEnd, seen: Seen, now: datetime) -> Json:
    """The end of the newest attempt as the status has it."""
    words = [word for pod in seen.pods if _attempt(pod) == record.attempt and (word := last_word(pod))]
    heard = seen.heard if seen.heard and seen.heard.attempt == record.attempt else None
    entry: Json = {"attempt": record.attempt, "cause": end.cause.value, "message": end.message, "time": stamp(end.time or now)}
    if end.node:
        entry["node"] = end.node
    if end.exit_code is not None:
        entry["exitCode"] = end.exit_code
    return entry | reached(words, heard)


def _record(status: Mapping[str, Any], seen: Seen) -> Record:
    """From the status; what that lacks, from the ConfigMap of the outcome and the newest Job."""
    newest = newest_of(seen.jobs)
    outcome = str(status.get("outcome") or seen.outcome.get("outcome") or "")
    finished: Mapping[str, Any] = next((item for item in status.get("conditions") or () if item.get("type") == FINISHED), {})
    told = finished if status.get("outcome") else seen.outcome
    created = moment(newest["metadata"].get("creationTimestamp")) if newest else None
    return Record(
        attempt=max(int(status.get("attempt") or 0), _attempt(newest) if newest else 0, _number(seen.outcome.get("attempt"))),
        failures=int(status.get("failures") or 0),
        history=tuple(status.get("history") or ()),
        outcome=outcome,
        reason=str(told.get("reason") or outcome),
        message=str(told.get("message") or ""),
        started=moment(status.get("startTime")) or created,
        completed=moment(status.get("completionTime")) or moment(seen.outcome.get("time")),
        retry=moment(status.get("retryTime")),
        ending=status.get("ending"),
    )


def newest_of(jobs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The Job of the newest attempt."""
    return max(jobs, key=_attempt, default=None)


def _attempt(item: Mapping[str, Any]) -> int:
    return _number((item["metadata"].get("labels") or {}).get(names.ATTEMPT_LABEL))


def _number(text: object) -> int:
    return int(text) if isinstance(text, str) and text.isdigit() else 0


def _condition(job: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    found = condition(job, kind)
    return found if found is not None and found.get("status") == "True" else None


def _job_is(job: Mapping[str, Any], kind: str) -> bool:
    return _condition(job, kind) is not None


def _time(item: Mapping[str, Any]) -> datetime | None:
    return moment(item.get("lastTransitionTime"))


def _node(pod: Mapping[str, Any]) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def _is_lost(pod: Mapping[str, Any], seen: Seen, now: datetime) -> bool:
    """Its node is gone, or has been silent for longer than a restart takes: since the pod was called unready, which nodes do together."""
    if is_ended(pod) or _node(pod) not in seen.lost_nodes:
        return False
    since = _unready_since(pod)
    return _node(pod) in seen.gone_nodes or (since is not None and now >= since + LOST_AFTER)


def _unready_since(pod: Mapping[str, Any]) -> datetime | None:
    ready = condition(pod, "Ready") or {}
    return _time(ready) if ready.get("status") != "True" else None


def _next_loss(seen: Seen, now: datetime) -> datetime | None:
    """When a silent node will be called lost."""
    waits = [since + LOST_AFTER for pod in seen.pods if _node(pod) in seen.lost_nodes and (since := _unready_since(pod)) is not None]
    return min((wait for wait in waits if wait > now), default=None)


def _deadline(record: Record, spec: GLM5FinetuneJobSpec) -> datetime | None:
    return record.started + spec.deadline if record.started is not None and spec.deadline is not None else None


def _is_late(record: Record, spec: GLM5FinetuneJobSpec, now: datetime) -> bool:
    end = _deadline(record, spec)
    return end is not None and now >= end


def _late(spec: GLM5FinetuneJobSpec) -> str:
    limit = format_duration(spec.deadline or timedelta(0))
    return f"not done within spec.policy.deadline of {limit}: the checkpoints stay; create another job with more time"


def _first(*moments: datetime | None) -> datetime | None:
    return min((one for one in moments if one is not None), default=None)
