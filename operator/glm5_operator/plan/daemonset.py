"""Which DaemonSets a role taint would drive off a pool's nodes at their next update: the device plugin among them, and with it the cards.

Called by the pool controller before it asks `plan_pool` to taint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glm5_operator.api import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from glm5_operator.plan.facts import NodeFacts


def intolerant(role: str, daemonsets: Iterable[Mapping[str, Any]], nodes: Iterable[NodeFacts]) -> tuple[str, ...]:
    """`namespace/name` of DaemonSets that may run on one of the nodes and don't tolerate the taint of `role`.

    Node affinity isn't evaluated: a DaemonSet that only affinity keeps away counts, which delays the taint and harms nothing.
    """
    labels = [node.labels for node in nodes]
    found = []
    for daemonset in daemonsets:
        pod = daemonset["spec"]["template"].get("spec") or {}
        selector = (pod.get("nodeSelector") or {}).items()
        runs_here = any(all(node.get(key) == value for key, value in selector) for node in labels)
        if runs_here and not any(_tolerates(toleration, role) for toleration in pod.get("tolerations") or ()):
            metadata = daemonset["metadata"]
            found.append(f"{metadata.get('namespace', 'default')}/{metadata['name']}")
    return tuple(sorted(found))


def _tolerates(toleration: Mapping[str, Any], role: str) -> bool:
    if toleration.get("effect") not in {None, "", names.TAINT_EFFECT}:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in {None, "", names.ROLE_TAINT}
    return toleration.get("key") == names.ROLE_TAINT and toleration.get("value") == names.role_taint_value(role)
