"""The layers behind admission, each alone: no policy is in this cluster, and pods that no rule allows get as far as they can.

Real: API server, scheduler, the operator as a process. KWOK plays kubelets, so the node agents' word is written by the test.
"""

from __future__ import annotations

from datetime import UTC, datetime

from tests.api.conftest import Operated
from tests.api.pool.conftest import AddNodes
from tests.api.pool.test_nodes import wait_label
from tests.cluster.nodes import RESOURCE
from tests.support.documents import pool, tiny
from tests.support.kube import Json, Kube, stays, until

LIMIT = 30


def a_pod(namespace: str, name: str, count: int = 1, **spec: object) -> Json:
    container = {"name": "main", "image": "train:1", "resources": {"limits": {RESOURCE: str(count)}}}
    return {"kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": {"containers": [container], **spec}}


def violations(kube: Kube, name: str) -> list[Json]:
    found: list[Json] = (kube.get("NPUPool", "", name).get("status") or {}).get("violations", [])
    return found


def wait_violation(kube: Kube, rack: str, pod: str, reason: str) -> Json:
    def there() -> bool:
        return any(entry["pod"] == pod and entry["reason"] == reason for entry in violations(kube, rack))

    until(f"{pod} to be told as {reason}", there, LIMIT, lambda: str(violations(kube, rack)))
    return next(entry for entry in violations(kube, rack) if entry["pod"] == pod)


def test_the_taint_alone_keeps_a_pod_away_that_names_no_pool(kube: Kube, home: str, rack: str, add_nodes: AddNodes) -> None:
    (node,) = add_nodes(1)
    kube.create(pool(rack, taint=True))
    until("our taint", lambda: kube.get("Node", "", node)["spec"].get("taints") is not None, LIMIT)

    kube.create(a_pod(home, "sly", nodeSelector={"kubernetes.io/hostname": node}))

    def unschedulable() -> bool:
        conditions = kube.get("Pod", home, "sly").get("status", {}).get("conditions", ())
        return any(item.get("reason") == "Unschedulable" and "1 node(s) had untolerated taint" in item["message"] for item in conditions)

    until("the scheduler to name the taint", unschedulable, LIMIT, lambda: str(kube.get("Pod", home, "sly").get("status")))


def test_a_pod_that_came_past_all_rules_is_told_in_status_event_and_metric_and_left_alone(
    operated: Operated, kube: Kube, home: str, rack: str, add_nodes: AddNodes
) -> None:
    (node,) = add_nodes(1)
    kube.create(pool(rack))
    wait_label(kube, node, rack)

    kube.create(a_pod(home, "hostile", 3, nodeName=node))

    told = wait_violation(kube, rack, "hostile", "NoPool")
    assert (told["node"], told["namespace"], told["count"]) == (node, home, 3)
    violated = kube.pool_condition(rack, "Violated")
    assert (violated["status"], violated["reason"]) == ("True", "NoPool")
    assert "spec.nodeSelector glm5.dev/pool" in violated["message"]
    assert kube.pool_condition(rack)["status"] == "True"

    def notes() -> list[str]:
        found = kube.list("Event", "default")
        return [item["note"] for item in found if item["reason"] == "PoolViolated" and item["regarding"]["name"] == rack]

    until("an Event", lambda: notes() != [], LIMIT)
    assert f"{home}/hostile" in notes()[0]
    metric = f'glm5_pool_violations{{pool="{rack}",reason="NoPool"}} 1.0'
    assert metric in operated.operator.get("/metrics").text
    stays("the pod is left alone", lambda: "deletionTimestamp" not in kube.get("Pod", home, "hostile")["metadata"], 6)
    assert len(notes()) == 1

    kube.delete("Pod", home, "hostile")
    until("the violation to be over", lambda: violations(kube, rack) == [], LIMIT)
    assert kube.pool_condition(rack, "Violated")["status"] == "False"
    assert metric not in operated.operator.get("/metrics").text


def test_a_pod_of_another_pool_and_one_of_a_closed_namespace_are_told_as_such(
    kube: Kube, home: str, rack: str, add_nodes: AddNodes
) -> None:
    (node,) = add_nodes(1)
    kube.create(pool(rack, namespaces=["somebody-elses"]))
    wait_label(kube, node, rack)

    kube.create(a_pod(home, "closed", nodeName=node, nodeSelector={"glm5.dev/pool": rack}))
    kube.create(a_pod(home, "other", nodeName=node, nodeSelector={"glm5.dev/pool": "training"}))

    wait_violation(kube, rack, "closed", "NamespaceNotOpen")
    wait_violation(kube, rack, "other", "OtherPool")


