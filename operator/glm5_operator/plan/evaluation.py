"""The Job that evaluates a published adapter on held-out rows, by asking the service that has it.

Called by the deployments' controller. It has no cards and no credentials for the API server; what it found is its pod's last word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.plan import findings, finetune_findings
from glm5_operator.plan.engine import HOME_DIR
from glm5_operator.plan.facts import Finding
from glm5_operator.plan.guard import token_losses
from glm5_operator.plan.merge import apply_template
from glm5_operator.plan.native import model_version
from glm5_operator.plan.places import places_of_evaluation
from glm5_operator.plan.pod import POD_SECURITY, RESTRICTED, pinned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glm5_operator.api.finetune import GLM5FinetuneJob
    from glm5_operator.api.pool import NPUPool
    from glm5_operator.api.service import GLM5Service
    from glm5_operator.plan.facts import Manifest, Site
    from glm5_operator.plan.guard import Loss

CONTAINER: Final = "evaluator"
LONGEST_SECONDS: Final = 3600
TRIES: Final = 3
"""Further tries after one that failed by chance: the server was away for longer than the evaluator waits."""
HOPELESS: Final = (2, 3)
"""Exit codes of `glm5-runtime evaluate` for settings and data: another try meets the same. `tests/contract` holds them to the runtime's."""
MEMORY: Final = "1Gi"
_POD_OF_SITE: Final = ("imagePullSecrets", "volumes", "dnsConfig", "runtimeClassName")
_CONTAINER_OF_SITE: Final = ("env", "envFrom", "volumeMounts", "imagePullPolicy")
_LAST_WORD: Final = "/dev/termination-log"


def evaluation(job: GLM5FinetuneJob, service: GLM5Service, pool: NPUPool | None, site: Site) -> Manifest | Finding:
    """The Job, on nodes of the training pool: model and rows may be folders that only they have."""
    deploy = job.spec.deploy
    assert deploy is not None, "made only for jobs that deploy"
    assert deploy.evaluate is not None, "made only for what is to be evaluated"
    if pool is None:
        return findings.pool_not_found(job.spec.pool)
    if not site.images.get("native"):
        return finetune_findings.trainer_image_missing()
    places = places_of_evaluation(job, deploy.evaluate.source)
    if isinstance(places, Finding):
        return places
    name, namespace = job.metadata.name, job.metadata.namespace or "default"
    labels = evaluation_labels(name)
    container = _container(job, service, site) | {
        "args": [
            f"--url=http://{names.client_service_name(deploy.service)}.{namespace}.svc.{site.cluster_domain}:{names.ENGINE_PORT}",
            f"--model={deploy.adapter}",
            f"--base={service.spec.served_name}",
            f"--checkpoint={places.model}",
            f"--data={places.data}",
            f"--result={_LAST_WORD}",
            *([f"--model-version={version}"] if (version := model_version(job.spec.model.name)) else []),
        ],
        "volumeMounts": [
            *places.mounts,
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  # a mount point, not a file we write
            {"name": "home", "mountPath": HOME_DIR},
        ],
    }
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        **pinned(pool),
        "securityContext": dict(POD_SECURITY),
        "containers": [container],
        "volumes": [
            *places.volumes,
            {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
            {"name": "home", "emptyDir": {"sizeLimit": "1Gi"}},
        ],
    }
    templates = (
        (pool.spec.pod_template, f"spec.podTemplate of NPUPool {pool.metadata.name}"),
        (job.spec.pod_template, "spec.podTemplate"),
    )
    planned: Manifest = {"metadata": {"labels": labels}, "spec": pod}
    for template, origin in templates:
        merged = apply_template(planned, _of_site(template or {}), origin, planned=planned, resource="", guard=_first_loss)
        if isinstance(merged, Finding):
            return merged
        planned = merged
    hopeless = {"action": "FailJob", "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": list(HOPELESS)}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": names.evaluation_name(name), "namespace": namespace, "labels": labels},
        "spec": {
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": TRIES,
            "activeDeadlineSeconds": LONGEST_SECONDS,
            "podFailurePolicy": {"rules": [hopeless]},
            "template": planned,
        },
    }


def _first_loss(_planned: Manifest, after: Manifest, _resource: str) -> Loss | None:
    """A podTemplate may have changed since the training began, whose guard saw to this: the pod has no credentials for the API server."""
    return next(token_losses(after), None)


def evaluation_labels(job: str) -> dict[str, str]:
    """As of every child of a fine-tuning job, but the component: no attempt of its training is meant."""
    return {**names.finetune_labels(job), names.APP_COMPONENT_LABEL: names.COMPONENT_EVALUATION}


def _of_site(template: Mapping[str, Any]) -> Manifest:
    """What of a podTemplate for trainers holds here too: how its pods get images and packages. Cards and sizes are the trainer's own."""
    spec = template.get("spec") or {}
    trainer: Mapping[str, Any] = next((one for one in spec.get("containers") or () if one.get("name") == names.TRAINER_CONTAINER), {})
    kept = {field: spec[field] for field in _POD_OF_SITE if field in spec}
    container = {field: trainer[field] for field in _CONTAINER_OF_SITE if field in trainer}
    return {"spec": {**kept, "containers": [{"name": CONTAINER, **container}]}}


def _container(job: GLM5FinetuneJob, service: GLM5Service, site: Site) -> Manifest:
    env: list[Manifest] = [{"name": "HOME", "value": HOME_DIR}, {"name": "OMP_NUM_THREADS", "value": "1"}]
    if service.spec.auth is not None:
        key = {"name": service.spec.auth.secret_ref.name, "key": service.spec.auth.secret_ref.key}
        env.append({"name": names.API_KEY_ENV, "valueFrom": {"secretKeyRef": key}})
    # The image that the job trained with: a registry of its own, say, stands in its podTemplate.
    resolved = job.status.resolved.image if job.status and job.status.resolved else ""
    container: Manifest = {
        "name": CONTAINER,
        "image": resolved or site.images["native"],
        "command": ["glm5-runtime", "evaluate"],
        "env": env,
        "resources": {"requests": {"cpu": "500m", "memory": MEMORY}, "limits": {"memory": MEMORY}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": dict(RESTRICTED),
    }
    if site.image_pull_policy:
        container["imagePullPolicy"] = site.image_pull_policy
    return container
