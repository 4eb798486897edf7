"""What a reconcile of a pool writes on nodes. Real: cache, facts, planner, status. Faked: the edge that writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

from glm5_operator.api import names
from glm5_operator.controllers.auditing import Auditor
from glm5_operator.controllers.facts import Facts
from glm5_operator.controllers.pool import PoolController
from glm5_operator.kube import ApiFailure, Applier, Cache, Events, Key, Outcome, OutcomeKind
from glm5_operator.plan.facts import Site
from glm5_operator.plan.pool_audit import Exempt
from tests.support.clock import at
from tests.unit.controllers.test_facts import a_node

Json = dict[str, Any]
RESYNC, RECHECK = timedelta(minutes=10), timedelta(minutes=1)
GONE = Key("NPUPool", "", "inference")


@dataclass
class Edge:
    """Stands in for Applier: remembers which nodes were written, and lets something happen with the first write."""

    cache: Cache
    meanwhile: Json | None = None
    failure: ApiFailure | None = None
    written: list[tuple[str, str | None]] = field(default_factory=list)

    async def patch_node(self, node: Json, *, labels: dict[str, str | None], taints: object = None) -> ApiFailure | None:
        self.written.append((node["metadata"]["name"], labels[names.POOL_LABEL]))
        if self.meanwhile:
            self.cache.put(self.meanwhile)
        return self.failure


def labelled(name: str, pool: str, version: int = 1) -> Json:
    node = a_node(name, rack="inference")
    node["metadata"]["labels"] = {**node["metadata"]["labels"], names.POOL_LABEL: pool}
    node["metadata"]["resourceVersion"] = str(version)
    return node


async def release(edge: Edge) -> Outcome:
    async def none() -> list[Json]:
        return []

    cache = edge.cache
    facts = Facts(cache, Site())
    auditor = Auditor(cache, cast(Applier, edge), facts, Exempt(), RECHECK)
    controller = PoolController(cache, cast(Applier, edge), cast(Events, edge), facts, none, RESYNC, RECHECK, auditor, RECHECK)
    return await controller.reconcile(GONE, at())


def a_cache(*nodes: Json) -> Cache:
    cache = Cache()
    for node in nodes:
        cache.put(node)
    return cache


async def test_a_pool_that_is_gone_lets_go_of_its_own_nodes_only() -> None:
    edge = Edge(a_cache(labelled("a", "inference"), labelled("b", "training"), labelled("c", "inference")))

    assert await release(edge) == Outcome.done()
    assert sorted(edge.written) == [("a", None), ("c", None)]


async def test_a_node_that_another_pool_took_meanwhile_keeps_its_label() -> None:
    edge = Edge(a_cache(labelled("a", "inference"), labelled("b", "inference")), meanwhile=labelled("b", "training", version=2))

    await release(edge)

    assert edge.written == [("a", None)]


async def test_a_node_that_can_not_be_let_go_is_tried_again() -> None:
    refused = ApiFailure("Conflict", "changed", Key("Node", "", "a"), retryable=True)
    edge = Edge(a_cache(labelled("a", "inference")), failure=refused)

    assert (await release(edge)).kind is OutcomeKind.RETRY
