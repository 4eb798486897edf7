"""A pool and its nodes: labels come and go with it, and nothing else on a node is touched. The operator is a real process."""

from __future__ import annotations

import time

from tests.api.conftest import Operated
from tests.api.pool.conftest import AddNodes
from tests.support.documents import RACK, pool, tiny
from tests.support.kube import Json, Kube, stays, until

LABEL = "glm5.dev/pool"


def label_of(kube: Kube, node: str) -> str | None:
    labels = kube.get("Node", "", node)["metadata"]["labels"]
    return str(labels[LABEL]) if LABEL in labels else None


def wait_label(kube: Kube, node: str, expected: str | None, timeout: float = 20) -> None:
    until(f"label of {node} to be {expected}", lambda: label_of(kube, node) == expected, timeout, lambda: str(label_of(kube, node)))


def wait_status(kube: Kube, name: str, **expected: object) -> Json:
    def there() -> bool:
        status = (kube.find("NPUPool", "", name) or {}).get("status") or {}
        return all(status.get(field) == value for field, value in expected.items())

    until(f"{name} to show {expected}", there, 30, lambda: str((kube.find("NPUPool", "", name) or {}).get("status")))
    status: Json = kube.get("NPUPool", "", name)["status"]
    return status


def test_a_pool_labels_the_nodes_it_selects_counts_their_cards_and_leaves_others_alone(kube: Kube, rack: str, add_nodes: AddNodes) -> None:
    mine, (stranger,) = add_nodes(2), add_nodes(1, prefix="stranger", rack_label="elsewhere")
    before = kube.get("Node", "", stranger)["metadata"]

    kube.create(pool(rack))

    status = wait_status(kube, rack, nodes=2, cards={"total": 16, "held": 0, "free": 16})
    assert (status["product"], status["resourceName"]) == ("A2", "huawei.com/Ascend910")
    assert [label_of(kube, node) for node in mine] == [rack, rack]
    assert label_of(kube, stranger) is None
    assert kube.get("Node", "", stranger)["metadata"]["managedFields"] == before["managedFields"]


def test_a_node_that_joins_is_labelled_and_one_that_leaves_the_selector_is_let_go(kube: Kube, rack: str, add_nodes: AddNodes) -> None:
    (first,) = add_nodes(1)
    kube.create(pool(rack))
    wait_status(kube, rack, nodes=1)

    (second,) = add_nodes(1, prefix="late")
    wait_label(kube, second, rack)
    wait_status(kube, rack, nodes=2)

    kube.patch("Node", "", first, {"metadata": {"labels": {RACK: "elsewhere", "example.com/mine": "stays"}}})
    wait_label(kube, first, None)
    wait_status(kube, rack, nodes=1)
    assert kube.get("Node", "", first)["metadata"]["labels"]["example.com/mine"] == "stays"


def test_a_label_that_somebody_removes_or_changes_comes_back(kube: Kube, rack: str, add_nodes: AddNodes) -> None:
    (node,) = add_nodes(1)
    kube.create(pool(rack))
    wait_label(kube, node, rack)

    kube.patch("Node", "", node, {"metadata": {"labels": {LABEL: None}}})
    wait_label(kube, node, rack)

    kube.patch("Node", "", node, {"metadata": {"labels": {LABEL: "nobody"}}})
    wait_label(kube, node, rack)


def test_a_deleted_pool_lets_its_nodes_go(kube: Kube, rack: str, add_nodes: AddNodes) -> None:
    nodes = add_nodes(2)
    kube.create(pool(rack, taint=True))
    for node in nodes:
        wait_label(kube, node, rack)

    kube.delete("NPUPool", "", rack)

    until("the pool to be gone", lambda: kube.find("NPUPool", "", rack) is None, 5)  # no finalizer holds it
    for node in nodes:
        wait_label(kube, node, None)
        assert "taints" not in kube.get("Node", "", node)["spec"]


def test_a_pool_that_was_deleted_while_no_operator_ran_is_found_by_its_labels(
    operated: Operated, kube: Kube, rack: str, add_nodes: AddNodes
) -> None:
    (node,) = add_nodes(1)
    kube.create(pool(rack))
    wait_label(kube, node, rack)

    operated.operator.kill()
    kube.delete("NPUPool", "", rack)
    operated.operator.start()

    wait_label(kube, node, None)


def test_held_cards_are_counted_and_a_cordoned_node_offers_none(kube: Kube, home: str, rack: str, add_nodes: AddNodes) -> None:
    first, second = add_nodes(2)
    kube.create(pool(rack))
    kube.create(tiny(home, pool=rack, replicas=3))
    kube.wait_ready(home, "chat")

    wait_status(kube, rack, cards={"total": 16, "held": 3, "free": 13})

    on_first = sum(pod["spec"]["nodeName"] == first for pod in kube.list("Pod", home))
    kube.patch("Node", "", first, {"spec": {"unschedulable": True}})
    wait_status(kube, rack, cards={"total": 16, "held": 3, "free": 8 - (3 - on_first)})
    kube.patch("Node", "", first, {"spec": {"unschedulable": None}})

    kube.delete("GLM5Service", home, "chat")
    wait_status(kube, rack, cards={"total": 16, "held": 0, "free": 16})
    assert label_of(kube, second) == rack


def test_a_node_that_two_pools_select_stays_with_the_older_and_the_younger_says_so(kube: Kube, rack: str, add_nodes: AddNodes) -> None:
    (node,) = add_nodes(1)
    older, younger = f"{rack}-older", f"{rack}-younger"
    kube.create(pool(older, rack=rack))
    wait_label(kube, node, older)
    time.sleep(1.1)  # creation times are whole seconds
    kube.create(pool(younger, role="Training", rack=rack))

    status = wait_status(kube, younger, conflicts=[{"node": node, "pool": older}])
    assert status["nodes"] == 0
    assert kube.pool_condition(younger, "Conflict")["status"] == "True"
    assert kube.pool_condition(older)["status"] == "True"
    stays("with the older pool", lambda: label_of(kube, node) == older, 2)

    kube.delete("NPUPool", "", older)
    wait_label(kube, node, younger)
    until("the conflict to be over", lambda: kube.pool_condition(younger, "Conflict")["status"] == "False", 10)


def test_an_empty_pool_is_stalled_with_what_to_do_and_heals(kube: Kube, rack: str, add_nodes: AddNodes) -> None:
    kube.create(pool(rack))
    until("PoolHasNoNodes", lambda: kube.pool_condition(rack).get("reason") == "PoolHasNoNodes", 10)
    assert kube.pool_condition(rack, "Stalled")["status"] == "True"
    assert "nodeSelector" in kube.pool_condition(rack)["message"]

    add_nodes(1)

    until("Ready", lambda: kube.pool_condition(rack)["status"] == "True", 20)


def test_a_service_goes_on_as_soon_as_its_pool_gets_its_nodes_back(kube: Kube, home: str, rack: str, add_nodes: AddNodes) -> None:
    """Letting go and taking are the operator's own writes, and no event of another tells of them."""
    (node,) = add_nodes(1)
    wide = f"{rack}-wide"
    kube.create(pool(wide, rack=rack))
    wait_label(kube, node, wide)
    time.sleep(1.1)  # creation times are whole seconds
    kube.create(pool(rack))
    kube.create(tiny(home, pool=rack))
    kube.wait_condition(home, "chat", "PoolHasNoNodes", timeout=20)

    kube.delete("NPUPool", "", wide)

    wait_label(kube, node, rack, timeout=10)
    until("the service to be planned", lambda: kube.find("Deployment", home, "chat-engine") is not None, 10)
