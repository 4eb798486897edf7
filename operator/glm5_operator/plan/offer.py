"""What a pool offers to a replica: product, resource, the size of its nodes, room.

Called by service and pool planning. A pool that can't be planned on is a Finding that names the field of the pool to change.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from glm5_operator.plan import findings
from glm5_operator.plan.facts import Finding, Product
from glm5_operator.plan.product import card_bytes, resource_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from glm5_operator.api.pool import NPUPool
    from glm5_operator.plan.facts import NodeFacts, PoolFacts


@dataclass(frozen=True)
class Offer:
    """A pool that pods can be planned on. What all its nodes tell together is counted once: a pool may have a thousand."""

    pool: NPUPool
    resource: str
    product: Product | None
    nodes: tuple[NodeFacts, ...]

    @cached_property
    def largest_node(self) -> int:
        """Cards of the node with the most."""
        return max((node.allocatable.get(self.resource, 0) for node in self.nodes), default=0)

    @cached_property
    def card_bytes(self) -> int:
        """Memory of the smallest card: a replica may land on any node."""
        return min(card_bytes(node.labels) for node in self.nodes)

    def room(self, cards: int, own_held: Mapping[str, int] | None = None) -> int:
        """Replicas of that many cards that fit beside each other.

        Without `own_held`: on empty nodes, whatever their state. With it: beside what others hold now, on nodes that accept pods.
        """
        if own_held is None:
            return sum(node.allocatable.get(self.resource, 0) // cards for node in self.nodes)
        usable = (node for node in self.nodes if node.ready and node.schedulable)
        return sum(max(0, self._left_by_others(node, own_held)) // cards for node in usable)

    def _left_by_others(self, node: NodeFacts, own_held: Mapping[str, int]) -> int:
        foreign = max(0, node.held - own_held.get(node.name, 0))
        return node.allocatable.get(self.resource, 0) - foreign


def offer_of(facts: PoolFacts) -> Offer | Finding:
    """What the pool offers; a Finding says what to set in the pool when that can't be known."""
    name, spec = facts.pool.metadata.name, facts.pool.spec
    if not facts.nodes:
        return findings.pool_has_no_nodes(name)
    products = products_of(facts.nodes)
    if spec.product is None and len(products) > 1:
        return findings.product_mixed(name, products)
    resource = spec.resource_name or the_resource(facts.nodes)
    if resource is None:
        return findings.resource_unknown(name, resource_of(facts.nodes))
    product = Product(spec.product) if spec.product else next(iter(products), None)
    return Offer(facts.pool, resource, product, facts.nodes)


def products_of(nodes: Iterable[NodeFacts]) -> tuple[Product, ...]:
    """The products that the nodes are known to be, each once."""
    return tuple(sorted({node.product for node in nodes if node.product is not None}))


def the_resource(nodes: Iterable[NodeFacts]) -> str | None:
    """The one resource of these nodes; None when there is none or a choice."""
    offered = resource_of(nodes)
    return offered[0] if len(offered) == 1 else None
