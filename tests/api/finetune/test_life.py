"""One fine-tuning job from its first apply to its end.

Real: the operator as a process, the controllers of Jobs and garbage, the scheduler. Played by the test: kubelets.
"""

from __future__ import annotations

import pytest
import yaml

from tests.api.conftest import Operated
from tests.api.finetune.conftest import Training
from tests.support.kube import Kube, stays, until
from tests.support.trainers import answer_checks, bound_pods, end, finetune, let_go_of_deleted, run

pytestmark = pytest.mark.api

DONE = {
    "step": 90,
    "total": 90,
    "checkpoint_step": 80,
    "epoch": 3.0,
    "loss": 0.51234567,
    "tokens_per_second": 1234.5,
    "adapter": {"path": "/output/support", "sha256": "ab", "bytes": 7},
}


def test_two_nodes_train_and_end_well(kube: Kube, home: str, training: Training) -> None:
    written = training.create(nodes=2, cards=4)
    pods = bound_pods(kube, home, 1, 2)

    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2, "one pod a node"
    assert training.wait("Starting")["status"] == "False"
    run(kube, *pods)
    training.wait("Training")
    assert training.condition("Training")["status"] == "True"
    assert training.condition("Scheduled")["status"] == "True"
    status = training.status()
    assert (status["attempt"], status["cardsHeld"], status["startTime"] > "") == (1, 8, True)
    config = kube.get("ConfigMap", home, "tune-config-1")
    assert yaml.safe_load(config["data"]["train.yaml"])["data"] == {"files": ["/data/qa.jsonl"]}

    end(kube, pods[0], 0, DONE)
    end(kube, pods[1], 0)
    training.wait("Succeeded")

    status = training.status()
    assert training.condition()["status"] == "True"
    assert (status["outcome"], status["step"], status["totalSteps"], status["loss"]) == ("Succeeded", 90, 90, 0.5123)
    assert status["adapter"] == {"path": "pvc://adapters/support", "sha256": "ab", "size": 7}
    assert status["checkpoint"] == {"step": 80}
    assert status["cardsHeld"] == 0
    assert training.condition("Published")["status"] == "True"
    assert kube.get("GLM5FinetuneJob", home, "tune")["spec"] == written["spec"], "the operator writes no spec"
    assert kube.get("ConfigMap", home, "tune-outcome")["data"]["outcome"] == "Succeeded"
    assert kube.find("Service", home, "tune-ranks") is None


def test_the_ranks_find_each_other_by_the_headless_service(kube: Kube, home: str, training: Training) -> None:
    training.create(nodes=2, cards=4)
    first, second = bound_pods(kube, home, 1, 2)

    env = {item["name"]: item.get("value") for item in first["spec"]["containers"][0]["env"]}
    address = f"{first['spec']['hostname']}.{first['spec']['subdomain']}.{home}.svc.cluster.local"
    assert (env["MASTER_ADDR"], env["NNODES"], env["NPROC_PER_NODE"]) == (address, "2", "4")
    assert second["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] == "1"
    service = kube.get("Service", home, first["spec"]["subdomain"])
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)


def test_no_pod_is_created_before_all_cards_are_free(kube: Kube, home: str, training: Training) -> None:
    training.create("first", cards=8)
    pods = bound_pods(kube, home, 1, 1)

    training.create("second", nodes=2, cards=8, training={"batchSize": 16})
    waits = training.wait("WaitingForCards", "Scheduled", "second")

    assert "1 of 2 nodes" in waits["message"]
    assert training.condition("Ready", "second")["reason"] == "WaitingForCards"
    assert sorted(training.jobs()) == ["first-attempt-1", "second-check"]
    run(kube, *pods)
    end(kube, *pods)
    training.wait("Succeeded", name="first")
    until("the second to begin", lambda: training.status("second").get("attempt") == 1, 30)
    assert training.condition("DataValid", "second")["message"] == "12 rows read, 11 kept, 1 skipped"


def test_two_that_come_at_once_do_not_both_get_the_last_cards(kube: Kube, home: str, training: Training) -> None:
    for name in ("a", "b", "c"):
        kube.create(finetune(home, name, pool=training.pool, nodes=2, cards=8, training={"batchSize": 16}))

    def begun() -> list[str]:
        answer_checks(kube, home)
        return [name for name in training.jobs() if "attempt" in name]

    until("one to begin", lambda: len(begun()) == 1, 30, lambda: str(training.jobs()))
    stays("one", lambda: len(begun()) == 1, 5, lambda: str(training.jobs()))


def test_a_job_that_can_never_fit_is_stalled_and_says_what_to_change(training: Training) -> None:
    training.create(nodes=3, cards=8, training={"batchSize": 24})

    stalled = training.wait("NotEnoughCards")

    assert "lower spec.parallelism" in stalled["message"]
    assert training.condition("Stalled")["status"] == "True"


def test_an_inference_pool_is_refused(training: Training) -> None:
    training.create()
    training.kube.create({**finetune(training.home, "wrong", pool="inference")})

    assert "role Training" in training.wait("WrongPoolRole", name="wrong")["message"]


def test_deleting_a_job_in_the_middle_leaves_nothing(kube: Kube, home: str, training: Training) -> None:
    training.create(nodes=2, cards=8, training={"batchSize": 16})
    run(kube, *bound_pods(kube, home, 1, 2))
    training.wait("Training")

    kube.delete("GLM5FinetuneJob", home, "tune")

    def gone() -> bool:
        let_go_of_deleted(kube, home)
        return _left(kube, home) == []

    until("nothing to be left", gone, 20, lambda: str(_left(kube, home)))


def test_a_running_and_a_finished_job_cause_no_writes(operated: Operated, kube: Kube, home: str, training: Training) -> None:
    training.create()
    pods = bound_pods(kube, home, 1, 1)
    run(kube, *pods)
    training.wait("Training")
    written = operated.writes(home)
    kube.patch("GLM5FinetuneJob", home, "tune", {"metadata": {"annotations": {"example.com/note": "mine"}}})
    stays("no write", lambda: operated.writes(home) == written, 2, lambda: str(operated.writes(home)))

    end(kube, pods[0], 0)
    training.wait("Succeeded")
    written = operated.writes(home)
    kube.patch("GLM5FinetuneJob", home, "tune", {"metadata": {"annotations": {"example.com/note": "yours"}}})
    stays("no write", lambda: operated.writes(home) == written, 2, lambda: str(operated.writes(home)))


def _left(kube: Kube, home: str) -> list[str]:
    """What a job made; its volumes are the user's."""
    return [item for item in kube.leftovers(home) if not item.startswith("PersistentVolumeClaim/")]
