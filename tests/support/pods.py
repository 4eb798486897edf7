"""Pods of a GLM5Service as kubelet and scheduler leave them, built from what a test cares about.

`a_pod()` is a ready one, with no more fields than the cache keeps. The words inside (reasons, messages) are those of Kubernetes 1.35.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tests.support.clock import at, stamp

CARD = "huawei.com/Ascend910"
REVISION = "7f3a2c"
IMAGE = "registry.example/glm5-runtime:0.1.0"

Json = dict[str, Any]


def a_pod(
    name: str = "chat-engine-5d9f-aaaaa",
    *,
    containers: list[Json] | None = None,
    ready: bool = True,
    ready_changed: datetime | None = None,
    scheduled: str | None = None,
    node: str | None = "npu-0",
    revision: str = REVISION,
    cards: int = 8,
    deleted: bool = False,
    serving: bool = True,
    phase: str = "Running",
    **status: object,
) -> Json:
    """A pod.

    Args:
        name: Its name.
        containers: Its containerStatuses; None is one running engine that agrees with `ready`.
        ready: Its Ready condition.
        ready_changed: When that flipped last; None is when it was created.
        scheduled: What the scheduler says against it; None means it has its node.
        node: The node, where it has one.
        revision: Its revision label.
        cards: Cards it asks for.
        deleted: It has a deletion timestamp.
        serving: It is in traffic.
        phase: Its phase.
        status: More fields of its status.
    """
    states = [running(ready=ready, started=ready)] if containers is None else containers
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(at())}
        if scheduled is None
        else {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": scheduled,
            "lastTransitionTime": stamp(at()),
        },
    ]
    if scheduled is None:
        conditions.append({"type": "Ready", "status": str(ready), "lastTransitionTime": stamp(ready_changed or at())})
    metadata: Json = {
        "name": name,
        "namespace": "prod",
        "creationTimestamp": stamp(at()),
        "labels": {
            "app.kubernetes.io/name": "glm5-service",
            "glm5.dev/service": "chat",
            "glm5.dev/revision": revision,
            "pod-template-hash": "5d9f",
        },
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "chat-engine-5d9f", "controller": True}],
    }
    if serving:
        metadata["labels"]["glm5.dev/serving"] = "true"
    if deleted:
        metadata["deletionTimestamp"] = stamp(at(minutes=5))
    engine = {
        "name": "engine",
        "image": IMAGE,
        "resources": {"limits": {CARD: str(cards), "memory": "64Gi"}, "requests": {CARD: str(cards), "memory": "64Gi"}},
    }
    spec: Json = {"containers": [engine], "nodeSelector": {"glm5.dev/pool": "inference"}}
    if scheduled is None and node:
        spec["nodeName"] = node
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec,
        "status": {"phase": phase, "conditions": conditions, "containerStatuses": states if scheduled is None else [], **status},
    }


def running(
    *, ready: bool = False, started: bool = False, since: datetime | None = None, restarts: int = 0, last: Json | None = None
) -> Json:
    """An engine container that runs."""
    return _container({"running": {"startedAt": stamp(since or at())}}, ready=ready, started=started, restarts=restarts, last=last)


def waiting(reason: str, message: str = "", *, restarts: int = 0, last: Json | None = None) -> Json:
    """An engine container that waits, as kubelet words it."""
    return _container({"waiting": {"reason": reason, "message": message}}, restarts=restarts, last=last)


def terminated(end: Json, *, restarts: int = 0) -> Json:
    """An engine container that is down this moment."""
    return _container({"terminated": end}, restarts=restarts)


def an_end(
    code: int = 1, *, reason: str = "Error", message: str = "", started: datetime | None = None, finished: datetime | None = None
) -> Json:
    """How a run of a container ended."""
    return {
        "exitCode": code,
        "reason": reason,
        "message": message,
        "startedAt": stamp(started or at(seconds=10)),
        "finishedAt": stamp(finished or at(seconds=40)),
    }


def _container(state: Json, *, ready: bool = False, started: bool = False, restarts: int = 0, last: Json | None = None) -> Json:
    return {
        "name": "engine",
        "image": IMAGE,
        "state": state,
        "lastState": {"terminated": last} if last else {},
        "ready": ready,
        "started": started,
        "restartCount": restarts,
    }
