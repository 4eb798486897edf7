"""The last test of this folder (files run by name): taking the operator away leaves the cluster as it was."""

from __future__ import annotations

import json

from demo import steps
from demo.site import Site


def test_uninstalling_leaves_no_label_no_taint_and_no_namespace(place: Site) -> None:
    steps.remove(place)

    nodes = json.loads(place.kubectl("get", "nodes", "-o", "json"))["items"]
    assert [n["metadata"]["name"] for n in nodes if any(key.startswith("glm5.dev/") for key in n["metadata"]["labels"])] == []
    assert [n["metadata"]["name"] for n in nodes if any("glm5" in t["key"] for t in n["spec"].get("taints", []))] == []
    namespaces = place.kubectl("get", "namespaces", "-o", "name").split()
    assert not {f"namespace/{steps.NAMESPACE}", f"namespace/{steps.OPERATOR_NAMESPACE}"} & set(namespaces)
