"""How all nodes' remedies stand, as this operator left them: counted against a pool's limit, and shown as metrics.

Filled by the node controller. Nobody else writes a remedy, so what was written last is how it stands; a new leader learns it from the
cache.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from glm5_operator.api import names
from glm5_operator.health.remedy.decision import OUT_OF_SERVICE
from glm5_operator.kube import kinds
from glm5_operator.metrics import Column
from glm5_operator.status.node import trouble_began

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from glm5_operator.health.remedy.decision import Decision
    from glm5_operator.health.remedy.memory import Memory
    from glm5_operator.health.types import CardHealth, NodeHealth
    from glm5_operator.kube import Cache
    from glm5_operator.metrics import Metrics

_MIB: Final = 2**20
_CARD: Final[dict[str, Column]] = {
    "health": Column("glm5_card_health", "1 for a card without a fault that asks for anything, 0 for one with such a fault or missing."),
    "temperature": Column("glm5_card_temperature_celsius", "As the node agent read it last; npu-exporter's npu_chip_info_temperature."),
    "utilisation": Column("glm5_card_utilisation_percent", "AI cores in use; npu-exporter's npu_chip_info_utilization."),
    "memory": Column("glm5_card_memory_used_bytes", "HBM in use; npu-exporter's npu_chip_info_hbm_used_memory, which is in MB."),
}


@dataclass(frozen=True, slots=True)
class _Node:
    pool: str
    state: str
    health: NodeHealth | None = None


class Remedies:
    """One entry a node of a pool."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._nodes: dict[str, _Node] | None = None
        metrics.live_gauge(
            "glm5_nodes_in_remedy", "Nodes by pool and state of their remedy.", ["pool", "state"], lambda: _counted(self._known())
        )
        metrics.live_gauge(
            "glm5_node_facts_fresh", "1 for a node whose cards' facts can be believed.", ["node", "source"], lambda: dict(self._fresh())
        )
        metrics.live_table(_CARD.values(), ("node", "card"), self._cards)

    def learn(self, cache: Cache) -> None:
        """At the first look of a new leader: what the last one left."""
        if self._nodes is not None:
            return
        self._nodes = {}
        for ascend_node in cache.list(names.NODE_KIND):
            name = ascend_node["metadata"]["name"]
            node = cache.get(kinds.NODE.name, "", name) or {"metadata": {}}
            pool = (node["metadata"].get("labels") or {}).get(names.POOL_LABEL)
            state = ((ascend_node.get("status") or {}).get("remedy") or {}).get("state")
            if pool and state:
                self._nodes[name] = _Node(pool, state)

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
            self._nodes[health.name] = _Node(pool, after.state, health)
        return self.waiting(pool) if before.state in OUT_OF_SERVICE and after.state not in OUT_OF_SERVICE else ()

    def _measure(self, health: NodeHealth, before: Memory, decision: Decision, now: datetime) -> None:
        after = decision.memory
        if (before.state, before.reason) != (after.state, after.reason):
            self._metrics.remedy_steps.labels(decision.step.value, after.reason, "true" if after.dry_run else "false").inc()
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
            if node.health is not None:
                yield (name, node.health.source.value), float(node.health.trust == "Fresh")

    def _cards(self) -> Iterator[tuple[tuple[str, ...], Mapping[str, float]]]:
        for name, node in self._known().items():
            for card in node.health.cards if node.health else ():
                yield (name, str(card.physical)), {_CARD[field].name: value for field, value in _numbers(card).items()}


def _numbers(card: CardHealth) -> dict[str, float]:
    """What isn't known is left out."""
    found = {
        "health": None if not (card.known or card.missing) else float(not card.missing and card.grade in {None, "Note"}),
        "temperature": card.temperature,
        "utilisation": card.utilisation,
        "memory": None if card.memory_used is None else card.memory_used * _MIB,
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def _counted(nodes: Mapping[str, _Node]) -> Mapping[tuple[str, ...], float]:
    return {key: float(count) for key, count in Counter((node.pool, node.state) for node in nodes.values()).items()}
