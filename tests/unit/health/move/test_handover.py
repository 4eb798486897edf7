"""A node's way to another pool: what is done when, and what never is. Nodes and times are values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm5_operator.health.move.handover import Stepped, Wanted, step, unfit
from glm5_operator.health.move.way import Way, dump, load
from glm5_operator.health.remedy.policy import RESET_TAKES, VERIFY_TAKES, Policy
from glm5_operator.health.types import NodeHealth, ResetResult, Trust
from tests.support.clock import at
from tests.support.health import a_node, policy, stale

MOVE = Wanted("inference", "training")
NOBODY = Wanted("inference", "")
BUSY = {0: "prod/chat-0", 1: "prod/chat-0"}
SECOND = timedelta(seconds=1)


def until(
    state: str, node: NodeHealth, way: Way | None = None, *, given_policy: Policy | None = None, now: datetime | None = None
) -> Stepped:
    """Steps with the same facts, a second apart, until the move is there."""
    moment = now or at()
    for _ in range(200):
        done = step(node, way, MOVE, given_policy or policy(), moment)
        way, moment = done.way, moment + SECOND
        if way is not None and way.state == state:
            return done
    raise AssertionError(f"never {state}: {way}")


def reported(node: NodeHealth, done: Stepped, state: str, reason: str = "") -> NodeHealth:
    """The node with the agent's word on the reset that was asked for."""
    assert done.reset is not None
    return replace(node, reset=ResetResult(done.reset.id, state, reason, "as the tool said"))


def test_the_whole_way_is_drain_reset_verify_and_only_then_the_label() -> None:
    busy, idle = a_node(held_by=BUSY), a_node()

    done = step(busy, None, MOVE, policy(), at())
    assert (done.way and done.way.state, done.evict, done.holds) == ("Draining", ("prod/chat-0",), True)
    done = step(idle, done.way, MOVE, policy(), at(seconds=5))
    assert done.way is not None
    assert done.reset is not None
    assert (done.way.state, done.reset.radius, done.reset.cards) == ("Resetting", "Node", tuple(range(8)))
    asked = done.reset
    done = step(idle, done.way, MOVE, policy(), at(seconds=6))
    assert done.reset == asked, "the same request until the agent's last word"
    done = step(reported(idle, done, "Succeeded"), done.way, MOVE, policy(), at(seconds=60))
    assert (done.way and done.way.state, done.arrived) == ("Verifying", False)
    done = step(idle, done.way, MOVE, policy(), at(seconds=61))
    assert not done.arrived
    assert not step(idle, done.way, MOVE, policy(), at(seconds=100)).arrived
    assert step(idle, done.way, MOVE, policy(), at(seconds=61 + 60)).arrived


@pytest.mark.parametrize("state", ["Draining", "Verifying"])
def test_a_way_whose_target_can_not_take_the_node_any_more_ends_and_leads_nowhere(state: str) -> None:
    """The pool was deleted, or somebody wrote down another name meanwhile: of a pool that isn't there, or of none at all."""
    node = a_node(held_by=BUSY) if state == "Draining" else a_node()
    way = until(state, node, given_policy=policy(mode="DryRun")).way
    for wanted in (
        replace(MOVE, refusal="there is no NPUPool training"),
        replace(MOVE, target="\x1b[2J" * 60, refusal="there is no such pool"),
    ):
        done = step(node, way, wanted, policy(mode="DryRun"), at(hours=1))
        assert (done.way, done.holds, done.evict, done.arrived) == (None, False, (), False)
        again = step(node, done.way, wanted, policy(mode="DryRun"), at(hours=1, seconds=2)).way
        assert again is not None
        assert (again.state, again.reason) == ("Waiting", "TargetRefused")
        assert load(dump(again)) == again


@pytest.mark.parametrize("time", ["2026-01-01", "2026-01-01T00:00:00", "", "soon"])
def test_a_way_with_times_that_are_not_ours_is_as_good_as_lost(time: str) -> None:
    written = dump(Way("inference", "training", "Draining", at(), at(), drained=at()))
    assert written is not None
    assert load(written) is not None
    assert load({**written, "since": time}) is None


