"""An NPUPool and the cluster's nodes become labels and taints to set and remove, counts and conflicts.

Called by the pool controller; `members` also by whoever gathers PoolFacts for a service.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from glm5_operator.api.pool import NPUPool
    from glm5_operator.plan.facts import Finding, NodeFacts, Product


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
        conflicts: node name → other pools that select it too.
        product: the common product; None when unknown or mixed (then a warning says so).
        resource_name: stated by the pool or detected; None when unknown.
        cards: allocatable cards of all members; `ready_cards` those on ready, schedulable ones; `held_cards` those in use.
    """

    changes: tuple[NodeChange, ...]
    members: tuple[str, ...]
    conflicts: dict[str, tuple[str, ...]]
    product: Product | None
    resource_name: str | None
    cards: int
    ready_cards: int
    held_cards: int
    stalled: Finding | None
    warnings: tuple[Finding, ...]


def members(pool: NPUPool, all_pools: Iterable[NPUPool], nodes: Iterable[NodeFacts]) -> tuple[NodeFacts, ...]:
    """Nodes that belong to `pool`: selected by it, and by no pool with an older claim (see `plan_pool`)."""
    raise NotImplementedError


def plan_pool(pool: NPUPool, all_pools: Iterable[NPUPool], nodes: tuple[NodeFacts, ...]) -> PoolPlan:
    """Plan the nodes of `pool`. `nodes` are all nodes of the cluster, so that those that left the selector can be released.

    A node that two pools select stays with the pool whose label it carries; else the older pool wins (creation time, then name).
    A pool that is being deleted, or no longer exists, claims nothing.
    """
    raise NotImplementedError


def plan_release(pool_name: str, nodes: Iterable[NodeFacts]) -> tuple[NodeChange, ...]:
    """What to take off nodes when the pool of that name is gone."""
    raise NotImplementedError
