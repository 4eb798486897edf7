"""Uninstalling while pools are still there, tainted ones at that.

Files run by name: the next, test_uninstall, takes away what this one leaves.
"""

from __future__ import annotations

import json

from demo import steps
from demo.site import Site
from tests.cluster.shell import wait_for


def marks(place: Site) -> list[tuple[str | None, list[str]]]:
    """The operator's label and taint, by worker that serves."""
    nodes = json.loads(place.kubectl("get", "nodes", "-l", "example.com/cards-for=inference", "-o", "json"))["items"]
    return [
        (
            node["metadata"]["labels"].get("glm5.dev/pool"),
            [taint["value"] for taint in node["spec"].get("taints", []) if taint["key"] == "glm5.dev/role"],
        )
        for node in nodes
    ]


def test_uninstall_releases_the_nodes_of_a_pool_that_taints_all_of_them(place: Site) -> None:
    place.kubectl("patch", "npupool", steps.POOL, "--type=merge", "-p", '{"spec": {"taint": true}}')
    wait_for("the taint", lambda: marks(place) == [(steps.POOL, ["inference"])] * 2, timeout=60)

    place.helm("uninstall", steps.RELEASE, "--namespace", steps.OPERATOR_NAMESPACE, "--wait")

    assert marks(place) == [(None, [])] * 2
    assert f"npupool.glm5.dev/{steps.POOL}" in place.kubectl("get", "npupools", "-o", "name").split(), "the pool is the user's and stays"
