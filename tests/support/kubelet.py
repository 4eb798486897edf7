"""Plays kubelet for pods on bare nodes (`documents.bare_node`): writes the status that a real one would, in its words.

For states that KWOK never shows. What a real kubelet does with a real container is tested end to end.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

from tests.support.kube import Json, Kube, until


@contextlib.contextmanager
def heartbeat(kube: Kube, node: str) -> Iterator[None]:
    """Renew a node's lease, or its pods are evicted after 40 s."""
    key = ("Lease", "kube-node-lease", node)
    kube.create(
        {"kind": "Lease", "metadata": {"name": node, "namespace": key[1]}, "spec": {"holderIdentity": node, "leaseDurationSeconds": 40}}
    )
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(5):
            kube.patch(*key, {"spec": {"renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}})

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def the_pod(kube: Kube, namespace: str, *, bound: bool = True, besides: set[str] | None = None) -> Json:
    """The one pod of a namespace that isn't being deleted (nor named in `besides`), once it exists and has a node."""

    def candidates() -> list[Json]:
        found = [pod for pod in kube.list("Pod", namespace) if not pod["metadata"].get("deletionTimestamp")]
        return [pod for pod in found if pod["metadata"]["name"] not in (besides or set()) and (pod["spec"].get("nodeName") or not bound)]

    until("one pod", lambda: len(candidates()) == 1, 30, lambda: str([pod["metadata"]["name"] for pod in candidates()]))
    return candidates()[0]


def report(kube: Kube, pod: Json, container: Json, *, ready: bool = False, phase: str = "Running") -> None:
    """Write what kubelet saw: one engine container, and whether the pod is ready."""
    metadata = pod["metadata"]
    old = kube.get("Pod", metadata["namespace"], metadata["name"])["status"].get("conditions", [])
    kept = [item for item in old if item["type"] in {"PodScheduled", "DisruptionTarget"}]  # others' conditions, which kubelet leaves alone
    before: Json = next((item for item in old if item["type"] == "Ready"), {})
    flipped = before.get("status") != str(ready)
    changed = _now() if flipped else before["lastTransitionTime"]
    conditions = [{"type": kind, "status": str(ready), "lastTransitionTime": changed} for kind in ("Ready", "ContainersReady")]
    status = {
        "phase": phase,
        "conditions": kept + conditions,
        "containerStatuses": [{"imageID": "", **container, "ready": ready}],
    }
    kube.patch("Pod", metadata["namespace"], metadata["name"], {"status": status}, subresource="status")


def let_go(kube: Kube, pod: Json) -> None:
    """Take a deleted pod away, as kubelet does when its containers have ended."""
    body = {"gracePeriodSeconds": 0}
    kube.http.request("DELETE", kube.path("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"]), json=body)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
