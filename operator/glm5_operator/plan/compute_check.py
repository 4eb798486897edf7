"""The pod that checks a node's cards by computing, before the node returns from a remedy: all free cards of that node, once, for minutes.

Called by the node controller. It runs in the operator's namespace, so of a pool's podTemplate it takes only what refers to nothing there.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.plan.engine import HOME_DIR, NPU_ENV
from glm5_operator.plan.facts import Finding
from glm5_operator.plan.guard import card_losses, token_losses
from glm5_operator.plan.merge import apply_template
from glm5_operator.plan.pod import POD_SECURITY, RESTRICTED, pinned, quantity
from glm5_operator.plan.trainer import LAST_WORD

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from glm5_operator.api.pool import NPUPool
    from glm5_operator.plan.facts import Manifest, Site
    from glm5_operator.plan.guard import Loss

CONTAINER: Final = "compute-check"
LONGEST_SECONDS: Final = 180
"""From kubelet's first look at the pod, the pull of its image among them."""
_BASE_MEMORY: Final = 4 * 2**30
_CARD_MEMORY: Final = 2**30
"""Limits of host memory: torch with CANN, and CANN's context of each card."""
_HARMLESS_VOLUMES: Final = ("hostPath", "emptyDir")
"""Sources that name no other object: a Secret or claim of that name in the operator's namespace would be another one."""


@dataclass(frozen=True, slots=True)
class CheckInput:
    """What the pod is made from.

    Attributes:
        node: the node whose cards are checked.
        check: id of the check.
        pool: the node's pool.
        resource: what counts its cards.
        cards: how many it takes.
        namespace: the operator's.
        site: its defaults.
    """

    node: str
    check: str
    pool: NPUPool
    resource: str
    cards: int
    namespace: str
    site: Site


def compute_check_pod(given: CheckInput) -> Manifest | Finding:
    """The pod without its owner; a Finding when the pool's podTemplate is refused."""
    planned: Manifest = {"metadata": {"labels": names.compute_check_labels(given.node)}, "spec": _spec(given)}
    origin = f"spec.podTemplate of NPUPool {given.pool.metadata.name}"
    template = _of_site(given.pool)
    pod = apply_template(planned, template, origin, planned=planned, resource=given.resource, guard=_first_loss)
    if isinstance(pod, Finding):
        return pod
    metadata = {**pod["metadata"], "name": names.compute_check_name(given.node, given.check), "namespace": given.namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]}


def _spec(given: CheckInput) -> Manifest:
    pool = pinned(given.pool)
    remedy = {"key": names.HEALTH_TAINT, "operator": "Exists", "effect": names.TAINT_EFFECT}
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [given.node]}]}
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": LONGEST_SECONDS,
        "terminationGracePeriodSeconds": 5,
        **pool,
        "tolerations": [*pool["tolerations"], remedy],
        # By the scheduler, which counts cards: spec.nodeName would be refused at admission, as everybody's.
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}}},
        "securityContext": dict(POD_SECURITY),
        "containers": [_container(given)],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}, {"name": "home", "emptyDir": {"sizeLimit": "1Gi"}}],
    }


def _container(given: CheckInput) -> Manifest:
    cards = {given.resource: str(given.cards)}
    limit = quantity(_BASE_MEMORY + given.cards * _CARD_MEMORY)
    container: Manifest = {
        "name": CONTAINER,
        "image": given.site.images["native"],
        "command": ["glm5-runtime", "doctor"],
        "args": ["--compute", f"--result={LAST_WORD}"],
        "env": [{"name": name, "value": value} for name, value in {**NPU_ENV, "HOME": HOME_DIR}.items()],
        # It asks for less memory than it may take: on a node of which everything else is well it must find a place.
        "resources": {"requests": {"cpu": "500m", "memory": "1Gi", **cards}, "limits": {"memory": limit, **cards}},
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  # a mount point, not a file we write
            {"name": "home", "mountPath": HOME_DIR},
        ],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": dict(RESTRICTED),
    }
    if given.site.image_pull_policy:
        container["imagePullPolicy"] = given.site.image_pull_policy
    return container


def _first_loss(planned: Manifest, after: Manifest, resource: str) -> Loss | None:
    """Of what `_of_site` lets through, only these could be wrong."""
    return next(chain(token_losses(after), card_losses(planned, after, resource, "the check takes all free cards of the node")), None)


def _of_site(pool: NPUPool) -> Manifest:
    """Of the pool's podTemplate: how its containers get the driver and packages, by plain variables and folders of the host."""
    stated: Mapping[str, Any] = pool.spec.pod_template or {}
    spec: Mapping[str, Any] = stated.get("spec") or {}
    owner = names.TRAINER_CONTAINER if pool.spec.role == "Training" else names.ENGINE_CONTAINER
    theirs: Mapping[str, Any] = next((one for one in _entries(spec.get("containers")) if one.get("name") == owner), {})
    volumes = [volume for volume in _entries(spec.get("volumes")) if any(source in volume for source in _HARMLESS_VOLUMES)]
    known = {volume.get("name") for volume in volumes}
    mounts = [mount for mount in _entries(theirs.get("volumeMounts")) if mount.get("name") in known]
    env = [variable for variable in _entries(theirs.get("env")) if "valueFrom" not in variable]
    container = {"name": CONTAINER, "env": env, "volumeMounts": mounts}
    container |= {field: theirs[field] for field in ("image", "imagePullPolicy") if field in theirs}
    kept = {field: spec[field] for field in ("imagePullSecrets", "runtimeClassName") if field in spec}
    return {"spec": {**kept, "volumes": volumes, "containers": [container]}}


def _entries(value: object) -> Iterable[Mapping[str, Any]]:
    """Of a list that a user wrote, what has the shape of an object."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
