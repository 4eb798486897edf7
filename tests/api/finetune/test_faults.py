"""What follows when an attempt ends badly, and what is taken from under a job that runs or has ended. Kubelets are played by the test."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import Operated
from tests.api.finetune.conftest import Json, Training
from tests.support.kube import Kube, stays, until
from tests.support.trainers import bound_pods, end, let_go_of_deleted, run

pytestmark = pytest.mark.api

WIDE: Json = {"nodes": 2, "cards": 8, "training": {"batchSize": 16}}


def begun(at: Training, /, **spec: Any) -> list[Json]:  # noqa: ANN401 - fields of the job
    """The pods of the first attempt, running."""
    at.create(**spec)
    pods = bound_pods(at.kube, at.home, 1, spec.get("nodes", 1))
    run(at.kube, *pods)
    at.wait("Training")
    return pods


def test_a_failed_rank_ends_its_attempt_and_the_next_one_begins_with_all_ranks(kube: Kube, home: str, training: Training) -> None:
    pods = begun(training, **WIDE)

    end(kube, pods[1], 1, {"message": "lost rank 0", "step": 40, "loss": 2.5})

    def second() -> bool:
        let_go_of_deleted(kube, home)
        return training.status().get("attempt") == 2

    until("the second attempt", second, 30, lambda: str(training.status()))
    again = bound_pods(kube, home, 2, 2)
    status = training.status()
    assert training.jobs() == ["tune-attempt-2"], "the failed attempt has made room"
    assert status["failures"] == 1
    assert [(item["attempt"], item["cause"], item["step"]) for item in status["history"]] == [(1, "Unknown", 40)]
    assert (status["step"], status["loss"]) == (40, 2.5)
    run(kube, *again)
    training.wait("Training")


def test_the_other_ranks_are_told_to_end_at_once_though_the_cause_is_settled_later(kube: Kube, home: str, training: Training) -> None:
    first, second = begun(training, **WIDE)

    end(kube, second, 6, {"outcome": "RankLost", "message": "rank 0 is gone"})

    def told_to_end() -> bool:
        return bool(kube.get("Pod", home, first["metadata"]["name"])["metadata"].get("deletionTimestamp"))

    until("the other pod to be told to end", told_to_end, 10, lambda: str(kube.get("Pod", home, first["metadata"]["name"])["status"]))
    assert kube.get("Pod", home, first["metadata"]["name"])["metadata"]["deletionGracePeriodSeconds"] <= 7
    assert training.status().get("history") is None, "the cause isn't settled yet"

    end(kube, first, 137, {"outcome": "Killed", "message": "rank 0 was ended by SIGKILL"})

    def settled() -> bool:
        let_go_of_deleted(kube, home)
        return bool(training.status().get("history"))

    until("the cause", settled, 30, lambda: str(training.status()))
    (entry,) = training.status()["history"]
    assert (entry["cause"], entry["exitCode"], "SIGKILL" in entry["message"]) == ("Unknown", 137, True)


@pytest.mark.parametrize(
    ("code", "cause", "outcome", "why"),
    [
        (2, "Configuration", "ConfigError", "data.files: missing"),
        (3, "Data", "DataError", "line 7 is no JSON"),
        (4, "NumericalError", "NotFinite", "step 12: the output of layer 3"),
    ],
)
def test_what_another_attempt_would_meet_again_ends_the_job(training: Training, code: int, cause: str, outcome: str, why: str) -> None:
    pods = begun(training)

    end(training.kube, pods[0], code, {"outcome": outcome, "message": why})

    failed = training.wait(cause)
    assert failed["status"] == "False"
    assert why in failed["message"]
    assert training.condition("Stalled")["status"] == "True"
    assert training.status()["outcome"] == "Failed"
    stays("no other attempt", lambda: training.jobs() == ["tune-attempt-1"], 8, lambda: str(training.jobs()))


def test_attempts_are_used_up(kube: Kube, home: str, training: Training) -> None:
    pods = begun(training, policy={"maxAttempts": 2})
    end(kube, pods[0], 1, "Segmentation fault")
    end(kube, *bound_pods(kube, home, 2, 1), 139, "Segmentation fault")

    failed = training.wait("AttemptsUsedUp")

    assert "2 attempts failed, the last by Unknown" in failed["message"]
    assert "Segmentation fault" in failed["message"]


def test_preemption_costs_no_attempt_and_the_other_ranks_are_left_to_save_with_the_one_that_was_asked(
    kube: Kube, home: str, training: Training
) -> None:
    pods = begun(training, **WIDE, policy={"maxAttempts": 1})

    name, other = (pod["metadata"]["name"] for pod in pods)
    metadata = {"name": name, "namespace": home}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": {"gracePeriodSeconds": 60}}
    kube.http.post(kube.path("Pod", home, name, "eviction"), json=eviction).raise_for_status()

    def alone() -> bool:
        metadata = kube.get("Pod", home, other)["metadata"]
        return "deletionTimestamp" not in metadata

    until("the end to be awaited", lambda: training.condition()["reason"] == "AttemptEnding", 20, lambda: str(training.condition()))
    stays("the other rank goes on", alone, 3)
    for pod in pods:
        end(kube, pod, 143, {"outcome": "Interrupted", "message": "asked to stop after step 7 of 9", "step": 7})

    def second() -> bool:
        let_go_of_deleted(kube, home)
        return training.status().get("attempt") == 2

    until("the second attempt", second, 40, lambda: str(training.status()))
    assert training.status().get("failures", 0) == 0
    assert [(item["cause"], item["step"]) for item in training.status()["history"]] == [("Preempted", 7)]


def test_a_card_fault_moves_the_next_attempt_to_another_node(kube: Kube, home: str, training: Training) -> None:
    pods = begun(training)
    node = pods[0]["spec"]["nodeName"]

    end(kube, pods[0], 1, "RuntimeError: ACL error 507033")

    (again,) = bound_pods(kube, home, 2, 1)
    assert again["spec"]["nodeName"] != node
    assert training.status()["history"][0] | {"time": ""} == {
        "attempt": 1,
        "cause": "CardFault",
        "message": f"pod {pods[0]['metadata']['name']} on node {node}: exit code 1: RuntimeError: ACL error 507033",
        "node": node,
        "exitCode": 1,
        "time": "",
    }


def test_a_deleted_node_ends_the_attempt_and_the_next_one_waits_for_room(kube: Kube, home: str, training: Training) -> None:
    pods = begun(training, **WIDE)

    kube.delete("Node", "", pods[1]["spec"]["nodeName"])

    until("the end to be told", lambda: bool(training.status().get("history")), 30, lambda: str(training.status()))
    assert training.status()["history"][0]["cause"] == "NodeLost"
    training.wait("NotEnoughCards")


def test_suspended_it_holds_no_cards_and_resumed_it_goes_on(kube: Kube, home: str, training: Training) -> None:
    begun(training, policy={"maxAttempts": 1})

    training.patch({"policy": {"suspend": True}})
    training.wait("Suspended")
    until("its pods to go", lambda: let_go_of_deleted(kube, home) or kube.list("Pod", home) == [], 20)  # type: ignore[func-returns-value]
    until("its cards to be free", lambda: training.status().get("cardsHeld") == 0, 20)
    assert training.jobs() == []

    training.patch({"policy": {"suspend": False}})
    (again,) = bound_pods(kube, home, 2, 1)
    run(kube, again)
    training.wait("Training")
    assert training.status().get("failures", 0) == 0


def test_a_deadline_ends_the_job_and_its_pods(kube: Kube, home: str, training: Training) -> None:
    begun(training)
    started = training.status()["startTime"]

    stored = kube.get("GLM5FinetuneJob", home, "tune")
    early = {**stored["status"], "startTime": f"{int(started[:4]) - 1}{started[4:]}"}
    kube.patch("GLM5FinetuneJob", home, "tune", {"status": early}, subresource="status")
    training.patch({"policy": {"deadline": "1h"}})

    training.wait("DeadlineExceeded")
    until("its pods to go", lambda: let_go_of_deleted(kube, home) or kube.list("Pod", home) == [], 20)  # type: ignore[func-returns-value]


def test_a_job_deleted_under_a_run_is_begun_anew(kube: Kube, home: str, training: Training) -> None:
    begun(training)

    kube.delete("Job", home, "tune-attempt-1")

    def second() -> bool:
        let_go_of_deleted(kube, home)
        return training.status().get("attempt") == 2

    until("the second attempt", second, 40, lambda: str(training.status()))
    assert training.status()["history"][0]["cause"] == "PodDeleted"


def ended(training: Training) -> None:
    (pod,) = begun(training)
    end(training.kube, pod, 0, {"step": 9})
    training.wait("Succeeded")


def lose_status(training: Training) -> None:
    training.kube.patch("GLM5FinetuneJob", training.home, "tune", {"status": None}, subresource="status")


@pytest.mark.parametrize(
    "lost",
    [
        ("status",),
        ("Job",),
        ("ConfigMap",),
        ("status", "Job"),
        ("status", "ConfigMap"),
        ("Job", "ConfigMap"),
    ],
    ids="+".join,
)
def test_an_ended_job_never_runs_again_whatever_is_taken_from_it(
    operated: Operated, kube: Kube, home: str, training: Training, lost: tuple[str, ...]
) -> None:
    ended(training)
    operated.operator.stop()
    for what in lost:
        if what == "status":
            lose_status(training)
        else:
            kube.delete(what, home, {"Job": "tune-attempt-1", "ConfigMap": "tune-outcome"}[what])
    until("pods of a deleted Job to go", lambda: "Job" not in lost or kube.list("Pod", home) == [], 20)

    operated.operator.start()

    training.wait("Succeeded")
    stays("no other attempt", lambda: set(training.jobs()) <= {"tune-attempt-1"}, 3, lambda: str(training.jobs()))
    assert training.status()["outcome"] == "Succeeded"
    assert kube.get("ConfigMap", home, "tune-outcome")["data"]["outcome"] == "Succeeded"


def test_after_its_time_nothing_of_an_ended_job_stays_but_how_it_ended(kube: Kube, home: str, training: Training) -> None:
    (pod,) = begun(training, policy={"ttlAfterFinished": "0s"})
    end(kube, pod, 0)
    training.wait("Succeeded")

    until("its Job to go", lambda: training.jobs() == [], 20)

    until("its pods to go", lambda: let_go_of_deleted(kube, home) or kube.list("Pod", home) == [], 20)  # type: ignore[func-returns-value]
    names = [item["metadata"]["name"] for item in kube.list("ConfigMap", home)]
    assert sorted(names) == ["kube-root-ca.crt", "tune-outcome"]
    stays("no other attempt", lambda: training.jobs() == [], 3)


def test_a_killed_operator_takes_up_a_run_where_it_is(operated: Operated, kube: Kube, home: str, training: Training) -> None:
    pods = begun(training, nodes=2, cards=4)
    operated.operator.kill()
    end(kube, pods[0], 0, {"step": 9})
    end(kube, pods[1], 0)

    operated.operator.start()

    training.wait("Succeeded")
    assert training.status()["attempt"] == 1
    assert training.jobs() == ["tune-attempt-1"]
