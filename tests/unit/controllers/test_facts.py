"""What planning gets to know from the cache. Real: the cache and the planner's readers. Nothing is faked."""

from __future__ import annotations

from typing import Any

import pytest

from glm5_operator.controllers.facts import Facts
from glm5_operator.kube import Cache
from glm5_operator.kube.wire import decode
from glm5_operator.plan.facts import Site
from glm5_operator.plan.pool import plan_pool
from glm5_operator.plan.service import plan_service
from tests.cluster.nodes import kwok_node
from tests.support.pods import CARD, a_pod
from tests.unit.plan.builders import child, tiny

Json = dict[str, Any]


def a_node(name: str, version: int = 1, **labels: str) -> Json:
    node = kwok_node(name, labels=labels)
    node["metadata"]["resourceVersion"] = str(version)
    return {**node, "kind": "Node"}


def a_pool(name: str = "inference", version: int = 1, **spec: object) -> Json:
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version), "creationTimestamp": "2026-11-29T12:00:00Z"}
    return {
        "apiVersion": "glm5.dev/v1alpha1",
        "kind": "NPUPool",
        "metadata": metadata,
        "spec": {"role": "Inference", "nodeSelector": {"rack": name}, **spec},
    }


def on(node: str, name: str, cards: int, **changes: Any) -> Json:  # noqa: ANN401 - passed through
    pod = a_pod(name, node=node, cards=cards, **changes)
    pod["metadata"]["resourceVersion"] = "1"
    return pod


def filled(*resources: Json) -> tuple[Cache, Facts]:
    cache = Cache()
    for resource in resources:
        cache.put(resource)
    return cache, Facts(cache, Site())


def test_a_pools_nodes_come_with_the_cards_that_pods_hold_there() -> None:
    _, facts = filled(a_pool(), a_node("a", rack="inference"), a_node("b", rack="inference"), a_node("c"), on("a", "p", 3), on("c", "q", 8))

    found = facts.service("inference", ())

    assert found.pool is not None
    assert [(node.name, node.held) for node in found.pool.nodes] == [("a", 3), ("b", 0)]


def test_own_cards_are_told_apart_from_those_of_others() -> None:
    mine, theirs = on("a", "mine", 2), on("a", "theirs", 4)
    _, facts = filled(a_pool(), a_node("a", rack="inference"), mine, theirs)

    found = facts.service("inference", [mine])

    assert found.own_held == {"a": 2}
    assert found.pool is not None
    assert found.pool.nodes[0].held == 6
    assert facts.held_by([mine]) == {CARD: 2}
    assert facts.holders("inference", [mine]) == ("prod/theirs",)


def foreign(node: str, name: str, cards: int, resource: str = CARD) -> Json:
    pod = on(node, name, cards)
    pod["metadata"].update(namespace="notebooks", labels={"app": "jupyter"})
    pod["spec"]["containers"][0]["resources"] = {"limits": {resource: str(cards)}}
    return pod


