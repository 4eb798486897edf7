"""What a reconcile of a service tells the queue and the applier. Real: cache, facts, planner, status. Faked: the edge that writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import pytest

from glm5_operator.controllers.adapters import Adapters
from glm5_operator.controllers.facts import Facts
from glm5_operator.controllers.service import ADAPTERS_AGAIN, SILENT_AGAIN, ServiceController
from glm5_operator.kube import ApiFailure, Applied, Applier, Cache, Events, Key, Outcome, OutcomeKind
from glm5_operator.plan.facts import Site
from glm5_operator.pods import PodReader
from tests.support.clock import at
from tests.support.objects import a_service, condition
from tests.unit.controllers.test_facts import a_node, a_pool, on

Json = dict[str, Any]
RESYNC, RECHECK = timedelta(minutes=10), timedelta(minutes=1)
KEY = Key("GLM5Service", "prod", "chat")
DEPLOYMENT = Key("Deployment", "prod", "chat-engine")
TINY = {"name": "tiny", "weights": "bf16", "source": "hostpath:///models/tiny", "memory": "1Gi"}


@dataclass
class Edge:
    """Stands in for Applier and Events: remembers, and answers what a test wants."""

    applied: Applied = field(default_factory=Applied)
    status_failure: ApiFailure | None = None
    wanted: list[Json] | None = None
    status: Json | None = None
    warned: list[str] = field(default_factory=list)
    answers: dict[str, Json] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    annotated: dict[str, str] = field(default_factory=dict)

    async def read(self, hosts: Iterable[str], _port: int, _path: str) -> dict[str, Json]:
        self.asked = sorted(hosts)
        return {host: answer for host, answer in self.answers.items() if host in self.asked}

    async def annotate_pod(self, pod: Json, _name: str, value: str) -> ApiFailure | None:
        self.annotated[pod["metadata"]["name"]] = value
        return None

    async def converge(self, _owner: object, desired: tuple[Json, ...], _live: object) -> Applied:
        self.wanted = list(desired)
        return self.applied

    async def write_status(self, _resource: object, status: Json, *, tell: bool = False) -> ApiFailure | None:
        self.status = status
        return self.status_failure

    def warning(self, _resource: object, reason: str, _message: str) -> None:
        self.warned.append(reason)

    def normal(self, _resource: object, _reason: str, _message: str) -> None:
        return


def a_tiny_service(**spec: object) -> Json:
    chosen: Json = {"model": TINY, "parallelism": {"tensor": 1}, **spec}
    return a_service(**chosen)


def adapters_of(cache: Cache, edge: Edge) -> Adapters:
    return Adapters(cache, cast(Applier, edge), cast(PodReader, edge))


async def reconcile(edge: Edge, *resources: Json) -> Outcome:
    cache = Cache()
    for resource in resources:
        cache.put(resource)
    controller = ServiceController(
        cache, cast(Applier, edge), cast(Events, edge), Facts(cache, Site()), adapters_of(cache, edge), RESYNC, RECHECK
    )
    return await controller.reconcile(KEY, at())


async def test_a_service_that_is_gone_needs_nothing() -> None:
    edge = Edge()

    assert await reconcile(edge) == Outcome.done()
    assert (edge.wanted, edge.status) == (None, None)


async def test_a_service_that_is_being_deleted_gets_no_children_and_no_status() -> None:
    edge, service = Edge(), a_tiny_service()
    service["metadata"]["deletionTimestamp"] = "2026-11-29T12:00:00Z"

    assert await reconcile(edge, service, a_pool(), a_node("a", rack="inference")) == Outcome.done()
    assert (edge.wanted, edge.status) == (None, None)


async def test_a_plan_that_can_not_be_made_touches_no_child() -> None:
    edge = Edge()

    outcome = await reconcile(edge, a_tiny_service())

    assert edge.wanted is None
    assert (outcome.kind, outcome.reason, outcome.after) == (OutcomeKind.STALLED, "PoolNotFound", RESYNC)
    assert edge.warned == ["PoolNotFound"]


async def test_a_spec_of_another_version_is_stalled_and_not_raised() -> None:
    edge = Edge()

    outcome = await reconcile(edge, a_tiny_service(colour="blue"))

    assert outcome.reason == "InvalidSpec"
    assert edge.status is not None
    assert "colour" in condition(edge.status, "Ready")["message"]


async def test_an_ordinary_pass_writes_children_and_status_and_looks_again_much_later() -> None:
    edge = Edge()

    outcome = await reconcile(edge, a_tiny_service(), a_pool(), a_node("a", rack="inference"))

    assert [item["kind"] for item in edge.wanted or ()] == ["Deployment", "Service"]
    assert edge.status is not None
    assert condition(edge.status, "Ready")["reason"] == "Applying"
    assert outcome == Outcome.again(RESYNC)
    assert edge.warned == []


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (ApiFailure("Unavailable", "503", DEPLOYMENT, retryable=True), Outcome.retry("Unavailable")),
        (
            ApiFailure("TooManyRequests", "429", DEPLOYMENT, retryable=True, retry_after=timedelta(seconds=7)),
            Outcome.retry("TooManyRequests", timedelta(seconds=7)),
        ),
        (ApiFailure("NameConflict", "taken", DEPLOYMENT, retryable=False), Outcome.stalled("NameConflict", RECHECK)),
    ],
)
async def test_a_failed_write_is_told_in_the_status_and_decides_when_to_try_again(failure: ApiFailure, expected: Outcome) -> None:
    edge = Edge(applied=Applied(errors=(failure,)))

    outcome = await reconcile(edge, a_tiny_service(), a_pool(), a_node("a", rack="inference"))

    assert outcome == expected
    assert edge.status is not None
    assert condition(edge.status, "Ready")["reason"] == failure.reason
    assert condition(edge.status, "Ready")["message"] == f"Deployment chat-engine: {failure.message}"


async def test_a_status_that_could_not_be_written_is_tried_again() -> None:
    edge = Edge(status_failure=ApiFailure("Conflict", "409", KEY, retryable=True))

    assert (await reconcile(edge, a_tiny_service(), a_pool(), a_node("a", rack="inference"))).kind is OutcomeKind.RETRY


QUOTA = ApiFailure("QuotaExceeded", "exceeded quota: team, limited: count/deployments.apps=0", DEPLOYMENT, retryable=True)


async def give_up(edge: Edge, reason: str, **parts: object) -> None:
    cache = Cache()
    cache.put({**a_tiny_service(), **parts})
    controller = ServiceController(
        cache, cast(Applier, edge), cast(Events, edge), Facts(cache, Site()), adapters_of(cache, edge), RESYNC, RECHECK
    )
    await controller.give_up(KEY, reason, at())


async def test_giving_up_is_told_beside_what_was_known() -> None:
    edge = Edge()

    await give_up(edge, "InternalError: a bug", status={"endpoint": "http://x", "conditions": []})

    assert edge.status is not None
    assert edge.status["endpoint"] == "http://x"
    assert condition(edge.status, "Stalled")["reason"] == "GaveUp"
    assert "InternalError: a bug" in condition(edge.status, "Stalled")["message"]
    assert edge.warned == ["GaveUp"]


async def test_a_refused_write_that_used_up_its_tries_is_stalled_in_the_servers_words_and_stays_so_until_it_is_over() -> None:
    edge, others = Edge(applied=Applied(errors=(QUOTA,))), (a_pool(), a_node("a", rack="inference"))
    outcome = await reconcile(edge, a_tiny_service(), *others)
    assert edge.status is not None
    assert condition(edge.status, "Stalled")["status"] == "False"

    await give_up(edge, outcome.reason, status=edge.status)

    told = edge.status
    for kind in ("Ready", "Stalled"):
        assert condition(told, kind)["reason"] == "QuotaExceeded"
        assert QUOTA.message in condition(told, kind)["message"]
    assert condition(told, "Stalled")["status"] == "True"

    assert (await reconcile(edge, {**a_tiny_service(), "status": told}, *others)).kind is OutcomeKind.RETRY
    assert edge.status == told, "a recheck that fails in the same way changes nothing"
    edge.status = None
    await give_up(edge, outcome.reason, status=told)
    assert edge.status is None, "it is told already"

    edge.applied = Applied()
    await reconcile(edge, {**a_tiny_service(), "status": told}, *others)
    assert edge.status is not None
    assert condition(edge.status, "Stalled")["status"] == "False"


async def test_of_several_refused_writes_outcome_and_status_name_the_same() -> None:
    """Or giving up would not find the server's words in the status."""
    other = ApiFailure("Forbidden", "no", Key("Service", "prod", "chat-api"), retryable=True)
    edge = Edge(applied=Applied(errors=(QUOTA, other)))

    outcome = await reconcile(edge, a_tiny_service(), a_pool(), a_node("a", rack="inference"))

    assert edge.status is not None
    assert outcome.reason == condition(edge.status, "Ready")["reason"]


