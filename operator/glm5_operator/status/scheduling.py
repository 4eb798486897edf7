"""The scheduler's sentence about a pod, read for what is short and told for what to do.

Used by `pods`. The sentence counts nodes by cause: "0/3 nodes are available: 1 Insufficient huawei.com/Ascend910, 2 node(s) didn't match
Pod's node affinity/selector. preemption: …".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from glm5_operator.status.causes import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

_INSUFFICIENT = re.compile(r"(\d+) Insufficient ([\w./-]+?)(?=[,.]?(?:\s|$))")
_CLAIM_MISSING = re.compile(r'persistentvolumeclaim "([^"]+)" not found')
_CLAIM_UNBOUND = re.compile(r"unbound immediate PersistentVolumeClaims?")
_VOLUME_NODE = re.compile(r"volume node affinity conflict|node\(s\) unavailable due to one or more pvc|had no available volume zone")
_NO_MATCH = re.compile(r"didn't match Pod's node affinity(?:/selector)?|didn't match node selector|no nodes available to schedule pods")
_TAINT = re.compile(r"untolerated taint(?:\(s\)| \{([^}]*)\})")
_CORDONED = re.compile(r"(\d+) node\(s\) were unschedulable")
_CLASSIC = frozenset({"cpu", "memory", "ephemeral-storage", "pods"})


def read_unschedulable(message: str, pod: Mapping[str, Any]) -> tuple[Reason, str]:
    """The reason and a sentence for a pod whose PodScheduled is False."""
    said = about_nodes(message)
    asked = requested(pod)
    if found := _CLAIM_MISSING.search(said):
        return Reason.VOLUME_MISSING, f"create PersistentVolumeClaim {found[1]} in this namespace, or change spec.model.source"
    if _CLAIM_UNBOUND.search(said):
        return (
            Reason.VOLUME_UNBOUND,
            f"the PersistentVolumeClaim in spec.model.source is not bound: check its StorageClass and size (scheduler: {said})",
        )
    short = [name for _, name in _INSUFFICIENT.findall(said)]
    if cards := [name for name in short if name not in _CLASSIC]:
        wanted = ", ".join(f"{asked.get(name, '?')} {name}" for name in cards)
        return Reason.INSUFFICIENT_CARDS, (
            f"no node has {wanted} free: free some, add nodes to the pool, or change spec.replicas or spec.parallelism (scheduler: {said})"
        )
    if short:
        wanted = ", ".join(f"{name} {asked.get(name, '?')}" for name in short)
        return Reason.INSUFFICIENT_RESOURCES, f"no node of the pool has {wanted} free; ask for less in spec.podTemplate (scheduler: {said})"
    if _VOLUME_NODE.search(said):
        return Reason.UNSCHEDULABLE, f"the volume behind spec.model.source can't be used on any free node of the pool (scheduler: {said})"
    if _CORDONED.search(said) or (_TAINT.search(said)):
        return (
            Reason.NO_MATCHING_NODE,
            f"the pool's nodes are cordoned or tainted: uncordon them or tolerate the taint in podTemplate (scheduler: {said})",
        )
    if _NO_MATCH.search(said):
        selector = ", ".join(f"{key}={value}" for key, value in sorted((pod["spec"].get("nodeSelector") or {}).items()))
        return (
            Reason.NO_MATCHING_NODE,
            f"no node carries {selector}: see the pool's status and spec.podTemplate's node selector (scheduler: {said})",
        )
    return Reason.UNSCHEDULABLE, f"no node takes the pod (scheduler: {said})"


def about_nodes(message: str) -> str:
    """The sentence without what preemption came to, which follows it after a full stop: at length, or as a bare "not found"."""
    return message.split(" preemption:", maxsplit=1)[0].strip().removesuffix(". not found")


def requested(pod: Mapping[str, Any]) -> dict[str, str]:
    """The resources the engine asks for: the first container's, as the others of a pod ask for no cards."""
    containers = pod["spec"]["containers"]
    resources = containers[0].get("resources") or {}
    return {str(name): str(value) for name, value in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items()}
