"""One pod's status read for a user: does it serve, and if not, why and what to do.

Used by `service`. Knows kubelet's and the scheduler's words; asks nobody. Readiness is trusted as it stands: the engine's own probe
has already said that a token was produced and progress is being made.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.status.causes import Cause, Reason
from glm5_operator.status.conditions import moment
from glm5_operator.status.containers import container_cause
from glm5_operator.status.scheduling import read_unschedulable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

_HASH_LABEL: Final = "pod-template-hash"


@dataclass(frozen=True, slots=True)
class PodState:
    """What the service's status needs to know of one pod.

    Attributes:
        revision: the value of its `glm5.dev/revision` label; empty when it has none.
        scheduled: it has a node.
        ready: it may get requests.
        quiesced: it could get requests, and was taken out of traffic.
        leaving: it is being deleted, or has ended for good; it no longer counts as a replica.
        terminating: it is being deleted and may still hold cards and finish its requests.
        cause: why it isn't ready; None when it is, or when it leaves.
    """

    name: str
    revision: str
    scheduled: bool
    ready: bool
    quiesced: bool
    leaving: bool
    terminating: bool
    cause: Cause | None


def pod_state(pod: Mapping[str, Any], startup: timedelta = timedelta(0)) -> PodState:
    """Read one pod. `startup` is the time a container has for its start; zero when it isn't known."""
    status = pod.get("status") or {}
    terminating = bool(pod["metadata"].get("deletionTimestamp"))
    ended = status.get("phase") in {"Failed", "Succeeded"}
    works = not (terminating or ended) and is_true(pod, "Ready")
    labels = pod["metadata"].get("labels") or {}
    ready = works and labels.get(names.SERVING_LABEL) == names.SERVING_VALUE
    return PodState(
        name=pod["metadata"]["name"],
        revision=labels.get(names.REVISION_LABEL, ""),
        scheduled=bool((pod.get("spec") or {}).get("nodeName")),
        ready=ready,
        quiesced=works and not ready,
        leaving=terminating or ended,
        terminating=terminating,
        cause=None if ready or terminating else _quiesced(pod) if works else _cause(pod, startup),
    )


def is_replica(pod: Mapping[str, Any], deployment: str, selector: Mapping[str, str]) -> bool:
    """Whether one of the Deployment's ReplicaSets made the pod. Anybody may put our label on a pod of theirs."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    maker = ("ReplicaSet", f"{deployment}-{labels.get(_HASH_LABEL)}")
    made = any(item.get("controller") and (item.get("kind"), item.get("name")) == maker for item in metadata.get("ownerReferences") or ())
    return made and selector.items() <= labels.items()


def is_true(pod: Mapping[str, Any], kind: str) -> bool:
    """Whether the pod's condition of that type is True."""
    return (condition(pod, kind) or {}).get("status") == "True"


def condition(pod: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """The pod's condition of that type."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((item for item in conditions if item.get("type") == kind), None)


def _quiesced(pod: Mapping[str, Any]) -> Cause:
    node = (pod.get("spec") or {}).get("nodeName") or "?"
    message = f"it is out of traffic while node {node} is in remedy: `kubectl get ascendnode {node} -o yaml` tells how far that is"
    return Cause(Reason.REPLICA_QUIESCED, message)


def _cause(pod: Mapping[str, Any], startup: timedelta) -> Cause:
    status = pod.get("status") or {}
    if status.get("phase") == "Failed":
        return _failed(pod)
    scheduled = condition(pod, "PodScheduled")
    created = moment(pod["metadata"].get("creationTimestamp"))
    if scheduled is None or (scheduled.get("status") != "True" and not scheduled.get("message")):
        return Cause(Reason.PENDING, "waiting for the scheduler; if this stays, see that kube-scheduler runs", created)
    if scheduled.get("status") != "True":
        reason, message = read_unschedulable(str(scheduled["message"]), pod)
        return Cause(reason, message, moment(scheduled.get("lastTransitionTime")) or created)
    return _on_a_node(pod, moment(scheduled.get("lastTransitionTime")) or created, startup)


def _on_a_node(pod: Mapping[str, Any], scheduled_at: datetime | None, startup: timedelta) -> Cause:
    for state in _container_states(pod):
        if cause := container_cause(state, pod, scheduled_at, startup):
            return cause
    ready = condition(pod, "Ready") or {}
    node = pod["spec"].get("nodeName", "?")
    message = (
        f"every container runs, but the pod isn't ready ({ready.get('reason') or 'no reason given'}): "
        f"node {node} may have stopped reporting; see `kubectl describe node {node}`"
    )
    return Cause(Reason.NODE_UNREACHABLE, message, moment(ready.get("lastTransitionTime")))


def _container_states(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Init containers first: while one of them fails, the others only wait."""
    status = pod.get("status") or {}
    started = list(status.get("initContainerStatuses") or ()) + list(status.get("containerStatuses") or ())
    if started:
        return started
    # Before kubelet's first report there are no statuses; the containers' names are all that is known.
    return [{"name": item["name"], "state": {"waiting": {"reason": "ContainerCreating"}}} for item in pod["spec"]["containers"]]


def _failed(pod: Mapping[str, Any]) -> Cause:
    """A pod that ended for good: evicted, refused by the device manager, its node gone. Its ReplicaSet makes another."""
    status = pod["status"]
    reason, said = status.get("reason") or "Failed", status.get("message") or "no message"
    node = pod["spec"].get("nodeName", "?")
    message = f"pod ended with {reason} on node {node}: {said}; a new one is made by itself, see the node if that repeats"
    return Cause(Reason.POD_FAILED, message, moment(status.get("startTime")))
