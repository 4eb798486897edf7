"""Why the first of some pods that has yet to run doesn't, in the scheduler's or kubelet's words. Used by `finetune` and `check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glm5_operator.status.conditions import clipped
from glm5_operator.status.ends import is_ended
from glm5_operator.status.pods import condition
from glm5_operator.status.scheduling import about_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_ORDINARY = frozenset({"ContainerCreating", "PodInitializing"})


def why_waiting(pods: Iterable[Mapping[str, Any]]) -> str:
    """`; container … waits: …` or `; pod … has no node: …`, empty when nothing is known to be in the way."""
    for pod in pods:
        if is_ended(pod):
            continue
        name, status = pod["metadata"]["name"], pod.get("status") or {}
        refused = condition(pod, "PodScheduled") or {}
        if refused.get("status") == "False" and refused.get("message"):
            return f"; pod {name} has no node: {clipped(about_nodes(str(refused['message'])), 400)}"
        for item in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
            waiting = (item.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") and waiting["reason"] not in _ORDINARY:
                said = clipped(str(waiting.get("message") or ""), 400)
                return f"; container {item['name']} of pod {name} waits: {waiting['reason']} {said}".rstrip()
    return ""


def suspended_by_others(job: Mapping[str, Any]) -> str:
    """Why a Job that is to run at once has no pods, when somebody suspended it; empty when nobody did. Ours are never created so."""
    if not (job.get("spec") or {}).get("suspend"):
        return ""
    return (
        f"Job {job['metadata']['name']} is suspended, and not by this operator: Kueue does so with manageJobsWithoutQueueName; leave the "
        "namespace out of its managedJobsNamespaceSelector"
    )
