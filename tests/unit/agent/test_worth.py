"""Which readings are worth a write: what decides over cards at once, numbers when they moved far, the rest with the next one."""

from __future__ import annotations

from typing import Any

import pytest

from glm5_operator.agent.settings import Every, Worth
from glm5_operator.agent.worth import Urgency, due, urgency
from glm5_operator.api.node import ResetReport
from glm5_operator.api.node_facts import CardReport, Holder, HostReport, NodeFactsReport, ToolReport

EVERY, WORTH = Every(), Worth()
CARD = CardReport(
    physical=0, npu=0, health="OK", temperature=45, power=98.0, utilisation=10, memory_used=3314, memory_total=65536, pids=(), link="Up"
)


def facts(card: CardReport = CARD, **changes: object) -> NodeFactsReport:
    known: dict[str, Any] = {
        "observed_at": "2026-11-30T12:00:00Z",
        "tool": ToolReport(state="Working"),
        "cards": (card, CardReport(physical=1, npu=1, health="OK")),
    }
    return NodeFactsReport(**{**known, **changes})


def changed(**changes: object) -> NodeFactsReport:
    return facts(CARD.model_copy(update=changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"health": "Alarm"},
        {"codes": ("80E01801",)},
        {"stale": True},
        {"holder": Holder(namespace="a", pod="p")},
        {"link": "Down"},
        {"net_health": "Socket failed"},
        {"tls": True},
        {"ecc_double": 1},
        {"pids": (4711,)},
        {"pids": None},
        {"physical": 5},
    ],
    ids=str,
)
def test_what_decides_over_a_card_is_written_at_once(changes: dict[str, Any]) -> None:
    assert urgency(facts(), changed(**changes), WORTH) is Urgency.AT_ONCE
    assert due((facts(), ()), (changed(**changes), ()), 0.0, EVERY, WORTH)


@pytest.mark.parametrize(
    "changes",
    [
        {"tool": ToolReport(state="Hanging", message="15 s")},
        {"missing": (1,)},
        {"cards": (CARD,)},
        {"allocations_known": False},
        {"virtual": True},
        {"hccs": True},
        {"driver": "25.5.0"},
        {"problems": ("line 3",)},
        {"host": HostReport(kernel="6.6")},
    ],
    ids=str,
)
def test_what_decides_over_the_node_is_written_at_once(changes: dict[str, Any]) -> None:
    assert urgency(facts(), facts(**changes), WORTH) is Urgency.AT_ONCE


@pytest.mark.parametrize(
    "changes",
    [{"temperature": 79}, {"temperature": None}, {"power": 400.0}, {"utilisation": 100}, {"memory_used": 3314 + WORTH.memory - 1}],
    ids=str,
)
def test_numbers_of_a_cool_card_wait_for_the_next_write(changes: dict[str, Any]) -> None:
    assert urgency(facts(), changed(**changes), WORTH) is Urgency.WITH_THE_NEXT
    assert not due((facts(), ()), (changed(**changes), ()), EVERY.heartbeat - 1, EVERY, WORTH)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"temperature": 79}, {"temperature": 80}),
        ({"temperature": 80}, {"temperature": 79}),
        ({"temperature": 86, "utilisation": 97}, {"temperature": 84, "utilisation": 97}),
        ({"temperature": 86, "utilisation": 97}, {"temperature": 86, "utilisation": 97}),
        ({"temperature": 90, "utilisation": 10}, {"temperature": 90, "utilisation": 96}),
        ({"memory_used": 3314}, {"memory_used": 59356}),
        ({"memory_used": 3314}, {"memory_used": None}),
    ],
    ids=str,
)
def test_heat_and_memory_are_written_soon_but_not_often(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert urgency(changed(**before), changed(**after), WORTH) is Urgency.NUMBERS
    assert not due((changed(**before), ()), (changed(**after), ()), EVERY.numbers - 1, EVERY, WORTH)
    assert due((changed(**before), ()), (changed(**after), ()), EVERY.numbers, EVERY, WORTH)


def test_a_310p_is_hot_later_for_it_idles_at_86_degrees() -> None:
    for before, after, found in ((78, 86, Urgency.WITH_THE_NEXT), (89, 90, Urgency.NUMBERS), (90, 89, Urgency.NUMBERS)):
        pair = [facts(CARD.model_copy(update={"temperature": heat}), product="310P") for heat in (before, after)]
        assert urgency(*pair, WORTH) is found


def test_a_sign_of_life_is_written_although_nothing_changed() -> None:
    assert not due((facts(), ()), (facts(), ()), EVERY.heartbeat - 1, EVERY, WORTH)
    assert due((facts(), ()), (facts(observed_at="2026-11-30T12:10:00Z"), ()), EVERY.heartbeat, EVERY, WORTH)


def test_the_first_report_and_each_step_of_a_reset_are_written_at_once() -> None:
    assert due(None, (facts(), ()), 0.0, EVERY, WORTH)
    assert due((facts(), ()), (facts(), (ResetReport(id="r1", state="Running"),)), 0.0, EVERY, WORTH)


def test_the_time_of_reading_alone_is_no_change() -> None:
    assert urgency(facts(), facts(observed_at="2026-11-30T13:00:00Z"), WORTH) is Urgency.WITH_THE_NEXT


def test_2000_nodes_whose_numbers_waver_write_no_more_than_signs_of_life() -> None:
    wavering = [changed(temperature=60 + tick % 3, power=250.0 + tick, utilisation=tick * 37 % 100) for tick in range(300)]
    written, wrote_at, writes = facts(), 0.0, 0
    for tick, reading in enumerate(wavering):  # ten minutes of polls
        now = tick * EVERY.poll
        if due((written, ()), (reading, ()), now - wrote_at, EVERY, WORTH):
            written, wrote_at, writes = reading, now, writes + 1

    assert writes == 0
    assert 2000 / EVERY.heartbeat < 5


def test_2000_nodes_of_which_one_in_twenty_has_a_hot_card_write_five_times_a_second_at_most() -> None:
    hot = 2000 // 20
    assert hot / EVERY.numbers + (2000 - hot) / EVERY.heartbeat < 5
