"""The rules that kstatus, Argo CD and `kubectl wait` rely on. Pure: nothing is faked."""

from __future__ import annotations

import pytest

from glm5_operator.status import conditions as c
from glm5_operator.status.conditions import Condition, Truth, dated, moment, on_its_way, settled, stamp, stuck
from tests.support.clock import at


def test_the_transition_time_moves_only_when_the_status_flips() -> None:
    first = dated(on_its_way("Loading", "loading"), (), 1, at())
    reworded = dated(on_its_way("ImagePullFailed", "another message"), first, 2, at(minutes=1))
    flipped = dated(settled("Serving", ""), reworded, 2, at(minutes=2))

    assert [item["lastTransitionTime"] for item in reworded] == [stamp(at())] * 3
    ready, reconciling, stalled = flipped
    assert ready["lastTransitionTime"] == reconciling["lastTransitionTime"] == stamp(at(minutes=2))
    assert stalled["lastTransitionTime"] == stamp(at())


def test_every_condition_carries_the_generation_it_was_computed_from() -> None:
    before = dated(settled("Serving", ""), (), 1, at())

    assert {item["observedGeneration"] for item in dated(settled("Serving", ""), before, 7, at())} == {7}


@pytest.mark.parametrize("verdict", [settled("A", "a"), on_its_way("A", "a"), on_its_way("A", "a", Truth.UNKNOWN), stuck("A", "a")])
def test_all_three_are_always_there_and_only_one_side_holds(verdict: tuple[Condition, ...]) -> None:
    held = {item.type for item in verdict if item.status is Truth.TRUE}

    assert [item.type for item in verdict] == [c.READY, c.RECONCILING, c.STALLED]
    assert len(held) == 1


def test_a_long_message_is_cut_with_a_mark() -> None:
    (long,) = dated([Condition("Ready", Truth.FALSE, "A", "x" * 5000)], (), 1, at())

    assert len(long["message"]) == c.MOST_MESSAGE
    assert long["message"].endswith("…")


def test_a_condition_of_an_older_operator_without_a_time_gets_one() -> None:
    (item,) = dated([Condition("Ready", Truth.FALSE, "A")], [{"type": "Ready", "status": "False"}], 1, at())

    assert item["lastTransitionTime"] == stamp(at())


@pytest.mark.parametrize("text", [None, "", "yesterday"])
def test_an_unreadable_timestamp_is_none_and_stops_nothing(text: str | None) -> None:
    assert moment(text) is None


def test_timestamps_survive_writing_and_reading() -> None:
    assert moment(stamp(at(seconds=5))) == at(seconds=5)
