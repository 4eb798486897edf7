"""Engines that start anew for a fault: each pod once, however often it takes until it has ended. Facts in, decisions out."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from glm5_operator.health.remedy.decision import Room
from glm5_operator.health.remedy.out_of_service import SELDOM
from glm5_operator.health.types import NodeHealth
from tests.support.health import Watch, a_node, policy

CHAT = "prod/chat-0"


def faulty(uid: str = "old", pod: str = CHAT, level: str = "RestartBusiness") -> NodeHealth:
    """Card 3 asks for a restart of the pod on it; another pod is on another card."""
    return a_node(faults={3: level}, held_by={3: pod, 5: "prod/other"}, uids={pod: uid, "prod/other": "o"})


def restarts(watch: Watch, node: NodeHealth, times: int) -> list[tuple[str, ...]]:
    return [watch.look(node).restart for _ in range(times)]


@pytest.mark.parametrize("after", [faulty("new"), faulty("new", "prod/chat-1")], ids=["same name", "other name"])
def test_a_restart_is_asked_for_until_the_pod_has_ended_and_not_of_the_one_that_comes_after_it(after: NodeHealth) -> None:
    watch = Watch()
    assert restarts(watch, faulty(), 50) == [(CHAT,)] * 50, "a disruption budget may refuse it for long"
    assert restarts(watch, after, 600) == [()] * 600
    assert len(watch.memory.remedies) == 1, "one restart, however often it was asked for"
    assert [entry.reason for entry in watch.memory.history] == ["EngineRestarted"]


def test_an_operator_that_died_before_it_asked_asks_after_its_restart() -> None:
    watch = Watch()
    watch.look(faulty())
    again = Watch(memory=watch.memory)
    again.seconds = 60

    assert again.look(faulty()).restart == (CHAT,)


def test_a_pod_of_which_no_uid_is_known_is_known_by_its_name() -> None:
    watch = Watch()
    node = replace(faulty(), uids={})
    assert restarts(watch, node, 3) == [(CHAT,)] * 3
    assert restarts(watch, replace(a_node(faults={3: "RestartBusiness"}), uids={}), 3) == [()] * 3


def test_a_fault_that_is_gone_before_the_pod_is_restarts_nobody() -> None:
    watch = Watch()
    watch.look(faulty())
    well = a_node(held_by={3: CHAT}, uids={CHAT: "old"})

    assert restarts(watch, well, 100) == [()] * 100
    assert (watch.memory.state, watch.memory.restarting) == ("Healthy", ())


def test_what_a_restart_helped_is_judged_from_the_end_of_the_old_pod_on() -> None:
    watch = Watch()
    restarts(watch, faulty(), 2000)
    assert watch.memory.reason == "EngineRestarted", "it hasn't started anew yet"
    for _ in range(890):
        watch.look(faulty("new"))
    assert watch.memory.reason == "EngineRestarted"
    for _ in range(20):
        watch.look(faulty("new"))
    assert watch.memory.reason == "WaitingForIdle"

    reset = watch.until("Resetting", a_node(faults={3: "RestartBusiness"}))
    assert reset.reset is not None
    assert not any(decision.evict for decision in watch.seen)


def test_another_card_that_asks_for_a_reset_when_idle_does_not_stop_the_restart() -> None:
    watch = Watch()
    watch.look(faulty())
    both = a_node(faults={3: "RestartBusiness", 6: "FreeRestartNPU"}, held_by={3: CHAT}, uids={CHAT: "old"})

    assert watch.look(both).restart == (CHAT,)
    assert watch.memory.reason == "WaitingForIdle"


LAST, BARE = Room(last=frozenset({CHAT})), Room(bare=frozenset({CHAT}))


def test_the_last_replica_of_a_service_starts_anew_when_another_serves_or_when_its_time_is_over() -> None:
    patient, served = Watch(), Watch()
    for watch in (patient, served):
        looks = [watch.look(faulty(), LAST) for _ in range(890)]
        assert {(decision.reason, decision.restart) for decision in looks} == {("LastReplica", ())}
        assert CHAT in looks[0].message
        assert looks[1].requeue_after == SELDOM
        assert looks[-1].requeue_after is not None
        assert looks[-1].requeue_after <= timedelta(seconds=12)

    assert served.look(faulty()).restart == (CHAT,)
    decision = [patient.look(faulty(), LAST) for _ in range(15)][-1]
    assert (decision.reason, decision.restart) == ("EngineRestarted", (CHAT,))
    assert [entry.reason for entry in patient.memory.history] == ["LastReplica", "EngineRestarted"]
    assert len(patient.memory.remedies) == 1


def test_only_the_last_replica_is_waited_for_and_not_its_neighbours() -> None:
    watch = Watch()
    node = a_node(
        faults={3: "RestartBusiness", 4: "RestartBusiness"}, held_by={3: CHAT, 4: "prod/other"}, uids={CHAT: "a", "prod/other": "b"}
    )

    assert [watch.look(node, LAST).restart for _ in range(3)] == [("prod/other",)] * 3


def test_what_the_restart_of_a_last_replica_is_told_by_is_an_alert_when_it_is_asked_for() -> None:
    watch = Watch()
    assert [alert.reason for alert in watch.look(faulty(), LAST).alerts] == ["LastReplica"]
    assert [alert.reason for alert in watch.look(faulty()).alerts] == ["EngineRestarted"]


def test_a_pod_that_nobody_makes_anew_is_left_alone_and_told() -> None:
    watch = Watch()
    first = watch.look(faulty(), BARE)

    assert (first.reason, first.restart, [alert.reason for alert in first.alerts]) == ("NotRestarted", (), ["NotRestarted"])
    assert CHAT in first.alerts[0].message
    assert {watch.look(faulty(), BARE).restart for _ in range(890)} == {()}
    assert watch.memory.reason == "NotRestarted"
    assert watch.look(faulty(), BARE, after=20).reason == "WaitingForIdle", "the card is reset once it is idle"
    assert not any(decision.evict for decision in watch.seen)


def test_beside_a_pod_that_is_left_alone_others_start_anew() -> None:
    watch = Watch()
    node = a_node(
        faults={3: "RestartBusiness", 4: "RestartBusiness"}, held_by={3: CHAT, 4: "prod/other"}, uids={CHAT: "a", "prod/other": "b"}
    )
    decision = watch.look(node, BARE)

    assert (decision.reason, decision.restart) == ("EngineRestarted", ("prod/other",))
    assert f"pod {CHAT} has no controller" in decision.alerts[0].message


def test_a_dry_run_restarts_nobody_and_remembers_nobody() -> None:
    watch = Watch(policy(mode="DryRun"))
    assert restarts(watch, faulty(), 5) == [()] * 5
    assert watch.memory.restarting == ()
