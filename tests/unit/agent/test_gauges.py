"""Metrics of the node's cards: what was read, and nothing that wasn't. Real parsers and prometheus_client; scripted npu-smi."""

from __future__ import annotations

import re
from pathlib import Path

from glm5_operator.agent.gauges import CardGauges
from glm5_operator.api.node_facts import CardReport, NodeFactsReport, ToolReport
from tests.support.vendor_tools import Bench

NOW = "2026-11-30T12:00:00Z"


def series(facts: NodeFactsReport | None) -> dict[tuple[str, str], float]:
    """By name of the metric and card; each is of the node."""
    lines = CardGauges("node-1", lambda: facts).exposition().decode().splitlines()
    found = [re.fullmatch(r'(\w+)\{card="(\d+)",node="node-1"\} (\S+)', line) for line in lines if not line.startswith("#")]
    assert all(found), lines
    return {(match[1], match[2]): float(match[3]) for match in found if match}


def of(*cards: CardReport, missing: tuple[int, ...] | None = None) -> NodeFactsReport:
    return NodeFactsReport(observed_at=NOW, tool=ToolReport(state="Working"), cards=cards, missing=missing)


async def test_each_card_of_the_node_has_its_numbers(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path, "info_910b2c_16card_loaded_24.1.rc1.txt")
    facts = await bench.collector.read(NOW, 0.0)

    found = series(facts)

    card = facts.cards[3]
    assert len(found) == 4 * 16
    assert found["glm5_card_health", "3"] == 1
    assert found["glm5_card_temperature_celsius", "3"] == card.temperature
    assert found["glm5_card_utilisation_percent", "3"] == card.utilisation
    assert card.memory_used is not None
    assert found["glm5_card_memory_used_bytes", "3"] == card.memory_used * 2**20


def test_what_was_not_read_has_no_series() -> None:
    hung = CardReport(physical=1, npu=1, health="OK", temperature=50, stale=True)
    unread = CardReport(physical=2, npu=2, health="Unknown", temperature=51)

    assert series(of(hung, unread)) == {("glm5_card_temperature_celsius", "2"): 51}
    assert series(None) == {}


def test_sick_and_missing_cards_are_zero_and_a_warning_is_not() -> None:
    words = ("Alarm", "Critical", "Warning", "OK")
    cards = [CardReport(physical=number, npu=number, health=word) for number, word in enumerate(words)]  # type: ignore[arg-type] # of Literals
    gone = CardReport(physical=4, npu=4, health="Unknown", temperature=40, stale=True)

    found = series(of(*cards, gone, missing=(4,)))

    assert found == {("glm5_card_health", str(number)): value for number, value in enumerate((0, 0, 1, 1, 0))}
