"""What the operator does around the remedy: it is killed, has several nodes at once, isn't told enough, or the node leaves its pool."""

from __future__ import annotations

import json
import time

from tests.api.conftest import Operated
from tests.api.health.conftest import Fleet, health_taint, node_condition, remedy, serving, wait_state, walked
from tests.api.health.test_remedy import spread
from tests.support.agents import NAMESPACE, Agent
from tests.support.documents import RACK
from tests.support.kube import Json, Kube, stays, until
from tests.support.mindcluster import card_fault, cluster_map, device_list


def ask_for_reset(agent: Agent) -> Json:
    """A card fails, and nobody holds any: the reset that is then asked for."""
    agent.ill(2)
    until("the reset to be asked for", lambda: agent.reset_asked() is not None, 20, lambda: str(remedy(agent)))
    asked = agent.reset_asked()
    assert asked is not None
    return asked


def test_an_operator_that_is_killed_while_a_reset_runs_goes_on_and_asks_for_no_other(operated: Operated, fleet: Fleet) -> None:
    (agent,) = fleet(1)
    asked = ask_for_reset(agent)

    operated.operator.kill()
    operated.operator.start()

    stays("the same request", lambda: agent.reset_asked() == asked, 3, lambda: str(agent.reset_asked()))
    agent.reset_done()
    wait_state(agent, "Healthy")
    assert walked(agent).count("Resetting") == 1
    assert len(remedy(agent)["resets"]) == 1


def test_a_replica_that_a_dead_operator_left_out_of_traffic_comes_back(
    operated: Operated, kube: Kube, home: str, rack: str, fleet: Fleet
) -> None:
    agents = fleet(2)
    spread(kube, home, rack, agents)
    pod = next(pod for pod in kube.list("Pod", home) if pod["spec"]["nodeName"] == agents[0].node)
    operated.operator.kill()
    kube.patch("Pod", home, pod["metadata"]["name"], {"metadata": {"labels": {"glm5.dev/serving": "remedy"}}})

    operated.operator.start()

    until("the replica to be back", lambda: serving(kube, home).get(agents[0].node) == "true", 20, lambda: str(serving(kube, home)))


def test_a_label_that_somebody_took_off_by_hand_stays_off(kube: Kube, home: str, rack: str, fleet: Fleet) -> None:
    agents = fleet(1)
    spread(kube, home, rack, agents, replicas=1)
    (pod,) = kube.list("Pod", home)

    kube.patch("Pod", home, pod["metadata"]["name"], {"metadata": {"labels": {"glm5.dev/serving": None}}})

    kube.wait_condition(home, "chat", "ReplicaQuiesced", timeout=20)
    agents[0].say()
    stays("out of traffic", lambda: serving(kube, home) == {agents[0].node: ""}, 3)


def test_of_two_nodes_that_fail_together_one_is_healed_at_a_time_and_the_last_replica_serves_on(
    kube: Kube, home: str, rack: str, fleet: Fleet
) -> None:
    agents = fleet(2, health={"drain": "30s"})
    spread(kube, home, rack, agents)

    for agent in agents:
        agent.ill(0)

    until("both to be in remedy", lambda: all(remedy(agent)["state"] != "Healthy" for agent in agents), 20)

    def one_serves() -> bool:
        assert "true" in serving(kube, home).values(), serving(kube, home)
        return any(agent.reset_asked() for agent in agents)

    def say_and_look() -> bool:
        for agent in agents:
            agent.say()
        return one_serves()

    until("a reset to be asked for", say_and_look, 40, lambda: str([remedy(agent) for agent in agents]), every=0.5)
    assert [remedy(agent)["state"] for agent in agents].count("Resetting") == 1
    assert sum(health_taint(kube, agent.node) is not None for agent in agents) == 1


def test_of_facts_that_can_not_be_believed_nothing_is_concluded(kube: Kube, home: str, rack: str, fleet: Fleet) -> None:
    agents = fleet(2)
    spread(kube, home, rack, agents)
    sick = agents[0]
    kube.delete("Pod", NAMESPACE, f"agent-{sick.node}")
    until("the facts to be stale", lambda: node_condition(sick, "FactsFresh")["status"] == "False", 20)

    sick.ill(1)

    stays("in traffic", lambda: serving(kube, home).get(sick.node) == "true" and remedy(sick)["state"] == "Healthy", 3)
    assert "agent" in node_condition(sick, "FactsFresh")["message"]


def test_what_mindcluster_says_counts_before_what_the_agent_says(kube: Kube, home: str, rack: str, fleet: Fleet) -> None:
    agents = fleet(2)
    spread(kube, home, rack, agents)
    sick = agents[0]
    fault = {"fault_type": "CardUnhealthy", "npu_name": "Ascend910-3", "large_model_fault_level": "RestartNPU"}
    fault |= {"fault_level": "RestartNPU", "fault_handling": "RestartNPU", "fault_code": "80E01801"}
    listed = {
        "huawei.com/Ascend910": "",
        "huawei.com/Ascend910-Unhealthy": "Ascend910-3",
        "huawei.com/Ascend910-NetworkUnhealthy": "",
        "huawei.com/Ascend910-Fault": json.dumps([fault]),
    }
    told = {"DeviceInfo": {"DeviceList": listed, "UpdateTime": int(time.time())}, "SuperPodID": -2, "ServerIndex": -2, "CheckCode": ""}
    name = f"mindx-dl-deviceinfo-{sick.node}"
    metadata = {"name": name, "namespace": "kube-system", "labels": {"mx-consumer-cim": "true"}}
    kube.create({"kind": "ConfigMap", "metadata": metadata, "data": {"DeviceInfoCfg": json.dumps(told)}})

    until("the replica to be quiet", lambda: serving(kube, home).get(sick.node) != "true", 10, lambda: str(remedy(sick)))
    assert "80E01801" in remedy(sick)["message"]
    assert node_condition(sick, "FactsFresh")["message"] == "from MindCluster"
    kube.delete("ConfigMap", "kube-system", name)


