"""`npu-smi info -l` and `-m`: which cards there are, and by which of the three numbers."""

import pytest

from glm5_operator.health.sources.npusmi import parse_list, parse_map
from glm5_operator.health.sources.npusmi.readings import CardEntry, MapEntry
from glm5_operator.health.sources.reading import ToolErrorKind
from tests.unit.health.sources.npusmi.files import text_of


def test_a_list_counts_modules_and_tells_their_dies() -> None:
    cards = parse_list(text_of("list_l_a3_8npu"))

    assert (cards.total, sum(card.chips or 0 for card in cards.cards)) == (8, 16)


def test_a_card_may_have_a_product_and_a_serial_and_on_950_no_count_of_chips() -> None:
    assert parse_list(text_of("list_l_950_card_docsample")).cards == (CardEntry(0, None, "A5 PCIe Card", "0" * 15),)


def test_fewer_cards_than_were_counted_are_told() -> None:
    text = text_of("list_l_910b_8card")
    short = parse_list(text[: text.rindex("\tNPU ID")])

    assert len(short.cards) == 7
    assert [problem.reason for problem in short.problems] == ["it counts 8 cards and lists 7"]


@pytest.mark.parametrize("text", ["\tTotal Count : x\n", "\tChip Count                     : 1\n", "hello\n"])
def test_a_list_that_is_none_is_told(text: str) -> None:
    cards = parse_list(text)

    assert cards.cards == ()
    assert cards.problems


def test_controllers_in_the_map_are_no_chips() -> None:
    text = text_of("map_m_910b4_8card").replace("Mcu ", "3559", 1)

    assert [entry.npu for entry in parse_map(text).chips] == list(range(8))


def test_logic_ids_of_a_container_start_at_0_while_npu_ids_stay() -> None:
    assert parse_map(text_of("map_m_910b3_container_subset")).chips == (
        MapEntry(3, 0, 0, name="Ascend 910B3"),
        MapEntry(4, 0, 1, name="Ascend 910B3"),
    )


def test_the_maps_of_a3_and_950_have_physical_ids_and_950_slots() -> None:
    widths = "\t{:<30} {:<30} {:<30} {:<30} {:<30}\n"
    text = widths.format("NPU ID", "Slot ID", "Chip ID", "Chip Phy-ID", "Chip Name") + widths.format(0, 3, 0, 7, "Ascend950DT")

    assert parse_map(text_of("map_m_a3_phyid")).chips[2] == MapEntry(1, 0, 2, 2, "Ascend910")
    assert parse_map(text).chips == (MapEntry(0, 0, None, 7, "Ascend950DT", 3),)


def test_a_map_that_refuses_the_chip_says_so() -> None:
    refused = parse_map("Error parameter of -c\nUsage: npu-smi info <watch|proc|-h|-m|-l|-t type> [Options...]\n")

    assert refused.error is not None
    assert refused.error.kind == ToolErrorKind.INVALID_PARAMETER
    assert refused.chips == ()


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("Chip Logic ID ", "Chip Weird ID ", "no map with these columns is known"),
        ("\t3                              0  ", "\t3                              x  ", "Chip ID is no whole number: 'x'"),
        ("Ascend 910B3", "", "3 cells where 4 belong"),
    ],
)
def test_a_row_of_the_map_that_cannot_be_read_is_left_out_and_told(old: str, new: str, reason: str) -> None:
    found = parse_map(text_of("map_m_910b3_container_subset").replace(old, new, 1))

    assert reason in [problem.reason for problem in found.problems]
    assert 3 not in [entry.npu for entry in found.chips]