def test_replicas_of_a_service_are_holders_and_no_violation(kube: Kube, home: str, rack: str, add_nodes: AddNodes) -> None:
    (node,) = add_nodes(1)
    kube.create(pool(rack))
    kube.create(tiny(home, pool=rack))
    kube.wait_ready(home, "chat")

    def holders() -> list[Json]:
        found: list[Json] = kube.get("NPUPool", "", rack)["status"].get("holders", [])
        return found

    until("its holder", lambda: [(one["node"], one["namespace"], one["count"]) for one in holders()] == [(node, home, 1)], LIMIT)
    assert violations(kube, rack) == []
    assert kube.pool_condition(rack, "Violated")["status"] == "False"


def test_ids_come_from_kubelet_and_what_no_api_server_shows_is_seen_too(kube: Kube, home: str, rack: str, add_nodes: AddNodes) -> None:
    (node,) = add_nodes(1)
    kube.create(pool(rack, namespaces=[home]))
    kube.create(a_pod(home, "mine", 2, nodeSelector={"glm5.dev/pool": rack}))
    until("its AscendNode", lambda: kube.find("AscendNode", "", node) is not None, LIMIT)
    mine, static = {"namespace": home, "pod": "mine"}, {"namespace": "kube-system", "pod": "static-burn-in"}
    cards = [
        {"physical": number, "npu": number, "health": "OK", **({"holder": holder} if holder else {})}
        for number, holder in enumerate([mine, None, mine, static, None, None, None, None])
    ]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    facts = {"observedAt": now, "tool": {"state": "Working"}, "allocationsKnown": True, "cards": cards}
    kube.patch("AscendNode", "", node, {"status": {"facts": facts}}, subresource="status")

    def holders() -> dict[str, list[int]]:
        found = kube.get("NPUPool", "", rack)["status"].get("holders", [])
        return {entry["pod"]: entry.get("cards", []) for entry in found}

    until("ids by kubelet's word", lambda: holders() == {"mine": [0, 2], "static-burn-in": [3]}, LIMIT, lambda: str(holders()))
    wait_violation(kube, rack, "static-burn-in", "NamespaceNotOpen")
    assert [entry["pod"] for entry in violations(kube, rack)] == ["static-burn-in"]


def test_processes_on_a_card_that_no_pod_was_given_are_told_with_their_ids(
    operated: Operated, kube: Kube, rack: str, add_nodes: AddNodes
) -> None:
    """A container that got at the card without asking: by privilege, or by a variable that admission didn't see."""
    (node,) = add_nodes(1)
    kube.create(pool(rack, enforcement="Evict"))
    until("its AscendNode", lambda: kube.find("AscendNode", "", node) is not None, LIMIT)

    def tell(*pids: int) -> None:
        cards = [{"physical": number, "npu": number, "health": "OK", "pids": list(pids) if number == 3 else []} for number in range(8)]
        now = datetime.now(UTC).isoformat(timespec="seconds")
        facts = {"observedAt": now, "tool": {"state": "Working"}, "allocationsKnown": True, "cards": cards}
        kube.patch("AscendNode", "", node, {"status": {"facts": facts}}, subresource="status")
        # A minute does so by itself; an edit of the pool makes the operator look at once.
        kube.patch("NPUPool", "", rack, {"metadata": {"annotations": {"example.com/look": str(pids)}}})

    def told() -> list[tuple[str, list[int], list[int]]]:
        return [(entry["node"], entry.get("cards", []), entry.get("pids", [])) for entry in violations(kube, rack)]

    tell(4711, 4712)
    until("the processes to be told", lambda: told() == [(node, [3], [4711, 4712])], 90, lambda: str(violations(kube, rack)))
    violated = kube.pool_condition(rack, "Violated")
    assert (violated["status"], violated["reason"]) == ("True", "NotAllocated")
    assert f"processes 4711, 4712 are on cards 3 of node {node}" in violated["message"]
    assert f'glm5_pool_violations{{pool="{rack}",reason="NotAllocated"}} 1.0' in operated.operator.get("/metrics").text

    tell()
    until("the violation to be over", lambda: told() == [], 90, lambda: str(violations(kube, rack)))


def test_only_a_pool_that_says_so_evicts_and_only_who_breaks_its_rules(kube: Kube, home: str, rack: str, add_nodes: AddNodes) -> None:
    (node,) = add_nodes(1)
    kube.create(pool(rack, enforcement="Evict"))
    wait_label(kube, node, rack)
    kube.create(a_pod(home, "mine", nodeSelector={"glm5.dev/pool": rack}))
    until("it to run", lambda: kube.get("Pod", home, "mine").get("status", {}).get("phase") == "Running", LIMIT)

    kube.create(a_pod(home, "hostile", nodeName=node))

    until("the pod to be evicted", lambda: kube.find("Pod", home, "hostile") is None, LIMIT, lambda: str(violations(kube, rack)))
    assert "deletionTimestamp" not in kube.get("Pod", home, "mine")["metadata"]
    until("the violation to be over", lambda: violations(kube, rack) == [], LIMIT)
