"""What a reconcile of a fine-tuning job asks of the applier and tells the queue. Real: all but the edge that writes, which is faked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import pytest

from glm5_operator.api.finetune import GLM5FinetuneJob
from glm5_operator.controllers.facts import Facts
from glm5_operator.controllers.finetune import LOOK_FOR_CARDS, SLOW_TO_CREATE, FinetuneController
from glm5_operator.controllers.wake import woken_by
from glm5_operator.kube import ApiFailure, Applied, Applier, Cache, Events, Key, Outcome, OutcomeKind
from glm5_operator.metrics import Metrics
from glm5_operator.plan.check import check_digest
from glm5_operator.plan.facts import Site
from tests.support.clock import at, stamp
from tests.support.runs import a_job, a_rank, failed
from tests.support.trainers import finetune
from tests.unit.controllers.test_facts import a_node, a_pool, on

Json = dict[str, Any]
RESYNC, RECHECK = timedelta(minutes=10), timedelta(minutes=1)
KEY = Key("GLM5FinetuneJob", "prod", "tune")
POOL = a_pool("training", role="Training")


@dataclass
class Edge:
    """Stands in for Applier and Events: remembers, puts what is created into the cache as the real one does, and fails on demand."""

    cache: Cache = field(default_factory=Cache)
    failure: ApiFailure | None = None
    found: Json | None = None
    asked: list[str] = field(default_factory=list)
    wanted: list[Json] = field(default_factory=list)
    removable: list[str] = field(default_factory=list)
    status: Json = field(default_factory=dict)
    metrics: Metrics = field(default_factory=Metrics)

    async def converge(self, owner: Json, desired: Sequence[Json], live: Sequence[Json]) -> Applied:
        self.wanted = list(desired)
        names = {(item["kind"], item["metadata"]["name"]) for item in desired}
        self.removable = [item["metadata"]["name"] for item in live if (item["kind"], item["metadata"]["name"]) not in names]
        if self.failure is not None:
            return Applied(errors=(self.failure,))
        for item in desired:
            self.cache.put(owned(item, owner))
        return Applied()

    async def write_status(self, _resource: object, status: Json, *, tell: bool = False) -> ApiFailure | None:
        self.status = status
        return None

    def warning(self, *_: object) -> None:
        return

    def normal(self, *_: object) -> None:
        return

    async def find_job(self, _namespace: str, name: str) -> Json | None:
        self.asked.append(name)
        return self.found

    def kinds(self) -> list[str]:
        return [f"{item['kind']}/{item['metadata']['name']}" for item in self.wanted]

    def ready(self) -> Json:
        return next(item for item in self.status["conditions"] if item["type"] == "Ready")


def owned(item: Json, owner: Json) -> Json:
    reference = {"kind": owner["kind"], "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], "controller": True}
    metadata = {"uid": f"uid-{item['metadata']['name']}", "resourceVersion": "5", **item["metadata"], "ownerReferences": [reference]}
    return {**item, "metadata": metadata}


def a_run(name: str = "tune", status: Json | None = None, *, checked: bool = True, **spec: Any) -> Json:  # noqa: ANN401 - fields of the job
    """A run whose data was found good, unless it wasn't `checked`."""
    document = finetune("prod", name, pool="training", **spec)
    metadata = {**document["metadata"], "uid": f"uid-{name}", "generation": 1, "resourceVersion": "1"}
    run = {**document, "apiVersion": "glm5.dev/v1alpha1", "metadata": metadata}
    found = {"dataCheck": {"digest": check_digest(GLM5FinetuneJob.parse(run)), "time": stamp(at())}} if checked else {}
    return {**run, "status": {**found, **(status or {})}}


def job_of(run: Json, attempt: int = 1, *conditions: str) -> Json:
    job = owned(a_job(attempt, *conditions), run)
    return {**job, "metadata": {**job["metadata"], "uid": f"job-{attempt}"}}


def pod(**fields: Any) -> Json:  # noqa: ANN401 - fields of a_rank
    made = failed(**fields) if "code" in fields else a_rank(**fields)
    labels = {"app.kubernetes.io/name": "glm5-finetune", **made["metadata"]["labels"]}
    return {**made, "apiVersion": "v1", "metadata": {**made["metadata"], "labels": labels, "resourceVersion": "1"}}