async def test_a_strangers_pod_with_our_label_is_no_replica() -> None:
    edge, stray = Edge(), on("a", "fake", 2)
    del stray["metadata"]["ownerReferences"]

    await reconcile(edge, a_tiny_service(), a_pool(), a_node("a", rack="inference"), on("a", "mine", 1), stray)

    assert edge.status is not None
    assert (edge.status["replicas"], edge.status["cardsHeld"]) == (1, 1)
    assert "fake" not in condition(edge.status, "Ready")["message"]


def taking_adapters(**spec: object) -> Json:
    return a_tiny_service(adapterStorage="pvc://adapters", adapters=[{"name": "support", "source": "pvc://adapters/support"}], **spec)


def a_replica(name: str, ip: str) -> Json:
    replica = on("a", name, 1)
    replica["status"]["podIP"] = ip
    replica["metadata"]["uid"] = f"uid-{name}"
    return replica


async def test_a_service_without_adapters_asks_no_pod_and_touches_none() -> None:
    edge = Edge()

    await reconcile(edge, a_tiny_service(), a_pool(), a_node("a", rack="inference"), a_replica("p", "10.0.0.1"))

    assert (edge.asked, edge.annotated) == ([], {})
    assert edge.status is not None
    assert "adapters" not in edge.status


async def test_pods_are_told_that_the_list_has_changed_and_asked_whether_they_have_it() -> None:
    edge, sha = Edge(), "a" * 64
    held = {"name": "support", "sha256": sha, "state": "Loaded", "message": "", "share": 0.0, "requests": 0, "failures": 0}
    edge.answers = {"10.0.0.1": {"adapters": [held]}}
    world = (a_pool(), a_node("a", rack="inference"), a_replica("p", "10.0.0.1"), a_replica("q", "10.0.0.2"))

    outcome = await reconcile(edge, taking_adapters(), *world)

    (file,) = [item for item in edge.wanted or () if item["kind"] == "ConfigMap"]
    assert set(edge.annotated) == {"p", "q"}
    assert len(set(edge.annotated.values())) == 1
    assert edge.status is not None
    (told,) = edge.status["adapters"]
    assert (told["state"], told["pods"], told["of"]) == ("Loading", 1, 2)
    assert outcome == Outcome.again(ADAPTERS_AGAIN), "no event tells that it has arrived"

    edge.answers["10.0.0.2"] = edge.answers["10.0.0.1"]
    assert await reconcile(edge, {**taking_adapters(), "status": edge.status}, *world) == Outcome.again(RESYNC)
    (told,) = edge.status["adapters"]
    assert (told["state"], told["sha256"]) == ("Loaded", sha)
    assert file["metadata"]["name"] == "chat-adapters"


