"""Gathers what a pool's audit looks at: pods by the API server's word, their cards by kubelet's. And evicts where a pool asks for it.

Used by the pool controller. The node agent reads kubelet's PodResources API, so it also sees pods that no API server shows, and those of
namespaces that this operator may not watch. And it sees processes on cards, also those of a container that opened them without asking.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from glm5_operator.api import names
from glm5_operator.health.types import LAST_ID
from glm5_operator.health.view import AGENT_AHEAD, AGENT_FRESH_FOR
from glm5_operator.kube import Key, kinds
from glm5_operator.plan.pool import members
from glm5_operator.plan.pool_audit import Audit, Die, Exempt, Holding, Stray, audit_pool
from glm5_operator.status.compute_check import is_compute_check
from glm5_operator.status.conditions import moment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime, timedelta

    from glm5_operator.api.pool import NPUPool
    from glm5_operator.controllers.facts import Facts
    from glm5_operator.kube import ApiFailure, Applier, Cache, Resource
    from glm5_operator.plan.pool import PoolPlan


@dataclass(frozen=True, slots=True)
class _Agent:
    """What a node agent says, if its word on who holds the cards is fresh: else nothing.

    Attributes:
        cards: as it writes them.
        tells: a card without a holder is nobody's. With vNPUs kubelet's names say nothing of cards, and a reset has its own processes.
    """

    cards: tuple[Mapping[str, Any], ...] = ()
    tells: bool = False


@dataclass(frozen=True)
class Auditor:
    """Audits pools."""

    cache: Cache
    applier: Applier
    facts: Facts
    exempt: Exempt
    evict_after: timedelta
    namespace: str = ""  # the operator's own

    def audit(self, pool: NPUPool, plan: PoolPlan, now: datetime) -> Audit:
        """Look at the pool as it is now."""
        nodes = members(pool, self.facts.pools(), self.facts.nodes())
        agents = {node.name: self._agent(node.name, now) for node in nodes}
        holdings = {node.name: tuple(self._holdings(node.name, agents[node.name].cards)) for node in nodes}
        # Where the node doesn't offer what counts the cards, claims of Dynamic Resource Allocation may be how pods get them.
        offering = [node.name for node in nodes if plan.resource_name in node.allocatable]
        return audit_pool(
            pool,
            nodes,
            [holding for node in nodes for holding in holdings[node.name]],
            resource=plan.resource_name,
            product=plan.product,
            dies={node: tuple(_die(card) for card in agent.cards) for node, agent in agents.items() if agent.cards},
            exempt=self.exempt,
            strays=[stray for node in offering if (stray := _stray(node, agents[node], holdings[node])) is not None],
        )

    def moves(self, pool: str) -> list[dict[str, Any]]:
        """Nodes on their way to a pool, as their AscendNodes tell."""
        found = []
        for node in self.facts.nodes():
            if node.assigned == pool and node.labels.get(names.POOL_LABEL) != pool:
                status = (self.cache.get(names.NODE_KIND, "", node.name) or {}).get("status") or {}
                if move := status.get("move"):
                    fields = ("origin", "state", "since", "started", "reason", "message")
                    found.append({"node": node.name, **{name: move[name] for name in fields if name in move}})
        return found

    async def evict(self, violations: Iterable[Mapping[str, Any]], now: datetime) -> list[ApiFailure]:
        """Ask the pods of these entries of a status to end, as far as they have been told for long enough."""
        failures = []
        for entry in violations:
            since = moment(entry["since"])
            if "pod" not in entry:
                continue  # nobody knows whose the processes are
            pod = self.cache.get(kinds.POD.name, entry["namespace"], entry["pod"])
            if pod is None or since is None or now - since < self.evict_after or (pod.get("spec") or {}).get("nodeName") != entry["node"]:
                continue
            failure = await self.applier.evict(pod)
            if failure is not None:
                failures.append(failure)
        return failures

    def _agent(self, node: str, now: datetime) -> _Agent:
        status = (self.cache.get(names.NODE_KIND, "", node) or {}).get("status") or {}
        facts = status.get("facts") or {}
        seen = moment(facts.get("observedAt"))
        if seen is None or not -AGENT_AHEAD <= now - seen <= AGENT_FRESH_FOR or not facts.get("allocationsKnown"):
            return _Agent()
        resetting = any(report.get("state") == "Running" for report in status.get("resets") or ())
        cards = tuple(facts.get("cards") or ())
        if not all(0 <= int(card["physical"]) <= LAST_ID for card in cards):
            return _Agent()  # no node has such cards, and a pool whose status named them could write none at all
        return _Agent(cards, tells=not facts.get("virtual") and not resetting)

    def _holdings(self, node: str, cards: tuple[Mapping[str, Any], ...]) -> Iterator[Holding]:
        given: dict[tuple[str, str], list[int]] = {}
        for card in cards:
            if holder := card.get("holder"):
                given.setdefault((holder["namespace"], holder["pod"]), []).append(int(card["physical"]))
        for key, count in self.facts.cards_held(node).items():
            pod = self.cache.get(key.kind, key.namespace, key.name)
            if pod is not None:
                taken = given.pop((key.namespace, key.name), None)
                yield replace(_holding(node, key, pod, count, taken), compute_check=is_compute_check(pod, self.namespace))
        for (namespace, name), ids in given.items():
            yield Holding(node, namespace, name, len(ids), tuple(sorted(ids)), pool=None)


def _holding(node: str, key: Key, pod: Resource, count: int, ids: list[int] | None) -> Holding:
    metadata = pod["metadata"]
    owners = metadata.get("ownerReferences") or ()
    return Holding(
        node,
        key.namespace,
        key.name,
        count,
        tuple(sorted(ids)) if ids else None,
        str((metadata.get("annotations") or {}).get(names.REAL_ANNOTATION, "")),
        str(((pod.get("spec") or {}).get("nodeSelector") or {}).get(names.POOL_LABEL, "")),
        any(owner.get("kind") == kinds.DAEMON_SET.name and owner.get("controller") for owner in owners),
    )


def _stray(node: str, agent: _Agent, holdings: Iterable[Holding]) -> Stray | None:
    """Processes on cards of nobody. A pod whose cards aren't known may be theirs: it just started, or its resource isn't of huawei.com/."""
    used = [card for card in agent.cards if card.get("pids") and not card.get("holder") and not card.get("stale")]
    if not used or not agent.tells or any(holding.cards is None for holding in holdings):
        return None
    pids = {int(pid) for card in used for pid in card["pids"]}
    return Stray(node, tuple(sorted(int(card["physical"]) for card in used)), tuple(sorted(pids)))


def _die(card: Mapping[str, Any]) -> Die:
    return Die(int(card["npu"]), usable=not card.get("holder") and card.get("health") == "OK" and not card.get("stale"))
