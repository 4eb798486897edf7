"""Settings and data are looked at before any card is taken. Kubelets are played by the test, which says what the check finds."""

from __future__ import annotations

import pytest

from tests.api.conftest import Operated
from tests.api.finetune.conftest import Json, Training
from tests.support.kube import Kube, stays, until
from tests.support.trainers import GOOD_DATA, answer_checks, bound_pods, check_pods, end, let_go_of_deleted, run

pytestmark = pytest.mark.api

BAD: Json = {"outcome": "DataError", "message": "2 rows can't be used; /data/qa.jsonl:7: cut-line: the line ends in the middle"}


def the_check(at: Training) -> Json:
    """The pod of the check, on a node."""
    until("the check's pod", lambda: len(check_pods(at.kube, at.home)) == 1, 20, lambda: str(at.status()))
    return check_pods(at.kube, at.home)[0]


def test_the_check_has_no_cards_and_comes_before_the_first_attempt(kube: Kube, home: str, training: Training) -> None:
    training.create()

    pod = the_check(training)
    assert training.condition()["reason"] == "Checking"
    assert (training.jobs(), training.condition("DataValid")["status"]) == (["tune-check"], "Unknown")
    trainer = pod["spec"]["containers"][0]
    assert "--check" in trainer["args"]
    assert not [name for name in trainer["resources"]["limits"] if name.startswith("huawei.com/")]
    assert {mount["mountPath"] for mount in trainer["volumeMounts"]}.isdisjoint({"/checkpoints", "/output"})
    assert pod["spec"]["nodeSelector"] == {"glm5.dev/pool": home}, "its data is a folder of the pool's nodes"

    end(kube, pod, 0, GOOD_DATA)
    bound_pods(kube, home, 1, 1)

    valid = training.condition("DataValid")
    assert (valid["status"], valid["message"]) == ("True", "12 rows read, 11 kept, 1 skipped")
    until("the check's Job to make room", lambda: training.jobs() == ["tune-attempt-1"], 10, lambda: str(training.jobs()))
    found = {name: training.status()["dataCheck"][name] for name in ("read", "kept", "skipped")}
    assert found == {"read": 12, "kept": 11, "skipped": 1}


@pytest.mark.parametrize(
    ("code", "word", "cause"), [(3, BAD, "Data"), (2, {"outcome": "ConfigError", "message": "lora.rank: 8"}, "Configuration")]
)
def test_bad_data_or_settings_end_the_job_without_a_card(training: Training, code: int, word: Json, cause: str) -> None:
    training.create()
    end(training.kube, the_check(training), code, word)

    failed = training.wait(cause, good_data=False)

    assert word["message"] in failed["message"]
    assert training.condition("Stalled")["status"] == "True"
    invalid = training.condition("DataValid")
    assert (invalid["status"], invalid["reason"], word["message"] in invalid["message"]) == ("False", cause, True)
    assert (training.status()["outcome"], training.status().get("attempt")) == ("Failed", None)
    stays("no attempt, and the check's logs", lambda: training.jobs() == ["tune-check"], 5, lambda: str(training.jobs()))
    assert training.kube.get("ConfigMap", training.home, "tune-outcome")["data"]["reason"] == cause


@pytest.mark.parametrize("lost", ["status", "Job", "ConfigMap"])
def test_what_was_refused_is_not_checked_again_whatever_is_taken_from_it(
    operated: Operated, kube: Kube, home: str, training: Training, lost: str
) -> None:
    training.create()
    end(kube, the_check(training), 3, BAD)
    training.wait("Data", good_data=False)
    operated.operator.stop()
    if lost == "status":
        kube.patch("GLM5FinetuneJob", home, "tune", {"status": None}, subresource="status")
    else:
        kube.delete(lost, home, {"Job": "tune-check", "ConfigMap": "tune-outcome"}[lost])

    operated.operator.start()

    training.wait("Data", good_data=False)
    stays("no attempt", lambda: set(training.jobs()) <= {"tune-check"}, 3, lambda: str(training.jobs()))


def test_it_is_checked_once_and_not_again_after_a_restart_or_before_another_attempt(
    operated: Operated, kube: Kube, home: str, training: Training
) -> None:
    training.create()
    (pod,) = bound_pods(kube, home, 1, 1)
    run(kube, pod)
    training.wait("Training")
    operated.operator.stop()
    operated.operator.start()
    end(kube, pod, 1, "boom")

    def second() -> bool:
        let_go_of_deleted(kube, home)
        return training.status().get("attempt") == 2

    until("the second attempt", second, 40, lambda: str(training.status()))
    assert len([item for item in operated.writes(home) if item.endswith("jobs/tune-check") and not item.startswith("delete")]) == 1


def test_an_operator_that_is_killed_while_a_check_runs_takes_it_up(operated: Operated, kube: Kube, home: str, training: Training) -> None:
    training.create()
    pod = the_check(training)
    operated.operator.kill()
    end(kube, pod, 3, BAD)

    operated.operator.start()

    training.wait("Data", good_data=False)


def test_a_suspended_job_is_not_checked_before_it_is_resumed(kube: Kube, home: str, training: Training) -> None:
    training.create(policy={"suspend": True})
    training.wait("Suspended")
    stays("nothing", lambda: training.jobs() == [], 2, lambda: str(training.jobs()))

    training.patch({"policy": {"suspend": False}})

    end(kube, the_check(training), 0, GOOD_DATA)
    bound_pods(kube, home, 1, 1)


def test_another_file_before_the_first_attempt_is_checked_anew(kube: Kube, home: str, training: Training) -> None:
    training.create(nodes=2, cards=8, training={"batchSize": 16})
    first = the_check(training)

    training.patch({"data": {"source": "hostpath:///data/other.jsonl"}})

    def another() -> bool:
        let_go_of_deleted(kube, home)
        found = [pod for pod in check_pods(kube, home) if not pod["metadata"].get("deletionTimestamp")]
        return bool(found) and found[0]["metadata"]["uid"] != first["metadata"]["uid"]

    until("another check", another, 30, lambda: str(training.status()))
    assert "other.jsonl" in kube.get("ConfigMap", home, "tune-check")["data"]["train.yaml"]


def test_a_check_that_can_not_be_made_is_tried_again_and_says_why(kube: Kube, home: str, training: Training) -> None:
    training.create()
    first = the_check(training)
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    state = {"name": "trainer", "image": "x", "state": waiting, "lastState": {}, "restartCount": 0}
    kube.patch(
        "Pod",
        home,
        first["metadata"]["name"],
        {"status": {"containerStatuses": [{"imageID": "", "ready": False, **state}]}},
        subresource="status",
    )
    until(
        "the reason to be told",
        lambda: "ImagePullBackOff no such image" in training.condition()["message"],
        20,
        lambda: str(training.status()),
    )

    end(kube, first, 137)
    until("another try", lambda: [pod for pod in check_pods(kube, home) if pod["metadata"]["uid"] != first["metadata"]["uid"]] != [], 40)
    assert "exit code 137" in training.condition()["message"]

    answer_checks(kube, home)
    bound_pods(kube, home, 1, 1)


def test_deleting_a_job_that_is_being_checked_leaves_nothing(kube: Kube, home: str, training: Training) -> None:
    training.create()
    the_check(training)

    kube.delete("GLM5FinetuneJob", home, "tune")

    def left() -> list[str]:
        let_go_of_deleted(kube, home)
        return [item for item in kube.leftovers(home) if not item.startswith("PersistentVolumeClaim/")]

    until("nothing to be left", lambda: left() == [], 20, lambda: str(left()))
