"""How a remedy ends: resets that fail or lie, MindCluster's own, quarantine and release, a switch turned off, a status lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glm5_operator.health.remedy.decision import Room, Step
from glm5_operator.health.remedy.memory import Memory, load
from glm5_operator.health.types import Fault, Grade, Source
from tests.support.clock import at
from tests.support.health import AUTO, Watch, a_node, answered, policy, stale
from tests.unit.health.remedy.test_remedy import HELD, resetting

# --- how a reset ends --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["NeedsHost", "HccsOn", "VirtualNPU", "NotRoot", "SomethingNew"])
def test_a_refusal_that_only_a_person_can_lift_ends_in_quarantine_at_once(reason: str) -> None:
    watch = Watch()
    reset = resetting(watch)
    decision = watch.look(answered(a_node(faults={3: "RestartNPU"}), reset, "Refused", reason))

    assert (decision.memory.state, decision.reason) == ("Quarantined", reason)


@pytest.mark.parametrize(
    ("state", "reason"),
    [("Refused", "CardsBusy"), ("Refused", "CardsUnknown"), ("Refused", "AnotherReset"), ("Refused", "TooLate"), ("Failed", "")],
)
def test_what_may_pass_is_tried_again_with_a_new_id_within_the_budget(state: str, reason: str) -> None:
    watch = Watch()
    first = resetting(watch)
    watch.look(answered(a_node(faults={3: "RestartNPU"}), first, state, reason))
    second = watch.until("Resetting", answered(a_node(faults={3: "RestartNPU"}), first, state, reason))
    assert second.reset is not None
    assert second.reset.id != first.reset.id  # type: ignore[union-attr]

    last = watch.until("Quarantined", answered(a_node(faults={3: "RestartNPU"}), second, state, reason))
    assert last.reason == "ResetBudgetSpent"
    assert len(watch.memory.resets) == 2


def test_a_reset_that_succeeded_by_its_own_word_alone_is_not_believed() -> None:
    watch = Watch()
    reset = resetting(watch)
    sick = answered(a_node(faults={3: "RestartNPU"}), reset, at=watch.now)
    assert watch.until("Verifying", sick)
    again = watch.until("Resetting", sick)

    assert again.reset is not None
    assert watch.path[-3:] == ["Verifying", "Draining", "Resetting"]


def test_facts_from_before_the_reset_do_not_verify_it() -> None:
    watch = Watch()
    reset = resetting(watch)
    old = replace(answered(a_node(), reset, at=watch.now), as_of=at(seconds=watch.seconds - 5))
    for _ in range(300):
        watch.look(old)
    assert watch.memory.state == "Verifying"

    watch.until("Returning", replace(old, as_of=watch.now))


def test_an_agent_that_died_in_the_middle_leaves_the_judgement_to_the_cards() -> None:
    watch = Watch()
    reset = resetting(watch)
    watch.until("Healthy", answered(a_node(), reset, "Unknown"))

    assert watch.path[-3:] == ["Verifying", "Returning", "Healthy"]


def test_a_node_does_not_return_while_the_agent_still_resets() -> None:
    watch = Watch()
    running = answered(a_node(), resetting(watch), "Running")
    assert watch.until("Verifying", running).reason == "ResetUnanswered"
    for _ in range(200):
        assert watch.look(running).memory.state == "Verifying"
    assert "is still running" in watch.memory.message

    watch.until("Returning", a_node())


def test_what_runs_on_after_a_fault_came_back_and_went_keeps_the_node_out_too() -> None:
    watch = Watch()
    sick = answered(a_node(faults={3: "RestartNPU"}), resetting(watch), "Running")
    watch.until("Verifying", sick)
    watch.until("Draining", sick)
    for level in (None, "FreeRestartNPU"):
        decision = watch.look(replace(a_node(faults={3: level} if level else {}), reset=sick.reset), after=70)
        assert (decision.memory.state, decision.reason) == ("Draining", "ResetRunning")


def test_a_reset_that_nobody_answers_does_not_wait_for_ever() -> None:
    watch = Watch()
    resetting(watch)
    verifying = watch.until("Verifying", a_node(faults={3: "RestartNPU"}))
    assert verifying.reason == "ResetUnanswered"
    last = watch.until("Quarantined", a_node(faults={3: "RestartNPU"}))

    assert last.reason == "ResetBudgetSpent"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"memory_used": 41_000}, "41000 MiB in use and no process"),
        ({"memory_used": None}, "memory in use on card 3 can't be read"),
        ({"link_up": False}, "RoCE link of card 3 was up before and isn't now"),
        ({"known": False}, "card 3 can't be read"),
    ],
)
def test_a_card_that_is_well_but_not_as_before_does_not_return(changed: dict[str, object], told: str) -> None:
    watch = Watch()
    reset = resetting(watch)
    last = watch.until("Quarantined", answered(a_node(changed={3: changed}), reset, at=at(days=1)))

    assert last.reason == "VerifyTimeout"
    assert told in last.message


def test_a_link_that_was_down_before_need_not_be_up_afterwards() -> None:
    watch = Watch()
    down = {3: {"link_up": False}}
    reset = watch.until("Resetting", a_node(faults={3: "Alarm"}, changed=down))

    watch.until("Healthy", answered(a_node(changed=down), reset, at=watch.now))


def test_a_source_that_says_nothing_of_memory_can_verify_too() -> None:
    watch = Watch()
    silent = {number: {"memory_used": None} for number in range(8)}
    reset = watch.until("Resetting", a_node(faults={3: "Alarm"}, changed=silent, source=Source.MIND_CLUSTER))

    watch.until("Healthy", answered(a_node(changed=silent, source=Source.MIND_CLUSTER), reset, at=watch.now))


# --- MindCluster resets ------------------------------------------------------------------------------------------------------


def test_with_its_hot_reset_on_the_reset_is_mind_clusters() -> None:
    watch = Watch()
    watch.until("WaitingMindCluster", a_node(faults={3: "RestartNPU"}, hot_reset=True))
    watch.look(a_node(faults={3: "RestartNPU"}, hot_reset=True, recovering=frozenset({3})))
    watch.until("Healthy", a_node(hot_reset=True))

    assert not any(decision.reset for decision in watch.seen)
    assert watch.path == ["Quiescing", "Draining", "WaitingMindCluster", "Verifying", "Returning", "Healthy"]


def test_what_mind_cluster_asks_a_person_to_reset_the_agent_resets() -> None:
    watch = Watch()
    watch.until("WaitingMindCluster", a_node(faults={3: "RestartNPU"}, hot_reset=True))
    reset = watch.until("Resetting", a_node(faults={3: "RestartNPU"}, hot_reset=True, manual=frozenset({3})))

    assert reset.reset is not None


def test_mind_cluster_that_does_nothing_is_not_waited_for_for_ever() -> None:
    last = Watch().until("Quarantined", a_node(faults={3: "RestartNPU"}, hot_reset=True))

    assert last.reason == "MindClusterTimeout"


def test_while_mind_cluster_resets_nobody_else_does() -> None:
    watch = Watch()
    decision = watch.look(a_node(faults={3: "RestartNPU"}, recovering=frozenset({3})))
    assert (decision.step, decision.taint) == (Step.WAIT_MIND_CLUSTER, "remedy")

    last = watch.until("Quarantined", a_node(faults={3: "RestartNPU"}, recovering=frozenset({3})), most=at(hours=1) - at())
    assert last.reason == "MindClusterTimeout"
    assert not any(seen.reset for seen in watch.seen)


# --- quarantine and release --------------------------------------------------------------------------------------------------


def quarantined() -> Watch:
    watch = Watch()
    watch.until("Quarantined", a_node(faults={3: "SeparateNPU"}))
    return watch


def test_quarantine_ends_by_a_person_only() -> None:
    watch = quarantined()
    for _ in range(300):
        decision = watch.look(a_node(), after=600)

    assert (decision.step, decision.taint) == (Step.QUARANTINE, "quarantined")


def test_a_released_node_is_verified_before_it_returns_and_starts_with_a_full_budget() -> None:
    watch = Watch()
    watch.until("Quarantined", a_node(faults={3: "RestartNPU"}), most=at(hours=1) - at())
    assert watch.memory.resets
    released = watch.look(a_node(), released=True)
    assert (released.step, released.taint) == (Step.VERIFY, "remedy")

    watch.until("Healthy", a_node())
    assert (watch.memory.resets, watch.memory.remedies) == ((), ())


def test_a_node_released_with_its_fault_still_there_goes_back() -> None:
    watch = quarantined()
    watch.look(a_node(faults={3: "SeparateNPU"}), released=True)
    last = watch.until("Quarantined", a_node(faults={3: "SeparateNPU"}))

    assert last.reason == "CardIsolated"


def test_a_release_waits_for_facts_that_can_be_believed() -> None:
    watch = quarantined()

    assert watch.look(stale(a_node()), released=True).memory.state == "Quarantined"


def test_in_quarantine_a_pod_on_a_card_that_turns_bad_still_leaves() -> None:
    watch = quarantined()
    decision = watch.look(a_node(faults={3: "SeparateNPU", 5: "Alarm"}, held_by={5: "prod/chat-1", 6: "prod/chat-2"}))

    assert decision.quiesce == decision.evict == ("prod/chat-1",)


# --- modes, what was lost ----------------------------------------------------------------------------------------------------


def test_dry_run_says_what_would_be_done_and_does_nothing() -> None:
    watch = Watch(policy(mode="DryRun"))
    for _ in range(300):
        decision = watch.look(a_node(faults={3: "Alarm"}, held_by=HELD), after=30)

    assert decision.memory.dry_run
    assert (decision.memory.state, decision.reason) == ("Quiescing", "WouldReset")
    assert decision.message == "card 3: 80E01801 (Alarm): a reset takes cards 0-7"
    assert not any(seen.quiesce or seen.evict or seen.restart or seen.taint or seen.reset for seen in watch.seen)


@pytest.mark.parametrize("level", ["RestartBusiness", "FreeRestartNPU", "PreSeparateNPU", "SeparateNPU"])
def test_dry_run_touches_nothing_whatever_the_level(level: str) -> None:
    watch = Watch(policy(mode="DryRun"))
    for _ in range(100):
        watch.look(a_node(faults={3: level}), after=10)
        watch.look(a_node(faults={3: level}, held_by=HELD))
        watch.look(a_node(recovering=frozenset({3})))

    assert not any(seen.quiesce or seen.evict or seen.restart or seen.taint or seen.reset for seen in watch.seen)
    assert watch.memory.remedies == ()


def test_what_dry_run_would_have_done_counts_for_nothing_once_it_is_switched_on() -> None:
    watch = Watch(policy(mode="DryRun"))
    for _ in range(600):
        watch.look(a_node(faults={3: "Alarm"}, held_by=HELD))
    watch.policy = AUTO

    assert watch.look(a_node(faults={3: "Alarm"}, held_by=HELD)).quiesce == ("prod/chat-0",)
    assert len(watch.memory.remedies) == 1


def test_switching_off_and_on_again_does_not_fill_the_budget() -> None:
    watch = Watch(policy(resets=1))
    reset = resetting(watch)
    watch.until("Healthy", answered(a_node(), reset, at=watch.now))
    for mode in ("DryRun", "Off", "DryRun", "Auto"):
        watch.policy = policy(mode=mode, resets=1)
        watch.look(a_node(faults={3: "Alarm"}))
    last = watch.until("Quarantined", a_node(faults={3: "Alarm"}))

    assert last.reason == "ResetBudgetSpent"


@pytest.mark.parametrize("mode", ["Off", "DryRun"])
def test_switched_off_before_the_cards_are_touched_everything_is_undone(mode: str) -> None:
    watch = Watch()
    watch.until("Draining", a_node(faults={3: "Alarm"}, held_by=HELD))
    watch.policy = policy(mode=mode)
    decision = watch.look(a_node(faults={3: "Alarm"}, held_by=HELD))

    assert (decision.taint, decision.evict, decision.quiesce, decision.return_to_traffic) == ("", (), (), ("prod/chat-0",))


def test_switched_off_in_the_middle_of_a_reset_it_is_brought_to_its_end() -> None:
    watch = Watch()
    reset = resetting(watch)
    watch.policy = policy(mode="Off")
    watch.until("Healthy", answered(a_node(), reset, at=watch.now))

    assert watch.path[-3:] == ["Verifying", "Returning", "Healthy"]
    assert watch.look(a_node(faults={3: "Critical"})).reason == "Off"


def test_pods_that_an_operator_left_out_of_traffic_come_back_whatever_the_status_says() -> None:
    decision = Watch().look(a_node(held_by=HELD), Room(quiet=frozenset({"prod/chat-0"})))

    assert decision.return_to_traffic == ("prod/chat-0",)


def test_a_node_has_not_returned_before_its_pods_have() -> None:
    watch = Watch()
    held = Room(quiet=frozenset({"prod/chat-0"}))
    watch.look(a_node(faults={3: "Alarm"}, held_by=HELD), Room(others=1))
    back = watch.until("Returning", a_node(held_by=HELD), Room(quiet=held.quiet, others=1))
    assert back.return_to_traffic == ("prod/chat-0",)
    for _ in range(100):
        assert watch.look(a_node(held_by=HELD), held).return_to_traffic == ("prod/chat-0",)
    assert watch.memory.state == "Returning"

    assert watch.look(a_node(held_by=HELD)).memory.state == "Healthy"


def test_in_the_middle_of_a_remedy_without_facts_a_person_is_asked_in_the_end() -> None:
    watch = Watch()
    watch.until("Draining", a_node(faults={3: "Alarm"}, held_by=HELD))
    for _ in range(350):
        decision = watch.look(stale(a_node(faults={3: "Alarm"}, held_by=HELD)), after=10)
    assert (decision.memory.state, decision.step, decision.evict) == ("Draining", Step.WAIT, ())

    last = watch.until("Quarantined", stale(a_node()))
    assert last.reason == "FactsGone"


def test_a_clock_that_goes_back_stands_still() -> None:
    watch = Watch()
    watch.look(a_node(faults={3: "Alarm"}, held_by=HELD), after=3600)
    watch.seconds = 0
    decision = watch.until("Resetting", a_node(faults={3: "Alarm"}), most=at(hours=2) - at())

    times = [entry.time for entry in decision.memory.history]
    assert times == sorted(times)


def test_nothing_moves_in_the_status_while_nothing_happens() -> None:
    watch = Watch()
    watch.look(a_node())
    first = watch.memory
    for _ in range(100):
        watch.look(a_node(), after=60)

    assert watch.memory == first
    assert load(None) == Memory()


def test_grades_that_nobody_sends_today_are_still_handled() -> None:
    every = {number: Fault("X", "y", grade) for number, grade in enumerate(Grade)}

    assert Watch().look(a_node(faults=every)).memory.state == "Quiescing"
