"""`glm5-operator cleanup` takes every mark off every node, also while an operator runs that wants to put them back."""

from __future__ import annotations

import subprocess
import sys

from tests.api.conftest import Operated
from tests.api.pool.conftest import AddNodes
from tests.api.pool.test_nodes import LABEL, wait_label
from tests.api.pool.test_taint import OURS, taints_of
from tests.support.documents import pool
from tests.support.kube import Kube, stays, until

LEASE_LOST = 75


def test_nothing_of_ours_is_left_on_any_node_and_a_running_operator_ends(
    operated: Operated, kube: Kube, rack: str, add_nodes: AddNodes
) -> None:
    (node,) = add_nodes(1)
    theirs = {"key": "example.com/maintenance", "effect": "PreferNoSchedule"}
    moved = {"glm5.dev/move-to": "nowhere", "glm5.dev/lent-by": "nobody"}
    kube.patch(
        "Node", "", node, {"metadata": {"labels": {"example.com/mine": "stays"}, "annotations": moved}, "spec": {"taints": [theirs]}}
    )
    kube.create(pool(rack, taint=True))
    wait_label(kube, node, rack)
    until("our taint", lambda: taints_of(kube, node) == [theirs, OURS], 20)

    done = subprocess.run(
        [sys.executable, "-m", "glm5_operator", "cleanup", "--kubeconfig", str(operated.cluster.kubeconfig)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert operated.operator.wait() == LEASE_LOST
    assert _marked(kube) == []
    assert taints_of(kube, node) == [theirs]
    assert kube.get("Node", "", node)["metadata"]["labels"]["example.com/mine"] == "stays"

    # A fresh operator waits for the lease, so it can't undo the clean-up while the release is being removed.
    operated.operator.start(leading=False)
    stays("no mark on any node", lambda: _marked(kube) == [], 3)
    operated.operator.kill()
    kube.delete("Lease", "glm5-system", "glm5-operator")


def _marked(kube: Kube) -> list[str]:
    return [
        node["metadata"]["name"]
        for node in kube.list("Node")
        if LABEL in node["metadata"]["labels"]
        or any(name.startswith("glm5.dev/") for name in node["metadata"].get("annotations", ()))
        or any(taint["key"] == "glm5.dev/role" for taint in node["spec"].get("taints", ()))
    ]
