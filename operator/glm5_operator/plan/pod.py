"""The pod template of a service: what its engine needs, pinned to its pool, with the least rights.

Called by `plan_service`. Rights: nothing but the engine's own exceptions (see `vllm`) departs from the "restricted" pod security standard.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.plan.adapters import adapter_mounts
from glm5_operator.plan.engine import CHECK_SECONDS, HOME_DIR, EngineInput, EnginePod
from glm5_operator.plan.facts import Finding
from glm5_operator.plan.merge import apply_template
from glm5_operator.plan.native import native_pod
from glm5_operator.plan.vllm import vllm_pod

if TYPE_CHECKING:
    from datetime import timedelta

    from glm5_operator.api.pool import NPUPool
    from glm5_operator.api.service import GLM5Service
    from glm5_operator.plan.facts import Manifest
    from glm5_operator.plan.sizing import Sizing
    from glm5_operator.plan.source import ModelFiles

UID: Final = 1000  # HwHiAiUser, the owner of the device nodes
LEAVING_SECONDS: Final = 5  # until kube-proxy and gateways have dropped a terminating endpoint
ENDING_SECONDS: Final = 15  # from the end of the drain until the process is gone
LIVENESS_FAILURES: Final = 6  # a minute; the engine's check decides what stuck means, this bridges a server that is slow to answer
LARGEST_QUANTITY: Final = 2**63 - 1  # the API server writes it for anything above
_REVISION_LENGTH: Final = 10

RESTRICTED: Final[dict[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
POD_SECURITY: Final[dict[str, Any]] = {
    "runAsNonRoot": True,
    "runAsUser": UID,
    "runAsGroup": UID,
    "fsGroup": UID,
    "fsGroupChangePolicy": "OnRootMismatch",
    "supplementalGroups": [UID],
    "seccompProfile": {"type": "RuntimeDefault"},
}


@dataclass(frozen=True, slots=True)
class PodInput:
    """What a pod is made from."""

    service: GLM5Service
    pool: NPUPool
    resource: str
    sizing: Sizing
    files: ModelFiles
    image: str
    pull_policy: str
    startup: timedelta


def pod_template(given: PodInput) -> Manifest | Finding:
    """The whole pod template, with the pool's and the service's podTemplate over it; a Finding when one of those is refused."""
    spec = given.service.spec
    engine = _engine(given)
    planned: Manifest = {"metadata": {"labels": _labels(given.service.metadata.name)}, "spec": _pod_spec(given, engine)}
    pod = planned
    for template, origin in (
        (given.pool.spec.pod_template, f"spec.podTemplate of NPUPool {given.pool.metadata.name}"),
        (spec.pod_template, "spec.podTemplate"),
    ):
        merged = apply_template(pod, template, origin, planned=planned, resource=given.resource)
        if isinstance(merged, Finding):
            return merged
        pod = merged
    return pod


def revision_of(pod: Manifest) -> str:
    """Short hash of a pod template; equal templates have equal ones in every process."""
    text = json.dumps(pod, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_REVISION_LENGTH]


def pinned(pool: NPUPool) -> Manifest:
    """The part of a pod's spec that keeps it on the pool's nodes."""
    toleration = {
        "key": names.ROLE_TAINT,
        "operator": "Equal",
        "value": names.role_taint_value(pool.spec.role),
        "effect": names.TAINT_EFFECT,
    }
    # The toleration is always there, whether the pool taints or not: switching the taint then restarts no pod.
    return {"nodeSelector": {names.POOL_LABEL: pool.metadata.name}, "tolerations": [toleration]}


def _engine(given: PodInput) -> EnginePod:
    engine_input = EngineInput(given.service.spec, given.sizing, given.files.path, given.startup)
    return vllm_pod(engine_input) if given.service.spec.engine_name == "vllm" else native_pod(engine_input)


def _labels(service: str) -> dict[str, str]:
    return {**names.child_labels(service), names.SERVING_LABEL: names.SERVING_VALUE}


def _pod_spec(given: PodInput, engine: EnginePod) -> Manifest:
    name, pool = given.service.metadata.name, given.pool
    drain = math.ceil(given.service.spec.drain_timeout.total_seconds())
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **pinned(pool),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": names.selector_labels(name)},
            }
        ],
        "terminationGracePeriodSeconds": LEAVING_SECONDS + drain + ENDING_SECONDS,
        "securityContext": {**POD_SECURITY, **engine.pod_security},
        "containers": [_container(given, engine)],
        "volumes": _volumes(given, engine),
    }


def _container(given: PodInput, engine: EnginePod) -> Manifest:
    container: Manifest = {
        "name": names.ENGINE_CONTAINER,
        "image": given.image,
        "command": engine.command,
        "args": [*engine.args, *_stated_args(given)],
        "env": _env(given, engine),
        "ports": [{"name": names.ENGINE_PORT_NAME, "containerPort": names.ENGINE_PORT, "protocol": "TCP"}],
        "resources": resources(given.resource, given.sizing.cards, given.sizing.memory_bytes, given.sizing.cpu_millis),
        "volumeMounts": _mounts(given),
        "startupProbe": {
            **engine.startup,
            "periodSeconds": engine.startup_period,
            "timeoutSeconds": engine.startup_check_timeout,
            "failureThreshold": max(1, math.ceil(given.startup.total_seconds() / engine.startup_period)),
        },
        # One failure is enough: an engine that died while HTTP still answers gets no further request.
        "readinessProbe": {
            **engine.readiness,
            "periodSeconds": CHECK_SECONDS,
            "timeoutSeconds": engine.check_timeout,
            "failureThreshold": 1,
        },
        "livenessProbe": {**engine.liveness, "periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": LIVENESS_FAILURES},
        # The endpoint goes first, the process learns of the end when no new request can reach it.
        "lifecycle": {"preStop": {"sleep": {"seconds": LEAVING_SECONDS}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {**RESTRICTED, **engine.security},
    }
    if given.pull_policy:
        container["imagePullPolicy"] = given.pull_policy
    return container


def _stated_args(given: PodInput) -> tuple[str, ...]:
    stated = given.service.spec.engine
    return (stated.args if stated else None) or ()


def _env(given: PodInput, engine: EnginePod) -> list[Manifest]:
    spec = given.service.spec
    stated = {variable.name: variable.value for variable in (spec.engine.env if spec.engine else None) or ()}
    planned = {**engine.env, "HOME": HOME_DIR, **stated}
    # The API server drops an empty value, so ours has none either.
    variables: list[Manifest] = [{"name": name, "value": value} if value else {"name": name} for name, value in planned.items()]
    if spec.auth is not None:
        # By reference: a missing Secret shows as CreateContainerConfigError and heals by itself; the operator needs no right on Secrets.
        key = {"name": spec.auth.secret_ref.name, "key": spec.auth.secret_ref.key}
        variables.append({"name": engine.api_key_env, "valueFrom": {"secretKeyRef": key}})
    return variables


def resources(resource: str, count: int, memory_bytes: int, cpu_millis: int) -> Manifest:
    """Requests and limits of a container that has `count` cards."""
    cards = {resource: str(count)}
    memory = quantity(memory_bytes)
    # No CPU limit: throttling stretches every step of a latency-bound loop. Memory has one, and holds /dev/shm too.
    return {"requests": {"cpu": _cpu(cpu_millis), "memory": memory, **cards}, "limits": {"memory": memory, **cards}}


def _mounts(given: PodInput) -> list[Manifest]:
    mounts = [
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108  # a mount point, not a file we write
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  # likewise
        {"name": "home", "mountPath": HOME_DIR},
    ]
    _, adapters = adapter_mounts(given.service)
    return [*([given.files.mount] if given.files.mount else []), *adapters, *mounts]


def _volumes(given: PodInput, engine: EnginePod) -> list[Manifest]:
    volumes: list[Manifest] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": quantity(given.sizing.shm_bytes)}},
        *({"name": name, "emptyDir": {"sizeLimit": limit}} for name, limit in engine.scratch.items()),
    ]
    adapters, _ = adapter_mounts(given.service)
    return [*([given.files.volume] if given.files.volume else []), *adapters, *volumes]


def quantity(size_bytes: int) -> str:
    """A Kubernetes quantity as the API server writes it back: what it would rewrite would look like drift. Of exact forms the shortest."""
    size_bytes = min(size_bytes, LARGEST_QUANTITY)
    forms = [str(size_bytes)]
    for base, units in ((1000, ("k", "M", "G", "T")), (1024, ("Ki", "Mi", "Gi", "Ti"))):
        exact = [f"{size_bytes // base**power}{unit}" for power, unit in enumerate(units, start=1) if size_bytes % base**power == 0]
        forms += exact[-1:]
    return min(reversed(forms), key=len)


def _cpu(millis: int) -> str:
    return f"{millis}m" if millis % 1000 else str(millis // 1000)
