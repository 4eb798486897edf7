"""Gathers from the cache what planning may know: pools, their nodes, and the cards that pods hold there.

Used by the controllers. What many objects share (parsed pools, read nodes) is kept until the cache has news of it, because a
thousand services of one pool would otherwise read its nodes a thousand times.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from glm5_operator.api import names
from glm5_operator.api.common import InvalidObjectError
from glm5_operator.api.pool import NPUPool
from glm5_operator.kube import Key, key_of, kinds
from glm5_operator.kube.wire import decode
from glm5_operator.plan.facts import AdapterFacts, NodeFacts, PoolFacts, ServiceFacts, Site
from glm5_operator.plan.offer import Offer, offer_of
from glm5_operator.plan.pool import members
from glm5_operator.plan.product import node_facts, resource_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from glm5_operator.kube import Cache, Resource

log = logging.getLogger(__name__)


class Facts:
    """Reads the cache for planners."""

    def __init__(self, cache: Cache, site: Site) -> None:
        self._cache = cache
        self.site = site
        self._seen = (-1, -1, -1)
        self._pools: tuple[NPUPool, ...] = ()
        self._stated: frozenset[str] = frozenset()
        self._sources: dict[Key, tuple[bytes, str]] = {}
        self._nodes: dict[str, NodeFacts] = {}
        self._card_names: dict[str, frozenset[str]] = {}
        self._holding: dict[str, NodeFacts] = {}
        self._members: dict[str, tuple[NodeFacts, ...]] = {}
        self._pods_seen = -1
        self._with_cards: dict[str, PoolFacts] = {}
        self._resources: dict[str, str] = {}

    def pools(self) -> tuple[NPUPool, ...]:
        """All pools that can be read. One that can't claims no node until its spec is put right; its own status says so."""
        self._refresh()
        return self._pools

    def nodes(self) -> tuple[NodeFacts, ...]:
        """All nodes of the cluster, with the cards held on each."""
        self._refresh()
        return self._with_holdings(self._in_order())

    def service(self, pool_name: str, pods: Iterable[Resource], adapters: AdapterFacts | None = None) -> ServiceFacts:
        """What the plan of a service in that pool may know; `pods` are the service's own."""
        self._refresh()
        facts = self.pool(pool_name)
        if facts is None:
            return ServiceFacts(None, self.site)
        return ServiceFacts(facts, self.site, self._own_cards(pods, facts.nodes), adapters or AdapterFacts())

    def stated(self, name: str) -> NPUPool | None:
        """A pool as it was written; None when no pool of that name can be read."""
        self._refresh()
        return next((pool for pool in self._pools if pool.metadata.name == name), None)

    def pool(self, name: str) -> PoolFacts | None:
        """A pool with its nodes; None when no pool of that name can be read."""
        pool = self.stated(name)
        return None if pool is None else self._pool_facts(pool)

    def resource_of_pool(self, name: str) -> str:
        """The extended resource that counts a pool's cards; empty when that isn't known."""
        self._refresh()
        if name not in self._resources:
            facts = self.pool(name)
            offer = offer_of(facts) if facts is not None else None
            self._resources[name] = offer.resource if isinstance(offer, Offer) else ""
        return self._resources[name]

    def held_by(self, pods: Iterable[Resource]) -> dict[str, int]:
        """The extended resources that these pods hold together."""
        total: Counter[str] = Counter()
        for pod in pods:
            total.update(self._cache.held(_node_of(pod)).get(key_of(pod), {}))
        return dict(total)

    def holders(self, pool_name: str, besides: Iterable[Resource]) -> tuple[str, ...]:
        """`namespace/name` of the other pods that hold something on the pool's nodes."""
        own = {key_of(pod) for pod in besides}
        nodes = self._members.get(pool_name, ())
        held = ((key, self._cards(node.name, held)) for node in nodes for key, held in self._cache.held(node.name).items())
        holders = {key for key, cards in held if cards and key not in own}
        return tuple(f"{key.namespace}/{key.name}" for key in sorted(holders))

    def cards_held(self, node: str) -> dict[Key, int]:
        """The pods that hold cards of a node, with how many each."""
        self._refresh()
        counts = {key: self._cards(node, held) for key, held in self._cache.held(node).items()} if node in self._nodes else {}
        return {key: count for key, count in counts.items() if count}

    def free_cards(self, node: str, resource: str) -> int:
        """Cards of a node, counted by that resource, that no pod holds."""
        self._refresh()
        if node not in self._holding:
            return 0
        facts = self._with_holding(node)
        return max(0, facts.allocatable.get(resource, 0) - facts.held)

    def _pool_facts(self, pool: NPUPool) -> PoolFacts:
        name, pods_seen = pool.metadata.name, self._cache.version(kinds.POD.name)
        if name not in self._members:
            self._members[name] = members(pool, self._pools, self._in_order())
        if pods_seen != self._pods_seen:
            self._with_cards, self._pods_seen = {}, pods_seen
        if name not in self._with_cards:
            self._with_cards[name] = PoolFacts(pool, self._with_holdings(self._members[name]))
        return self._with_cards[name]

    def _refresh(self) -> None:
        seen = (self._cache.version(names.POOL_KIND), self._cache.version(kinds.NODE.name), self._cache.drivers_version)
        if seen == self._seen:
            return
        anew = seen[0] != self._seen[0]
        if anew:
            self._pools = tuple(pool for resource in self._cache.list(names.POOL_KIND) if (pool := _read(resource)) is not None)
            self._stated = frozenset(pool.spec.resource_name for pool in self._pools if pool.spec.resource_name)
            self._card_names.clear()
        if self._read_changed() or anew:
            self._members, self._with_cards, self._resources = {}, {}, {}
        self._seen = seen

    def _read_changed(self) -> bool:
        """Read the nodes with news, and none else: 2,000 report all the time, and to read them all takes 0.1 s. True when one differs."""
        raws = dict(self._cache.raw(kinds.NODE.name))
        gone = self._sources.keys() - raws.keys()
        differ = bool(gone)
        for key in gone:
            for kept in (self._nodes, self._holding, self._card_names):
                kept.pop(key.name, None)
            del self._sources[key]
        for key, raw in raws.items():
            source = raw, self._cache.driver(key.name)
            before = self._sources.get(key)
            if before is not None and before[0] is raw and before[1] == source[1]:
                continue
            self._sources[key] = source
            facts = node_facts(decode(raw))
            # Where MindCluster isn't installed, no label of the Node tells the driver; its agent does.
            facts = facts if facts.driver else replace(facts, driver=source[1])
            if facts != self._nodes.get(key.name):
                differ = True
                self._nodes[key.name] = self._holding[key.name] = facts
                self._card_names.pop(key.name, None)
        return differ

    def _in_order(self) -> tuple[NodeFacts, ...]:
        return tuple(self._nodes[name] for name in sorted(self._nodes))

    def _with_holdings(self, nodes: tuple[NodeFacts, ...]) -> tuple[NodeFacts, ...]:
        return tuple(self._with_holding(node.name) for node in nodes)

    def _with_holding(self, name: str) -> NodeFacts:
        node, held = self._holding[name], self._cards(name, self._cache.held_together(name))
        if node.held != held:
            node = self._holding[name] = replace(node, held=held)
        return node

    def _own_cards(self, pods: Iterable[Resource], nodes: tuple[NodeFacts, ...]) -> dict[str, int]:
        members = {node.name for node in nodes}
        own: Counter[str] = Counter()
        for pod in pods:
            node = _node_of(pod)
            if node in members:
                own[node] += self._cards(node, self._cache.held(node).get(key_of(pod), {}))
        return dict(own)

    def _cards(self, node: str, held: Mapping[str, int]) -> int:
        """How many of the node's cards these resources are."""
        if not held:
            return 0
        if node not in self._card_names:
            # A pod may hold other devices than cards. A pool may state a name of its own for cards.
            self._card_names[node] = self._stated.union(resource_of((self._nodes[node],)))
        return sum(held.get(name, 0) for name in self._card_names[node])


def _node_of(pod: Resource) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def _read(resource: Resource) -> NPUPool | None:
    if resource["metadata"].get("deletionTimestamp"):
        return None
    try:
        return NPUPool.parse(resource)
    except InvalidObjectError as error:
        log.warning("%s can't be read: %s", Key(names.POOL_KIND, "", resource["metadata"]["name"]), error)
        return None
