"""The role taint of a pool: put on beside what others tainted, and the DaemonSets that it would lock out. Pure.

Used by the pool controller and the clean-up. A DaemonSet that doesn't tolerate the taint keeps its pods until they are replaced;
then they stay away. When that DaemonSet is the device plugin, the next upgrade takes the node's cards away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glm5_operator.api import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def with_taint(node: Mapping[str, Any], role: str | None) -> list[dict[str, Any]] | None:
    """The node's taints with ours set to `role`, or without ours; None when that is what they are."""
    present = [dict(taint) for taint in (node.get("spec") or {}).get("taints") or ()]
    if _role(node) == role:
        return None
    foreign = [taint for taint in present if not _is_ours(taint)]
    ours = [] if role is None else [{"key": names.ROLE_TAINT, "value": role, "effect": names.TAINT_EFFECT}]
    return foreign + ours


def intolerant(daemon_sets: Iterable[Mapping[str, Any]], nodes: Iterable[Mapping[str, Any]], role: str) -> tuple[str, ...]:
    """`namespace/name` of the DaemonSets that run on one of these nodes and don't tolerate the taint of that role."""
    members = tuple(nodes)
    return tuple(
        sorted(_name(item) for item in daemon_sets if not _tolerates(item, role) and any(_runs_on(item, node) for node in members))
    )


def _is_ours(taint: Mapping[str, Any]) -> bool:
    return bool(taint.get("key") == names.ROLE_TAINT)


def _role(node: Mapping[str, Any]) -> str | None:
    taints = (node.get("spec") or {}).get("taints") or ()
    return next((str(taint.get("value") or "") for taint in taints if _is_ours(taint)), None)


def _name(resource: Mapping[str, Any]) -> str:
    return f"{resource['metadata'].get('namespace', '')}/{resource['metadata']['name']}"


def _pod_spec(daemon_set: Mapping[str, Any]) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = daemon_set["spec"]["template"].get("spec") or {}
    return spec


def _runs_on(daemon_set: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """By its node selector. An affinity may say no where this says yes; then the taint waits in vain, and the pool says for whom."""
    labels = node["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in (_pod_spec(daemon_set).get("nodeSelector") or {}).items())


def _tolerates(daemon_set: Mapping[str, Any], role: str) -> bool:
    return any(_matches(toleration, role) for toleration in _pod_spec(daemon_set).get("tolerations") or ())


def _matches(toleration: Mapping[str, Any], role: str) -> bool:
    if toleration.get("effect") not in {None, "", names.TAINT_EFFECT}:
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in {None, "", names.ROLE_TAINT}
    return toleration.get("key") == names.ROLE_TAINT and (toleration.get("value") or "") == role
