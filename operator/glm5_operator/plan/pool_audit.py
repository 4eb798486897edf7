"""The audit of a pool: who holds its cards, whether by its rules, and how the free cards lie. Pure.

Called by the pool controller each minute and whenever a pod took or freed cards. It looks at what is, whatever planning, labels and
admission should have kept away, so it stands when they fail. It doesn't decide what is done about a violation.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glm5_operator.api import names
from glm5_operator.plan.facts import Product

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from glm5_operator.api.pool import NPUPool
    from glm5_operator.api.pool_status import Violating
    from glm5_operator.plan.facts import NodeFacts

QUARANTINED = f"{names.HEALTH_TAINT}=quarantined"


@dataclass(frozen=True, slots=True)
class Holding:
    """A pod and the cards that it holds on one node.

    Attributes:
        node: on which node.
        namespace: of the pod.
        pod: its name.
        count: cards that it requests; given to it, where only kubelet knows of it.
        cards: physical ids by kubelet's word; None when that isn't known.
        annotated: the pod's annotation huawei.com/AscendReal.
        pool: the pool that it names in its node selector; "" for none; None for a pod that only kubelet knows of.
        daemon_set: it belongs to a DaemonSet.
        compute_check: it is the operator's own, of the remedy of that node.
    """

    node: str
    namespace: str
    pod: str
    count: int
    cards: tuple[int, ...] | None = None
    annotated: str = ""
    pool: str | None = ""
    daemon_set: bool = False
    compute_check: bool = False


@dataclass(frozen=True, slots=True)
class Die:
    """What the node agent says of one card, as far as the audit needs it.

    Attributes:
        npu: the module that it is on.
        usable: well, and nobody holds it.
    """

    npu: int
    usable: bool


@dataclass(frozen=True, slots=True)
class Exempt:
    """Whose pods the rules don't bind, as at admission: the same two lists.

    Attributes:
        namespaces: all pods of these.
        daemon_sets: pods of DaemonSets of these.
    """

    namespaces: Collection[str] = ()
    daemon_sets: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Breach:
    """A holding against the rules, and which rule."""

    holding: Holding
    reason: Violating


@dataclass(frozen=True, slots=True)
class Stray:
    """Processes on cards of a node that kubelet has given to nobody.

    Attributes:
        node: which one.
        cards: physical ids, ascending.
        pids: on the host, ascending.
    """

    node: str
    cards: tuple[int, ...]
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found.

    Attributes:
        holdings: by node, namespace and pod.
        breaches: those of them that are against the rules.
        strays: what uses cards without holding them, by node.
        quarantined: cards of nodes in quarantine.
        free_nodes: nodes that are wholly free.
        most_on_one_node: free cards of the node that has the most.
        free_pairs: A3 modules of which both dies are free and well; None on other products, and where a node's agent doesn't know.
    """

    holdings: tuple[Holding, ...] = ()
    breaches: tuple[Breach, ...] = ()
    strays: tuple[Stray, ...] = ()
    quarantined: int = 0
    free_nodes: int = 0
    most_on_one_node: int = 0
    free_pairs: int | None = None


def audit_pool(
    pool: NPUPool,
    nodes: Iterable[NodeFacts],
    holdings: Iterable[Holding],
    *,
    resource: str | None,
    product: Product | None,
    dies: Mapping[str, tuple[Die, ...]],
    exempt: Exempt,
    strays: Iterable[Stray] = (),
) -> Audit:
    """Look at the pool's nodes.

    Args:
        pool: the pool.
        nodes: its members.
        holdings: of those nodes.
        resource: what counts its cards; None when unknown, then nothing is counted.
        product: of its nodes.
        dies: by node, of agents whose word on allocations is fresh.
        exempt: whom the rules don't bind.
        strays: of those nodes. Nobody is exempt: which namespace a process is of isn't known.
    """
    members = tuple(nodes)
    ordered = tuple(sorted(holdings, key=lambda holding: (holding.node, holding.namespace, holding.pod)))
    offered = {node.name: node.allocatable.get(resource, 0) if resource else 0 for node in members}
    free = {node.name: max(0, offered[node.name] - node.held) for node in members if node.ready and node.schedulable}
    return Audit(
        holdings=ordered,
        breaches=tuple(
            Breach(holding, reason) for holding in ordered if (reason := breach_of(pool, holding, exempt)) is not None and holding.count
        ),
        strays=tuple(sorted(strays, key=lambda stray: stray.node)),
        quarantined=sum(offered[node.name] for node in members if QUARANTINED in node.taints),
        free_nodes=sum(1 for name, cards in free.items() if cards and cards == offered[name]),
        most_on_one_node=max(free.values(), default=0),
        free_pairs=_free_pairs(free, dies) if product is Product.A3 else None,
    )


def breach_of(pool: NPUPool, holding: Holding, exempt: Exempt) -> Violating | None:
    """Which rule a holding breaks; None when it keeps them all. The first that says most about how it got there is named."""
    if holding.compute_check or holding.namespace in exempt.namespaces or (holding.daemon_set and holding.namespace in exempt.daemon_sets):
        return None
    if holding.pool == "":
        return "NoPool"
    if holding.pool is not None and holding.pool != pool.metadata.name:
        return "OtherPool"
    if pool.spec.namespaces is not None and holding.namespace not in pool.spec.namespaces:
        return "NamespaceNotOpen"
    return None


def _free_pairs(free: Mapping[str, int], dies: Mapping[str, tuple[Die, ...]]) -> int | None:
    """A request for two dies is served by one module only; two halves of different modules are of no use to it (case C20)."""
    if any(name not in dies for name, cards in free.items() if cards):
        return None
    usable = Counter((name, die.npu) for name in free for die in dies.get(name, ()) if die.usable)
    return sum(1 for count in usable.values() if count == 2)
