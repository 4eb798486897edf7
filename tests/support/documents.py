"""Objects as users write them: a service that one card of any node can run, a pool, a node, for tests on a real API server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tests.cluster.nodes import RESOURCE, node_labels

Json = dict[str, Any]

RACK = "example.com/rack"
"""Pools of tests select nodes by it, so that each has nodes of its own."""


def tiny(namespace: str, name: str = "chat", *, pool: str = "inference", **spec: object) -> Json:
    """A GLM5Service for one card; `spec` replaces its fields."""
    return {
        "kind": "GLM5Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": {"name": "tiny", "weights": "bf16", "source": "hostpath:///models/tiny", "memory": "1Gi"},
            "parallelism": {"tensor": 1},
            "pool": pool,
            **spec,
        },
    }


def cards(count: int) -> Json:
    """The part of a spec that makes a replica take so many cards; vllm, because the bundled engine takes one for now."""
    return {
        "engine": {"name": "vllm"},
        "parallelism": {"tensor": count},
        "model": {"name": "tiny", "weights": "bf16", "source": "hostpath:///models/tiny", "memory": "8Gi"},
    }


def pool(name: str, *, role: str = "Inference", rack: str | None = None, **spec: object) -> Json:
    """An NPUPool of the nodes of one rack, by default the one of its own name."""
    return {"kind": "NPUPool", "metadata": {"name": name}, "spec": {"role": role, "nodeSelector": {RACK: rack or name}, **spec}}


def bare_node(name: str, rack: str, *, cards: int = 8) -> Json:
    """A node without a kubelet: pods are bound to it, and then nothing happens until a test writes their status, as kubelet would."""
    size = {"cpu": "64", "memory": "1Ti", "pods": "500", RESOURCE: str(cards)}
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now, "lastTransitionTime": now}
    return {
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {RACK: rack, "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **node_labels("A2")},
        },
        "status": {"capacity": size, "allocatable": size, "conditions": [ready]},
    }
