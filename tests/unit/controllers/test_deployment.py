"""What a pass of a deployment writes, asks and tells. Real: cache, facts, plans, status. Faked: the edge that writes and asks pods."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from glm5_operator.api.finetune import GLM5FinetuneJob
from glm5_operator.controllers.adapters import Adapters
from glm5_operator.controllers.deployment import Deployed, Deployments, is_evaluation
from glm5_operator.controllers.facts import Facts
from glm5_operator.kube import ApiFailure, Applied, Applier, Cache, Events, Key
from glm5_operator.plan.facts import Site
from glm5_operator.pods import PodReader
from tests.support.clock import at, stamp
from tests.support.objects import a_deployment, a_service
from tests.support.trainers import finetune
from tests.unit.controllers.test_facts import a_node, a_pool, on

Json = dict[str, Any]
SHA = "a" * 64
TINY = {"name": "tiny", "weights": "bf16", "source": "hostpath:///models/tiny", "memory": "1Gi"}
PUBLISHED: Json = {"outcome": "Succeeded", "adapter": {"path": "pvc://adapters/support", "sha256": SHA}}
DEPLOY: Json = {"service": "chat", "adapter": "support", "evaluate": {"source": "hostpath:///data/held.jsonl"}}


@dataclass
class Edge:
    """Stands in for Applier, Events and PodReader."""

    answers: dict[str, Json] = field(default_factory=dict)
    asked: int = 0
    wanted: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    failure: ApiFailure | None = None
    told: list[tuple[str, str]] = field(default_factory=list)

    async def converge(self, _owner: Json, desired: Sequence[Json], live: Sequence[Json]) -> Applied:
        names = [item["metadata"]["name"] for item in desired]
        self.wanted += names
        self.removed += [item["metadata"]["name"] for item in live if item["metadata"]["name"] not in names]
        return Applied(errors=(self.failure,) if self.failure else ())

    async def read(self, hosts: Iterable[str], _port: int, _path: str) -> dict[str, Json]:
        self.asked += 1
        return {host: answer for host, answer in self.answers.items() if host in set(hosts)}

    def warning(self, _: object, reason: str, message: str) -> None:
        self.told.append((reason, message))

    def normal(self, _: object, reason: str, message: str) -> None:
        self.told.append((reason, message))


def a_run(phase: str = "", deploy: Json | None = DEPLOY, **more: object) -> Json:
    spec = {"deploy": deploy} if deploy else {}
    document = finetune("prod", "tune", pool="training", **spec)
    metadata = {**document["metadata"], "uid": "uid-tune", "generation": 1, "resourceVersion": "1"}
    deployment = {"phase": phase, "since": stamp(at()), "began": stamp(at()), "service": "chat", "adapter": "support", "share": 0.0, **more}
    status = {**PUBLISHED, **({"deployment": deployment} if phase else {})}
    return {**document, "apiVersion": "glm5.dev/v1alpha1", "metadata": metadata, "status": status}


def serving(share: float = 1.0, **spec: object) -> Json:
    ready = {"type": "Ready", "status": "True", "reason": "Serving", "message": "", "lastTransitionTime": stamp(at())}
    listed = {"name": "support", "state": "Loaded", "sha256": SHA, "share": share}
    return a_service(
        status={"conditions": [ready], "adapters": [listed]}, model=TINY, parallelism={"tensor": 1}, adapterStorage="pvc://adapters", **spec
    )


def a_replica(ip: str = "10.0.0.1") -> Json:
    pod = on("a", "p", 1)
    pod["status"]["podIP"] = ip
    pod["metadata"]["uid"] = "uid-p"
    return pod


def holding(state: str = "Loaded", message: str = "", requests: int = 0, failures: int = 0, share: float = 1.0) -> Json:
    entry = {"name": "support", "sha256": SHA, "state": state, "message": message, "share": share}
    entry |= {"requests": requests, "failures": failures}
    return {"adapters": [entry], "base": {"requests": 0, "failures": 0}}


def an_evaluation(*conditions: str) -> Json:
    reference = {"kind": "GLM5FinetuneJob", "name": "tune", "uid": "uid-tune", "controller": True}
    labels = {"glm5.dev/finetune": "tune", "app.kubernetes.io/component": "evaluation"}
    metadata = {"name": "tune-evaluation", "namespace": "prod", "uid": "uid-e", "resourceVersion": "1", "labels": labels}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**metadata, "ownerReferences": [reference]},
        "status": {"conditions": [{"type": kind, "status": "True", "message": "it did"} for kind in conditions]},
    }


def its_pod(message: str, code: int = 0) -> Json:
    ended = {"terminated": {"exitCode": code, "message": message}}
    labels = {"glm5.dev/finetune": "tune", "app.kubernetes.io/component": "evaluation"}
    metadata = {"name": "tune-evaluation-x", "namespace": "prod", "uid": "uid-x", "resourceVersion": "1", "labels": labels}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "ownerReferences": [{"kind": "Job", "uid": "uid-e", "controller": True}]},
        "spec": {"containers": []},
        "status": {"phase": "Succeeded", "containerStatuses": [{"name": "evaluator", "state": ended}]},
    }


async def advance(edge: Edge, run: Json, *resources: Json, minutes: float = 0.1) -> Deployed:
    cache, edge_ = Cache(), cast(Any, edge)
    live = {**a_deployment(), "metadata": {**a_deployment()["metadata"], "resourceVersion": "1", "uid": "uid-d"}}
    for resource in (run, a_pool("training", role="Training"), a_node("a", rack="inference"), live, *resources):
        cache.put(resource)
    adapters = Adapters(cache, cast(Applier, edge_), cast(PodReader, edge_))
    deployments = Deployments(cache, cast(Applier, edge_), cast(Events, edge_), Facts(cache, Site()), adapters)
    status = {name: value for name, value in run["status"].items() if name != "deployment"}
    return await deployments.advance(run, GLM5FinetuneJob.parse(run), {**status, "conditions": []}, at(minutes=minutes))


def phase(found: Deployed) -> str:
    return str(found.status["deployment"]["phase"])


def condition(found: Deployed) -> Json:
    return next(item for item in found.status["conditions"] if item["type"] == "Deployed")


async def test_a_run_that_has_not_ended_well_goes_nowhere() -> None:
    for status in ({}, {"outcome": "Failed"}, {"outcome": "Succeeded"}):
        edge, run = Edge(), a_run()
        run["status"] = status
        found = await advance(edge, run, serving(), a_replica())
        assert "deployment" not in found.status
        assert condition(found)["status"] == "False"
        assert (edge.asked, edge.wanted) == (0, [])


async def test_a_job_that_deploys_nothing_has_no_condition_and_asks_nobody() -> None:
    edge = Edge()

    found = await advance(edge, a_run(deploy=None), serving(), a_replica())

    assert found.status["conditions"] == []
    assert (edge.asked, edge.wanted, found.news) == (0, [], False)


async def test_services_are_told_when_what_they_list_changes_and_only_then() -> None:
    edge = Edge({"10.0.0.1": holding("Loading")})

    begun = await advance(edge, a_run("Waiting"), serving(), a_replica())
    same = await advance(edge, a_run("Loading"), serving(), a_replica())
    removed = await advance(edge, a_run("Deployed", deploy=None), serving(), a_replica())

    assert (phase(begun), begun.news) == ("Loading", True)
    assert (phase(same), same.news) == ("Loading", False)
    assert ("deployment" in removed.status, removed.news) == (False, True)


async def test_an_evaluation_is_created_once_and_taken_away_when_it_has_told() -> None:
    edge = Edge({"10.0.0.1": holding()})
    world = (serving(), a_replica())

    begun = await advance(edge, a_run("Loading"), *world)
    assert (phase(begun), edge.wanted) == ("Evaluating", ["tune-evaluation"])
    running = await advance(edge, a_run("Evaluating"), *world, an_evaluation())
    assert (phase(running), edge.wanted, edge.removed) == ("Evaluating", ["tune-evaluation"], [])
    word = json.dumps({"outcome": "Succeeded", "rows": 1, "adapter": {"loss": 1.0}, "base": {"loss": 2.0}})
    done = await advance(edge, a_run("Evaluating"), *world, an_evaluation("Complete"), its_pod(word))
    assert (phase(done), edge.removed) == ("Deployed", ["tune-evaluation"])
    assert edge.told[-1][0] == "Deployed"


async def test_what_was_found_good_gets_all_traffic_first_and_is_deployed_when_pods_have_taken_that_up() -> None:
    edge = Edge({"10.0.0.1": holding(share=0.0)})
    run = a_run("Loading", deploy={"service": "chat", "adapter": "support"})

    begun = await advance(edge, run, serving(), a_replica())

    assert (phase(begun), begun.status["deployment"]["share"], begun.news) == ("Loading", 1.0, True)
    assert condition(begun)["message"] == "Loading: waits for 1 of 1 pods to take up the share"
    edge.answers = {"10.0.0.1": holding()}
    done = await advance(edge, {**run, "status": begun.status}, serving(), a_replica())
    assert (phase(done), edge.told[-1][0]) == ("Deployed", "Deployed")


async def test_a_newer_deployment_leaves_a_smaller_share_to_wait_for() -> None:
    edge = Edge({"10.0.0.1": holding(share=0.9)})
    newer = a_run("Canary", deploy={"service": "chat", "adapter": "newer"}, adapter="newer", began=stamp(at(minutes=1)), share=0.1)
    newer["metadata"] = {**newer["metadata"], "name": "newer", "uid": "uid-newer"}
    newer["status"]["adapter"] = {"path": "pvc://adapters/newer", "sha256": SHA}
    plain = a_run("Loading", deploy={"service": "chat", "adapter": "support"})

    assert phase(await advance(edge, plain, serving(0.9), a_replica(), newer)) == "Deployed"
    assert phase(await advance(edge, plain, serving(), a_replica())) == "Loading"


@pytest.mark.parametrize(
    ("message", "code", "says"),
    [
        (json.dumps({"outcome": "DataError", "message": "line 7\nis no JSON"}), 3, "exit code 3: line 7 is no JSON"),
        ("Killed", 137, "exit code 137: Killed"),
    ],
)
async def test_why_an_evaluation_failed_is_told_in_its_own_words(message: str, code: int, says: str) -> None:
    edge = Edge({"10.0.0.1": holding()})

    found = await advance(edge, a_run("Evaluating"), serving(), a_replica(), an_evaluation("Failed"), its_pod(message, code))

    assert phase(found) == "RolledBack"
    assert says in found.status["deployment"]["message"]
    assert edge.told == [("RolledBack", f"EvaluationFailed: {found.status['deployment']['message']}")]


async def test_an_evaluation_that_somebody_else_suspended_says_so() -> None:
    suspended = {**an_evaluation(), "spec": {"suspend": True}}
    found = await advance(Edge(), a_run("Evaluating"), serving(), a_replica(), suspended)

    assert (phase(found), "manageJobsWithoutQueueName" in condition(found)["message"]) == ("Evaluating", True)


async def test_a_failed_evaluation_whose_pods_are_gone_is_told_in_its_jobs_words() -> None:
    found = await advance(Edge({"10.0.0.1": holding()}), a_run("Evaluating"), serving(), a_replica(), an_evaluation("Failed"))

    assert found.status["deployment"]["message"] == "its Job failed: it did"


async def test_an_ended_evaluation_without_words_is_made_anew() -> None:
    edge = Edge({"10.0.0.1": holding()})

    lost = await advance(edge, a_run("Evaluating"), serving(), a_replica(), an_evaluation("Complete"))
    again = await advance(edge, a_run("Evaluating"), serving(), a_replica())

    assert (phase(lost), edge.removed, phase(again), edge.wanted) == ("Evaluating", ["tune-evaluation"], "Evaluating", ["tune-evaluation"])


async def test_a_pod_of_somebody_elses_says_nothing_about_the_evaluation() -> None:
    stranger = its_pod(json.dumps({"outcome": "Succeeded", "adapter": {"loss": 0.0}, "base": {"loss": 9.0}}))
    stranger["metadata"]["ownerReferences"] = []

    found = await advance(Edge({"10.0.0.1": holding()}), a_run("Evaluating"), serving(), a_replica(), an_evaluation("Complete"), stranger)

    assert phase(found) == "Evaluating"


async def test_a_refused_evaluation_is_told_and_tried_again() -> None:
    quota = ApiFailure("QuotaExceeded", "exceeded quota", Key("Job", "prod", "tune-evaluation"), retryable=True)

    found = await advance(Edge({"10.0.0.1": holding()}, failure=quota), a_run("Evaluating"), serving(), a_replica())

    assert found.failures == [quota]
    assert condition(found)["reason"] == "QuotaExceeded"


async def test_a_service_of_another_version_keeps_what_it_has() -> None:
    found = await advance(Edge(), a_run("Deployed", share=1.0), serving(colour="blue"), a_replica())

    assert phase(found) == "Deployed"
    assert not found.news


async def test_what_is_done_asks_no_pod() -> None:
    for at_end in ("Deployed", "RolledBack"):
        edge = Edge({"10.0.0.1": holding()})
        assert phase(await advance(edge, a_run(at_end), serving(), a_replica())) == at_end
        assert edge.asked == 0


@pytest.mark.parametrize(("state", "pods", "status"), [("Loaded", 1, "True"), ("Failed", 0, "False")])
async def test_that_pods_lost_what_was_deployed_is_read_from_the_service_and_comes_back_by_itself(
    state: str, pods: int, status: str
) -> None:
    edge, service = Edge(), serving()
    service["status"]["adapters"] = [{"name": "support", "state": state, "pods": pods, "of": 1}]
    if state == "Failed":
        service["status"]["adapters"][0]["message"] = "pod p: checksum differs"
    found = await advance(edge, a_run("Deployed"), service, a_replica())

    assert (phase(found), condition(found)["status"], edge.asked) == ("Deployed", status, 0)


def test_children_of_training_are_none_of_the_evaluation() -> None:
    assert is_evaluation(an_evaluation())
    training = {**an_evaluation(), "metadata": {"labels": {"app.kubernetes.io/component": "training"}}}
    assert not is_evaluation(training)
