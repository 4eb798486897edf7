"""What a reset takes with it: the blast radius by product and HCCS (facts/ascend.md §1.7, §5.3). Pure; for the remedy and for moves.

A radius that is too large costs time; one too small kills somebody's pod. What isn't known counts as the larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from glm5_operator.health.types import CardHealth, NodeHealth, Product

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from glm5_operator.api.node import Radius


@dataclass(frozen=True, slots=True)
class Reach:
    """What a reset takes.

    Attributes:
        radius: as the agent is told.
        cards: physical ids of all cards it takes, ascending.
    """

    radius: Radius
    cards: tuple[int, ...]


def reach(node: NodeHealth, faulty: Collection[int]) -> Reach | None:
    """What a reset of these cards takes; None where none can be planned: unknown product, vNPUs, no card of the node."""
    hit = [card for card in node.cards if card.physical in faulty]
    if node.product is None or node.virtual or not hit:
        return None
    match node.product:
        case Product.A2 if node.hccs is False:
            return Reach("Device", _ids(hit))
        case Product.A2 | Product.A3:
            # With HCCS up an A2 "will reboot all devices", and an A3 always does: npu-smi's own prompts.
            return Reach("Node", _ids(node.cards))
        case Product.ATLAS_310P:
            boards = {card.npu for card in hit}
            return Reach("Card", _ids(card for card in node.cards if card.npu in boards))
        case Product.A5:
            return Reach("Device", _ids(hit))


def holders(node: NodeHealth, cards: Collection[int]) -> tuple[str, ...]:
    """Pods that may hold one of the cards: kubelet's word where it is known, else every pod with cards on the node.

    A pod that no card names yet may be given any of them in the next moment, so it counts too.
    """
    named = {card.holder for card in node.cards if card.holder}
    if not node.allocations_known:
        return tuple(sorted({*named, *node.pods}))
    held = {card.holder for card in node.cards if card.holder and card.physical in cards}
    return tuple(sorted(held | (set(node.pods) - named)))


def held(node: NodeHealth, taken: Reach) -> str:
    """Who is on a card that the reset takes, or may be in the next moment, in words; empty when nobody is known to be."""
    cards = [card for card in node.cards if card.physical in taken.cards]
    for card in cards:
        if card.holder:
            return f"card {card.physical} is held by pod {card.holder}; a reset here takes {ids(taken.cards)}"
    if pods := (node.pods if taken.radius == "Node" else holders(node, taken.cards)):
        return f"pod {pods[0]} requests cards of the node; a reset here takes {ids(taken.cards)}"
    for card in cards:
        if card.pids:
            return f"process {card.pids[0]} is on card {card.physical}, and no pod holds it: end it on the host"
    return ""


def obstacle(node: NodeHealth, taken: Reach) -> str:
    """What keeps a reset from being begun now, in words; empty when nothing does. Of what isn't known, nothing is believed to be free."""
    if who := held(node, taken):
        return who
    if not node.ready:
        return "the node isn't Ready: pods that the cluster has forgotten may still run there"
    if node.reset is not None and node.reset.state == "Running":
        return f"reset {node.reset.id} is running"
    if not node.allocations_known:
        return "nobody knows who holds the cards: the agent can't read kubelet's PodResources API"
    seen = {card.physical: card for card in node.cards if card.known and card.pids is not None}
    unread = set(taken.cards) - seen.keys()
    return f"nobody knows whether {ids(unread)} is in use: it can't be read" if unread else ""


def ids(cards: Collection[int]) -> str:
    """Physical ids for people: `card 3`, `cards 0-7`, `cards 0, 2`."""
    ordered = sorted(cards)
    if len(ordered) == 1:
        return f"card {ordered[0]}"
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"cards {ordered[0]}-{ordered[-1]}"
    return "cards " + ", ".join(map(str, ordered))


def _ids(cards: Iterable[CardHealth]) -> tuple[int, ...]:
    return tuple(sorted(card.physical for card in cards))