async def reconcile(edge: Edge, *resources: Json, key: Key = KEY, minutes: float = 1) -> Outcome:
    for resource in resources:
        edge.cache.put(resource)
    facts = Facts(edge.cache, Site())
    controller = FinetuneController(
        edge.cache, cast(Applier, edge), cast(Events, edge), facts, edge.find_job, RESYNC, RECHECK, edge.metrics
    )
    return await controller.reconcile(key, at(minutes=minutes))


def ready_node() -> Json:
    node = a_node("n0", rack="training")
    return {**node, "status": {**node["status"], "conditions": [{"type": "Ready", "status": "True"}]}}


NODE = ready_node()


async def test_a_job_that_is_gone_or_going_gets_nothing() -> None:
    edge, going = Edge(), a_run()
    going["metadata"]["deletionTimestamp"] = stamp(at())

    assert await reconcile(edge) == Outcome.done()
    assert await reconcile(edge, going, POOL, NODE) == Outcome.done()
    assert (edge.wanted, edge.status) == ([], {})


async def test_a_due_attempt_is_created_and_told_in_one_pass() -> None:
    edge = Edge()

    outcome = await reconcile(edge, a_run(), POOL, NODE)

    assert edge.kinds() == ["Service/tune-ranks", "ConfigMap/tune-config-1", "Job/tune-attempt-1"]
    assert (edge.status["attempt"], edge.status["startTime"]) == (1, stamp(at(minutes=1)))
    assert edge.ready()["reason"] == "Starting"
    assert outcome == Outcome.again(SLOW_TO_CREATE), "whether it has its pods by then"


async def test_without_room_nothing_is_created_and_it_is_looked_at_again_soon() -> None:
    edge = Edge()

    outcome = await reconcile(edge, a_run(), POOL, NODE, on("n0", "theirs", 5))

    assert edge.wanted == []
    assert (edge.ready()["reason"], edge.status.get("attempt")) == ("WaitingForCards", None)
    assert outcome == Outcome.again(LOOK_FOR_CARDS)


async def test_cards_of_an_attempt_whose_pods_have_no_node_yet_are_taken() -> None:
    edge = Edge()
    await reconcile(edge, a_run("first"), POOL, NODE, key=Key("GLM5FinetuneJob", "prod", "first"))

    await reconcile(edge, a_run(cards=8))

    assert edge.ready()["reason"] == "WaitingForCards"
    assert "promised to other runs" in edge.ready()["message"]


async def test_an_attempt_that_could_not_be_written_is_none() -> None:
    edge = Edge(
        failure=ApiFailure("NameConflict", "Job tune-attempt-1 exists already", Key("Job", "prod", "tune-attempt-1"), retryable=False)
    )

    outcome = await reconcile(edge, a_run(), POOL, NODE)

    assert "attempt" not in edge.status
    assert (edge.ready()["reason"], outcome) == ("NameConflict", Outcome.stalled("NameConflict", RECHECK))


async def test_a_running_attempt_is_left_as_it_is() -> None:
    run = a_run(status={"attempt": 1, "startTime": stamp(at())})
    edge = Edge()

    await reconcile(edge, run, POOL, NODE, job_of(run), pod())

    assert edge.kinds() == ["Service/tune-ranks"]
    assert edge.removable == []
    assert edge.ready()["reason"] == "Training"


async def test_a_job_that_the_cache_does_not_show_yet_is_looked_for_before_it_counts_as_deleted() -> None:
    run = a_run(status={"attempt": 1, "startTime": stamp(at())})
    edge = Edge(found=job_of(run))

    await reconcile(edge, run, POOL, NODE, pod())

    assert edge.asked == ["tune-attempt-1"]
    assert edge.ready()["reason"] == "Training"
    assert "history" not in edge.status


async def test_a_job_of_that_name_that_is_not_ours_does_not_count() -> None:
    run = a_run(status={"attempt": 1, "startTime": stamp(at())})
    edge = Edge(found=job_of(a_run("other")))

    await reconcile(edge, run, POOL, NODE)

    assert edge.status["history"][0]["cause"] == "PodDeleted"


