"""Services, Deployments and plans for tests of the status and of controllers. Defaults are a healthy service `chat` of one replica."""

from __future__ import annotations

from typing import Any

from glm5_operator.api.service import Resolved
from glm5_operator.plan.facts import Finding
from glm5_operator.plan.service import ServicePlan
from tests.support.clock import at, stamp
from tests.support.pods import CARD, REVISION

Json = dict[str, Any]

SELECTOR = {"app.kubernetes.io/name": "glm5-service", "glm5.dev/service": "chat"}


def a_service(name: str = "chat", *, generation: int = 1, status: Json | None = None, **spec: object) -> Json:
    """A GLM5Service as the API server gives it."""
    return {
        "apiVersion": "glm5.dev/v1alpha1",
        "kind": "GLM5Service",
        "metadata": {
            "name": name,
            "namespace": "prod",
            "uid": f"uid-{name}",
            "generation": generation,
            "resourceVersion": "1",
            "creationTimestamp": stamp(at()),
        },
        "spec": {
            "model": {"name": "GLM-5.1", "weights": "w8a8", "source": "pvc://weights/GLM-5.1-w8a8"},
            "pool": "inference",
            "replicas": 1,
            **spec,
        },
        **({"status": status} if status is not None else {}),
    }


def a_deployment(
    *,
    replicas: int = 1,
    updated: int | None = None,
    total: int | None = None,
    generation: int = 1,
    observed: int | None = None,
    revision: str = REVISION,
    conditions: list[Json] | None = None,
) -> Json:
    """The service's Deployment; without arguments it has rolled out."""
    labels = {**SELECTOR, "glm5.dev/revision": revision}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chat-engine", "namespace": "prod", "generation": generation},
        "spec": {
            "replicas": replicas,
            "progressDeadlineSeconds": 900,
            "selector": {"matchLabels": SELECTOR},
            "template": {"metadata": {"labels": labels}},
        },
        "status": {
            "observedGeneration": generation if observed is None else observed,
            "replicas": replicas if total is None else total,
            "updatedReplicas": replicas if updated is None else updated,
            "conditions": conditions or [],
        },
    }


def refused_creation(message: str) -> Json:
    """The condition with which a Deployment passes on why its pods can't be created."""
    return {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message, "lastTransitionTime": stamp(at())}


def no_progress() -> Json:
    """The condition of a Deployment whose progress deadline is over."""
    return {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "lastTransitionTime": stamp(at())}


def resolved() -> Resolved:
    """What a planner derived for GLM-5.1 in w8a8 on A2."""
    return Resolved(
        engine="vllm",
        image="quay.io/ascend/vllm-ascend:v0.23.0",
        product="A2",
        resource_name=CARD,
        cards=8,
        tensor=8,
        pipeline=1,
        data=1,
        expert=8,
        max_tokens=32768,
        max_sequences=8,
        max_batched_tokens=4096,
        memory="96Gi",
        shm="64Gi",
        startup_timeout="1800s",
    )


def a_plan(*, replicas: int = 1, revision: str = REVISION, warnings: tuple[Finding, ...] = ()) -> ServicePlan:
    """A plan that worked."""
    deployment = a_deployment(replicas=replicas, revision=revision)
    del deployment["status"]
    return ServicePlan(
        objects=(deployment,),
        resolved=resolved(),
        stalled=None,
        warnings=warnings,
        revision=revision,
        endpoint="http://chat-api.prod.svc:8000/v1",
    )


def a_stalled_plan(reason: str = "PoolNotFound", message: str = "create NPUPool inference, or correct spec.pool") -> ServicePlan:
    """A plan that found why nothing can be done."""
    return ServicePlan(objects=(), resolved=None, stalled=Finding(reason, message), warnings=(), revision="")


def condition(status: Json, kind: str) -> Json:
    """One condition of a status."""
    found: Json = next(item for item in status["conditions"] if item["type"] == kind)
    return found