def test_a_fault_that_others_report_to_clusterd_is_told_of_its_node_and_ends_when_the_map_no_longer_has_it(
    kube: Kube, fleet: Fleet
) -> None:
    agent, other = fleet(2)
    public = card_fault(3, "SubHealthFault", code="220001001", kind="PublicFault")

    def told(*faults: Json) -> Json:
        entry = {"UpdateTime": int(time.time()), "DeviceList": device_list(*faults)}
        well = {"UpdateTime": int(time.time()), "DeviceList": device_list()}
        return cluster_map({f"mindx-dl-deviceinfo-{agent.node}": entry, f"mindx-dl-deviceinfo-{other.node}": well})

    written = told(public)
    name, namespace = written["metadata"]["name"], written["metadata"]["namespace"]
    written["metadata"]["labels"] = {"mx-consumer-volcano": "true"}
    if kube.find("Namespace", "", namespace) is None:
        kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    kube.create(written)
    try:
        until("the fault to be told", lambda: "220001001" in node_condition(agent, "CardsHealthy")["message"], 10)
        assert node_condition(agent, "FactsFresh")["message"] == "from MindCluster"
        assert node_condition(other, "CardsHealthy")["reason"] == "AllWell"

        kube.patch("ConfigMap", namespace, name, {"data": told()["data"]})

        until("the card to be well", lambda: node_condition(agent, "CardsHealthy")["reason"] == "AllWell", 10)
    finally:
        kube.delete("ConfigMap", namespace, name)
    until("the agent to be the source", lambda: node_condition(agent, "FactsFresh")["message"] == "from Agent", 10)


def test_a_node_that_leaves_its_pool_loses_our_marks_and_its_ascend_node(kube: Kube, home: str, rack: str, fleet: Fleet) -> None:
    agents = fleet(2, health={"drain": "1h", "nodesInRemedy": 1})
    spread(kube, home, rack, agents, replicas=2)
    sick = agents[0]
    sick.ill(2)
    until("the taint", lambda: health_taint(kube, sick.node) == "remedy", 20, lambda: str(remedy(sick)))

    kube.patch("Node", "", sick.node, {"metadata": {"labels": {RACK: "elsewhere"}}})

    until("the AscendNode to go", lambda: kube.find("AscendNode", "", sick.node) is None, 20)
    assert health_taint(kube, sick.node) is None


def test_an_ascend_node_that_somebody_deletes_comes_back(kube: Kube, fleet: Fleet) -> None:
    (agent,) = fleet(1)
    old = kube.get("AscendNode", "", agent.node)["metadata"]["uid"]

    kube.delete("AscendNode", "", agent.node)

    def is_new() -> bool:
        found = kube.find("AscendNode", "", agent.node)
        return found is not None and found["metadata"]["uid"] != old

    until("a new AscendNode", is_new, 20)
    owner = kube.get("Node", "", agent.node)["metadata"]["uid"]
    assert [item["uid"] for item in kube.get("AscendNode", "", agent.node)["metadata"]["ownerReferences"]] == [owner]


def test_steps_and_alerts_are_events_once_and_metrics_count_them(operated: Operated, kube: Kube, fleet: Fleet) -> None:
    (agent,) = fleet(1, health={"resets": 1})
    ask_for_reset(agent)
    agent.reset_done()
    wait_state(agent, "Healthy")
    agent.ill(2)
    wait_state(agent, "Quarantined")

    def told() -> list[str]:
        found = [item for item in kube.list("Event", "default") if item["regarding"].get("name") == agent.node]
        return [item["reason"] for item in found if item["regarding"]["kind"] == "AscendNode"]

    until("the Event of the quarantine", lambda: "Quarantined" in told(), 20, lambda: str(told()))
    assert len(told()) <= 8
    assert "FactsUnavailable" not in told(), "an agent that has just come hasn't reported yet"
    metrics = operated.operator.get("/metrics").text
    pool = agent.node.rsplit("-", 1)[0]
    assert f'glm5_nodes_in_remedy{{dry="false",pool="{pool}",state="Quarantined"}} 1.0' in metrics
    assert f'glm5_cards{{health="Faulty",pool="{pool}"}} 1.0' in metrics
    assert f'glm5_node_cards{{node="{agent.node}"}} 8.0' in metrics
    assert 'glm5_resets_total{result="Succeeded"}' in metrics
    assert "glm5_fault_to_back_seconds_count" in metrics


def test_a_node_at_rest_costs_no_write(operated: Operated, kube: Kube, fleet: Fleet) -> None:
    (agent,) = fleet(1)
    before = kube.get("AscendNode", "", agent.node)["metadata"]["managedFields"]

    for _ in range(3):
        agent.say()

    def ours(fields: list[Json]) -> list[str]:
        return [item["time"] for item in fields if item["manager"] == "glm5-operator"]

    stays("unwritten", lambda: ours(kube.get("AscendNode", "", agent.node)["metadata"]["managedFields"]) == ours(before), 3)