def test_cards_of_pods_that_are_not_ours_count_and_leave_no_room_for_a_surge() -> None:
    """Case F03: planned with a surge, the new pod would wait for ever for the card that the old one holds."""
    node = a_node("a", rack="inference")
    node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    _, facts = filled(a_pool(), node, foreign("a", "lab", 7))

    found = facts.service("inference", ())

    assert found.pool is not None
    assert [node.held for node in found.pool.nodes] == [7]
    assert facts.holders("inference", ()) == ("notebooks/lab",)
    assert child(plan_service(tiny(), found), "Deployment")["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    counts = plan_pool(facts.pools()[0], facts.pools(), facts.nodes(), ())
    assert (counts.cards, counts.held_cards, counts.free_cards) == (8, 7, 1)


def test_a_pool_with_a_resource_name_of_its_own_counts_that() -> None:
    node = a_node("a", rack="inference")
    node["status"]["allocatable"] = {"example.com/npu": "8"}
    _, facts = filled(a_pool(resourceName="example.com/npu"), node, foreign("a", "lab", 3, "example.com/npu"))

    assert [found.held for found in facts.nodes()] == [3]
    assert facts.holders("inference", ()) == ()


def test_an_ended_pod_holds_nothing() -> None:
    _, facts = filled(a_pool(), a_node("a", rack="inference"), on("a", "p", 8, phase="Succeeded"))

    assert [node.held for node in facts.nodes()] == [0]


def test_a_missing_pool_is_none() -> None:
    _, facts = filled(a_node("a"))

    assert facts.service("inference", ()).pool is None


def test_a_pool_that_can_not_be_read_claims_nothing_and_hides_no_other() -> None:
    _, facts = filled(a_pool("broken", colour="blue"), a_pool())

    assert [pool.metadata.name for pool in facts.pools()] == ["inference"]


def test_news_of_nodes_pools_and_pods_are_seen() -> None:
    cache, facts = filled(a_pool(), a_node("a", rack="inference"))
    assert [node.name for node in facts.service("inference", ()).pool.nodes] == ["a"]  # type: ignore[union-attr]

    cache.put(a_node("b", rack="inference"))
    assert [node.name for node in facts.service("inference", ()).pool.nodes] == ["a", "b"]  # type: ignore[union-attr]

    cache.put(on("b", "p", 5))
    assert [node.held for node in facts.nodes()] == [0, 5]

    cache.put(a_pool(version=2, nodeSelector={"rack": "elsewhere"}))
    assert facts.service("inference", ()).pool.nodes == ()  # type: ignore[union-attr]

    cache.drop(a_pool(version=3))
    assert facts.service("inference", ()).pool is None


def an_ascend_node(name: str, driver: str | None, version: int = 1) -> Json:
    facts = {"observedAt": "2026-11-30T12:00:00Z", "tool": {"state": "Working"}, **({"driver": driver} if driver else {})}
    metadata = {"name": name, "uid": f"agent-{name}", "resourceVersion": str(version)}
    return {"apiVersion": "glm5.dev/v1alpha1", "kind": "AscendNode", "metadata": metadata, "spec": {}, "status": {"facts": facts}}


def drivers(facts: Facts) -> list[str]:
    found = facts.service("inference", ()).pool
    return [node.driver for node in found.nodes] if found else []


def test_a_nodes_driver_is_the_plugins_label_else_what_the_agent_has_read_as_soon_as_it_has() -> None:
    labelled = a_node("a", rack="inference")
    labelled["metadata"]["labels"]["huawei.com/driver.version"] = "25.5.0"
    cache, facts = filled(a_pool(), labelled, a_node("b", rack="inference"), an_ascend_node("a", "24.1.rc1"))
    assert drivers(facts) == ["25.5.0", ""]
    cache.put(an_ascend_node("b", "24.1.rc1"))
    assert drivers(facts) == ["25.5.0", "24.1.rc1"]
    cache.put(an_ascend_node("b", "25.2.0", version=2))
    assert drivers(facts) == ["25.5.0", "25.2.0"]


def test_news_of_agents_that_change_no_driver_leave_the_read_nodes_as_they_are() -> None:
    cache, facts = filled(a_pool(), a_node("b", rack="inference"), an_ascend_node("b", "25.2.0"))
    before = facts.nodes()[0]
    cache.put(an_ascend_node("b", "25.2.0", version=2))
    assert facts.nodes()[0] is before


def test_a_driver_goes_with_its_ascend_node() -> None:
    cache, facts = filled(a_pool(), a_node("b", rack="inference"), an_ascend_node("b", "25.2.0"))
    assert drivers(facts) == ["25.2.0"]
    cache.drop(an_ascend_node("b", "25.2.0", version=2))
    assert drivers(facts) == [""]
    cache.put(an_ascend_node("b", "25.5.0", version=3))
    assert drivers(facts) == ["25.5.0"]
    cache.sweep("AscendNode", None, set(), 4)
    assert drivers(facts) == [""]


def test_news_of_one_agent_has_no_other_ascend_node_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 2,000 nodes of 16 dies reading them all took a tenth of a second, in which nothing else ran, for each report of an agent."""
    names = [f"n{number}" for number in range(20)]
    cache, facts = filled(
        a_pool(), *(a_node(name, rack="inference") for name in names), *(an_ascend_node(name, "25.2.0") for name in names)
    )
    facts.pool("inference")
    read: list[str] = []

    def counting(raw: bytes) -> Any:  # noqa: ANN401 - as what it stands in for
        found = decode(raw)
        read.append(found["kind"])
        return found

    monkeypatch.setattr("glm5_operator.kube.cache.decode", counting)

    newer = an_ascend_node("n3", "25.2.0", version=2)
    newer["status"]["facts"]["observedAt"] = "2026-11-30T12:00:05Z"
    assert cache.put(newer)
    facts.pool("inference")
    assert read.count("AscendNode") <= 1

    read.clear()
    cache.put(an_ascend_node("n3", "25.5.0", version=3))
    assert drivers(facts).count("25.5.0") == 1
    assert read.count("AscendNode") <= 1


def test_news_of_one_node_has_no_other_node_read_and_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 2,000 nodes is labelled by us, and looked at for that: to read all of them each time kept the operator busy for minutes."""
    cache, facts = filled(a_pool(), *(a_node(f"n{number}", rack="inference") for number in range(20)))
    assert len(facts.nodes()) == 20
    read: list[str] = []

    def counting(raw: bytes) -> Any:  # noqa: ANN401 - as what it stands in for
        found = decode(raw)
        read.append(found["metadata"]["name"])
        return found

    monkeypatch.setattr("glm5_operator.kube.cache.decode", counting)
    monkeypatch.setattr("glm5_operator.controllers.facts.decode", counting)
    cache.put(a_node("n3", version=2, rack="inference", ours="yes"))

    assert [node.name for node in facts.nodes() if "ours" in node.labels] == ["n3"]
    assert read == ["n3"]
    assert facts.resource_of_pool("inference") == CARD

    cache.put(a_node("n3", version=3, rack="other"))
    found = facts.pool("inference")
    assert found is not None
    assert "n3" not in {node.name for node in found.nodes}
