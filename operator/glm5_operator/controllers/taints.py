"""The operator's taints, of a pool's role, a node's remedy and its move, beside what others tainted; and whom they lock out. Pure.

Used by the controllers of pools and nodes, and by the clean-up. A DaemonSet that doesn't tolerate a taint keeps its pods until they are
replaced; then they stay away. When that DaemonSet is the device plugin, the next upgrade takes the node's cards away. So the role's taint,
which stays, waits for them. Those of a remedy and of a move can't: new pods are to stay off sick cards at once. There people are told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


CLOSING: Final = frozenset({names.HEALTH_TAINT, names.MOVE_TAINT})
"""Keys of the taints that are there for a while."""


def with_taint(node: Mapping[str, Any], role: str | None) -> list[dict[str, Any]] | None:
    """The node's taints with the role's set to `role`, or without it; None when that is what they are."""
    return _with(node, names.ROLE_TAINT, role)


def with_health_taint(node: Mapping[str, Any], value: str | None) -> list[dict[str, Any]] | None:
    """The node's taints with the remedy's set to `value`, or without it; None when that is what they are."""
    return _with(node, names.HEALTH_TAINT, value)


def with_move_taint(node: Mapping[str, Any], pool: str | None) -> list[dict[str, Any]] | None:
    """The node's taints with that of its way to `pool`, or without it; None when that is what they are."""
    return _with(node, names.MOVE_TAINT, pool)


def without_taints(node: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The node's taints without any of ours; None when there is none."""
    present = (node.get("spec") or {}).get("taints") or ()
    kept = [dict(taint) for taint in present if taint.get("key") not in {names.ROLE_TAINT, *CLOSING}]
    return kept if len(kept) != len(present) else None


def intolerant(daemon_sets: Iterable[Mapping[str, Any]], nodes: Iterable[Mapping[str, Any]], role: str) -> tuple[str, ...]:
    """`namespace/name` of the DaemonSets that run on one of these nodes and don't tolerate the taint of that role."""
    members = tuple(nodes)
    there = (item for item in daemon_sets if any(runs_on(item, node) for node in members))
    return tuple(sorted(_name(item) for item in there if not _tolerates(item, names.ROLE_TAINT, role)))


def kept_away(daemon_sets: Iterable[Mapping[str, Any]], nodes: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """`namespace/name` of the DaemonSets that belong on one of these nodes and don't tolerate a remedy's or a move's taint that it has."""
    closed = [(node, taint) for node in nodes for taint in (node.get("spec") or {}).get("taints") or () if taint.get("key") in CLOSING]
    return tuple(
        sorted(
            _name(item)
            for item in daemon_sets
            if any(runs_on(item, node) and not _tolerates(item, taint["key"], taint.get("value") or "") for node, taint in closed)
        )
    )


def runs_on(daemon_set: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """By its node selector. An affinity may say no where this says yes; then the taint waits in vain, and the pool says for whom."""
    labels = node["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in (_pod_spec(daemon_set).get("nodeSelector") or {}).items())


def _with(node: Mapping[str, Any], key: str, value: str | None) -> list[dict[str, Any]] | None:
    present = [dict(taint) for taint in (node.get("spec") or {}).get("taints") or ()]
    if next((str(taint.get("value") or "") for taint in present if taint.get("key") == key), None) == value:
        return None
    foreign = [taint for taint in present if taint.get("key") != key]
    return foreign + ([] if value is None else [{"key": key, "value": value, "effect": names.TAINT_EFFECT}])


def _name(resource: Mapping[str, Any]) -> str:
    return f"{resource['metadata'].get('namespace', '')}/{resource['metadata']['name']}"


def _pod_spec(daemon_set: Mapping[str, Any]) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = daemon_set["spec"]["template"].get("spec") or {}
    return spec


def _tolerates(daemon_set: Mapping[str, Any], key: str, value: str) -> bool:
    return any(_matches(toleration, key, value) for toleration in _pod_spec(daemon_set).get("tolerations") or ())


def _matches(toleration: Mapping[str, Any], key: str, value: str) -> bool:
    if toleration.get("effect") not in {None, "", names.TAINT_EFFECT}:
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in {None, "", key}
    return toleration.get("key") == key and (toleration.get("value") or "") == value
