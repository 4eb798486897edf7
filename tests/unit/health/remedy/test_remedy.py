"""The remedy's transitions one by one. Nothing is faked: facts go in, decisions come out, and time is a number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glm5_operator.health.remedy.decision import Decision, Room, Step
from glm5_operator.health.remedy.policy import CODES_TAKE
from glm5_operator.health.types import Fault, Grade, Trust
from tests.support.clock import at
from tests.support.health import Watch, a_node, answered, fault, policy, stale

HELD = {3: "prod/chat-0"}


def resetting(watch: Watch, kind: str = "a2-hccs", level: str = "RestartNPU") -> Decision:
    """Take an idle node with a fault of card 3 to where its reset is asked for."""
    return watch.until("Resetting", a_node(kind, {3: level}))


# --- what a fault asks for ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "step", "state"),
    [
        ("NotHandleFault", Step.ALERT, "Healthy"),
        ("Warning", Step.ALERT, "Healthy"),
        ("SubHealthFault", Step.ALERT, "Suspect"),
        ("RestartRequest", Step.RESTART_ENGINE, "Suspect"),
        ("RestartBusiness", Step.RESTART_ENGINE, "Suspect"),
        ("FreeRestartNPU", Step.WAIT, "Suspect"),
        ("RestartNPU", Step.QUIESCE, "Quiescing"),
        ("Alarm", Step.QUIESCE, "Quiescing"),
        ("Critical", Step.QUIESCE, "Quiescing"),
        ("PreSeparateNPU", Step.ALERT, "Suspect"),
        ("SeparateNPU", Step.QUIESCE, "Quiescing"),
        ("ManuallySeparateNPU", Step.QUIESCE, "Quiescing"),
        ("ALevelOfNextYear", Step.QUIESCE, "Quiescing"),
    ],
)
def test_the_level_of_a_fault_decides_the_first_step(level: str, step: Step, state: str) -> None:
    decision = Watch().look(a_node(faults={3: level}, held_by=HELD))

    assert (decision.step, decision.memory.state) == (step, state)
    assert decision.reset is None
    assert decision.evict == ()


@pytest.mark.parametrize(
    ("level", "path"),
    [
        ("RestartNPU", ["Quiescing", "Draining", "Resetting"]),
        ("Critical", ["Quiescing", "Draining", "Resetting"]),
        ("FreeRestartNPU", ["Draining", "Resetting"]),
        ("SeparateNPU", ["Quiescing", "Draining", "Quarantined"]),
        ("ALevelOfNextYear", ["Quiescing", "Draining", "Quarantined"]),
        ("NotHandleFault", ["Healthy"]),
        ("SubHealthFault", ["Suspect"]),
        ("PreSeparateNPU", ["Suspect"]),
    ],
)
def test_an_idle_card_goes_as_far_as_its_level_says(level: str, path: list[str]) -> None:
    watch = Watch()
    for _ in range(60):
        watch.look(a_node("a3", {0: level}))

    assert watch.path == path


def test_a_level_that_isolates_never_ends_in_a_reset() -> None:
    watch = Watch()
    for _ in range(600):
        watch.look(a_node(faults={4: "SeparateNPU"}))

    assert all(decision.reset is None for decision in watch.seen)
    assert watch.seen[-1].taint == "quarantined"


@pytest.mark.parametrize("codes_after", [0, 1, 2, None])
def test_an_idle_card_is_not_reset_before_its_codes_had_time_to_rule_that_out(codes_after: int | None) -> None:
    """The agent tells the word first: with a code of a level that isolates no reset helps."""
    watch, word = Watch(), a_node("a3", {0: Fault("Critical", "Critical", Grade.RESET)})
    watch.until("Draining", word)
    if codes_after is None:
        assert watch.look(word, after=CODES_TAKE.total_seconds() - 1).reset is None
        assert watch.look(word).reset is not None, "there may be no code at all"
    else:
        for _ in range(codes_after):
            assert watch.look(word).reset is None
        assert watch.until("Quarantined", a_node("a3", {0: Fault("80E18402", "Critical", Grade.ISOLATE)})).reset is None
        assert watch.memory.resets == ()


def test_a_fault_of_the_network_is_told_and_neither_drains_nor_resets() -> None:
    watch = Watch()
    for _ in range(30):
        decision = watch.look(a_node(faults={0: replace(fault("RestartNPU"), network=True)}, held_by={0: "prod/chat-0"}))

    assert (decision.memory.state, decision.reason) == ("Suspect", "Degraded")
    assert not any(seen.quiesce or seen.evict or seen.taint for seen in watch.seen)


def test_case_c09_each_card_is_treated_by_its_own_level() -> None:
    node = a_node(
        "a2-pcie",
        {0: fault("PreSeparateNPU", network=True), 2: "NotHandleFault", 6: "RestartNPU"},
        {0: "prod/net-0", 2: "prod/fine-0", 6: "prod/sick-0"},
    )
    watch = Watch()

    drained = watch.until("Draining", node)
    assert drained.evict == ("prod/sick-0",)
    reset = watch.until(
        "Resetting", replace(node, cards=tuple(replace(c, holder="" if c.physical == 6 else c.holder) for c in node.cards), pods=())
    )

    assert reset.reset is not None
    assert (reset.reset.radius, reset.reset.cards) == ("Device", (6,))


def test_a_card_that_must_be_isolated_rules_the_reset_of_its_neighbour_out() -> None:
    watch = Watch()
    watch.until("Quarantined", a_node(faults={4: "SeparateNPU", 6: "RestartNPU"}))

    assert watch.memory.faulty == (4, 6)
    assert not any(decision.reset for decision in watch.seen)


def test_case_c05_a_card_that_cannot_be_read_is_suspect_and_nothing_is_done_to_it() -> None:
    watch = Watch()
    for _ in range(300):
        decision = watch.look(a_node(unknown=[2], held_by={2: "prod/chat-0"}), after=60)

    assert (decision.step, decision.memory.state, decision.reason) == (Step.ALERT, "Suspect", "CardUnknown")
    assert not any(seen.quiesce or seen.evict or seen.taint or seen.reset for seen in watch.seen)


@pytest.mark.parametrize("trust", [Trust.STALE, Trust.UNAVAILABLE, Trust.CONTRADICTORY])
def test_case_c06_of_facts_that_are_not_fresh_nothing_is_concluded(trust: Trust) -> None:
    watch = Watch()
    for _ in range(300):
        decision = watch.look(stale(a_node(faults={3: "Critical"}, missing=[5], held_by=HELD), trust), after=60)

    assert (decision.step, decision.memory.state, decision.reason) == (Step.ALERT, "Healthy", f"Facts{trust}")
    assert decision.alerts
    assert not any(seen.quiesce or seen.evict or seen.taint or seen.reset for seen in watch.seen)


# --- the whole way -----------------------------------------------------------------------------------------------------------


def test_a_fault_goes_the_whole_way_and_the_pods_come_back_into_traffic() -> None:
    watch = Watch()

    quiet = watch.look(a_node(faults={3: "Alarm"}, held_by=HELD))
    assert (quiet.quiesce, quiet.taint) == (("prod/chat-0",), "")
    drain = watch.until("Draining", a_node(faults={3: "Alarm"}, held_by=HELD))
    assert (drain.evict, drain.taint) == (("prod/chat-0",), "remedy")
    reset = watch.look(a_node(faults={3: "Alarm"}))
    assert reset.reset is not None
    assert reset.reset.cards == tuple(range(8))
    back = watch.until("Returning", answered(a_node(), reset, at=watch.now))
    assert back.taint == ""
    watch.until("Healthy", a_node())

    assert watch.path == ["Quiescing", "Draining", "Resetting", "Verifying", "Returning", "Healthy"]
    assert len(watch.memory.resets) == 1
    assert watch.memory.quieted == ()


def test_a_pod_gets_time_to_leave_the_endpoints_before_it_is_asked_to_end() -> None:
    watch = Watch()
    node = a_node(faults={3: "Alarm"}, held_by=HELD)
    watch.look(node)

    assert watch.look(node, after=1).evict == ()
    assert watch.look(node, after=1).evict == ("prod/chat-0",)


def test_before_a_node_is_reset_the_pods_of_all_its_cards_leave_traffic_too() -> None:
    watch = Watch()
    held = {3: "prod/chat-0", 6: "team-x/notebook-0"}

    assert watch.look(a_node(faults={3: "Alarm"}, held_by=held)).quiesce == ("prod/chat-0",)
    drain = watch.until("Draining", a_node(faults={3: "Alarm"}, held_by=held))

    assert drain.quiesce == drain.evict == ("prod/chat-0", "team-x/notebook-0")


def test_pods_that_only_wait_for_their_turn_and_hold_good_cards_stay_in_traffic() -> None:
    watch = Watch()
    held = {3: "prod/chat-0", 6: "prod/chat-1"}
    for _ in range(300):
        decision = watch.look(a_node(faults={3: "Alarm"}, held_by=held), Room(others=1))

    assert (decision.step, decision.reason, decision.quiesce) == (Step.WAIT, "NoRoom", ("prod/chat-0",))
    assert "; waits until fewer than 1 other nodes" in decision.message
    assert watch.path == ["Quiescing"]


def test_the_last_replica_of_a_service_stays_in_traffic_until_another_serves() -> None:
    watch = Watch()
    node = a_node(faults={3: "Alarm"}, held_by=HELD)
    for _ in range(300):
        decision = watch.look(node, Room(last=frozenset({"prod/chat-0"})))

    assert (decision.step, decision.reason, decision.quiesce, decision.evict) == (Step.WAIT, "LastReplica", (), ())
    assert "; waits for another replica in traffic than prod/chat-0, " in decision.message
    assert watch.look(node).quiesce == ("prod/chat-0",)
    assert watch.until("Draining", node).evict == ("prod/chat-0",)


def test_a_last_replica_without_an_heir_is_drained_after_the_time_that_pods_have_to_end() -> None:
    watch = Watch(policy(drain=at(minutes=10) - at()))
    node = a_node(faults={3: "Alarm"}, held_by=HELD)
    room = Room(last=frozenset({"prod/chat-0"}))

    watch.until("Draining", node, room)

    assert 600 <= watch.seconds < 620


def test_a_decision_made_twice_asks_for_the_same_reset() -> None:
    watch = Watch()
    first = resetting(watch)
    second = watch.look(a_node(faults={3: "RestartNPU"}), after=7)

    assert first.reset == second.reset
    assert len(watch.memory.resets) == 1


# --- who is on the cards -----------------------------------------------------------------------------------------------------


def test_never_resets_while_a_foreign_pod_holds_a_card_of_the_same_ring() -> None:
    watch = Watch()
    last = watch.until("Quarantined", a_node(faults={3: "RestartNPU"}, held_by={5: "team-x/notebook-0"}))

    assert not any(decision.reset for decision in watch.seen)
    assert (last.step, last.reason) == (Step.QUARANTINE, "DrainTimeout")
    assert "card 5 is held by pod team-x/notebook-0; a reset here takes cards 0-7" in last.message


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ({"pids": {5: (4711,)}}, "process 4711 is on card 5"),
        ({"pids": {5: None}}, "nobody knows whether card 5 is in use"),
        ({"unknown": [5]}, "nobody knows whether card 5 is in use"),
        ({"pods": ["prod/starting-0"]}, "pod prod/starting-0 requests cards"),
        ({"allocations_known": False}, "nobody knows who holds the cards"),
        ({"ready": False}, "the node isn't Ready"),
    ],
)
def test_what_is_not_known_to_be_free_is_not_reset(what: dict[str, object], told: str) -> None:
    watch = Watch()
    last = watch.until("Quarantined", a_node(faults={3: "RestartNPU"}, **what))  # type: ignore[arg-type]

    assert not any(decision.reset for decision in watch.seen)
    assert told in last.message


def test_memory_without_a_process_does_not_keep_a_card_from_its_reset() -> None:
    reset = Watch().until("Resetting", a_node(faults={3: "RestartNPU"}, changed={3: {"memory_used": 60_000}}))

    assert reset.reset is not None


def test_a_reset_that_has_not_begun_is_withdrawn_when_a_pod_comes() -> None:
    watch = Watch()
    resetting(watch)
    decision = watch.look(a_node(faults={3: "RestartNPU"}, held_by={7: "kube-system/bypass"}))

    assert (decision.memory.state, decision.reset, decision.reason) == ("Draining", None, "CardsHeld")


def test_a_pod_on_another_device_does_not_matter_where_a_reset_takes_one_device() -> None:
    reset = Watch().until("Resetting", a_node("950", {3: "RestartNPU"}, {5: "prod/chat-1"}))

    assert reset.reset is not None
    assert reset.reset.cards == (3,)


@pytest.mark.parametrize("kind", ["unknown", "a2-hccs"])
def test_where_no_reset_can_be_planned_the_card_is_drained_and_a_person_asked(kind: str) -> None:
    watch = Watch()
    drain = watch.until("Draining", a_node(kind, {3: "RestartNPU"}, {3: "prod/chat-0", 5: "prod/chat-1"}, virtual=True))
    assert drain.evict == ("prod/chat-0",)

    last = watch.until("Quarantined", a_node(kind, {3: "RestartNPU"}, {5: "prod/chat-1"}, virtual=True))
    assert last.reason == "ResetImpossible"


# --- faults that send nobody away --------------------------------------------------------------------------------------------


def test_a_card_that_waits_to_be_idle_sends_nobody_away_however_long_it_takes() -> None:
    watch = Watch()
    for _ in range(300):
        decision = watch.look(a_node(faults={3: "FreeRestartNPU"}, held_by=HELD), after=60)

    assert (decision.reason, decision.taint) == ("WaitingForIdle", "")
    assert not any(seen.quiesce or seen.evict for seen in watch.seen)


def test_an_idle_card_that_somebody_takes_at_the_last_moment_goes_back_to_waiting() -> None:
    watch = Watch()
    watch.until("Draining", a_node(faults={3: "FreeRestartNPU"}))
    decision = watch.look(a_node(faults={3: "FreeRestartNPU"}, held_by=HELD))

    assert (decision.memory.state, decision.taint, decision.evict) == ("Suspect", "", ())


def test_pre_separation_keeps_new_pods_away_and_lets_those_there_go_on() -> None:
    watch = Watch()
    decision = watch.look(a_node(faults={3: "PreSeparateNPU"}, held_by=HELD))
    assert (decision.taint, decision.quiesce, decision.evict) == ("remedy", (), ())

    watch.until("Healthy", a_node(held_by=HELD))
    assert watch.seconds >= 60
    assert watch.seen[-1].taint == ""


def test_pre_separation_of_one_card_does_not_keep_another_from_its_reset() -> None:
    assert Watch().until("Resetting", a_node(faults={1: "PreSeparateNPU", 3: "RestartNPU"})).reset is not None


# --- missing, hot ------------------------------------------------------------------------------------------------------------


def test_a_card_that_is_gone_for_a_moment_is_waited_for() -> None:
    watch = Watch()
    first = watch.look(a_node(missing=[3], held_by=HELD))
    assert first.quiesce == ("prod/chat-0",)
    for _ in range(50):
        watch.look(a_node(missing=[3], held_by=HELD))
    watch.until("Healthy", a_node(held_by=HELD))

    assert not any(decision.evict for decision in watch.seen)


def test_a_card_that_stays_away_is_a_persons_matter() -> None:
    watch = Watch()
    watch.until("Draining", a_node(missing=[3], held_by=HELD))
    last = watch.until("Quarantined", a_node(missing=[3]))

    assert (last.reason, watch.memory.faulty) == ("CardMissing", (3,))