@pytest.mark.parametrize("mode", ["DryRun", "Off"])
def test_without_auto_nothing_is_reset_and_idle_memory_decides(mode: str) -> None:
    way = until("Verifying", a_node(), given_policy=policy(mode=mode)).way
    full = a_node(changed={3: {"memory_used": 40_000}})

    done = step(full, way, MOVE, policy(mode=mode), at(seconds=300))
    assert (done.reset, done.arrived) == (None, False)
    assert done.way is not None
    assert "memory of card 3" in done.way.message


def test_a_move_waits_for_its_target_for_the_remedy_and_for_room() -> None:
    for wanted, reason in (
        (replace(MOVE, refusal="there is no NPUPool training"), "TargetRefused"),
        (replace(MOVE, remedy="Draining"), "InRemedy"),
        (replace(MOVE, others=1), "NoRoom"),
    ):
        done = step(a_node(held_by=BUSY), None, wanted, policy(), at())
        assert done.way is not None
        assert (done.way.state, done.way.reason, done.holds, done.evict) == ("Waiting", reason, False, ())
        assert step(a_node(), done.way, MOVE, policy(), at(seconds=10)).holds, "goes on as soon as that is over"


def test_pods_that_do_not_end_are_named_and_asked_again_later_and_nothing_is_reset() -> None:
    busy, wanted = a_node(held_by=BUSY), replace(MOVE, quiet=frozenset({"prod/chat-0"}))
    done = step(busy, until("Draining", busy).way, wanted, policy(), at(seconds=16 * 60))

    assert done.way is not None
    assert (done.way.state, done.way.reason, done.evict, done.reset) == ("Blocked", "PodsDoNotEnd", (), None)
    assert "prod/chat-0" in done.way.message
    assert done.back == ("prod/chat-0",), "it serves on, instead of leaving all requests to others"
    assert step(a_node(), done.way, MOVE, policy(), at(seconds=17 * 60)).reset is not None, "once they have gone it goes on at once"
    again = step(busy, done.way, MOVE, policy(), at(seconds=32 * 60))
    assert again.way is not None
    assert (again.way.state, again.way.reason) == ("Draining", "PodsEnding")


def test_a_process_that_no_pod_owns_keeps_the_reset_away() -> None:
    done = step(a_node(pids={2: (4711,)}), None, MOVE, policy(), at())

    assert done.way is not None
    assert (done.way.state, done.reset) == ("Draining", None)
    assert "4711" in done.way.message


@pytest.mark.parametrize(("state", "reason"), [("Failed", "Failed"), ("Refused", "NeedsHost")])
def test_a_reset_that_failed_blocks_until_somebody_gives_the_node_back(state: str, reason: str) -> None:
    asked = until("Resetting", a_node())
    done = step(reported(a_node(), asked, state, reason), asked.way, MOVE, policy(), at(seconds=100))

    assert done.way is not None
    assert (done.way.state, done.holds) == ("Blocked", True)
    assert reason in done.way.message
    assert step(a_node(), done.way, MOVE, policy(), at(seconds=100_000)).way == done.way
    assert step(a_node(), done.way, NOBODY, policy(), at(seconds=100_001)) == Stepped()


def test_a_refusal_that_passes_by_itself_is_asked_again_under_another_id() -> None:
    asked = until("Resetting", a_node())
    assert asked.reset is not None
    put_off = step(reported(a_node(), asked, "Refused", "CardsBusy"), asked.way, MOVE, policy(), at(seconds=30))
    again = step(a_node(), put_off.way, MOVE, policy(), at(seconds=31))

    assert again.reset is not None
    assert again.reset.id != asked.reset.id


def test_an_agent_that_never_answers_blocks_the_move() -> None:
    asked = until("Resetting", a_node())
    done = step(a_node(), asked.way, MOVE, policy(), at() + RESET_TAKES + timedelta(seconds=30))

    assert done.way is not None
    assert (done.way.state, done.way.reason) == ("Blocked", "ResetUnanswered")


def test_a_stopped_move_leaves_everything_at_once_but_a_running_reset() -> None:
    for state in ("Draining", "Verifying"):
        node = a_node(held_by=BUSY) if state == "Draining" else a_node()
        way = until(state, node, given_policy=policy(mode="DryRun")).way
        assert step(node, way, NOBODY, policy(), at(seconds=300)) == Stepped()

    asked = until("Resetting", a_node())
    going = step(a_node(), asked.way, NOBODY, policy(), at(seconds=30))
    assert (going.holds, going.reset) == (True, asked.reset)
    over = step(reported(a_node(), asked, "Succeeded"), going.way, NOBODY, policy(), at(seconds=90))
    assert step(a_node(), over.way, NOBODY, policy(), at(seconds=91)) == Stepped()


