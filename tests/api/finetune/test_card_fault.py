"""A card of a training node fails: its pods are asked to end, which saves a checkpoint, and the next attempt runs elsewhere."""

from __future__ import annotations

import pytest

from tests.api.finetune.conftest import Training
from tests.api.finetune.test_faults import begun
from tests.support import kubelet
from tests.support.agents import Agent, agent_pod
from tests.support.kube import Kube, until
from tests.support.pods import running
from tests.support.trainers import bound_pods, let_go_of_deleted

pytestmark = pytest.mark.api


def test_a_rank_whose_card_failed_ends_as_a_card_fault_and_the_next_attempt_avoids_the_node(
    kube: Kube, home: str, training: Training
) -> None:
    kube.patch("NPUPool", "", training.pool, {"spec": {"health": {"mode": "Auto", "debounce": "1s", "drain": "1m"}}})
    agents = {training.node(number): Agent(kube, training.node(number)) for number in range(2)}
    for node, agent in agents.items():
        pod = kube.create(agent_pod(node))
        kubelet.report(kube, pod, {**running(ready=True, started=True), "name": "agent"}, ready=True)
        until(f"AscendNode {node}", lambda node=node: kube.find("AscendNode", "", node) is not None, 20)  # type: ignore[misc]
        agent.say()
    (pod,) = begun(training)
    sick = pod["spec"]["nodeName"]
    agents[sick].say()

    agents[sick].ill(0)

    def told_to_end() -> bool:
        found = kube.find("Pod", home, pod["metadata"]["name"])
        return found is None or bool(found["metadata"].get("deletionTimestamp"))

    until("the rank to be asked to end", told_to_end, 20, lambda: str(kube.get("AscendNode", "", sick)["status"].get("remedy")))
    assert kube.get("Pod", home, pod["metadata"]["name"])["metadata"]["deletionGracePeriodSeconds"] == 30, "half of the drain"
    asked = "attempt 1 was asked to end: it has until "
    until("that to be told", lambda: training.condition()["message"].startswith(asked), 20, lambda: str(training.condition()))

    def second() -> bool:
        let_go_of_deleted(kube, home)
        return training.status().get("attempt") == 2

    until("the second attempt", second, 40, lambda: str(training.status()))
    (entry,) = training.status()["history"]
    assert (entry["cause"], entry["node"]) == ("CardFault", sick)
    (again,) = bound_pods(kube, home, 2, 1)
    assert again["spec"]["nodeName"] != sick
    for node in agents:
        kubelet.let_go(kube, kube.get("Pod", "glm5-system", f"agent-{node}"))
