"""Objects as the API server gives them, for tests of the cache and of comparisons; only what matters is said."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def an_object(kind: str, name: str, *, version: int = 1, namespace: str = "ns", **parts: object) -> Json:
    """Any object; `labels`, `owner` (a uid) and `managed` go into its metadata, everything else beside it."""
    metadata: Json = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    if namespace:
        metadata["namespace"] = namespace
    if "labels" in parts:
        metadata["labels"] = parts.pop("labels")
    if "managed" in parts:
        metadata["managedFields"] = parts.pop("managed")
    if "owner" in parts:
        metadata["ownerReferences"] = [{"kind": "GLM5Service", "name": "chat", "uid": parts.pop("owner"), "controller": True}]
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **parts}


def a_pod(name: str, *, service: str | None = "chat", node: str = "", cards: int = 0, phase: str = "Running", version: int = 1) -> Json:
    resources: Json = {"limits": {"memory": "1Gi"}}
    if cards:
        resources["limits"]["huawei.com/Ascend910"] = str(cards)
    spec: Json = {
        "containers": [{"name": "engine", "image": "i:1", "resources": resources, "env": [{"name": "A", "value": "b"}]}],
        "volumes": [{"name": "models"}],
    }
    if node:
        spec["nodeName"] = node
    labels = {"glm5.dev/service": service} if service else {"app": "training"}
    return an_object("Pod", name, version=version, labels=labels, spec=spec, status={"phase": phase})
