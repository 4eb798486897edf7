"""The role taint: beside the taints of others, and never while it would lock a DaemonSet out of a node."""

from __future__ import annotations

from tests.api.pool.conftest import AddNodes
from tests.api.pool.test_nodes import wait_label
from tests.support.documents import RACK, pool
from tests.support.kube import Json, Kube, until

OURS = {"key": "glm5.dev/role", "value": "inference", "effect": "NoSchedule"}
THEIRS = {"key": "example.com/maintenance", "effect": "PreferNoSchedule"}


def taints_of(kube: Kube, node: str) -> list[Json]:
    found: list[Json] = kube.get("Node", "", node)["spec"].get("taints", [])
    return found


def plugin(rack: str, *tolerations: Json) -> Json:
    labels = {"app": rack}
    template = {
        "metadata": {"labels": labels},
        "spec": {"nodeSelector": {RACK: rack}, "tolerations": list(tolerations), "containers": [{"name": "plugin", "image": "plugin:1"}]},
    }
    return {
        "kind": "DaemonSet",
        "metadata": {"name": rack, "namespace": "kube-system"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }


def test_the_taint_is_set_beside_others_and_taken_off_when_the_pool_no_longer_wants_it(kube: Kube, rack: str, add_nodes: AddNodes) -> None:
    (node,) = add_nodes(1)
    kube.patch("Node", "", node, {"spec": {"taints": [THEIRS]}})

    kube.create(pool(rack, taint=True))
    until("our taint", lambda: taints_of(kube, node) == [THEIRS, OURS], 20, lambda: str(taints_of(kube, node)))

    kube.patch("NPUPool", "", rack, {"spec": {"taint": False}})
    until("only theirs", lambda: taints_of(kube, node) == [THEIRS], 20, lambda: str(taints_of(kube, node)))


def test_a_daemon_set_that_would_be_locked_out_holds_the_taint_back_and_is_named(kube: Kube, rack: str, add_nodes: AddNodes) -> None:
    (node,) = add_nodes(1)
    kube.create(plugin(rack))
    kube.create(pool(rack, taint=True))

    wait_label(kube, node, rack)
    until("the DaemonSet to be named", lambda: f"kube-system/{rack}" in kube.pool_condition(rack).get("message", ""), 20)
    assert taints_of(kube, node) == []
    assert kube.pool_condition(rack)["status"] == "True"

    tolerations = {"spec": {"template": {"spec": {"tolerations": [{"key": "glm5.dev/role", "operator": "Exists"}]}}}}
    kube.patch("DaemonSet", "kube-system", rack, tolerations)
    # DaemonSets aren't watched; an edit of the pool makes the operator look at once, a minute does so by itself.
    kube.patch("NPUPool", "", rack, {"metadata": {"annotations": {"example.com/look": "now"}}})

    until("our taint", lambda: taints_of(kube, node) == [OURS], 20, lambda: str(taints_of(kube, node)))
    kube.delete("DaemonSet", "kube-system", rack)
