"""The Job that looks at a run's settings, model and data before the first attempt: a job whose data is bad never takes a card.

Called by the fine-tuning controller with the pod template of the attempt that would follow, so that image, site and volumes are the same.
It has no cards, and is kept to the pool only where it needs folders that only those nodes have.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.plan.facts import Finding
from glm5_operator.plan.places import places_of
from glm5_operator.plan.trainer import LAST_WORD
from glm5_operator.plan.trainer_guard import RENDEZVOUS_ENV, trainer_of
from glm5_operator.plan.training_file import training_file

if TYPE_CHECKING:
    from glm5_operator.api.finetune import GLM5FinetuneJob
    from glm5_operator.plan.facts import Manifest

TRIES: Final = 12
"""Further tries after one that failed by chance, 10 s, 20 s … 10 min later, over an hour of them; then another Job begins anew. An
eviction is none."""
HOPELESS: Final = (2, 3)
"""Exit codes for settings and data: another try meets the same. `tests/contract` holds them to the runtime's."""
_REQUESTS: Final = {"cpu": "500m", "memory": "512Mi"}
_LIMITS: Final = {"memory": "4Gi"}
"""Rows are looked at and not kept; of each only its length stays."""
_KEPT: Final = ("automountServiceAccountToken", "enableServiceLinks", "restartPolicy", "terminationGracePeriodSeconds", "securityContext",
                "imagePullSecrets", "dnsConfig")  # fmt: skip
_PINNED: Final = ("nodeSelector", "tolerations", "runtimeClassName")
_NOT_NEEDED: Final = (names.CHECKPOINT_DIR, names.OUTPUT_DIR, "/dev/shm")  # noqa: S108  # a mount point, not a file we write
_CONTAINER: Final = ("name", "image", "imagePullPolicy", "command", "envFrom", "terminationMessagePolicy", "securityContext")


def check_digest(job: GLM5FinetuneJob) -> str:
    """What is to be checked, in 16 hex digits: again when the spec changes before the first attempt. Empty: it can't be planned."""
    places = places_of(job)
    if isinstance(places, Finding):
        return ""
    parts = (training_file(job.spec, places), job.spec.model.source, job.spec.data.source)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def check_objects(job: GLM5FinetuneJob, template: Manifest) -> tuple[Manifest, Manifest]:
    """Training file and Job; `template` is the pod of an attempt."""
    name = names.check_name(job.metadata.name)
    places = places_of(job)
    assert not isinstance(places, Finding), "the attempt was planned with them"
    labels = {**names.check_labels(job.metadata.name), names.CHECK_LABEL: check_digest(job)}
    metadata = {"name": name, "namespace": job.metadata.namespace or "default", "labels": labels}
    config: Manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "immutable": True,
        "data": {names.CONFIG_FILE: training_file(job.spec, places)},
    }
    trainer = {"containerName": names.TRAINER_CONTAINER, "operator": "In", "values": list(HOPELESS)}
    rules = [
        {"action": "FailJob", "onExitCodes": trainer},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    made: Manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": TRIES,
            "podFailurePolicy": {"rules": rules},
            "template": {"metadata": {"labels": labels}, "spec": _pod(template["spec"], trainer_of(template) or {}, name)},
        },
    }
    return config, made


def _pod(spec: Manifest, trainer: Manifest, config: str) -> Manifest:
    mounts = [mount for mount in trainer.get("volumeMounts") or () if mount["mountPath"] not in _NOT_NEEDED]
    used = {mount["name"] for mount in mounts}
    volumes = [volume for volume in spec.get("volumes") or () if volume["name"] in used]
    volumes = [volume | {"configMap": {"name": config}} if volume["name"] == "config" else volume for volume in volumes]
    is_pinned = any("hostPath" in volume for volume in volumes)
    env = [item for item in trainer.get("env") or () if item["name"] not in {*RENDEZVOUS_ENV, "OMP_NUM_THREADS"}]
    container: dict[str, Any] = {field: trainer[field] for field in _CONTAINER if field in trainer}
    return {
        **{field: spec[field] for field in (*_KEPT, *(_PINNED if is_pinned else ())) if field in spec},
        "containers": [
            container
            | {
                "args": [f"--config={names.CONFIG_DIR}/{names.CONFIG_FILE}", f"--result={LAST_WORD}", "--check"],
                "env": [*env, {"name": "OMP_NUM_THREADS", "value": "1"}],
                "resources": {"requests": dict(_REQUESTS), "limits": dict(_LIMITS)},
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }
