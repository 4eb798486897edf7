"""What the operator may do in a cluster: the one table from which the chart's roles are written (hack/generate.py).

A request that isn't listed here is refused by the API server. tests/api/chart runs the operator under exactly these rights, and finds
each of them used in the API server's audit log, but one that only admission asks for. Data only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from glm5_operator.kube import kinds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glm5_operator.kube.kinds import Kind


@dataclass(frozen=True, slots=True)
class Right:
    """One rule of a role.

    Attributes:
        groups: API groups, "" for the core group.
        resources: plural names, with subresources as `plural/name`.
        verbs: what may be done.
        why: what in the code needs it; becomes the comment above the rule.
    """

    groups: tuple[str, ...]
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str


_SEE: Final = ("list", "watch")  # what is watched is never asked for one by one


def _right(kind: Kind, verbs: tuple[str, ...], why: str, *, subresource: str = "") -> Right:
    plural = f"{kind.plural}/{subresource}" if subresource else kind.plural
    return Right((kind.group,), (plural,), verbs, why)


CLUSTER: Final = (
    _right(kinds.SERVICE, _SEE, "Services to plan; the operator never writes their spec."),
    _right(kinds.SERVICE, ("patch",), "Conditions and resolved values.", subresource="status"),
    _right(
        kinds.SERVICE,
        ("update",),
        "Owner references that block the owner's deletion, where the cluster checks them.",
        subresource="finalizers",
    ),
    _right(kinds.FINETUNE, _SEE, "Fine-tuning jobs to plan; the operator never writes their spec, and never deletes one."),
    _right(kinds.FINETUNE, ("patch",), "Conditions, progress and how attempts ended.", subresource="status"),
    _right(kinds.FINETUNE, ("update",), "Owner references, as of services.", subresource="finalizers"),
    _right(kinds.POOL, _SEE, "Pools to plan."),
    _right(kinds.POOL, ("patch",), "Counts, conflicts and conditions.", subresource="status"),
    _right(
        kinds.ASCEND_NODE,
        (*_SEE, "create", "patch", "delete"),
        "One for each node of a pool; the reset that the agent is asked for; and the note of a person who released a node, once obeyed.",
    ),
    _right(kinds.ASCEND_NODE, ("patch",), "The remedy, a move, and the conditions; what agents report stays theirs.", subresource="status"),
    _right(
        kinds.NODE,
        (*_SEE, "patch"),
        "Nodes of pools: cards are counted. Label glm5.dev/pool and taints glm5.dev/role, glm5.dev/health (remedy or quarantine) and "
        "glm5.dev/moving are set and taken off, and annotations glm5.dev/move-to and glm5.dev/lent-by are written for a loan. "
        "Nothing else of a node is ever written.",
    ),
    _right(kinds.POD, _SEE, "Why a pod isn't ready, and which cards pods hold, also those that aren't ours. No logs, no exec."),
    _right(
        kinds.POD,
        ("patch",),
        "One annotation of replicas that take adapters, glm5.dev/adapters: kubelet then brings them the changed list at once. "
        "One label, glm5.dev/serving: changed on a replica whose card failed, and put back. Nothing else of a pod is ever written.",
    ),
    _right(
        kinds.POD,
        ("create",),
        "Pods on failed cards and on nodes that move are asked to end, under their disruption budgets, training with a longer grace.",
        subresource="eviction",
    ),
    _right(kinds.MIND_CLUSTER_MAP, _SEE, "What MindCluster says of the cards' health, where it is installed."),
    *(
        _right(
            kind,
            ("get", *(_SEE if kind.watched else ("list",)), "create", "patch", "delete"),
            f"Children of services and fine-tuning jobs: {kind.name}.",
        )
        for kind in kinds.CHILDREN
    ),
    _right(
        kinds.DAEMON_SET,
        ("list",),
        "Before a pool's taint glm5.dev/role is set, and while a remedy or a move has closed a node (glm5.dev/health, glm5.dev/moving): "
        "whether each DaemonSet there tolerates it. And whether MindCluster's device plugin resets cards by itself: its flag -hotReset.",
    ),
    _right(kinds.EVENT, ("create",), "Events on services, fine-tuning jobs and pools, in the object's namespace."),
    _right(kinds.EVENT, ("list",), "Why the pods of a Job can't be created: its controller says so nowhere else."),
)
"""Everywhere."""

NAMESPACE: Final = (
    _right(kinds.LEASE, ("get", "create", "update"), "The lease that says which operator is active."),
    _right(
        kinds.POD,
        ("create", "delete"),
        "A pod that multiplies matrices on a node's cards before the node returns from a remedy, where a pool asks for that "
        "(spec.health.computeCheck). It runs without an API token.",
    ),
)
"""In the operator's own namespace."""

CLEANUP_CLUSTER: Final = (
    _right(
        kinds.NODE,
        ("list", "patch"),
        "Taking off what the operator put on nodes: label glm5.dev/pool, taints glm5.dev/role, glm5.dev/health and glm5.dev/moving, "
        "annotations glm5.dev/move-to and glm5.dev/lent-by.",
    ),
    _right(kinds.POD, ("list", "patch"), "Putting replicas back into traffic that wait for a remedy."),
    _right(kinds.ASCEND_NODE, ("list", "delete"), "They are the operator's, and nobody would write them any more."),
)
"""Of the hook that runs before `helm uninstall`, everywhere."""

CLEANUP_NAMESPACE: Final = (
    _right(kinds.LEASE, ("get", "update"), "Taking the lease from the operator, so that it can't put back what is taken off."),
)
"""Of the same hook, in the operator's namespace."""

AGENT: Final = (
    _right(
        kinds.ASCEND_NODE,
        ("get", "watch"),
        "The node's own AscendNode: which reset is asked for. Roles can't name one object for each agent; it could read the others too.",
    ),
    _right(
        kinds.ASCEND_NODE,
        ("patch",),
        "Facts and resets of its own node: the chart's ValidatingAdmissionPolicy refuses every other node and every other part.",
        subresource="status",
    ),
)
"""Of the node agent, everywhere."""

TABLES: Final[Mapping[str, tuple[Right, ...]]] = {
    "cluster": CLUSTER,
    "namespace": NAMESPACE,
    "cleanup-cluster": CLEANUP_CLUSTER,
    "cleanup-namespace": CLEANUP_NAMESPACE,
    "agent": AGENT,
}
"""By the name of the chart's file that holds the rules."""