async def test_a_failed_attempt_stays_until_the_next_one_needs_its_place() -> None:
    run = a_run(status={"attempt": 1, "startTime": stamp(at())})
    edge = Edge()
    job = job_of(run, 1, "Failed")
    outcome = await reconcile(edge, run, POOL, NODE, job, pod(code=1, word="boom"))
    assert (edge.ready()["reason"], edge.removable, outcome) == ("Retrying", [], Outcome.again(timedelta(seconds=5)))

    again = {**run, "status": edge.status, "metadata": {**run["metadata"], "resourceVersion": "9"}}
    await reconcile(edge, again, minutes=2)

    assert "Job/tune-attempt-2" in edge.kinds()
    assert edge.removable == ["tune-attempt-1"]
    assert edge.status["attempt"] == 2


async def test_an_ended_job_leaves_its_outcome_and_is_not_begun_again() -> None:
    run = a_run(status={"attempt": 1, "startTime": stamp(at())})
    edge = Edge()

    outcome = await reconcile(edge, run, POOL, NODE, job_of(run, 1, "Complete"), pod(phase="Succeeded"))

    assert edge.kinds() == ["ConfigMap/tune-outcome"]
    assert edge.wanted[0]["data"]["outcome"] == "Succeeded"
    assert (edge.ready()["status"], edge.status["outcome"], outcome.kind) == ("True", "Succeeded", OutcomeKind.AGAIN)


async def test_a_record_of_an_outcome_that_is_not_ours_ends_nothing() -> None:
    record = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "tune-outcome", "namespace": "prod", "uid": "x", "resourceVersion": "1"},
        "data": {"outcome": "Succeeded", "attempt": "1"},
    }
    edge = Edge()

    await reconcile(edge, a_run(), POOL, NODE, record)

    assert "outcome" not in edge.status


async def test_a_foreign_pod_with_our_label_holds_nothing_up() -> None:
    stranger = pod()
    stranger["metadata"]["ownerReferences"] = []
    run = a_run(status={"attempt": 1, "history": [{"attempt": 1, "cause": "Suspended", "time": stamp(at())}]})
    edge = Edge()

    await reconcile(edge, run, POOL, NODE, stranger)

    assert edge.status["attempt"] == 2


@pytest.mark.parametrize("pool", [None, a_pool("training", role="Inference")])
async def test_a_pool_that_can_not_be_used_stalls_it(pool: Json | None) -> None:
    edge = Edge()

    outcome = await reconcile(edge, a_run(), NODE, *([pool] if pool else []))

    assert outcome.kind is OutcomeKind.STALLED
    assert edge.wanted == []


async def test_a_spec_of_another_version_is_told_and_keeps_what_was_known() -> None:
    run = a_run(status={"attempt": 3, "outcome": "Succeeded"})
    run["spec"]["later"] = {}
    edge = Edge()

    outcome = await reconcile(edge, run)

    assert (edge.ready()["reason"], edge.status["outcome"], edge.status["attempt"]) == ("InvalidSpec", "Succeeded", 3)
    assert outcome.kind is OutcomeKind.STALLED


@pytest.mark.parametrize(
    ("theirs", "mine", "named"),
    [
        ({}, {}, True),
        ({"status": {"outcome": "Succeeded"}}, {}, True),
        ({"output": "pvc://adapters/other"}, {}, False),
        ({"status": {"outcome": "Failed"}}, {}, False),
        ({}, {"outcome": "Failed", "attempt": 1}, False),
    ],
    ids=["both run", "the other has published", "another output", "the other has failed", "this one has failed"],
)
async def test_a_job_that_would_overwrite_anothers_result_names_it(theirs: Json, mine: Json, named: bool) -> None:
    edge = Edge()

    await reconcile(edge, a_run("theirs", **theirs), a_run(status=mine), POOL, NODE)

    advised = next(item for item in edge.status["conditions"] if item["type"] == "Advised")
    assert (advised["status"], "GLM5FinetuneJob theirs too" in advised["message"]) == ("False" if named else "True", named)


# --- who wakes it -----------------------------------------------------------------------------------------------------------


def woken(resource: Json) -> set[Key]:
    cache = Cache()
    labelled = {**NODE, "metadata": {**NODE["metadata"], "labels": {**NODE["metadata"]["labels"], "glm5.dev/pool": "training"}}}
    for known in (a_run(), POOL, labelled):
        cache.put(known)
    return {key for key, _ in woken_by(cache, resource, 0.1)}


def test_it_is_woken_by_itself_its_pool_its_jobs_its_pods_and_by_cards_that_others_free() -> None:
    for resource in (a_run(), POOL, job_of(a_run()), pod(node="elsewhere"), on("n0", "theirs", 5)):
        assert KEY in woken(resource), resource["metadata"]["name"]