def test_health_that_breaks_off_while_it_is_verified_begins_anew_and_blocks_in_the_end() -> None:
    way = until("Verifying", a_node(), given_policy=policy(mode="DryRun")).way
    sick = a_node(faults={1: "Alarm"})
    done = step(sick, way, MOVE, policy(), at(seconds=50))
    assert done.way is not None
    assert done.way.reason == "NotIdle"
    done = step(a_node(), done.way, MOVE, policy(), at(seconds=59))
    assert not step(a_node(), done.way, MOVE, policy(), at(seconds=100)).arrived
    assert step(a_node(), done.way, MOVE, policy(), at(seconds=119)).arrived

    long = step(sick, step(sick, way, MOVE, policy(), at(seconds=50)).way, MOVE, policy(), at(seconds=51) + VERIFY_TAKES)
    assert long.way is not None
    assert long.way.state == "Blocked"
    well = step(a_node(), long.way, MOVE, policy(), at(seconds=52) + VERIFY_TAKES)
    assert well.way is not None
    assert well.way.state == "Verifying", "out of it by itself when the cause is gone"


@pytest.mark.parametrize(
    ("node", "told"),
    [
        (stale(a_node()), "nobody knows how its cards are"),
        (replace(a_node(), trust=Trust.CONTRADICTORY), "nobody knows how its cards are"),
        (replace(a_node(), cards=()), "no card is known"),
        (replace(a_node(), allocations_known=False), "PodResources"),
        (a_node(unknown=[4]), "card 4 is missing or can't be read"),
        (a_node(missing=[4]), "card 4 is missing or can't be read"),
        (a_node(pids={4: None}), "nobody knows which processes are on card 4"),
        (a_node(changed={4: {"memory_used": None}}), "in use is unknown"),
        (a_node(pods=("prod/late",)), "prod/late"),
        (replace(a_node(), reset=ResetResult("r-1", "Running")), "reset r-1 is still running"),
    ],
)
def test_what_is_not_known_is_not_idle(node: NodeHealth, told: str) -> None:
    assert told in unfit(node, policy())


def test_what_is_remembered_comes_back_from_the_status_as_it_was() -> None:
    for way in (until("Resetting", a_node()).way, until("Draining", a_node(held_by=BUSY)).way):
        assert load(dump(way)) == way
    assert load({"state": "Nonsense"}) is None
    assert load(None) is None


FACTS: dict[str, Callable[[Stepped], NodeHealth]] = {
    "idle": lambda _: a_node(),
    "busy": lambda _: a_node(held_by=BUSY),
    "process": lambda _: a_node(pids={2: (4711,)}),
    "stale": lambda _: stale(a_node()),
    "sick": lambda _: a_node(faults={1: "Critical"}),
    "reset": lambda done: reported(a_node(), done, "Succeeded") if done.reset else a_node(),
    "failed": lambda done: reported(a_node(), done, "Failed") if done.reset else a_node(),
}


@given(st.lists(st.tuples(st.sampled_from(sorted(FACTS)), st.booleans(), st.integers(1, 400)), max_size=25))
def test_whatever_happens_a_node_arrives_only_idle_and_well_for_long_enough_and_is_reset_only_when_nobody_is_on_it(
    events: list[tuple[str, bool, int]],
) -> None:
    done, moment, well_since = Stepped(), at(), None
    for kind, wanted, seconds in events:
        moment += timedelta(seconds=seconds)
        node = FACTS[kind](done)
        before = done.reset
        done = step(node, load(dump(done.way)), MOVE if wanted else NOBODY, policy(), moment)
        well_since = None if unfit(node, policy()) else well_since or moment
        if done.arrived:
            assert well_since is not None
            assert moment - well_since >= policy().verify
        if done.reset is not None and done.reset != before:
            assert not node.pods
            assert not any(card.pids or card.holder for card in node.cards)
        assert done.holds or not (done.evict or done.reset)
