"""How long a card is hot, from the agent's reading to the remedy: numbers that nobody has written yet, or that are old, count for nothing.

Real: what the agent finds worth a write, the view, the remedy. Time is a number, and a card's heat a function of it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from glm5_operator.agent.settings import Every, Worth
from glm5_operator.agent.worth import due
from glm5_operator.api.node_facts import CardReport, NodeFactsReport, ToolReport
from glm5_operator.health.remedy.policy import Thermal
from glm5_operator.health.view import node_health
from tests.support.clock import at, stamp
from tests.support.health import Watch, policy

RULE = Thermal(85, 95, timedelta(minutes=5), "Reset")
EVERY, WORTH = Every(), Worth()
NODE = {"metadata": {"name": "n1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
Heat = Callable[[int], tuple[int, int]]


def reading(second: int, heat: Heat, product: str = "A2") -> NodeFactsReport:
    temperature, use = heat(second)
    cards = [CardReport(physical=0, npu=0, health="OK", pids=(), temperature=temperature, utilisation=use)]
    cards += [CardReport(physical=number, npu=number, health="OK", pids=(), temperature=45, utilisation=0) for number in range(1, 8)]
    return NodeFactsReport(
        observed_at=stamp(at(seconds=second)), tool=ToolReport(state="Working"), cards=tuple(cards), allocations_known=True, product=product
    )


def acted_at(heat: Heat, minutes: int = 25, rule: Thermal = RULE, reads: Callable[[int], bool] = lambda _: True) -> int | None:
    """The second in which the node's pods leave traffic; polls are 2 s apart, and a look comes each 20 s and with each write."""
    watch = Watch(policy(thermal=(rule,)))
    written, wrote_at = reading(0, heat), 0
    for second in range(2, minutes * 60, 2):
        read = reading(second, heat)
        if reads(second) and due((written, ()), (read, ()), second - wrote_at, EVERY, WORTH):
            written, wrote_at = read, second
        elif second % 20:
            watch.seconds += 2
            continue
        report: dict[str, Any] = {"status": {"facts": written.model_dump(mode="json", by_alias=True, exclude_none=True)}}
        health = node_health(NODE, report, (), (), agent_ready=True, now=at(seconds=second))
        if watch.look(health, after=2).memory.state == "Quiescing":
            return second
    return None


def test_a_card_that_stays_hot_is_treated_once_it_was_read_so_for_long_enough() -> None:
    for heat in ((86, 97), (86, 100), (99, 96)):
        found = acted_at(lambda _, heat=heat: heat)
        assert found is not None
        assert 300 <= found <= 300 + EVERY.numbers + 2, "the numbers that confirm it may be a minute late"


@pytest.mark.parametrize("cool", [(84, 97), (85, 97), (86, 95), (86, 75), (45, 0)], ids=str)
@pytest.mark.parametrize("after", [61, 120, 239, 290])
def test_a_card_that_cooled_down_in_time_is_left_alone_however_little_it_cooled(cool: tuple[int, int], after: int) -> None:
    assert acted_at(lambda second: (86, 97) if second < after else cool) is None


def test_a_card_that_becomes_busy_while_it_is_hot_is_seen() -> None:
    found = acted_at(lambda second: (90, 90) if second < 400 else (90, 98))
    assert found is not None
    assert 700 <= found <= 700 + 2 * EVERY.numbers + 2


def test_one_reading_that_nobody_follows_says_nothing_of_how_long() -> None:
    assert acted_at(lambda _: (86, 97), reads=lambda _: False) is None
    assert acted_at(lambda _: (86, 97), reads=lambda second: second < 200) is None


def test_below_what_the_agent_calls_hot_signs_of_life_are_the_readings() -> None:
    found = acted_at(lambda _: (75, 97), rule=Thermal(70, 95, timedelta(minutes=5), "Reset"))
    assert found is not None
    assert EVERY.heartbeat <= found <= EVERY.heartbeat + 4
