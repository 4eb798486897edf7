"""A node changes hands: each step is seen from outside, stopped by its annotation, taken up again by a new operator.

Real: API server, scheduler, controller manager, eviction, the operator as a process. KWOK plays kubelets, the test plays the node agents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.api.conftest import Operated
from tests.api.pool.conftest import AddNodes
from tests.api.pool.test_nodes import label_of, wait_label
from tests.support.agents import Agent, agent_pod
from tests.support.documents import pool, tiny
from tests.support.kube import Json, Kube, stays, until

LIMIT = 30
QUICK: Json = {"mode": "Auto", "debounce": "1s", "verify": "2s", "drain": "20s"}


@dataclass
class Site:
    """Pool `origin` of two nodes and pool `target` of one, with agents that say that all is well."""

    kube: Kube
    origin: str
    target: str
    agents: dict[str, Agent]

    def ask(self, node: str, target: str | None) -> None:
        self.kube.patch("Node", "", node, {"metadata": {"annotations": {"glm5.dev/move-to": target}}})

    def move(self, node: str) -> Json:
        found: Json = (self.kube.get("AscendNode", "", node).get("status") or {}).get("move") or {}
        return found

    def wait_move(self, node: str, state: str, reason: str = "") -> Json:
        """Wait until the move is there; the agent tells meanwhile what it sees."""

        def there() -> bool:
            self.agents[node].say()
            found = self.move(node)
            return found.get("state") == state and reason in {"", found["reason"]}

        until(f"the move of {node} to be {state} {reason}", there, LIMIT, lambda: str(self.move(node)), every=0.5)
        return self.move(node)

    def is_tainted(self, node: str) -> bool:
        taints = self.kube.get("Node", "", node)["spec"].get("taints", [])
        return {"key": "glm5.dev/moving", "value": self.target, "effect": "NoSchedule"} in taints


Build = Callable[..., Site]


@pytest.fixture
def build(kube: Kube, rack: str, add_nodes: AddNodes) -> Build:
    def make(**health: object) -> Site:
        origin, target = f"{rack}-inference", f"{rack}-training"
        nodes = [*add_nodes(2, rack_label=origin), *add_nodes(1, prefix="other", rack_label=target)]
        kube.create(pool(origin, health={**QUICK, **health}))
        kube.create(pool(target, role="Training", health={**QUICK, **health}))
        agents = {node: Agent(kube, node) for node in nodes}
        for node, agent in agents.items():
            kube.create(agent_pod(node))
            until(f"AscendNode {node}", lambda node=node: kube.find("AscendNode", "", node) is not None, LIMIT)
            agent.say()
        return Site(kube, origin, target, agents)

    return make


def test_a_node_is_drained_reset_and_verified_before_another_pool_gets_it(operated: Operated, kube: Kube, home: str, build: Build) -> None:
    site = build(drain="2m")
    kube.create(tiny(home, pool=site.origin))
    kube.wait_ready(home, "chat")
    node = kube.list("Pod", home)[0]["spec"]["nodeName"]

    site.ask(node, site.target)

    waiting = site.wait_move(node, "Draining", "LastReplica")
    assert f"service {home}/chat" in waiting["message"]
    until("the node to be closed", lambda: site.is_tainted(node), LIMIT)
    kube.patch("GLM5Service", home, "chat", {"spec": {"replicas": 2}})  # the second one starts on the other node

    resetting = site.wait_move(node, "Resetting")
    until("new pods to stay away", lambda: site.is_tainted(node), LIMIT)
    assert label_of(kube, node) == site.origin
    assert resetting["origin"] == site.origin
    assert [pod for pod in kube.list("Pod", home) if pod["spec"].get("nodeName") == node] == [], "drained first"

    def shown() -> list[tuple[str, str, str]]:
        moves = kube.get("NPUPool", "", site.target)["status"].get("moves") or ()
        return [(each["node"], each["origin"], each["state"]) for each in moves]

    until("the pool to show it", lambda: shown() == [(node, site.origin, "Resetting")], LIMIT, lambda: str(shown()))
    asked = site.agents[node].reset_asked()
    assert asked == resetting["reset"]
    assert (asked["radius"], asked["cards"]) == ("Node", list(range(8)))
    stays("with its pool until the reset is over", lambda: label_of(kube, node) == site.origin, 2)

    site.agents[node].reset_done()

    site.wait_move(node, "Verifying", "AllWell")
    wait_label(kube, node, site.target)
    until("the taint to go", lambda: not site.is_tainted(node), LIMIT)
    until("the move to be over", lambda: site.move(node) == {}, LIMIT, lambda: str(site.move(node)))
    until("no request to be left", lambda: site.agents[node].reset_asked() is None, LIMIT)
    kube.wait_ready(home, "chat")
    until("the pool to count it", lambda: kube.get("NPUPool", "", site.target)["status"]["nodes"] == 2, LIMIT)
    until("no move to be shown", lambda: "moves" not in kube.get("NPUPool", "", site.target)["status"], LIMIT)
    assert kube.pool_condition(site.origin, "Conflict")["status"] == "False", "the selector of its old pool still matches"
    stays("with its new pool", lambda: label_of(kube, node) == site.target, 3)
    said = {item["reason"] for item in kube.list("Event", "default") if item["regarding"]["name"] == node}
    assert {"MoveDraining", "MoveResetting", "MoveVerifying", "Moved"} <= said


def test_an_operator_that_dies_in_the_middle_is_followed_by_one_that_goes_on_with_the_same_reset(
    operated: Operated, kube: Kube, build: Build
) -> None:
    site = build()
    node = next(iter(site.agents))
    site.ask(node, site.target)
    before = site.wait_move(node, "Resetting")

    operated.operator.kill()
    operated.operator.start()

    site.agents[node].say()
    stays("the same reset", lambda: site.move(node).get("reset") == before["reset"], 3, lambda: str(site.move(node)))
    site.agents[node].reset_done()
    site.wait_move(node, "Verifying")
    wait_label(kube, node, site.target)


def test_a_move_is_stopped_by_taking_the_note_off_and_the_node_stays_where_it_is(kube: Kube, build: Build) -> None:
    site = build(mode="DryRun", idleMemory=1000)
    node = next(iter(site.agents))
    site.ask(node, site.target)
    held = site.wait_move(node, "Verifying", "NotIdle")
    assert "memory of card 0" in held["message"]
    until("new pods to stay away", lambda: site.is_tainted(node), LIMIT)
    assert site.agents[node].reset_asked() is None, "DryRun resets nothing"

    site.ask(node, None)

    until("the taint to go", lambda: not site.is_tainted(node), LIMIT)
    until("the move to be over", lambda: site.move(node) == {}, LIMIT)
    assert label_of(kube, node) == site.origin


def test_a_pool_that_is_not_there_holds_the_move_before_anything_is_done(kube: Kube, build: Build) -> None:
    site = build()
    node = next(iter(site.agents))

    site.ask(node, "nowhere")

    told = site.wait_move(node, "Waiting", "TargetRefused")
    assert "there is no NPUPool nowhere" in told["message"]
    assert kube.get("Node", "", node)["spec"].get("taints") is None
    assert label_of(kube, node) == site.origin


def test_of_two_nodes_of_a_pool_one_goes_at_a_time(kube: Kube, build: Build) -> None:
    site = build()
    first, second, _ = site.agents
    site.ask(first, site.target)
    site.wait_move(first, "Resetting")

    site.ask(second, site.target)
    site.wait_move(second, "Waiting", "NoRoom")

    site.agents[first].reset_done()
    site.wait_move(second, "Resetting")
    assert label_of(kube, first) == site.target


def test_a_pool_lends_a_node_and_gets_it_back_by_the_same_way(kube: Kube, build: Build) -> None:
    site = build(mode="DryRun")
    first, second, _ = site.agents

    def lend(count: int) -> None:
        kube.patch("NPUPool", "", site.origin, {"spec": {"lend": [{"pool": site.target, "nodes": count, "keep": "0s"}]}})

    lend(1)
    wait_label(kube, first, site.target)
    until("the move to be over", lambda: site.move(first) == {}, LIMIT)
    assert label_of(kube, second) == site.origin

    lend(0)
    wait_label(kube, first, site.origin)
    until("no taint and no mark", lambda: _bare(kube.get("Node", "", first)), LIMIT, lambda: str(kube.get("Node", "", first)))
    stays("at home", lambda: label_of(kube, first) == site.origin, 3)


def _bare(node: Json) -> bool:
    return "taints" not in node["spec"] and "glm5.dev/lent-by" not in node["metadata"].get("annotations", {})
