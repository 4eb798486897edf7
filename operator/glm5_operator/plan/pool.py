"""An NPUPool and the cluster's nodes become labels and taints to set and remove, counts and conflicts.

Called by the pool controller; `members` also by whoever gathers PoolFacts for a service. Never plans a change on a node that the pool
doesn't own: one that it doesn't select and that doesn't carry its label is not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from glm5_operator.api import names
from glm5_operator.plan import findings
from glm5_operator.plan.facts import Finding, PoolFacts
from glm5_operator.plan.offer import offer_of, the_resource

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from glm5_operator.api.pool import NPUPool
    from glm5_operator.plan.facts import NodeFacts, Product


@dataclass(frozen=True, slots=True)
class NodeChange:
    """What to write on one node.

    Attributes:
        node: its name.
        label: value of `glm5.dev/pool`; None removes the label.
        taint: value of the taint `glm5.dev/role`; None removes our taint.
    """

    node: str
    label: str | None
    taint: str | None


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The whole answer for one pool.

    Attributes:
        changes: nodes whose label or taint differ from what this pool wants; empty when all is as it should be.
        members: names of the pool's nodes.
        conflicts: nodes that this pool selects and doesn't get → the pool that has them.
        product: the common product; None when unknown or mixed.
        resource_name: stated by the pool or detected; None when unknown.
        cards: allocatable cards of all members.
        held_cards: those that pods hold.
        free_cards: those that a new pod could get: not held, on nodes that are ready and accept pods.
        stalled: why services can't be planned on the pool until it or its nodes change.
        warnings: conflicts, a taint that waits for DaemonSets, and DaemonSets that a remedy's or a move's keeps away.
    """

    changes: tuple[NodeChange, ...]
    members: tuple[str, ...]
    conflicts: dict[str, str]
    product: Product | None
    resource_name: str | None
    cards: int
    held_cards: int
    free_cards: int
    stalled: Finding | None
    warnings: tuple[Finding, ...]


def members(pool: NPUPool, all_pools: Iterable[NPUPool], nodes: Iterable[NodeFacts]) -> tuple[NodeFacts, ...]:
    """Nodes that belong to `pool` now: those it selects and that no other pool has a better claim to (see `owner_of`)."""
    pools = tuple(all_pools)
    return tuple(node for node in nodes if owner_of(node, pools) == pool.metadata.name)


def owner_of(node: NodeFacts, all_pools: Iterable[NPUPool]) -> str | None:
    """The pool that has a node: of those that select it, the one whose label it carries, else the oldest, else the first by name.

    The label comes first, so that an owner never changes because of a restored backup or a second pool: cards must be drained in between.
    A node that is assigned to a pool by its annotation belongs there whatever selects it, but not before it has been drained: until the
    label says so, whoever has it keeps it. A pool that is being deleted claims nothing.
    """
    pools, carried = tuple(all_pools), node.labels.get(names.POOL_LABEL)
    if node.assigned:
        alive = {pool.metadata.name for pool in pools if pool.metadata.deletion_timestamp is None}
        if node.assigned in alive:
            return carried if carried in alive else node.assigned
    claims = [pool for pool in pools if selects(pool, node)]
    if any(pool.metadata.name == carried for pool in claims):
        return carried
    oldest = min(claims, key=lambda pool: (pool.metadata.creation_timestamp, pool.metadata.name), default=None)
    return oldest.metadata.name if oldest else None


def selects(pool: NPUPool, node: NodeFacts) -> bool:
    """Whether the pool wants the node."""
    if pool.metadata.deletion_timestamp is not None:
        return False
    spec = pool.spec
    if spec.node_names is not None:
        return node.name in spec.node_names
    return bool(spec.node_selector) and all(node.labels.get(key) == value for key, value in (spec.node_selector or {}).items())


def plan_pool(
    pool: NPUPool,
    all_pools: Iterable[NPUPool],
    nodes: tuple[NodeFacts, ...],
    intolerant: Collection[str] = (),
    kept_away: Collection[str] = (),
) -> PoolPlan:
    """Plan the nodes of `pool`.

    Args:
        pool: the pool.
        all_pools: every pool of the cluster, this one among them.
        nodes: every node of the cluster, so that those that left the selector are released.
        intolerant: DaemonSets on the pool's nodes that don't tolerate the role taint; while there are any, no taint is set.
        kept_away: DaemonSets that don't tolerate the taint of a remedy or a move on a node of the pool; told, and nothing else.
    """
    pools = tuple(all_pools)
    name = pool.metadata.name
    owners = {node.name: owner_of(node, pools) for node in nodes}
    mine = tuple(node for node in nodes if owners[node.name] == name)
    conflicts = {
        node.name: owner for node in nodes if selects(pool, node) and (owner := owners[node.name]) not in {None, name, node.assigned}
    }
    taint = names.role_taint_value(pool.spec.role) if pool.spec.taint and not intolerant else None
    kept = tuple(change for node in mine if (change := NodeChange(node.name, name, taint)) != _present(node))
    left = tuple(node for node in nodes if owners[node.name] is None)
    offer = offer_of(PoolFacts(pool, mine))
    known = None if isinstance(offer, Finding) else offer
    resource = known.resource if known else pool.spec.resource_name or the_resource(mine)
    return PoolPlan(
        changes=(*kept, *plan_release(name, left)),
        members=tuple(node.name for node in mine),
        conflicts=conflicts,
        product=known.product if known else None,
        resource_name=resource,
        cards=sum(_cards(node, resource) for node in mine),
        held_cards=sum(node.held for node in mine),
        free_cards=sum(max(0, _cards(node, resource) - node.held) for node in mine if node.ready and node.schedulable),
        stalled=offer if isinstance(offer, Finding) else None,
        warnings=_warnings(pool, conflicts, intolerant, kept_away),
    )


def plan_release(pool_name: str, nodes: Iterable[NodeFacts]) -> tuple[NodeChange, ...]:
    """What to take off nodes that carry the label of a pool that is gone, or that doesn't select them any more."""
    return tuple(NodeChange(node.name, None, None) for node in nodes if node.labels.get(names.POOL_LABEL) == pool_name)


def _present(node: NodeFacts) -> NodeChange:
    """The node as it is, in the form of a change."""
    prefix = f"{names.ROLE_TAINT}="
    taint = next((taint.removeprefix(prefix) for taint in sorted(node.taints) if taint.startswith(prefix)), None)
    return NodeChange(node.name, node.labels.get(names.POOL_LABEL), taint)


def _cards(node: NodeFacts, resource: str | None) -> int:
    return node.allocatable.get(resource, 0) if resource else 0


def _warnings(pool: NPUPool, conflicts: dict[str, str], intolerant: Collection[str], kept_away: Collection[str]) -> tuple[Finding, ...]:
    found = [findings.node_conflict(node, owner) for node, owner in sorted(conflicts.items())]
    if pool.spec.taint and intolerant:
        found.append(findings.taint_waits(names.ROLE_TAINT, sorted(intolerant)))
    if kept_away:
        found.append(findings.daemon_sets_kept_away((names.HEALTH_TAINT, names.MOVE_TAINT), sorted(kept_away)))
    return tuple(found)
