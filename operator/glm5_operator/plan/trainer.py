"""The pod of one rank group: what the trainer needs, pinned to its pool, one a node, with the least rights.

Called by `attempt`. Departs nowhere from the "restricted" pod security standard.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.plan.engine import HOME_DIR, NPU_ENV
from glm5_operator.plan.facts import Finding
from glm5_operator.plan.merge import apply_template
from glm5_operator.plan.pod import POD_SECURITY, RESTRICTED, pinned, quantity, resources
from glm5_operator.plan.trainer_guard import first_training_loss

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glm5_operator.api.finetune import GLM5FinetuneJob
    from glm5_operator.api.pool import NPUPool
    from glm5_operator.plan.facts import Manifest, Site
    from glm5_operator.plan.places import Places

GRACE_SECONDS: Final = 7
"""A failed rank ends the attempt within 10 s, and the others' last words are part of that."""
MOST_TO_SAVE: Final = timedelta(minutes=30)
"""Whoever gives services hours to drain doesn't mean a rank that hangs."""
LAST_WORD: Final = "/dev/termination-log"
"""Where kubelet reads a container's last words."""
_INDEX: Final = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


@dataclass(frozen=True, slots=True)
class TrainerInput:
    """What a pod is made from; memory and /dev/shm in bytes."""

    job: GLM5FinetuneJob
    attempt: int
    pool: NPUPool
    resource: str
    places: Places
    site: Site
    memory: int
    shm: int
    cpu_millis: int
    avoided: tuple[str, ...]


def trainer_pod(given: TrainerInput) -> Manifest | Finding:
    """The whole pod template, with the pool's and the job's podTemplate over it; a Finding when one of those is refused."""
    labels = {**names.finetune_labels(given.job.metadata.name), names.ATTEMPT_LABEL: str(given.attempt)}
    planned: Manifest = {"metadata": {"labels": labels}, "spec": _spec(given, labels)}
    pod = planned
    for template, origin in (
        (given.pool.spec.pod_template, f"spec.podTemplate of NPUPool {given.pool.metadata.name}"),
        (given.job.spec.pod_template, "spec.podTemplate"),
    ):
        merged = apply_template(pod, template, origin, planned=planned, resource=given.resource, guard=first_training_loss)
        if isinstance(merged, Finding):
            return merged
        pod = merged
    return pod


def time_to_save(pod: Mapping[str, Any], drain: timedelta) -> int | None:
    """Seconds that a pod gets when the operator sends it away; None: its own grace, as for every pod that is no rank of an attempt.

    A trainer that is asked ends after the step under way with a checkpoint. It gets half of what a drain may take: a rank that hangs on
    a sick card is then killed while there is still time to do something about the card.
    """
    if not {names.FINETUNE_LABEL, names.ATTEMPT_LABEL} <= (pod["metadata"].get("labels") or {}).keys():
        return None
    seconds = int(min(drain / 2, MOST_TO_SAVE).total_seconds())
    return seconds if seconds > GRACE_SECONDS else None


def _spec(given: TrainerInput, labels: dict[str, str]) -> Manifest:
    name = given.job.metadata.name
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "subdomain": names.rendezvous_name(name),
        **pinned(given.pool),
        "affinity": _affinity(given, labels),
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": dict(POD_SECURITY),
        "containers": [_container(given)],
        "volumes": [
            *given.places.volumes,
            {"name": "config", "configMap": {"name": names.config_name(name, given.attempt)}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": quantity(given.shm)}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
            {"name": "home", "emptyDir": {"sizeLimit": "4Gi"}},
        ],
    }


def _affinity(given: TrainerInput, labels: dict[str, str]) -> Manifest:
    """One pod a node; away from nodes whose cards failed earlier attempts."""
    chosen = {key: labels[key] for key in (names.FINETUNE_LABEL, names.ATTEMPT_LABEL)}
    apart = {"labelSelector": {"matchLabels": chosen}, "topologyKey": "kubernetes.io/hostname"}
    affinity: Manifest = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    if given.avoided:
        fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in given.avoided]
        terms = {"nodeSelectorTerms": [{"matchFields": fields}]}
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    return affinity


def _container(given: TrainerInput) -> Manifest:
    container: Manifest = {
        "name": names.TRAINER_CONTAINER,
        "image": given.site.images["native"],
        "command": ["glm5-runtime", "train"],
        "args": [
            f"--config={names.CONFIG_DIR}/{names.CONFIG_FILE}",
            f"--result={LAST_WORD}",
            f"--progress-port={given.site.progress_port}",
        ],
        "ports": [{"name": names.PROGRESS_PORT_NAME, "containerPort": given.site.progress_port, "protocol": "TCP"}],
        "env": _env(given),
        "resources": resources(given.resource, given.job.spec.parallelism.npus_per_node, given.memory, given.cpu_millis),
        "volumeMounts": [
            *given.places.mounts,
            {"name": "config", "mountPath": names.CONFIG_DIR, "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108  # a mount point, not a file we write
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  # likewise
            {"name": "home", "mountPath": HOME_DIR},
        ],
        # The last word is JSON that the trainer writes there; without one it is the end of its log.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": dict(RESTRICTED),
    }
    if given.site.image_pull_policy:
        container["imagePullPolicy"] = given.site.image_pull_policy
    return container


def _env(given: TrainerInput) -> list[Manifest]:
    """The rendezvous as torchrun takes it: the first pod by its name in the headless Service, and everyone's own number."""
    name, namespace = given.job.metadata.name, given.job.metadata.namespace or "default"
    parallelism = given.job.spec.parallelism
    first = f"{names.attempt_name(name, given.attempt)}-0.{names.rendezvous_name(name)}.{namespace}.svc.{given.site.cluster_domain}"
    values = {
        **NPU_ENV,
        "OMP_NUM_THREADS": str(max(1, given.cpu_millis // 1000 // parallelism.npus_per_node)),
        "HOME": HOME_DIR,
        "MASTER_ADDR": first,
        "MASTER_PORT": str(names.RENDEZVOUS_PORT),
        "NNODES": str(given.job.spec.nodes),
        "NPROC_PER_NODE": str(parallelism.npus_per_node),
        "GLM5_ATTEMPT": str(given.attempt),
    }
    rank = {"name": "NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}}
    return [*({"name": key, "value": value} for key, value in values.items()), rank]
