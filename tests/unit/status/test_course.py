"""What happens next with a fine-tuning job, and that an ended one stays ended. Pure: time is a number, objects are Kubernetes's own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from glm5_operator.api.finetune import GLM5FinetuneJob, GLM5FinetuneJobSpec
from glm5_operator.status.course import Course, Seen, Stage, course
from tests.support.clock import at, stamp
from tests.support.runs import a_job, a_rank, failed
from tests.support.trainers import finetune

Json = dict[str, Any]
RUNNING: Json = {"attempt": 1, "startTime": stamp(at())}


def spec(**policy: object) -> GLM5FinetuneJobSpec:
    document = finetune("prod", pool="training", **({"policy": policy} if policy else {}))
    return GLM5FinetuneJob.parse({**document, "apiVersion": "glm5.dev/v1alpha1"}).spec


def decide(status: Json, *jobs: Json, pods: tuple[Json, ...] = (), minutes: float = 1, policy: Json | None = None, **seen: Any) -> Course:  # noqa: ANN401 - fields of Seen
    return course(status, spec(**(policy or {})), Seen(jobs, pods, **seen), at(minutes=minutes))


def told(attempt: int, cause: str, **fields: object) -> Json:
    return {"attempt": attempt, "cause": cause, "message": "m", "time": stamp(at()), **fields}


def test_a_new_job_is_due_at_once() -> None:
    assert decide({}).stage is Stage.DUE


def test_an_attempt_that_runs_stays_as_it_is() -> None:
    job = a_job()
    found = decide(RUNNING, job, pods=(a_rank(),))

    assert (found.stage, found.job) == (Stage.RUNNING, job)


def test_an_attempt_that_the_status_does_not_know_yet_is_found_by_its_job() -> None:
    found = decide({}, a_job(3), pods=(a_rank(attempt=3),))

    assert (found.stage, found.record.attempt, found.record.started) == (Stage.RUNNING, 3, at())


# --- the end of an attempt --------------------------------------------------------------------------------------------------


def test_after_the_first_failed_pod_the_others_have_a_moment_to_say_why() -> None:
    pods = (failed(finished=at(seconds=50)), a_rank(1))
    found = decide(RUNNING, a_job(1, "FailureTarget", since=at(seconds=50)), pods=pods, minutes=1)

    assert found.stage is Stage.ENDING
    assert found.until == at(seconds=65)
    assert found.record.history == ()


def test_a_job_that_has_failed_is_told_with_the_cause_and_stays_for_its_logs() -> None:
    job = a_job(1, "FailureTarget", "Failed")
    found = decide(RUNNING, job, pods=(failed(word={"step": 40, "message": "boom"}),))

    assert found.stage is Stage.WAITING
    assert found.job is job
    assert found.record.failures == 1
    (entry,) = found.record.history
    assert (entry["attempt"], entry["cause"], entry["step"], entry["exitCode"], entry["node"]) == (1, "Unknown", 40, 1, "n0")


def test_a_failing_job_whose_other_pods_do_not_end_goes() -> None:
    found = decide(RUNNING, a_job(1, "FailureTarget"), pods=(failed(finished=at()), a_rank(1)))

    assert found.record.history != ()
    assert found.job is None


def test_why_a_pod_was_evicted_is_known_when_it_is_gone() -> None:
    evicted = a_rank(disrupted="EvictionByEvictionAPI", deleted=True)
    ending = decide(RUNNING, a_job(1, "FailureTarget", since=at(seconds=5)), pods=(evicted,), minutes=0.1)
    assert ending.stage is Stage.ENDING
    assert ending.record.ending is not None

    found = decide({**RUNNING, "ending": ending.record.ending}, a_job(1, "FailureTarget", "Failed"))

    assert found.record.history[0]["cause"] == "Preempted"
    assert (found.record.failures, found.record.ending) == (0, None)


def test_a_rank_that_was_asked_to_end_has_its_time_and_the_end_is_told_as_of_when_it_came() -> None:
    asked = a_rank(disrupted="EvictionByEvictionAPI", deleted=at(minutes=9))
    ending = decide(RUNNING, a_job(completions=2), pods=(asked, a_rank(1)), minutes=2)
    assert (ending.stage, ending.record.history) == (Stage.ENDING, ())
    assert ending.job is not None, "its Job stays, or the others would be ended"

    ended = (a_rank(phase="Failed", code=143, disrupted="EvictionByEvictionAPI", deleted=at(minutes=9)), failed(1, 143))
    status = {**RUNNING, "ending": ending.record.ending}
    found = decide(status, a_job(1, "FailureTarget", "Failed", completions=2), pods=ended, minutes=3)

    (entry,) = found.record.history
    assert (entry["cause"], entry["time"], found.stage) == ("Preempted", stamp(at(minutes=3)), Stage.DUE)


def test_what_was_told_of_an_earlier_attempt_explains_nothing() -> None:
    found = decide({"attempt": 2, "ending": told(1, "Preempted")}, a_job(2, "Failed"))

    assert found.record.history[0]["cause"] == "Unknown"


@pytest.mark.parametrize(("code", "cause"), [(2, "Configuration"), (3, "Data"), (4, "NumericalError")])
def test_what_would_be_met_again_ends_the_job(code: int, cause: str) -> None:
    found = decide(RUNNING, a_job(1, "Failed"), pods=(failed(code=code),))

    assert (found.stage, found.record.outcome, found.record.reason) == (Stage.FINISHED, "Failed", cause)


def test_waits_double_up_to_five_minutes() -> None:
    waits = []
    for failures in range(9):
        status = {**RUNNING, "failures": failures}
        found = decide(status, a_job(1, "Failed"), pods=(failed(),), policy={"maxAttempts": 100})
        assert found.record.retry is not None
        waits.append((found.record.retry - at(minutes=1)).total_seconds())

    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_the_last_attempt_ends_the_job() -> None:
    found = decide({**RUNNING, "failures": 2}, a_job(1, "Failed"), pods=(failed(word="boom"),))

    assert (found.record.outcome, found.record.reason) == ("Failed", "AttemptsUsedUp")
    assert "boom" in found.record.message


def test_preemption_costs_nothing_and_waits_for_nothing() -> None:
    pods = (failed(code=143, disrupted="PreemptionByScheduler"),)
    found = decide({**RUNNING, "failures": 2}, a_job(1, "Failed"), pods=pods)

    assert (found.stage, found.record.failures) == (Stage.DUE, 2)


def wait_of(found: Course, now: float = 1) -> float:
    assert found.record.retry is not None
    return (found.record.retry - at(minutes=now)).total_seconds()


def test_who_is_superseded_again_and_again_waits_longer_each_time_and_pays_in_the_end() -> None:
    waits, costs = [], []
    for before in range(7):
        history = [told(1, "Unknown"), *(told(2 + number, "Superseded") for number in range(before))]
        status = {**RUNNING, "attempt": 9, "failures": 1, "history": history}
        found = decide(status, a_job(9, "Failed"), pods=(failed(code=7, attempt=9),), policy={"maxAttempts": 100})
        waits.append(wait_of(found))
        costs.append(found.record.failures - 1)

    assert waits == [5, 10, 20, 40, 80, 160, 300]
    assert costs == [0, 0, 0, 0, 1, 1, 1]


def test_a_superseded_run_with_no_attempt_left_has_failed() -> None:
    status = {**RUNNING, "attempt": 5, "failures": 2, "history": [told(number, "Superseded") for number in range(1, 5)]}
    found = decide(status, a_job(5, "Failed"), pods=(failed(code=7, attempt=5),))

    assert (found.record.outcome, found.record.reason) == ("Failed", "AttemptsUsedUp")


def test_preemptions_within_seconds_of_one_another_wait_a_little_and_stay_free() -> None:
    waits = []
    for before in range(6):
        history = [told(number, "Preempted", time=stamp(at(seconds=60 - 20 * (before - number + 1)))) for number in range(1, before + 1)]
        status = {**RUNNING, "attempt": 9, "history": history}
        pods = (failed(code=143, attempt=9, disrupted="PreemptionByScheduler", finished=at(minutes=1)),)
        found = decide(status, a_job(9, "Failed"), pods=pods)
        waits.append(wait_of(found))
        assert found.record.failures == 0

    assert waits == [0, 5, 10, 20, 30, 30]


def test_a_preemption_long_after_the_last_one_waits_for_nothing() -> None:
    status = {**RUNNING, "attempt": 2, "history": [told(1, "Preempted")]}
    pods = (failed(code=143, attempt=2, disrupted="PreemptionByScheduler", finished=at(minutes=2)),)

    assert decide(status, a_job(2, "Failed"), pods=pods, minutes=2).stage is Stage.DUE


def test_the_next_attempt_begins_when_its_time_has_come() -> None:
    status = {**RUNNING, "failures": 1, "history": [told(1, "Unknown")], "retryTime": stamp(at(minutes=2))}

    early = decide(status, a_job(1, "Failed"), minutes=1)
    assert (early.stage, early.until) == (Stage.WAITING, at(minutes=2))
    assert decide(status, a_job(1, "Failed"), minutes=2).stage is Stage.DUE


def test_the_next_attempt_waits_for_pods_of_the_last_one() -> None:
    status = {**RUNNING, "history": [told(1, "Unknown")]}
    clearing = decide(status, pods=(a_rank(deleted=True),))

    assert clearing.stage is Stage.CLEARING
    assert "tune-attempt-1-0" in clearing.message


def test_it_does_not_wait_for_pods_on_a_lost_node() -> None:
    status = {**RUNNING, "history": [told(1, "NodeLost")]}

    assert decide(status, pods=(a_rank(deleted=True),), lost_nodes=frozenset({"n0"})).stage is Stage.DUE


# --- nodes ------------------------------------------------------------------------------------------------------------------


def test_a_node_that_is_silent_for_a_moment_ends_nothing() -> None:
    pods = (a_rank(ready_changed=at(seconds=50)),)
    found = decide(RUNNING, a_job(), pods=pods, lost_nodes=frozenset({"n0"}), minutes=1)

    assert (found.stage, found.until) == (Stage.RUNNING, at(seconds=80))


def test_a_node_that_stays_silent_ends_the_attempt_at_once_and_its_job_goes() -> None:
    pods = (a_rank(ready_changed=at()), a_rank(1, node="n1"))
    found = decide(RUNNING, a_job(), pods=pods, lost_nodes=frozenset({"n0"}), minutes=1)

    assert found.record.history[0]["cause"] == "NodeLost"
    assert found.job is None


def test_a_node_that_is_gone_ends_the_attempt_at_once() -> None:
    gone = frozenset({"n0"})

    assert decide(RUNNING, a_job(), pods=(a_rank(),), lost_nodes=gone, gone_nodes=gone).record.history[0]["cause"] == "NodeLost"


def test_a_pod_that_has_ended_well_does_not_care_for_its_node() -> None:
    gone = frozenset({"n0"})

    assert decide(RUNNING, a_job(), pods=(a_rank(phase="Succeeded", code=0),), lost_nodes=gone, gone_nodes=gone).stage is Stage.RUNNING


# --- what users do ----------------------------------------------------------------------------------------------------------


def test_suspended_the_job_goes_and_the_attempt_costs_nothing() -> None:
    found = decide(RUNNING, a_job(), pods=(a_rank(),), policy={"suspend": True})

    assert (found.stage, found.job, found.record.failures) == (Stage.SUSPENDED, None, 0)
    assert found.record.history[0]["cause"] == "Suspended"


def test_resumed_it_is_due_when_the_old_pods_are_gone() -> None:
    status = {**RUNNING, "history": [told(1, "Suspended")]}

    assert decide(status, policy={"suspend": True}).stage is Stage.SUSPENDED
    assert decide(status).stage is Stage.DUE


def test_suspended_before_it_began_it_never_begins() -> None:
    assert decide({}, policy={"suspend": True}).stage is Stage.SUSPENDED


def test_a_run_that_ends_well_while_it_is_being_suspended_has_ended_well() -> None:
    assert decide(RUNNING, a_job(1, "Complete"), policy={"suspend": True}).record.outcome == "Succeeded"


@pytest.mark.parametrize("status", [RUNNING, {**RUNNING, "history": [told(1, "Unknown")]}], ids=["running", "waiting"])
def test_a_deadline_ends_the_job(status: Json) -> None:
    found = decide(status, a_job(), pods=(a_rank(),), policy={"deadline": "1h"}, minutes=60)

    assert (found.stage, found.record.reason, found.job) == (Stage.FINISHED, "DeadlineExceeded", None)


def test_the_deadline_is_looked_at_in_time() -> None:
    assert decide(RUNNING, a_job(), pods=(a_rank(),), policy={"deadline": "1h"}).until == at(hours=1)


def test_a_missing_job_was_deleted_by_somebody() -> None:
    found = decide(RUNNING)

    assert (found.stage, found.record.history[0]["cause"], found.record.failures) == (Stage.WAITING, "PodDeleted", 1)


# --- the end of a job -------------------------------------------------------------------------------------------------------

RECORD = {"outcome": "Succeeded", "reason": "Succeeded", "message": "m", "attempt": "2", "time": stamp(at())}
DONE = {
    "attempt": 2,
    "outcome": "Succeeded",
    "completionTime": stamp(at()),
    "conditions": [{"type": "Finished", "status": "True", "reason": "Succeeded", "message": "m"}],
}


@pytest.mark.parametrize("has_status", [True, False])
@pytest.mark.parametrize("has_record", [True, False])
@pytest.mark.parametrize("has_job", [True, False])
def test_an_ended_job_stays_ended_as_long_as_one_of_three_knows_it(has_status: bool, has_record: bool, has_job: bool) -> None:
    jobs = (a_job(2, "Complete"),) if has_job else ()
    found = decide(DONE if has_status else {}, *jobs, outcome=RECORD if has_record else {})

    if has_status or has_record or has_job:
        assert (found.stage, found.record.outcome, found.record.attempt) == (Stage.FINISHED, "Succeeded", 2)
    else:
        assert found.stage is Stage.DUE


def test_a_failed_job_keeps_its_reason_whatever_else_happened_to_its_status() -> None:
    failed_for = {"outcome": "Failed", "conditions": [{"type": "Finished", "status": "True", "reason": "Data", "message": "line 7"}]}
    found = decide({**failed_for, "attempt": 1}, policy={"maxAttempts": 99})

    assert (found.record.reason, found.record.message) == ("Data", "line 7")


def test_an_ended_job_whose_status_was_restored_loses_a_job_that_runs() -> None:
    assert decide(DONE, a_job(2), pods=(a_rank(attempt=2),)).job is None


def test_pods_of_an_ended_job_stay_for_their_time() -> None:
    kept = decide(DONE, a_job(2, "Complete"), policy={"ttlAfterFinished": "1h"}, minutes=59)
    gone = decide(DONE, a_job(2, "Complete"), policy={"ttlAfterFinished": "1h"}, minutes=60)

    assert (kept.job is not None, kept.until) == (True, at() + timedelta(hours=1))
    assert gone.job is None


def test_a_long_history_keeps_the_newest_and_counts_all() -> None:
    history = [told(number, "Unknown") for number in range(1, 21)]
    status = {"attempt": 21, "failures": 20, "history": history, "startTime": stamp(at())}
    found = decide(status, a_job(21, "Failed"), pods=(failed(attempt=21),), policy={"maxAttempts": 99})

    assert [entry["attempt"] for entry in found.record.history] == list(range(2, 22))
    assert found.record.failures == 21


# --- Kueue ------------------------------------------------------------------------------------------------------------------


def suspended(job: Json) -> Json:
    return {**job, "spec": {**job["spec"], "suspend": True}}


def test_a_job_that_kueue_has_yet_to_admit_is_under_way() -> None:
    found = decide(RUNNING, suspended(a_job()))

    assert (found.stage, found.record.history) == (Stage.RUNNING, ())


def test_pods_that_kueue_takes_back_are_a_preemption_whatever_they_say() -> None:
    found = decide(RUNNING, suspended(a_job()), pods=(failed(code=1, word="boom"), a_rank(1, deleted=True)))

    assert (found.record.history[-1]["cause"], found.record.failures) == ("Preempted", 0)


def test_a_job_that_has_failed_waits_for_the_news_of_pods_that_seem_to_live() -> None:
    lost = failed(code=6, word={"message": "rank 1 is gone"}, finished=at(seconds=50))
    job = a_job(1, "FailureTarget", "Failed", since=at(seconds=52))

    other = a_rank(1)
    other["metadata"] |= {"deletionTimestamp": stamp(at(seconds=60)), "deletionGracePeriodSeconds": 7}

    assert decide(RUNNING, job, pods=(lost, other), minutes=1).stage is Stage.ENDING
    assert decide(RUNNING, job, pods=(lost, other), minutes=2).record.history != (), "not for ever"
    assert decide(RUNNING, job, pods=(lost,), minutes=1).record.history[-1]["cause"] == "RankLost"


def pulling(rank: int) -> Json:
    pod = a_rank(rank, phase="Pending")
    pod["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "ImagePullBackOff", "message": "back-off pulling image"}}
    return pod


def unplaced(rank: int) -> Json:
    pod = a_rank(
        rank, phase="Pending", conditions=[{"type": "PodScheduled", "status": "False", "message": "Insufficient huawei.com/Ascend910"}]
    )
    return {**pod, "status": {**pod["status"], "containerStatuses": []}}


@pytest.mark.parametrize(
    ("late", "says"),
    [
        (pulling(1), "pod tune-attempt-1-1 hadn't started: ImagePullBackOff back-off pulling image"),
        (unplaced(1), "pod tune-attempt-1-1 hadn't started: no node takes it (Insufficient huawei.com/Ascend910)"),
    ],
    ids=["pulling its image", "without a node"],
)
def test_the_rank_that_never_came_is_named_also_when_its_pod_is_gone_by_the_end(late: Json, says: str) -> None:
    """C16: HCCL's time-out names the victim, rank 0, and its Job removes the other pod as soon as it has failed."""
    victim = failed(0, word="Get_Socket_Timeout(EI0006): no peer connected", finished=at(seconds=50))
    job = a_job(1, "FailureTarget", since=at(seconds=50))

    ending = decide(RUNNING, job, pods=(victim, late), minutes=1)
    assert ending.stage is Stage.ENDING
    assert ending.record.ending is not None
    over = decide({**RUNNING, "ending": ending.record.ending}, a_job(1, "FailureTarget", "Failed"), pods=(victim,), minutes=2)

    (entry,) = over.record.history
    assert entry["cause"] == "RankLost"
    assert "EI0006" in entry["message"]
    assert says in entry["message"]


def test_who_failed_by_itself_blames_no_pod_that_is_late() -> None:
    crashed = failed(0, word="Traceback: ImportError", finished=at(seconds=50))
    found = decide(RUNNING, a_job(1, "FailureTarget", "Failed"), pods=(crashed, pulling(1)), minutes=2)

    assert "hadn't started" not in found.record.history[-1]["message"]


def test_a_rank_that_was_sent_away_from_a_node_in_remedy_is_a_card_fault_and_not_a_preemption() -> None:
    pods = (failed(code=143, disrupted="EvictionByEvictionAPI"),)
    found = decide(RUNNING, a_job(1, "FailureTarget", "Failed"), pods=pods, sick_nodes=frozenset({"n0"}))

    (entry,) = found.record.history
    assert (entry["cause"], entry["node"], found.record.failures) == ("CardFault", "n0", 1)


def test_what_a_trainer_says_of_itself_counts_more_than_that_its_node_is_in_remedy() -> None:
    pods = (failed(code=3, word={"outcome": "DataError", "message": "line 7"}),)
    found = decide(RUNNING, a_job(1, "FailureTarget", "Failed"), pods=pods, sick_nodes=frozenset({"n0"}))

    assert found.record.history[0]["cause"] == "Data"
