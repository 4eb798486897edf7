"""What a reconcile of a pool writes on nodes and says of DaemonSets. Real: cache, facts, planner, status. Faked: the edge that writes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import pytest

from glm5_operator.api import names
from glm5_operator.controllers.auditing import Auditor
from glm5_operator.controllers.facts import Facts
from glm5_operator.controllers.pool import ABREAST, PoolController
from glm5_operator.health.remedy.policy import RESET_TAKES
from glm5_operator.kube import ApiFailure, Applier, Cache, Events, Key, Outcome, OutcomeKind
from glm5_operator.plan.facts import Site
from glm5_operator.plan.pool_audit import Exempt
from tests.support.clock import at, stamp
from tests.support.objects import a_service
from tests.unit.controllers.test_facts import a_node, a_pool, on

Json = dict[str, Any]
RESYNC, RECHECK = timedelta(minutes=10), timedelta(minutes=1)
POOL = Key("NPUPool", "", "inference")


@dataclass
class Edge:
    """Stands in for Applier: remembers which nodes were written, and lets something happen with the first write."""

    cache: Cache
    meanwhile: Json | None = None
    failure: ApiFailure | None = None
    written: list[tuple[str, str | None]] = field(default_factory=list)
    status: Json = field(default_factory=dict)
    daemon_sets: list[Json] = field(default_factory=list)
    reads: int = 0
    at_once: asyncio.Barrier | None = None
    said: list[tuple[str, str, str]] = field(default_factory=list)

    def normal(self, resource: Json, reason: str, message: str) -> None:
        self.said.append((resource["kind"], reason, message))

    def warning(self, resource: Json, reason: str, message: str) -> None:
        """Of trouble; test_announce looks at those."""

    async def read(self) -> list[Json]:
        self.reads += 1
        return self.daemon_sets

    async def write_status(self, pool: Json, status: Json) -> None:
        assert pool["metadata"]["name"] == "inference"
        self.status = status

    async def patch_node(
        self, node: Json, *, labels: dict[str, str | None], taints: object = None, annotations: dict[str, str | None] | None = None
    ) -> ApiFailure | None:
        moved = (annotations or {}).get(names.MOVE_ANNOTATION)
        self.written.append((node["metadata"]["name"], moved or labels[names.POOL_LABEL]))
        if self.meanwhile:
            self.cache.put(self.meanwhile)
        if self.at_once is not None:
            await self.at_once.wait()
        return self.failure


def labelled(name: str, pool: str, version: int = 1) -> Json:
    node = a_node(name, rack="inference")
    node["metadata"]["labels"] = {**node["metadata"]["labels"], names.POOL_LABEL: pool}
    node["metadata"]["resourceVersion"] = str(version)
    return node


async def reconcile(edge: Edge, seconds: float = 0) -> Outcome:
    cache = edge.cache
    facts = Facts(cache, Site())
    auditor = Auditor(cache, cast(Applier, edge), facts, Exempt(), RECHECK)
    controller = PoolController(cache, cast(Applier, edge), cast(Events, edge), facts, edge.read, RESYNC, RECHECK, auditor, RECHECK)
    return await controller.reconcile(POOL, at(seconds=seconds))


def a_cache(*nodes: Json) -> Cache:
    cache = Cache()
    for node in nodes:
        cache.put(node)
    return cache


async def test_a_pool_that_is_gone_lets_go_of_its_own_nodes_only() -> None:
    edge = Edge(a_cache(labelled("a", "inference"), labelled("b", "training"), labelled("c", "inference")))

    assert await reconcile(edge) == Outcome.done()
    assert sorted(edge.written) == [("a", None), ("c", None)]


async def test_a_node_that_another_pool_took_meanwhile_keeps_its_label() -> None:
    edge = Edge(a_cache(labelled("a", "inference"), labelled("b", "inference")), meanwhile=labelled("b", "training", version=2))

    await reconcile(edge)

    assert edge.written == [("a", None)]


async def test_a_node_that_can_not_be_let_go_is_tried_again() -> None:
    refused = ApiFailure("Conflict", "changed", Key("Node", "", "a"), retryable=True)
    edge = Edge(a_cache(labelled("a", "inference")), failure=refused)

    assert (await reconcile(edge)).kind is OutcomeKind.RETRY


async def test_several_nodes_are_written_to_at_the_same_time_but_not_all() -> None:
    nodes = [labelled(f"n{number}", "inference") for number in range(3 * ABREAST)]
    edge = Edge(a_cache(*nodes), at_once=asyncio.Barrier(ABREAST))

    async with asyncio.timeout(20):
        assert await reconcile(edge) == Outcome.done()

    assert len(edge.written) == 3 * ABREAST


def resetting(name: str, version: int = 1, **report: str) -> Json:
    """The AscendNode of a node whose cards are being reset since the beginning."""
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    remedy = {"state": "Resetting", "since": stamp(at()), "reason": "ResetRequested", "id": "r-1"}
    resets = [{"id": "r-1", "state": "Running", "started": stamp(at()), **report}]
    return {"apiVersion": names.API_VERSION, "kind": names.NODE_KIND, "metadata": metadata, "status": {"remedy": remedy, "resets": resets}}


def stated(name: str = "inference", **spec: object) -> Json:
    pool = a_pool(name, **spec)
    pool["metadata"]["generation"] = 1
    return pool


HELD: dict[str, tuple[Json, ...]] = {
    "of a pool that is gone": (labelled("a", "inference"),),
    "out of the selector": (labelled("a", "inference"), labelled("b", "inference"), stated(nodeSelector=None, nodeNames=["b"])),
    "the last one out of it": (labelled("a", "inference"), stated(nodeSelector={"rack": "other"})),
    "of another pool before": (labelled("a", "training"), stated()),
}


@pytest.mark.parametrize("resources", HELD.values(), ids=HELD)
async def test_a_node_keeps_the_label_of_its_pool_until_the_reset_of_its_cards_is_over(resources: tuple[Json, ...]) -> None:
    edge = Edge(a_cache(*resources, resetting("a")))

    outcome = await reconcile(edge, 5)

    assert [name for name, _ in edge.written] == []
    assert outcome.kind is not OutcomeKind.RETRY
    assert outcome.after is not None
    assert outcome.after <= timedelta(seconds=10)
    ((_, reason, message),) = edge.said
    assert (reason, "a (by " in message) == ("ResetRuns", True)

    edge.cache.put(resetting("a", 2, state="Succeeded"))
    await reconcile(edge, 15)
    assert [name for name, _ in edge.written] == ["a"]


async def test_a_node_whose_agent_never_says_how_the_reset_ended_is_let_go_of_in_the_end_and_the_pool_says_why_not_before() -> None:
    edge = Edge(a_cache(*HELD["out of the selector"], resetting("a")))

    await reconcile(edge, 5)
    assert "ResetRuns" in ready(edge)
    assert edge.said[0][0] == "NPUPool"

    await reconcile(edge, RESET_TAKES.total_seconds() + 1)
    assert edge.written == [("a", None)]
    assert "ResetRuns" not in ready(edge)


async def test_nothing_is_lent_where_a_service_would_lose_its_last_replica_and_the_pool_says_so() -> None:
    node = labelled("a", "inference")
    node["status"] = {**node["status"], "conditions": [{"type": "Ready", "status": "True"}]}
    edge = Edge(a_cache(node, a_service("chat"), on("a", "chat-0", 3), stated(lend=[{"pool": "training", "nodes": 1}])))

    await reconcile(edge)
    assert edge.written == []
    assert "NoneToLend" in ready(edge)

    edge.cache.put(on("c", "chat-1", 3))
    await reconcile(edge)
    assert edge.written == [("a", "training")]


def ready(edge: Edge) -> str:
    return str(next(item["message"] for item in edge.status["conditions"] if item["type"] == "Ready"))


def a_plugin(*tolerations: Json) -> Json:
    template = {"spec": {"nodeSelector": {"rack": "inference"}, "tolerations": list(tolerations)}}
    return {"metadata": {"name": "device-plugin", "namespace": "kube-system"}, "spec": {"template": template}}


async def test_who_is_kept_from_a_node_in_quarantine_is_told_though_the_pool_sets_no_taint_of_its_own() -> None:
    sick = labelled("a", "inference")
    sick["spec"] = {"taints": [{"key": "glm5.dev/health", "value": "quarantined", "effect": "NoSchedule"}]}
    pool = a_pool()
    pool["metadata"]["generation"] = 1
    edge = Edge(a_cache(sick, labelled("b", "inference"), pool), daemon_sets=[a_plugin()])

    await reconcile(edge)
    assert "DaemonSetsKeptAway" in ready(edge)
    assert "kube-system/device-plugin" in ready(edge)
    assert edge.written == [], "nothing is held back or taken off for it"

    edge.daemon_sets = [a_plugin({"key": "glm5.dev/health", "operator": "Exists"})]
    await reconcile(edge)
    assert "DaemonSetsKeptAway" not in ready(edge)


async def test_daemon_sets_are_not_read_where_no_node_has_a_taint_of_ours() -> None:
    pool = a_pool()
    pool["metadata"]["generation"] = 1
    edge = Edge(a_cache(labelled("a", "inference"), pool), daemon_sets=[a_plugin()])

    await reconcile(edge)
    assert edge.status["nodes"] == 1
    assert edge.reads == 0
