"""Case C13: the same chip fails again and again. Tries are bounded, flapping is debounced, a rare fault doesn't add up."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest

from glm5_operator.health.remedy.decision import Room
from glm5_operator.health.remedy.memory import dump, load
from glm5_operator.health.remedy.policy import Thermal
from glm5_operator.health.types import NodeHealth
from tests.support.clock import at
from tests.support.health import Watch, a_node, answered, policy, stale

HELD = {4: "prod/chat-0"}


def heal(watch: Watch, *, most: float = 3600) -> str:
    """Chip 4 is in Alarm; what is asked for is done, and it heals. Where the node ends up."""
    node: NodeHealth = a_node(faults={4: "Alarm"})
    for _ in range(int(most)):
        decision = watch.look(node)
        if decision.reset:
            node = answered(a_node(), decision, at=watch.now)
        if watch.seen[-2:] and decision.memory.state in {"Healthy", "Quarantined"}:
            return decision.memory.state
    raise AssertionError(watch.path)


def test_case_c13_a_chip_that_comes_back_for_five_minutes_ten_times_is_reset_twice_and_then_kept_out() -> None:
    watch = Watch()
    ends = []
    for _ in range(10):
        ends.append(heal(watch))
        watch.look(a_node(), after=300)

    assert ends == ["Healthy", "Healthy", *["Quarantined"] * 8]
    assert len(watch.memory.resets) == 2
    assert watch.memory.reason == "ResetBudgetSpent"
    assert "glm5 node release" in watch.memory.message


def test_case_c13_the_counter_survives_an_operator_that_starts_anew() -> None:
    watch = Watch()
    for _ in range(2):
        heal(watch)
    # `Watch` keeps nothing but the status; this is another operator that reads it.
    other = Watch(memory=load(dump(watch.memory)))
    other.seconds = watch.seconds

    assert heal(other) == "Quarantined"


def test_case_c13_a_chip_that_fails_once_a_month_is_reset_each_time() -> None:
    watch = Watch()
    ends = []
    for _ in range(12):
        ends.append(heal(watch))
        watch.look(a_node(), after=30 * 86400)

    assert ends == ["Healthy"] * 12
    assert len(watch.memory.resets) == 0


def test_case_c13_a_chip_that_flips_every_ten_seconds_leaves_traffic_once_and_does_not_come_back_between() -> None:
    watch = Watch()
    back = 0
    for second in range(2 * 3600):
        sick = (second // 10) % 2 == 0
        holder = HELD if not any(decision.evict for decision in watch.seen) else {}
        node = a_node(faults={4: "Alarm"} if sick else {}, held_by=holder)
        if watch.seen and watch.seen[-1].reset:
            node = answered(node, watch.seen[-1], at=watch.now)
        decision = watch.look(node)
        back += decision.memory.state in {"Healthy", "Returning"}
        if decision.memory.state == "Quarantined":
            break

    assert back == 0
    assert watch.memory.state == "Quarantined"
    assert len(watch.memory.resets) == 2
    assert watch.path[:2] == ["Quiescing", "Draining"]


def test_a_chip_that_always_heals_by_itself_is_kept_out_in_the_end_too() -> None:
    watch = Watch()
    comings = 0
    for _ in range(20):
        watch.look(a_node(faults={4: "Alarm"}, held_by=HELD), Room(others=1))
        for _ in range(100):
            state = watch.look(a_node(held_by=HELD), Room(others=1)).memory.state
            if state in {"Healthy", "Quarantined"}:
                comings += state == "Healthy"
                break

    # Its faults go away before it is drained, so no reset is ever asked for: leaving and coming back has a budget of its own.
    assert watch.memory.reason == "TooManyRemedies"
    assert not any(decision.reset for decision in watch.seen)
    assert comings == watch.policy.remedies


def test_after_too_many_comings_and_goings_not_even_a_reset_is_tried_any_more() -> None:
    watch = Watch()
    for _ in range(watch.policy.remedies):
        watch.look(a_node(faults={4: "Alarm"}), Room(others=1))
        watch.until("Healthy", a_node(), Room(others=1))
    last = watch.until("Quarantined", a_node(faults={4: "Alarm"}))

    assert last.reason == "TooManyRemedies"
    assert not any(decision.reset for decision in watch.seen)


def test_engines_are_not_restarted_for_ever() -> None:
    watch = Watch()
    for _ in range(20):
        watch.look(a_node(faults={4: "RestartBusiness"}, held_by=HELD))
        for _ in range(8):
            watch.look(a_node(held_by=HELD), after=10)

    assert sum(bool(decision.restart) for decision in watch.seen) == watch.policy.remedies
    assert watch.memory.reason == "TooManyRemedies"


def test_pre_separation_that_comes_and_goes_does_not_move_the_taint_for_ever() -> None:
    watch = Watch()
    for _ in range(20):
        watch.look(a_node(faults={4: "PreSeparateNPU"}))
        for _ in range(8):
            watch.look(a_node(), after=10)
    taints = [decision.taint for decision in watch.seen]

    assert sum(before != after for before, after in pairwise(taints)) <= 2 * watch.policy.remedies + 1
    assert taints[-1] == "quarantined"


@pytest.mark.parametrize("resets", [0, 1, 3])
def test_the_budget_is_the_pools(resets: int) -> None:
    watch = Watch(policy(resets=resets))
    ends = [heal(watch) for _ in range(resets + 1)]

    assert ends == [*["Healthy"] * resets, "Quarantined"]
    assert sum(decision.reset is not None and decision.reason == "ResetRequested" for decision in watch.seen) >= resets
    assert len({decision.reset.id for decision in watch.seen if decision.reset}) == resets


def test_facts_that_fail_in_between_do_not_count_as_good_ones() -> None:
    watch = Watch()
    watch.look(a_node(faults={4: "Alarm"}, held_by=HELD), Room(others=1))
    watch.look(a_node(held_by=HELD))
    watch.look(stale(a_node(held_by=HELD)), after=120)

    assert watch.look(a_node(held_by=HELD)).memory.state == "Quiescing"


# --- the thermal rule --------------------------------------------------------------------------------------------------------

HOT = {4: {"temperature": 91, "utilisation": 99}}
RESETS = policy(thermal=(Thermal(85, 95, timedelta(minutes=5), "Reset"),))


def test_a_hot_and_busy_card_is_told_of_after_its_time_and_not_before() -> None:
    watch = Watch()
    early = [watch.look(a_node(changed=HOT), after=10) for _ in range(30)]
    late = watch.look(a_node(changed=HOT), after=10)

    assert not any(decision.alerts for decision in early)
    assert [alert.reason for alert in late.alerts] == ["Noted"]
    assert "above 85 °C and 95 % for 300 s" in late.message
    assert late.memory.state == "Healthy"


def test_a_card_that_cools_down_in_between_starts_anew() -> None:
    watch = Watch(RESETS)
    for _ in range(20):
        watch.look(a_node(changed=HOT), after=250)
        watch.look(a_node(), after=10)

    assert watch.path == ["Healthy"]


@pytest.mark.parametrize("changed", [{"temperature": 91, "utilisation": 50}, {"temperature": 80, "utilisation": 99}, {"temperature": None}])
def test_both_must_hold_and_be_known(changed: dict[str, object]) -> None:
    watch = Watch(RESETS)
    for _ in range(10):
        watch.look(a_node(changed={4: changed}), after=100)

    assert watch.path == ["Healthy"]


def test_a_card_that_cools_because_its_pods_are_gone_is_reset_nevertheless() -> None:
    watch = Watch(RESETS)
    watch.until("Draining", a_node(changed=HOT, held_by=HELD))
    reset = watch.until("Resetting", a_node())
    watch.until("Healthy", answered(a_node(), reset, at=watch.now))

    assert watch.memory.hot == ()


def test_how_long_a_card_has_been_hot_survives_an_operator_that_starts_anew() -> None:
    watch = Watch(RESETS)
    watch.look(a_node(changed=HOT))
    watch.look(a_node(changed=HOT), after=299)
    other = Watch(RESETS, load(dump(watch.memory)))
    other.seconds = watch.seconds

    assert other.look(a_node(changed=HOT), after=2).memory.state == "Quiescing"


def test_a_card_that_cannot_be_read_for_a_moment_is_neither_hot_nor_cool() -> None:
    watch = Watch(RESETS)
    watch.look(a_node(changed=HOT))
    watch.look(a_node(unknown=[4]), after=150)

    assert watch.look(a_node(changed=HOT), after=151).memory.state == "Quiescing"


def test_the_time_of_a_day_of_remedies_fits_the_status() -> None:
    watch = Watch(policy(resets=24, window=timedelta(hours=168)))
    for _ in range(60):
        heal(watch)
    report = dump(watch.memory)

    assert len(report.history or ()) == 20
    assert len(report.resets or ()) == 24
    assert type(report).model_validate_json(report.model_dump_json(by_alias=True)) == report
    assert at() < watch.now
