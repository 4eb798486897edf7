"""What an audit finds in the cache, by the agents' word. Real: cache, facts, plan, status. Nothing is faked but the edge that evicts."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import pytest

from glm5_operator.controllers.auditing import Auditor
from glm5_operator.kube import Applier, Cache
from glm5_operator.plan.pool import plan_pool
from glm5_operator.plan.pool_audit import Audit, Exempt, Stray
from tests.support.clock import at, stamp
from tests.support.pods import CARD
from tests.unit.controllers.test_facts import a_node, a_pool, filled, on

Json = dict[str, Any]

FREE: Json = {"health": "OK", "pids": []}
TAKEN: Json = {"health": "OK", "pids": [4712, 4711]}
EXEMPT = Exempt(namespaces=("prod",))


def holder(pod: str) -> Json:
    return {"namespace": "prod", "pod": pod, "container": "main"}


def ascend_node(*cards: Json, resets: list[Json] | None = None, **facts: object) -> Json:
    numbered = [{"physical": number, "npu": number, **card} for number, card in enumerate(cards)]
    told = {"observedAt": stamp(at()), "allocationsKnown": True, "cards": numbered, **facts}
    metadata = {"name": "a", "resourceVersion": "1"}
    status = {"facts": told, **({"resets": resets} if resets else {})}
    return {"apiVersion": "glm5.dev/v1alpha1", "kind": "AscendNode", "metadata": metadata, "status": status}


def look(*resources: Json, **passed: float) -> Audit:
    cache, facts = filled(a_pool(resourceName=CARD), *resources)
    auditor = Auditor(cache, cast(Applier, None), facts, EXEMPT, timedelta(minutes=1))
    (pool,) = facts.pools()
    return auditor.audit(pool, plan_pool(pool, facts.pools(), facts.nodes()), at(**passed))


NODE = a_node("a", rack="inference")


def test_processes_on_cards_that_no_pod_was_given_are_told_with_their_ids() -> None:
    """A privileged pod, or one whose ASCEND_VISIBLE_DEVICES came past admission: kubelet knows of no holder."""
    found = look(NODE, ascend_node(FREE, TAKEN, {**TAKEN, "pids": [99]}))

    assert found.strays == (Stray("a", (1, 2), (99, 4711, 4712)),)
    assert found.breaches == ()


def test_processes_of_the_pod_that_holds_the_card_are_in_order() -> None:
    mine = on("a", "mine", 1)

    assert look(NODE, mine, ascend_node(FREE, {**TAKEN, "holder": holder("mine")})).strays == ()


def test_a_pod_that_holds_other_cards_is_no_excuse() -> None:
    mine = on("a", "mine", 1)

    assert look(NODE, mine, ascend_node(TAKEN, {**TAKEN, "holder": holder("mine")})).strays == (Stray("a", (0,), (4711, 4712)),)


@pytest.mark.parametrize(
    ("told", "passed"),
    [
        (ascend_node(TAKEN, allocationsKnown=False), 0),
        (ascend_node(TAKEN), 30),
        (ascend_node(TAKEN, observedAt="9999-12-31T23:59:59Z"), 0),
        (ascend_node(TAKEN, {**TAKEN, "physical": 99_999}), 0),
        (ascend_node(TAKEN, {**TAKEN, "physical": -1, "holder": holder("forged")}), 0),
        (ascend_node(TAKEN, virtual=True), 0),
        (ascend_node(TAKEN, resets=[{"id": "r", "state": "Running"}]), 0),
        (ascend_node({**TAKEN, "stale": True}), 0),
        (ascend_node({"health": "OK"}), 0),
    ],
    ids=[
        "kubelet does not answer",
        "old facts",
        "facts yet to come",
        "a card that can't be",
        "a negative card",
        "vNPUs",
        "a reset runs",
        "old card",
        "processes unread",
    ],
)
def test_what_is_not_known_is_no_violation(told: Json, passed: float) -> None:
    assert look(NODE, told, minutes=passed).strays == ()


@pytest.mark.parametrize(("namespace", "breaches"), [("prod", 0), ("team", 1)])
def test_a_compute_check_is_the_operators_own_in_its_namespace_alone(namespace: str, breaches: int) -> None:
    cache, facts = filled(a_pool(resourceName=CARD, namespaces=["other"]), NODE)
    pod = on("a", "check", 1)
    cache.put({**pod, "metadata": {**pod["metadata"], "namespace": namespace, "labels": {"glm5.dev/compute-check": "a"}}})
    auditor = Auditor(cache, cast(Applier, None), facts, Exempt(), timedelta(minutes=1), "prod")
    (pool,) = facts.pools()

    assert len(auditor.audit(pool, plan_pool(pool, facts.pools(), facts.nodes()), at()).breaches) == breaches


def test_a_pod_whose_cards_kubelet_has_yet_to_name_may_be_the_processes() -> None:
    assert look(NODE, on("a", "starting", 1), ascend_node(TAKEN)).strays == ()


def test_where_the_node_does_not_offer_the_pools_resource_claims_may_hold_the_cards() -> None:
    claimed = a_node("a", rack="inference")
    claimed["status"] = {**claimed["status"], "allocatable": {"cpu": "64"}}

    assert look(claimed, ascend_node(TAKEN)).strays == ()
    claimed["status"]["allocatable"][CARD] = "0"
    assert look(claimed, ascend_node(TAKEN)).strays != (), "all its cards are unhealthy, or the plugin is away"


@dataclass
class Edge:
    evicted: list[str] = field(default_factory=list)

    async def evict(self, pod: Json) -> None:
        self.evicted.append(pod["metadata"]["name"])


async def test_processes_of_nobody_evict_nobody() -> None:
    cache = Cache()
    cache.put(on("a", "hostile", 1))
    edge = Edge()
    auditor = Auditor(cache, cast(Applier, edge), cast(Any, None), EXEMPT, timedelta(minutes=1))
    since = stamp(at())
    stray = {"node": "a", "reason": "NotAllocated", "count": 1, "cards": [0], "pids": [4711], "since": since}
    breach = {"node": "a", "namespace": "prod", "pod": "hostile", "reason": "NoPool", "count": 1, "since": since}

    assert await auditor.evict([stray, breach], at(minutes=2)) == []
    assert edge.evicted == ["hostile"]
