"""Whether a reading is worth a write. Pure; called by `loop`.

2,000 nodes share one API server: what decides over cards is written at once, numbers when they have moved far and not too often, and
everything else goes along with the next write.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from glm5_operator.health.types import Product

if TYPE_CHECKING:
    from glm5_operator.agent.settings import Every, Worth
    from glm5_operator.api.node import ResetReport
    from glm5_operator.api.node_facts import CardReport, NodeFactsReport

NUMBERS: Final = frozenset({"temperature", "power", "utilisation", "memory_used", "pids"})
"""Fields of a card that move all the time; of `pids` counts at once whether there are any."""


class Urgency(IntEnum):
    """How soon a reading is to be written."""

    WITH_THE_NEXT = 0
    NUMBERS = 1
    AT_ONCE = 2


def urgency(written: NodeFactsReport, read: NodeFactsReport, worth: Worth) -> Urgency:
    """By what differs between what was written last and what is read now."""
    if _decisive(written) != _decisive(read):
        return Urgency.AT_ONCE
    pairs = zip(written.cards, read.cards, strict=True)  # the same cards, or they would differ above
    hot = worth.hot_310p if read.product == Product.ATLAS_310P else worth.hot
    return Urgency.NUMBERS if any(_moved(before, after, worth, hot) for before, after in pairs) else Urgency.WITH_THE_NEXT


def due(
    written: tuple[NodeFactsReport, tuple[ResetReport, ...]] | None,
    read: tuple[NodeFactsReport, tuple[ResetReport, ...]],
    waited: float,
    every: Every,
    worth: Worth,
    *,
    out_of_service: bool = False,
) -> bool:
    """Whether to write now, `waited` seconds after the last write; sooner where the node is out of service and facts are waited for."""
    heartbeat = every.remedy if out_of_service else every.heartbeat
    if written is None or written[1] != read[1] or waited >= heartbeat:
        return True
    found = urgency(written[0], read[0], worth)
    return found is Urgency.AT_ONCE or (found is Urgency.NUMBERS and waited >= every.numbers)


def _decisive(facts: NodeFactsReport) -> tuple[object, ...]:
    fields = type(facts).model_fields.keys() - {"observed_at", "cards"}
    return (*(getattr(facts, name) for name in sorted(fields)), *(_of_card(card) for card in facts.cards))


def _of_card(card: CardReport) -> tuple[object, ...]:
    fields = type(card).model_fields.keys() - NUMBERS
    return (*(getattr(card, name) for name in sorted(fields)), None if card.pids is None else bool(card.pids))


def _moved(before: CardReport, after: CardReport, worth: Worth, hot: int) -> bool:
    """Of a hot card, and of one that has just cooled down, everything counts, also that it stayed as it was: rules ask for how long."""
    if _apart(before.memory_used, after.memory_used) >= worth.memory:
        return True
    return max(before.temperature or 0, after.temperature or 0) >= hot


def _apart(before: int | None, after: int | None) -> float:
    """How far two numbers are apart; a number that comes or goes has moved however far one asks."""
    if before is None or after is None:
        return 0.0 if before is after else float("inf")
    return abs(after - before)
