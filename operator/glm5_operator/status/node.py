"""The operator's part of an AscendNode's `.status`: the remedy and what it means, as conditions.

Called by the node controller. What agents report there is theirs, and is never among the fields of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from glm5_operator.health.remedy import memory as memories
from glm5_operator.health.types import CardHealth, Grade, NodeHealth, Trust
from glm5_operator.health.view import FACTS_FRESH
from glm5_operator.status import conditions as c
from glm5_operator.status.conditions import Condition, Truth

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from glm5_operator.health.remedy.decision import Decision
    from glm5_operator.health.remedy.memory import Memory

CARDS_HEALTHY: Final = "CardsHealthy"
QUARANTINED: Final = "Quarantined"
WATCH_ONLY: Final = "WatchOnly"
OURS: Final = ("remedy", "move", "conditions")
"""Fields of the status that the operator writes."""

_MOST_NAMED: Final = 4
_WATCHED_ONLY: Final = Condition(
    WATCH_ONLY,
    Truth.TRUE,
    "LimitedToNamespaces",
    "spec.health.mode of its pool is Auto, but this operator is limited to namespaces, and pods that it can't see may hold the cards: "
    "it does as in DryRun; let an operator of the whole cluster have this node, or set DryRun",
)
"""Only where it is so: most operators are of the whole cluster."""


def node_status(
    ascend_node: Mapping[str, Any], health: NodeHealth, decision: Decision, now: datetime, *, limited: bool = False
) -> dict[str, Any]:
    """Compute it.

    Args:
        ascend_node: the object as the API server gave it.
        health: what is known of the node.
        decision: what was decided on it.
        now: with a time zone.
        limited: the pool says Auto, and an operator of some namespaces doesn't do it.
    """
    remedy = memories.dump(decision.memory).model_dump(mode="json", by_alias=True, exclude_none=True)
    previous = (ascend_node.get("status") or {}).get("conditions") or ()
    generation = ascend_node["metadata"].get("generation", 1)
    told = (_cards_healthy(health), _facts_fresh(health), _quarantined(decision.memory), *((_WATCHED_ONLY,) if limited else ()))
    return {"remedy": remedy, "conditions": c.dated(told, previous, generation, now)}


def trouble_began(memory: Memory) -> datetime | None:
    """When the present trouble, or the one that is just over, began: the first step after the node was well."""
    began = None
    entries = memory.history[:-1] if memory.state == "Healthy" else memory.history
    for entry in reversed(entries):
        if entry.state == "Healthy":
            break
        began = entry.time
    return began


def _cards_healthy(health: NodeHealth) -> Condition:
    """Notes aren't trouble. Of a card that couldn't be read nothing is said but that."""
    bad = [card for card in health.cards if card.missing or (card.grade is not None and card.grade is not Grade.NOTE)]
    if bad:
        shown = "; ".join(f"card {card.physical}: {_fault(card)}" for card in bad[:_MOST_NAMED])
        more = f"; and {len(bad) - _MOST_NAMED} more cards" if len(bad) > _MOST_NAMED else ""
        return Condition(CARDS_HEALTHY, Truth.FALSE, "CardFault", shown + more)
    unknown = [card.physical for card in health.cards if not card.known]
    if health.trust is not Trust.FRESH:
        return Condition(CARDS_HEALTHY, Truth.UNKNOWN, f"Facts{health.trust.value}", health.why)
    if unknown or not health.cards:
        message = f"cards {', '.join(map(str, unknown))} couldn't be read" if unknown else "no card is known of the node"
        return Condition(CARDS_HEALTHY, Truth.UNKNOWN, "CardsUnknown", message)
    return Condition(CARDS_HEALTHY, Truth.TRUE, "AllWell", f"{len(health.cards)} cards")


def _fault(card: CardHealth) -> str:
    if card.missing:
        return "it is missing"
    return ", ".join(f"{fault.code} ({fault.level})" for fault in card.faults[:_MOST_NAMED])


def _facts_fresh(health: NodeHealth) -> Condition:
    if health.trust is Trust.FRESH:
        doubts = f"; {health.why}" if health.why else ""  # of the source that isn't believed
        return Condition(FACTS_FRESH, Truth.TRUE, health.trust.value, f"from {health.source.value}{doubts}")
    return Condition(FACTS_FRESH, Truth.FALSE, health.trust.value, health.why)


def _quarantined(memory: Memory) -> Condition:
    if memory.state != "Quarantined":
        return Condition(QUARANTINED, Truth.FALSE, "InService", "")
    dry = "would be, and is only told as in DryRun; " if memory.dry_run else ""
    return Condition(QUARANTINED, Truth.FALSE if memory.dry_run else Truth.TRUE, memory.reason, dry + memory.message)
