"""A fault walks the whole way on a real API server: quiesce, drain, reset, verify, return; or ends in quarantine, until a person comes."""

from __future__ import annotations

from tests.api.health.conftest import Fleet, endpoints, health_taint, node_condition, remedy, serving, wait_state, walked
from tests.support import kubelet
from tests.support.agents import Agent
from tests.support.documents import cards, tiny
from tests.support.kube import Kube, stays, until
from tests.support.pods import running


def spread(kube: Kube, home: str, rack: str, agents: list[Agent], replicas: int = 2) -> None:
    """A service with replicas that take a whole node each."""
    kube.create(tiny(home, pool=rack, replicas=replicas, rollout={"strategy": "Recreate"}, **cards(8)))
    kube.wait_ready(home, "chat")
    for agent in agents:
        agent.say()


def test_a_fault_is_quiesced_drained_reset_verified_and_returned(kube: Kube, home: str, rack: str, fleet: Fleet) -> None:
    first, second, spare = fleet(3)
    spread(kube, home, rack, [first, second, spare])
    sick = next(agent for agent in (first, second, spare) if agent.node in serving(kube, home))
    pods = {pod["metadata"]["name"] for pod in kube.list("Pod", home)}

    sick.ill(3)

    until("the replica to leave the endpoints", lambda: sick.node not in endpoints(kube, home), 5, lambda: str(endpoints(kube, home)))
    until("the pod to be replaced elsewhere", lambda: sick.node not in serving(kube, home), 20, lambda: str(serving(kube, home)))
    kube.wait_ready(home, "chat")
    assert len({pod["metadata"]["name"] for pod in kube.list("Pod", home)} & pods) == 1
    assert health_taint(kube, sick.node) == "remedy"
    sick.say()  # that the cards are free
    until("the reset to be asked for", lambda: sick.reset_asked() is not None, 20, lambda: str(remedy(sick)))
    asked = sick.reset_asked()
    assert asked is not None
    assert (asked["radius"], asked["cards"]) == ("Node", list(range(8)))  # HCCS joins them

    sick.reset_done()

    wait_state(sick, "Healthy")
    assert walked(sick) == ["Healthy", "Quiescing", "Draining", "Resetting", "Verifying", "Returning", "Healthy"]
    assert health_taint(kube, sick.node) is None
    until("nothing to be asked for", lambda: sick.reset_asked() is None, 10)
    assert node_condition(sick, "CardsHealthy")["status"] == "True"


def test_while_a_replica_is_out_of_traffic_its_service_is_degraded_and_counts_it_not(
    kube: Kube, home: str, rack: str, fleet: Fleet
) -> None:
    agents = fleet(2, health={"drain": "1h"})
    spread(kube, home, rack, agents)
    sick, other = agents
    # The other node is out of service: this one has no room, and stays quiet.
    other_pod = next(pod for pod in kube.list("Pod", home) if pod["spec"]["nodeName"] == sick.node)

    sick.ill(0, word="Alarm")

    until("the replica to be quiet", lambda: serving(kube, home).get(sick.node) == "remedy", 5, lambda: str(serving(kube, home)))
    ready = kube.wait_condition(home, "chat", "ReplicaQuiesced", timeout=20)
    assert other_pod["metadata"]["name"] in ready["message"]
    assert kube.condition(home, "chat", "Degraded")["status"] == "True"
    assert kube.get("GLM5Service", home, "chat")["status"]["readyReplicas"] == 1
    assert endpoints(kube, home) == {other.node}


def test_a_second_fault_beyond_the_budget_ends_in_quarantine_and_a_person_releases_it(
    kube: Kube, home: str, rack: str, fleet: Fleet
) -> None:
    (agent,) = fleet(1, health={"resets": 1})
    agent.ill(2)
    until("the reset to be asked for", lambda: agent.reset_asked() is not None, 20, lambda: str(remedy(agent)))
    agent.reset_done()
    wait_state(agent, "Healthy")

    agent.ill(2)

    wait_state(agent, "Quarantined")
    assert health_taint(kube, agent.node) == "quarantined"
    assert node_condition(agent, "Quarantined")["status"] == "True"
    until("nothing to be asked for", lambda: agent.reset_asked() is None, 10)
    agent.well()
    stays("in quarantine", lambda: remedy(agent)["state"] == "Quarantined", 3)

    kube.patch("AscendNode", "", agent.node, {"metadata": {"annotations": {"glm5.dev/release": "kim: card replaced"}}})

    wait_state(agent, "Healthy", timeout=30)
    assert health_taint(kube, agent.node) is None
    annotations = kube.get("AscendNode", "", agent.node)["metadata"].get("annotations") or {}
    assert "glm5.dev/release" not in annotations


def test_a_reset_never_begins_while_a_pod_of_others_holds_a_card_of_the_radius(kube: Kube, home: str, silent: Agent) -> None:
    limits = {"huawei.com/Ascend910": "1"}
    notebook = {
        "kind": "Pod",
        "metadata": {"name": "notebook", "namespace": home},
        "spec": {"nodeName": silent.node, "containers": [{"name": "c", "image": "c:1", "resources": {"limits": limits}}]},
    }
    pod = kube.create(notebook)
    kubelet.report(kube, pod, {**running(ready=True, started=True), "name": "c"}, ready=True)

    silent.ill(5)

    until("the notebook to be evicted", lambda: bool(kube.get("Pod", home, "notebook")["metadata"].get("deletionTimestamp")), 20)
    wait_state(silent, "Quarantined", timeout=30)
    assert remedy(silent)["reason"] == "DrainTimeout"
    assert "notebook" in remedy(silent)["message"]
    assert "Resetting" not in walked(silent)


def test_in_dry_run_the_status_says_what_would_be_done_and_nothing_is(kube: Kube, home: str, rack: str, fleet: Fleet) -> None:
    agents = fleet(2, health={"mode": "DryRun"})
    spread(kube, home, rack, agents)
    sick = agents[0]

    sick.ill(1)

    until("the reset to be told", lambda: remedy(sick).get("reason") == "WouldReset", 20, lambda: str(remedy(sick)))
    assert remedy(sick)["dryRun"] is True
    assert node_condition(sick, "CardsHealthy")["status"] == "False"
    stays("in traffic", lambda: serving(kube, home).get(sick.node) == "true" and health_taint(kube, sick.node) is None, 3)
    assert sick.reset_asked() is None
