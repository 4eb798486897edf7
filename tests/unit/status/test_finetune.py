"""The status of a fine-tuning job: its conditions at each stage, and what is believed of a trainer's last word. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from glm5_operator.plan.attempt import AttemptPlan
from glm5_operator.plan.facts import Finding
from glm5_operator.status.course import Course, Record, Stage
from glm5_operator.status.finetune import Told, finetune_status
from glm5_operator.status.service import WriteFault
from tests.support.clock import at, stamp
from tests.support.runs import a_job, a_rank, failed

Json = dict[str, Any]
LAST: Json = {"attempt": 1, "cause": "Unknown", "message": "boom", "time": "2026-11-29T12:00:00Z"}


def status(told: Told, previous: Json | None = None) -> Json:
    job = {"metadata": {"name": "tune", "generation": 4}, "spec": {"output": "pvc://adapters/support"}, "status": previous or {}}
    return finetune_status(job, told, at(minutes=1))


def conditions(found: Json) -> dict[str, tuple[str, str]]:
    return {item["type"]: (item["status"], item["reason"]) for item in found["conditions"]}


STAGES: dict[str, tuple[Told, tuple[str, str, str, str]]] = {
    "waits for cards": (
        Told(Course(Stage.DUE, Record()), AttemptPlan(waits=Finding("WaitingForCards", "m"))),
        ("WaitingForCards", "False", "True", "False"),
    ),
    "can't be planned": (
        Told(Course(Stage.DUE, Record()), AttemptPlan(stalled=Finding("PoolNotFound", "m"))),
        ("PoolNotFound", "False", "False", "True"),
    ),
    "starts": (Told(Course(Stage.RUNNING, Record(1), a_job())), ("Starting", "False", "True", "False")),
    "trains": (Told(Course(Stage.RUNNING, Record(1), a_job()), pods=(a_rank(),)), ("Training", "False", "True", "False")),
    "is ending": (Told(Course(Stage.ENDING, Record(1), a_job())), ("AttemptEnding", "False", "True", "False")),
    "waits for old pods": (Told(Course(Stage.CLEARING, Record(1))), ("AttemptEnding", "False", "True", "False")),
    "waits for its time": (Told(Course(Stage.WAITING, Record(1, history=(LAST,)))), ("Retrying", "False", "True", "False")),
    "is suspended": (Told(Course(Stage.SUSPENDED, Record(1))), ("Suspended", "False", "True", "False")),
    "has ended well": (
        Told(Course(Stage.FINISHED, Record(1, outcome="Succeeded", reason="Succeeded"))),
        ("Succeeded", "True", "False", "False"),
    ),
    "has failed": (Told(Course(Stage.FINISHED, Record(1, outcome="Failed", reason="Data"))), ("Data", "False", "False", "True")),
    "can't be written": (
        Told(Course(Stage.DUE, Record()), AttemptPlan(), faults=(WriteFault("Forbidden", "m", retryable=False),)),
        ("Forbidden", "False", "False", "True"),
    ),
    "can't be written now": (
        Told(Course(Stage.DUE, Record()), AttemptPlan(), faults=(WriteFault("Unavailable", "m", retryable=True),)),
        ("Unavailable", "False", "True", "False"),
    ),
}


@pytest.mark.parametrize(("told", "expected"), STAGES.values(), ids=STAGES)
def test_each_stage_has_its_reason_and_one_of_ready_reconciling_and_stalled(told: Told, expected: tuple[str, str, str, str]) -> None:
    found = conditions(status(told))
    reason, ready, reconciling, stalled = expected

    assert found["Ready"] == (ready, reason)
    assert (found["Reconciling"][0], found["Stalled"][0]) == (reconciling, stalled)
    assert [ready, reconciling, stalled].count("True") == 1


def test_who_was_asked_to_end_is_told_with_the_time_that_it_has_and_who_failed_is_not() -> None:
    asked = a_rank(deleted=at(minutes=9))
    said = status(Told(Course(Stage.ENDING, Record(1), a_job()), pods=(asked, a_rank(1))))["conditions"][0]["message"]
    after = status(Told(Course(Stage.ENDING, Record(1), a_job(1, "FailureTarget")), pods=(asked, failed(1))))["conditions"][0]["message"]

    assert said == f"attempt 1 was asked to end: it has until {stamp(at(minutes=9))} for the step under way and a checkpoint"
    assert after == "attempt 1 has failed; its other ranks are being ended"


def test_every_condition_is_always_there_with_the_generation_it_was_computed_from() -> None:
    found = status(STAGES["trains"][0])

    assert set(conditions(found)) >= {"Ready", "Reconciling", "Stalled", "Advised", "Scheduled", "Training", "Published", "Finished"}
    assert {item["observedGeneration"] for item in found["conditions"]} == {4}


def test_training_is_true_only_when_every_pod_runs() -> None:
    half = Told(Course(Stage.RUNNING, Record(1), a_job(completions=2)), pods=(a_rank(),))
    whole = Told(Course(Stage.RUNNING, Record(1), a_job(completions=2)), pods=(a_rank(), a_rank(1, phase="Succeeded", code=0)))

    assert conditions(status(half))["Training"] == ("False", "Starting")
    assert conditions(status(whole))["Training"] == ("True", "Training")


def test_a_pod_without_a_node_says_why_in_the_schedulers_words() -> None:
    pod = a_rank(phase="Pending")
    pod["spec"]["containers"][0]["resources"] = {"limits": {"huawei.com/Ascend910": "4"}}
    said = "0/3 nodes are available: 3 Insufficient huawei.com/Ascend910."
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}]
    del pod["spec"]["nodeName"]
    found = conditions(status(Told(Course(Stage.RUNNING, Record(1), a_job()), pods=(pod,))))

    assert found["Scheduled"] == found["Ready"] == ("False", "InsufficientCards")


def test_a_container_that_waits_says_why_in_kubelets_words() -> None:
    pod = a_rank(phase="Pending")
    pod["status"]["containerStatuses"] = [
        {"name": "trainer", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    ]
    found = status(Told(Course(Stage.RUNNING, Record(1), a_job()), pods=(pod,)))

    assert "ImagePullBackOff no such image" in found["conditions"][0]["message"]


def test_what_is_unwise_is_told_beside_a_run_that_goes_on() -> None:
    told = Told(Course(Stage.RUNNING, Record(1), a_job()), advice=(Finding("Unwise", "a"), Finding("Unwise", "b")))
    advised = next(item for item in status(told)["conditions"] if item["type"] == "Advised")

    assert (advised["status"], advised["message"]) == ("False", "a; b")


# --- progress ---------------------------------------------------------------------------------------------------------------


def after(word: Json | str, previous: Json | None = None) -> Json:
    return status(Told(Course(Stage.WAITING, Record(1, history=(LAST,)), a_job(1, "Failed")), pods=(failed(word=word),)), previous)


def test_progress_and_result_come_from_the_last_word() -> None:
    found = after(
        {"step": 9, "total": 90, "loss": 1.23456789, "checkpoint_step": 5, "adapter": {"path": "/output/x", "sha256": "ab", "bytes": 7}}
    )

    assert (found["step"], found["totalSteps"], found["loss"]) == (9, 90, 1.235)
    assert found["checkpoint"] == {"step": 5}
    assert found["adapter"] == {"path": "pvc://adapters/support", "sha256": "ab", "size": 7}


def test_progress_stays_when_nobody_tells_it_any_more() -> None:
    found = after("Segmentation fault", {"step": 9, "loss": 1.5, "checkpoint": {"step": 5}})

    assert (found["step"], found["loss"], found["checkpoint"]) == (9, 1.5, {"step": 5})


@pytest.mark.parametrize(
    "word",
    [
        '{"loss": NaN, "step": true, "total": "90", "adapter": [1], "checkpoint_step": null}',
        '{"loss": Infinity, "epoch": "1", "tokens_per_second": {}}',
        '{"loss": 1e999}',
        "[]",
    ],
)
def test_what_has_another_type_or_is_no_number_is_not_believed(word: str) -> None:
    found = after(word)

    assert not {"loss", "step", "totalSteps", "adapter", "checkpoint", "epoch", "tokensPerSecond"} & set(found)


def test_of_several_ranks_the_one_that_came_farthest_is_believed() -> None:
    pods = (failed(0, word={"step": 8}), failed(1, word={"step": 9}), failed(2, word={"message": "x"}))
    found = status(Told(Course(Stage.WAITING, Record(1, history=(LAST,)), a_job(1, "Failed")), pods=pods))

    assert found["step"] == 9