async def test_pods_that_do_not_answer_are_asked_more_seldom() -> None:
    edge, world = Edge(), (a_pool(), a_node("a", rack="inference"), a_replica("p", "10.0.0.1"), a_replica("q", "10.0.0.2"))

    assert await reconcile(edge, taking_adapters(), *world) == Outcome.again(SILENT_AGAIN)
    edge.answers = {"10.0.0.1": {"adapters": []}}
    assert await reconcile(edge, taking_adapters(), *world) == Outcome.again(ADAPTERS_AGAIN)


async def test_a_plan_that_can_not_be_made_keeps_what_is_known_of_adapters() -> None:
    edge = Edge()
    status = {"adapters": [{"name": "support", "state": "Loaded"}]}

    await reconcile(edge, {**taking_adapters(), "status": status})

    assert edge.status is not None
    assert (edge.asked, edge.annotated) == ([], {})


async def test_what_a_job_published_is_listed_and_stays_when_the_job_is_deleted() -> None:
    edge = Edge()
    service = a_tiny_service(adapterStorage="pvc://adapters", adapters=[{"name": "support", "source": "job://tune"}])
    world = (a_pool(), a_node("a", rack="inference"))
    job = {
        "apiVersion": "glm5.dev/v1alpha1",
        "kind": "GLM5FinetuneJob",
        "metadata": {"name": "tune", "namespace": "prod", "uid": "uid-tune", "resourceVersion": "1"},
        "spec": {"pool": "training"},
        "status": {"outcome": "Succeeded", "adapter": {"path": "pvc://adapters/support", "sha256": "a" * 64}},
    }

    await reconcile(edge, service, *world, job)
    first = next(item for item in edge.wanted or () if item["kind"] == "ConfigMap")["data"]
    await reconcile(edge, {**service, "status": edge.status}, *world)
    second = next(item for item in edge.wanted or () if item["kind"] == "ConfigMap")["data"]

    assert "a" * 64 in first["adapters.json"]
    assert first == second
