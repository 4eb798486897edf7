"""All pods of an attempt or none, where the cluster has somebody for that: a queue of Kueue, or a PodGroup of Volcano.

Called by `attempt`. The user chooses: Kueue by its label on the job, Volcano by schedulerName in podTemplate. Where neither is so the
operator itself waits until every pod would find its cards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.plan.facts import Finding
from glm5_operator.plan.pod import quantity
from glm5_operator.plan.reading import object_at

if TYPE_CHECKING:
    from glm5_operator.api.finetune import GLM5FinetuneJob
    from glm5_operator.plan.facts import FinetuneFacts, Manifest

VOLCANO: Final = "volcano"


def advice(job: GLM5FinetuneJob, *, kueue: bool, volcano: bool) -> tuple[Finding, ...]:
    """Somebody was chosen who isn't there."""
    found = []
    if job.metadata.labels.get(names.KUEUE_QUEUE_LABEL) and not kueue:
        found.append(
            f"label {names.KUEUE_QUEUE_LABEL} names a queue, and the cluster has no Kueue: the operator itself waits for cards; "
            "install Kueue, or remove the label"
        )
    if object_at(dict(job.spec.pod_template or {}), "spec").get("schedulerName") == VOLCANO and not volcano:
        found.append(
            f"podTemplate's schedulerName is {VOLCANO}, and the cluster has no Volcano: nobody gives the pods a node; "
            "install Volcano, or remove schedulerName"
        )
    return tuple(Finding("Unwise", message) for message in found)


def queue_of(job: GLM5FinetuneJob, facts: FinetuneFacts) -> str:
    """The queue of Kueue that admits the attempt; empty for none."""
    return str(job.metadata.labels.get(names.KUEUE_QUEUE_LABEL) or "") if facts.kueue else ""


def is_volcanos(pod: Manifest, facts: FinetuneFacts) -> bool:
    """Whether Volcano schedules these pods."""
    return facts.volcano and bool((pod.get("spec") or {}).get("schedulerName") == VOLCANO)


def in_group(pod: Manifest, group: str) -> Manifest:
    """The pod template as a member of a PodGroup."""
    metadata: dict[str, Any] = pod.get("metadata") or {}
    annotations = {**(metadata.get("annotations") or {}), names.POD_GROUP_ANNOTATION: group}
    return {**pod, "metadata": {**metadata, "annotations": annotations}}


def pod_group(job: GLM5FinetuneJob, metadata: Manifest, *, cpu_millis: int, memory: int, cards: tuple[str, int]) -> Manifest:
    """The PodGroup; `cpu_millis`, `memory` (bytes) and `cards` (resource and count) are those of one pod."""
    nodes, (resource, count) = job.spec.nodes, cards
    spec: dict[str, Any] = {
        "minMember": nodes,
        "minResources": {"cpu": f"{cpu_millis * nodes}m", "memory": quantity(memory * nodes), resource: str(count * nodes)},
    }
    if queue := job.metadata.labels.get(names.VOLCANO_QUEUE_LABEL):
        spec["queue"] = queue
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": names.POD_GROUP_KIND, "metadata": metadata, "spec": spec}
