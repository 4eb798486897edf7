"""How all nodes' remedies stand, as this operator left them: counted against a pool's limit, and shown as metrics.

Filled by the node controller. Nobody else writes a remedy, so what was written last is how it stands; a new leader learns it from the
cache.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from glm5_operator.api import names
from glm5_operator.health.remedy.decision import OUT_OF_SERVICE
from glm5_operator.health.types import Grade, Trust
from glm5_operator.kube import kinds
from glm5_operator.status.node import trouble_began

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    from glm5_operator.health.remedy.decision import Decision
    from glm5_operator.health.remedy.memory import Memory
    from glm5_operator.health.types import CardHealth, NodeHealth
    from glm5_operator.kube import Cache
    from glm5_operator.metrics import Metrics

_WELL: Final = frozenset({None, Grade.NOTE})


@dataclass(frozen=True, slots=True)
class _Node:
    """What is counted of a node, and no more: single cards are told by its agent's own metrics.

    Attributes:
        reported: cards that its agent has told of; whoever scrapes should find as many.
        cards: how many are in which health.
        fresh: by source, whether its facts can be believed; None until it was looked at.
    """

    pool: str
    state: str
    dry: bool
    reported: int
    cards: Mapping[str, int] = field(default_factory=dict)
    fresh: tuple[str, bool] | None = None


class Remedies:
    """One entry a node of a pool."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._nodes: dict[str, _Node] | None = None
        metrics.live_gauge(
            "glm5_nodes_in_remedy",
            "Nodes by pool and state of their remedy; dry: it only says what it would do.",
            ["pool", "state", "dry"],
            lambda: _totals(((node.pool, node.state, _word(node.dry)), 1) for node in self._known().values()),
        )
        metrics.live_gauge(
            "glm5_cards",
            "Cards by pool and health, of whichever source is believed: Well, Faulty (a fault asks for something), Missing, Unknown.",
            ["pool", "health"],
            lambda: _totals(((node.pool, health), count) for node in self._known().values() for health, count in node.cards.items()),
        )
        metrics.live_gauge(
            "glm5_node_cards",
            "Cards that a node's agent has told of, missing ones too: as many should have series.",
            ["node"],
            lambda: {(name,): float(node.reported) for name, node in self._known().items()},
        )
        metrics.live_gauge(
            "glm5_node_facts_fresh", "1 for a node whose cards' facts can be believed.", ["node", "source"], lambda: dict(self._fresh())
        )

    def learn(self, cache: Cache) -> None:
        """At the first look of a new leader: what the last one left."""
        if self._nodes is not None:
            return
        self._nodes = {}
        for ascend_node in cache.list(names.NODE_KIND):
            name = ascend_node["metadata"]["name"]
            node = cache.get(kinds.NODE.name, "", name) or {"metadata": {}}
            pool = (node["metadata"].get("labels") or {}).get(names.POOL_LABEL)
            status = ascend_node.get("status") or {}
            remedy, facts = status.get("remedy") or {}, status.get("facts") or {}
            if pool and remedy.get("state"):
                self._nodes[name] = _Node(pool, remedy["state"], bool(remedy.get("dryRun")), len(facts.get("cards") or ()))

    def out_of_service(self, pool: str, besides: str) -> int:
        """Other nodes of the pool that a remedy has taken out of service."""
        return sum(node.pool == pool and node.state in OUT_OF_SERVICE for name, node in (self._nodes or {}).items() if name != besides)

    def waiting(self, pool: str) -> tuple[str, ...]:
        """Nodes of the pool that are to leave service, and may wait until another one is back."""
        return tuple(sorted(name for name, node in (self._nodes or {}).items() if node.pool == pool and node.state == "Quiescing"))

    def forget(self, node: str) -> tuple[str, ...]:
        """It has no remedy any more. Answers who waits for the room that it took."""
        gone = self._nodes.pop(node, None) if self._nodes is not None else None
        return self.waiting(gone.pool) if gone is not None and gone.state in OUT_OF_SERVICE else ()

    def note(self, pool: str, health: NodeHealth, before: Memory, decision: Decision, now: datetime) -> tuple[str, ...]:
        """What was just written of a node. Answers who waits for the room that it no longer takes."""
        after = decision.memory
        self._measure(health, before, decision, now)
        if self._nodes is not None:
            self._nodes[health.name] = _node(pool, after, health)
        return self.waiting(pool) if before.state in OUT_OF_SERVICE and after.state not in OUT_OF_SERVICE else ()

    def _measure(self, health: NodeHealth, before: Memory, decision: Decision, now: datetime) -> None:
        after = decision.memory
        if (before.state, before.reason) != (after.state, after.reason):
            self._metrics.remedy_steps.labels(decision.step.value, after.reason, _word(after.dry_run)).inc()
        if before.state == "Resetting" and after.state != "Resetting":
            told = health.reset if health.reset is not None and health.reset.id == before.id else None
            self._metrics.resets.labels(told.state if told else "Unanswered").inc()
        if before.state in {"Healthy", "Suspect"} and after.state == "Quiescing" and health.as_of is not None and not after.dry_run:
            self._metrics.fault_to_quiesced.observe(max(0.0, (now - health.as_of).total_seconds()))
        began = trouble_began(after) if before.state == "Returning" and after.state == "Healthy" else None
        if began is not None:
            self._metrics.fault_to_back.observe(max(0.0, (now - began).total_seconds()))

    def _known(self) -> Mapping[str, _Node]:
        return self._nodes or {}

    def _fresh(self) -> Iterator[tuple[tuple[str, ...], float]]:
        for name, node in self._known().items():
            if node.fresh is not None:
                source, fresh = node.fresh
                yield (name, source), float(fresh)


def _node(pool: str, memory: Memory, health: NodeHealth) -> _Node:
    reported = len(health.cards) if health.measured is not None else 0  # MindCluster names cards too, where no agent has told of any
    fresh = (health.source.value, health.trust is Trust.FRESH)
    return _Node(pool, memory.state, memory.dry_run, reported, Counter(_health(card) for card in health.cards), fresh)


def _health(card: CardHealth) -> str:
    if card.missing:
        return "Missing"
    if not card.known:
        return "Unknown"
    return "Well" if card.grade in _WELL else "Faulty"


def _word(dry: bool) -> str:
    return "true" if dry else "false"


def _totals(found: Iterable[tuple[tuple[str, ...], int]]) -> Mapping[tuple[str, ...], float]:
    totals: Counter[tuple[str, ...]] = Counter()
    for labels, count in found:
        totals[labels] += count
    return {labels: float(total) for labels, total in totals.items()}
