"""Fine-tuning jobs as users write them, and kubelet's part for their pods on nodes without one: it runs, it ends with a code and a word."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from tests.support import kubelet
from tests.support.kube import Kube, until

Json = dict[str, Any]
ATTEMPT = "glm5.dev/attempt"
CHECK = "glm5.dev/check"
GOOD_DATA: Json = {
    "outcome": "Succeeded",
    "data": {"read": 12, "kept": 11, "skipped": 1, "examples": 11, "tokens": 99, "trained_tokens": 33},
}


def finetune(namespace: str, name: str = "tune", *, pool: str, nodes: int = 1, cards: int = 4, **spec: object) -> Json:
    """A GLM5FinetuneJob of a small model; `spec` replaces its fields."""
    return {
        "kind": "GLM5FinetuneJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": {"name": "tiny", "source": "hostpath:///models/tiny", "memory": "1Gi"},
            "method": "lora",
            "data": {"source": "hostpath:///data/qa.jsonl"},
            "pool": pool,
            "parallelism": {"nodes": nodes, "npusPerNode": cards},
            "training": {"batchSize": 8},
            "checkpoint": {"storage": "pvc://ckpt"},
            "output": "pvc://adapters/support",
            **spec,
        },
    }


def a_volume(namespace: str, claim: str) -> list[tuple[str, Json]]:
    """A volume and a claim for it, each with the path of its collection, so that pods that name the claim get a node."""
    volume, size = f"{namespace}-{claim}", {"storage": "1Gi"}
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    spec = {**common, "capacity": size, "hostPath": {"path": f"/{claim}"}, "claimRef": {"namespace": namespace, "name": claim}}
    wanted = {**common, "volumeName": volume, "resources": {"requests": size}}
    return [
        ("/api/v1/persistentvolumes", {"kind": "PersistentVolume", "metadata": {"name": volume}, "spec": spec}),
        (
            f"/api/v1/namespaces/{namespace}/persistentvolumeclaims",
            {"kind": "PersistentVolumeClaim", "metadata": {"name": claim, "namespace": namespace}, "spec": wanted},
        ),
    ]


def pods_of(kube: Kube, namespace: str, attempt: int) -> list[Json]:
    """The pods of an attempt, by rank."""
    found = kube.list("Pod", namespace, f"{ATTEMPT}={attempt}")
    return sorted(found, key=lambda pod: int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]))


def bound_pods(kube: Kube, namespace: str, attempt: int, count: int) -> list[Json]:
    """The same, once there are so many and each has a node."""

    def there() -> bool:
        answer_checks(kube, namespace)
        pods = pods_of(kube, namespace, attempt)
        return len(pods) == count and all(pod["spec"].get("nodeName") for pod in pods)

    until(f"{count} pods of attempt {attempt} on nodes", there, 40, lambda: str(_brief(kube, namespace)))
    return pods_of(kube, namespace, attempt)


def check_pods(kube: Kube, namespace: str) -> list[Json]:
    """Pods of checks that have a node and haven't ended."""
    found = kube.list("Pod", namespace, CHECK)
    return [pod for pod in found if pod["spec"].get("nodeName") and pod["status"].get("phase") in {"Pending", "Running"}]


def answer_checks(kube: Kube, namespace: str) -> None:
    """Every check that is under way finds good data."""
    for pod in check_pods(kube, namespace):
        if not pod["metadata"].get("deletionTimestamp"):
            end(kube, pod, 0, GOOD_DATA)


def run(kube: Kube, *pods: Json) -> None:
    """Their containers have started."""
    for pod in pods:
        kubelet.report(kube, pod, _container({"running": {"startedAt": _now()}}), ready=True)


def end(kube: Kube, pod: Json, code: int = 0, word: Json | str = "", *, reason: str = "") -> None:
    """Its container has ended, with its last word in the termination message."""
    message = word if isinstance(word, str) else json.dumps(word)
    state = {
        "terminated": {"exitCode": code, "reason": reason or ("Error" if code else "Completed"), "message": message, "finishedAt": _now()}
    }
    kubelet.report(kube, pod, _container(state), phase="Failed" if code else "Succeeded")


def let_go_of_deleted(kube: Kube, namespace: str) -> None:
    """What kubelet does with pods that are being deleted: it ends them and takes them away. Those without a node are nobody's: they go."""
    for pod in kube.list("Pod", namespace):
        if pod["metadata"].get("deletionTimestamp") and pod["spec"].get("nodeName"):
            if pod["status"].get("phase") not in {"Failed", "Succeeded"}:
                end(kube, pod, 143)
            kubelet.let_go(kube, pod)


def _container(state: Json) -> Json:
    return {"name": "trainer", "image": "glm5-runtime:0.1.0", "state": state, "lastState": {}, "restartCount": 0}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _brief(kube: Kube, namespace: str) -> list[tuple[str, str | None]]:
    jobs = kube.list("GLM5FinetuneJob", namespace)
    told = [(job["metadata"]["name"], str((job.get("status") or {}).get("conditions", [{}])[0])) for job in jobs]
    return told + [(pod["metadata"]["name"], pod["spec"].get("nodeName")) for pod in kube.list("Pod", namespace)]
