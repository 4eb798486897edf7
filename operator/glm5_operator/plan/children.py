"""The children of a service as manifests: Deployment, client Service, and a PodDisruptionBudget when there is something to protect.

Called by `plan_service`. Each child costs writes for every service, so one that carries nothing is not made: no budget for one replica,
no ServiceAccount, no ConfigMap (the entry script is inline), no NetworkPolicy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from glm5_operator.api import names

if TYPE_CHECKING:
    from datetime import timedelta

    from glm5_operator.api.service import GLM5Service
    from glm5_operator.plan.facts import Manifest
    from glm5_operator.plan.rollout import Rollout

BEFORE_START_SECONDS: Final = 600
"""Scheduling and pulling an image of 20 GB come before the start-up check begins to count."""


def deployment(service: GLM5Service, pod: Manifest, rollout: Rollout, startup: timedelta) -> Manifest:
    """The replicas. `pod` carries its revision label already."""
    name = service.metadata.name
    spec: Manifest = {
        "replicas": service.spec.replicas,
        "selector": {"matchLabels": names.selector_labels(name)},
        "strategy": rollout.strategy,
        "revisionHistoryLimit": 2,
        "progressDeadlineSeconds": math.ceil(startup.total_seconds()) + BEFORE_START_SECONDS,
        "template": pod,
    }
    if rollout.paused:
        spec["paused"] = True
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": _metadata(service, names.deployment_name(name)), "spec": spec}


def client_service(service: GLM5Service) -> Manifest:
    """What clients talk to: ready pods that carry the serving label."""
    name = service.metadata.name
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(service, names.client_service_name(name)),
        "spec": {
            "type": "ClusterIP",
            "selector": {**names.selector_labels(name), names.SERVING_LABEL: names.SERVING_VALUE},
            "ports": [{"name": names.ENGINE_PORT_NAME, "port": names.ENGINE_PORT, "targetPort": names.ENGINE_PORT_NAME, "protocol": "TCP"}],
        },
    }


def disruption_budget(service: GLM5Service) -> Manifest | None:
    """One replica at a time may be evicted; with one replica a budget would only block the drain of its node."""
    name = service.metadata.name
    if service.spec.replicas < 2:
        return None
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(service, names.child_name(name, "pdb")),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": names.selector_labels(name)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",  # a replica that doesn't serve protects nobody
        },
    }


def _metadata(service: GLM5Service, name: str) -> Manifest:
    return {"name": name, "namespace": service.metadata.namespace or "default", "labels": names.child_labels(service.metadata.name)}
