"""All pods or none by Kueue or Volcano, where those are installed. Their CRDs are minimal; their controllers are played by the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.conftest import Operated
from tests.api.finetune.conftest import Json, Training
from tests.support import gangs
from tests.support.kube import Kube, stays, until
from tests.support.trainers import answer_checks, bound_pods, finetune, let_go_of_deleted, run

pytestmark = pytest.mark.api

WIDE: Json = {"nodes": 2, "cards": 8, "training": {"batchSize": 16}}
BY_VOLCANO: Json = {**WIDE, "podTemplate": {"spec": {"schedulerName": "volcano"}}}
QUEUE = "kueue.x-k8s.io/queue-name"


def installed(operated: Operated, plural: str) -> Iterator[None]:
    gangs.install(operated.kube, plural)
    word = {"workloads": "kueue=True", "podgroups": "volcano=True"}[plural]
    until("the operator to see it", lambda: word in operated.operator.said().rpartition("gang schedulers:")[2], 20, operated.operator.tail)
    yield
    gangs.remove(operated.kube, plural)
    gone = word.replace("True", "False")
    until(
        "the operator to see it go", lambda: gone in operated.operator.said().rpartition("gang schedulers:")[2], 20, operated.operator.tail
    )


@pytest.fixture
def kueue(operated: Operated) -> Iterator[None]:
    yield from installed(operated, "workloads")


@pytest.fixture
def volcano(operated: Operated) -> Iterator[None]:
    yield from installed(operated, "podgroups")


def create(at: Training, labels: Json, name: str = "tune", **spec: object) -> None:
    document = finetune(at.home, name, pool=at.pool, **spec)  # type: ignore[arg-type]
    document["metadata"]["labels"] = labels
    at.kube.create(document)


def job_of(at: Training, attempt: int = 1) -> Json:
    name = f"tune-attempt-{attempt}"

    def there() -> bool:
        answer_checks(at.kube, at.home)
        let_go_of_deleted(at.kube, at.home)
        return at.kube.find("Job", at.home, name) is not None

    until(f"Job {name}", there, 40, lambda: str(at.status()))
    return at.kube.get("Job", at.home, name)


def admit(at: Training, attempt: int = 1, *, suspend: bool = False) -> None:
    """What Kueue does to a Job that it lets begin, or takes the cards from."""
    at.kube.patch("Job", at.home, f"tune-attempt-{attempt}", {"spec": {"suspend": suspend}})


@pytest.mark.usefixtures("kueue")
def test_a_job_with_a_queue_waits_for_kueue_and_not_for_the_operator(kube: Kube, home: str, training: Training) -> None:
    training.create("first", cards=8)
    bound_pods(kube, home, 1, 1)

    create(training, {QUEUE: "team"}, **WIDE)

    job = job_of(training)
    assert (job["metadata"]["labels"][QUEUE], job["spec"]["suspend"]) == ("team", True)
    queued = training.wait("Queued")
    assert (queued["status"], "queue team of Kueue" in queued["message"]) == ("False", True)
    assert training.condition("Scheduled")["status"] == "False"
    stays("no pod", lambda: not kube.list("Pod", home, "batch.kubernetes.io/job-name=tune-attempt-1"), 2)

    kube.delete("GLM5FinetuneJob", home, "first")
    until("the cards", lambda: let_go_of_deleted(kube, home) or not _pods(kube, home, "first"), 30)  # type: ignore[func-returns-value]
    admit(training)
    until("its pods", lambda: let_go_of_deleted(kube, home) or len(_pods(kube, home)) == 2, 30)  # type: ignore[func-returns-value]
    run(kube, *bound_pods(kube, home, 1, 2))
    training.wait("Training")


@pytest.mark.usefixtures("kueue")
def test_cards_that_kueue_takes_back_cost_no_attempt_and_the_next_one_queues_again(kube: Kube, home: str, training: Training) -> None:
    create(training, {QUEUE: "team"}, policy={"maxAttempts": 1})
    job_of(training)
    admit(training)
    run(kube, *bound_pods(kube, home, 1, 1))
    training.wait("Training")

    admit(training, suspend=True)

    assert job_of(training, 2)["spec"]["suspend"] is True
    training.wait("Queued")
    status = training.status()
    assert (status["history"][0]["cause"], status.get("failures", 0)) == ("Preempted", 0)


def test_without_kueue_the_label_means_nothing(training: Training) -> None:
    create(training, {QUEUE: "team"})

    job = job_of(training)

    assert (QUEUE in job["metadata"]["labels"], job["spec"]["suspend"]) == (False, False)


@pytest.mark.usefixtures("volcano")
def test_a_job_for_volcano_has_a_group_of_all_its_pods(kube: Kube, home: str, training: Training) -> None:
    training.create("first", cards=8)
    bound_pods(kube, home, 1, 1)

    create(training, {"scheduling.volcano.sh/queue-name": "team"}, **BY_VOLCANO)
    template = job_of(training)["spec"]["template"]

    (group,) = gangs.pod_groups(kube, home)
    assert group["metadata"]["name"] == template["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "tune-attempt-1"
    assert (group["spec"]["minMember"], group["spec"]["queue"]) == (2, "team")
    assert group["spec"]["minResources"]["huawei.com/Ascend910"] == "16"
    assert template["spec"]["schedulerName"] == "volcano"

    training.patch({"policy": {"suspend": True}})
    until("the group to go", lambda: let_go_of_deleted(kube, home) or not gangs.pod_groups(kube, home), 20)  # type: ignore[func-returns-value]


def test_without_volcano_the_operator_counts_the_cards_itself(kube: Kube, home: str, training: Training) -> None:
    training.create("first", cards=8)
    bound_pods(kube, home, 1, 1)

    training.create(**BY_VOLCANO)

    assert "1 of 2 nodes" in training.wait("WaitingForCards")["message"]


def _pods(kube: Kube, home: str, job: str = "tune") -> list[Json]:
    return kube.list("Pod", home, f"batch.kubernetes.io/job-name={job}-attempt-1")
