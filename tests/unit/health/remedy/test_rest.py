"""When a node is looked at again though nothing has happened: each second while something is under way, seldom where only news can help."""

from __future__ import annotations

from datetime import timedelta

import pytest

from glm5_operator.health.remedy.decision import Decision, Room
from tests.support.health import Watch, a_node, policy

HELD = {3: "prod/chat-0"}
SOON = timedelta(seconds=1)
SELDOM = timedelta(minutes=1)


def settled(watch: Watch, level: str = "Alarm", room: Room | None = None) -> Decision:
    """What the remedy answers when it has answered the same for a while."""
    for _ in range(30):
        decision = watch.look(a_node(faults={3: level}, held_by=HELD), room or Room())
    return decision


@pytest.mark.parametrize("level", ["RestartNPU", "Critical", "SeparateNPU"])
def test_a_faulty_node_in_dry_run_rests(level: str) -> None:
    decision = settled(Watch(policy(mode="DryRun")), level)

    assert decision.reason.startswith("Would")
    assert decision.requeue_after == SELDOM


def test_a_node_without_room_rests_until_it_is_woken_and_goes_on_at_once_when_there_is_room() -> None:
    watch = Watch()
    decision = settled(watch, room=Room(others=1))
    assert (decision.reason, decision.requeue_after) == ("NoRoom", SELDOM)

    assert settled(watch).memory.state == "Draining"


def test_while_a_last_replica_is_kept_in_traffic_its_node_is_looked_at_more_often() -> None:
    """No event of a pod elsewhere wakes this node, and with an heir the replica leaves traffic."""
    decision = settled(Watch(), room=Room(others=1, last=frozenset({"prod/chat-0"})))

    assert (decision.reason, decision.quiesce) == ("NoRoom", ())
    assert decision.requeue_after is not None
    assert decision.requeue_after < SELDOM


def test_a_last_replica_that_is_waited_for_is_looked_at_seldom_and_when_its_time_is_over() -> None:
    watch, last = Watch(), Room(last=frozenset({"prod/chat-0"}))
    decision = settled(watch, room=last)
    assert (decision.reason, decision.requeue_after) == ("LastReplica", SELDOM)

    watch.seconds += 850
    after = watch.look(a_node(faults={3: "Alarm"}, held_by=HELD), last).requeue_after
    assert after is not None
    assert after < timedelta(seconds=25)


def test_what_is_under_way_is_looked_at_each_second() -> None:
    decision = settled(Watch())

    assert (decision.memory.state, decision.requeue_after) == ("Draining", SOON)
