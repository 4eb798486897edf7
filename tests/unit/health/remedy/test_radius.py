"""What a reset takes with it, by product and HCCS (facts/ascend.md §1.7, §5.3)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glm5_operator.health.remedy import radius
from glm5_operator.health.remedy.radius import Reach
from tests.support.health import a_node


@pytest.mark.parametrize(
    ("kind", "faulty", "expected"),
    [
        ("a2-hccs", {3}, Reach("Node", tuple(range(8)))),
        ("a2-pcie", {3}, Reach("Device", (3,))),
        ("a2-pcie", {6, 3}, Reach("Device", (3, 6))),
        ("a3", {0}, Reach("Node", tuple(range(16)))),
        ("310p-duo", {3}, Reach("Card", (2, 3))),
        ("310p-duo", {3, 4}, Reach("Card", (2, 3, 4, 5))),
        ("950", {7}, Reach("Device", (7,))),
        ("unknown", {3}, None),
        ("a3", set(), None),
        ("a3", {99}, None),
    ],
)
def test_the_radius_is_the_products(kind: str, faulty: set[int], expected: Reach | None) -> None:
    assert radius.reach(a_node(kind), faulty) == expected


def test_where_nobody_knows_of_hccs_an_a2_resets_as_a_whole() -> None:
    assert radius.reach(replace(a_node("a2-pcie"), hccs=None), {3}) == Reach("Node", tuple(range(8)))


@pytest.mark.parametrize("kind", ["a2-hccs", "a3", "310p-duo", "950"])
def test_cards_cut_into_vnpus_are_never_reset(kind: str) -> None:
    assert radius.reach(a_node(kind, virtual=True), {3}) is None


def test_ids_are_physical_and_need_not_begin_at_zero_or_be_in_a_row() -> None:
    node = a_node("a3")
    some = replace(node, cards=tuple(card for card in node.cards if card.physical in {4, 5, 9}))

    assert radius.reach(some, {5}) == Reach("Node", (4, 5, 9))


def test_a_pod_whose_cards_nobody_names_yet_may_get_any_of_them() -> None:
    node = a_node("950", held_by={5: "prod/chat-0"}, pods=["prod/starting-0"])

    assert radius.holders(node, {3}) == ("prod/starting-0",)
    assert radius.holders(node, {5}) == ("prod/chat-0", "prod/starting-0")


def test_where_allocations_are_not_known_every_pod_may_hold_every_card() -> None:
    node = a_node("950", held_by={5: "prod/chat-0"}, pods=["prod/chat-1"], allocations_known=False)

    assert radius.holders(node, {3}) == ("prod/chat-0", "prod/chat-1")


@pytest.mark.parametrize(
    ("cards", "text"),
    [({3}, "card 3"), (range(8), "cards 0-7"), ({0, 2}, "cards 0, 2"), ({0, 1}, "cards 0, 1"), ({1, 2, 3, 9}, "cards 1, 2, 3, 9")],
)
def test_cards_are_named_as_people_do(cards: set[int], text: str) -> None:
    assert radius.ids(set(cards)) == text
