"""Nodes of a test's own with an agent that the test plays. KWOK plays kubelets: pods are ready at once, and end at once when told to."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import pytest

from tests.api.conftest import Operated
from tests.cluster.nodes import RESOURCE
from tests.support import kubelet
from tests.support.agents import NAMESPACE, Agent, agent_pod
from tests.support.documents import RACK, bare_node, pool
from tests.support.kube import Json, Kube, until
from tests.support.pods import running

QUICK: Json = {"mode": "Auto", "debounce": "1s", "verify": "1s", "drain": "20s"}
"""A policy whose waits are short."""

Fleet = Callable[..., list[Agent]]


@pytest.fixture
def rack(kube: Kube) -> Iterator[str]:
    """A name for a test's pool and nodes, which are removed after the test."""
    name = f"h-{secrets.token_hex(3)}"
    yield name
    kube.delete("NPUPool", "", name)
    for node in kube.list("Node"):
        if node["metadata"]["name"].startswith(name):
            kube.delete("Node", "", node["metadata"]["name"])


@pytest.fixture
def fleet(operated: Operated, kube: Kube, rack: str) -> Fleet:
    """`fleet(2)` makes a pool of two nodes, each with an agent that says that all cards are well."""

    def make(count: int, *, cards: int = 8, product: str = "A2", hccs: bool = True, health: Json | None = None) -> list[Agent]:
        nodes = operated.cluster.add_nodes(count, prefix=rack, labels={RACK: rack}, product=product, resources={RESOURCE: str(cards)})
        kube.create(pool(rack, health={**QUICK, **(health or {})}))
        agents = [Agent(kube, node, cards=cards, product=product, hccs=hccs) for node in nodes]
        for agent in agents:
            kube.create(agent_pod(agent.node))
            until(f"AscendNode {agent.node}", lambda agent=agent: kube.find("AscendNode", "", agent.node) is not None, 20)  # type: ignore[misc]
            agent.say()
        for agent in agents:
            wait_state(agent, "Healthy")
        return agents

    return make


@pytest.fixture
def silent(kube: Kube, rack: str) -> Iterator[Agent]:
    """A pool of one node without a kubelet: pods that are told to end stay there until the test lets them go."""
    node = f"{rack}-silent"
    kube.create(bare_node(node, rack))
    with kubelet.heartbeat(kube, node):
        kube.create(pool(rack, health={**QUICK, "drain": "6s"}))
        pod = kube.create(agent_pod(node))
        kubelet.report(kube, pod, {**running(ready=True, started=True), "name": "agent"}, ready=True)
        agent = Agent(kube, node)
        until(f"AscendNode {node}", lambda: kube.find("AscendNode", "", node) is not None, 20)
        agent.say()
        wait_state(agent, "Healthy")
        yield agent
        for left in kube.list("Pod"):
            if left["spec"].get("nodeName") == node:
                kubelet.let_go(kube, left)


def remedy(agent: Agent) -> Json:
    """What the operator says of the node's remedy."""
    found: Json = ((agent.kube.find("AscendNode", "", agent.node) or {}).get("status") or {}).get("remedy") or {}
    return found


def wait_state(agent: Agent, state: str, timeout: float = 20) -> Json:
    """Wait until the remedy of the node is in that state."""
    until(f"node {agent.node} to be {state}", lambda: remedy(agent).get("state") == state, timeout, lambda: str(remedy(agent)))
    return remedy(agent)


def walked(agent: Agent) -> list[str]:
    """The states that the node went through, each once in a row."""
    states = [entry["state"] for entry in remedy(agent).get("history", [])]
    return [state for place, state in enumerate(states) if place == 0 or states[place - 1] != state]


def node_condition(agent: Agent, kind: str) -> Json:
    conditions = (agent.kube.get("AscendNode", "", agent.node).get("status") or {}).get("conditions") or ()
    return next((item for item in conditions if item["type"] == kind), {})


def health_taint(kube: Kube, node: str) -> str | None:
    taints = kube.get("Node", "", node)["spec"].get("taints", [])
    return next((taint["value"] for taint in taints if taint["key"] == "glm5.dev/health"), None)


def serving(kube: Kube, home: str) -> dict[str, str]:
    """Node → the serving label of the service's pod there; pods that are to end are left out."""
    pods = [pod for pod in kube.list("Pod", home) if not pod["metadata"].get("deletionTimestamp") and pod["spec"].get("nodeName")]
    return {pod["spec"]["nodeName"]: pod["metadata"]["labels"].get("glm5.dev/serving", "") for pod in pods}


def endpoints(kube: Kube, home: str) -> set[str]:
    """Nodes of the pods that clients of service `chat` reach, by the EndpointSlices that kube-proxy reads."""
    path = f"/apis/discovery.k8s.io/v1/namespaces/{home}/endpointslices"
    slices = kube.http.get(path, params={"labelSelector": "kubernetes.io/service-name=chat-api"}).json()["items"]
    found = [endpoint for item in slices for endpoint in item.get("endpoints") or () if endpoint["conditions"].get("ready")]
    return {endpoint["nodeName"] for endpoint in found}


__all__ = ["NAMESPACE", "QUICK", "Fleet"]
