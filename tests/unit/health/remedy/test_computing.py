"""The compute check in Verify: asked for once, its verdict obeyed, and what it can't say holds nothing up."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from glm5_operator.health.remedy.policy import COMPUTE_CHECK_TAKES, Policy
from glm5_operator.health.types import Grade
from tests.unit.health.remedy.test_table import table
from tests.unit.health.remedy.world import World, settle

POLICY = Policy(mode="Auto", compute_check=True, debounce=timedelta(seconds=10), verify=timedelta(seconds=10), thermal=())


class Walk:
    """One node with a sick card; how its resets and checks end, in order."""

    def __init__(self, *ends: str, policy: Policy = POLICY, hot_reset: bool = False) -> None:
        self.ends = list(ends)
        self.world = World(policy, 1, lambda: "Heals", hot_reset=hot_reset)
        self.site = self.world.sites[0]
        self.made: list[str] = []
        self.world.computes = self._next
        for _ in range(3):
            self.world.tick()
        self.site.cards[0].grade = Grade.RESET

    def _next(self) -> str:
        self.made.append(self.world.now.isoformat())
        return self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]

    def until(self, *states: str) -> None:
        for _ in range(3000):
            self.world.tick()
            if self.site.memory.state in states:
                return
        pytest.fail(f"{self.site.memory}")

    def through(self) -> None:
        self.until("Verifying", "WaitingMindCluster")
        settle(self.world)
        assert {step for step in self.world.steps if step[0] != step[1]} - table("health.md") == set()

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(entry.reason, entry.message) for entry in self.site.memory.history]


def test_a_node_whose_cards_compute_returns_after_one_check_whose_pod_goes() -> None:
    walk = Walk("Passed")
    walk.through()

    assert walk.site.memory.state == "Healthy"
    assert ("Verified", "good for 10 s; compute check passed: Passed") in walk.told
    assert len(walk.made) == 1
    assert walk.site.check_pod is None


def test_wrong_numbers_are_a_fault_that_asks_for_the_next_reset_and_right_ones_after_it_bring_the_node_back() -> None:
    walk = Walk("Failed", "Passed")
    walk.through()

    assert ("Verifying", "Draining", "ComputeCheckFailed") in walk.world.steps
    assert len(walk.site.done) == len(walk.made) == 2
    assert walk.site.memory.state == "Healthy"


def test_cards_that_never_compute_end_in_quarantine_when_the_budget_is_spent() -> None:
    walk = Walk("Failed")
    walk.through()

    assert (walk.site.memory.state, walk.site.memory.reason) == ("Quarantined", "ResetBudgetSpent")
    assert "ComputeCheckFailed" in walk.site.memory.message
    assert len(walk.site.done) == POLICY.resets


def test_where_mind_cluster_resets_wrong_numbers_are_quarantine_at_once_since_it_sees_nothing_to_reset() -> None:
    walk = Walk("Failed", hot_reset=True)
    walk.through()

    assert (walk.site.memory.state, walk.site.memory.reason) == ("Quarantined", "ComputeCheckFailed")


@pytest.mark.parametrize("end", ["CouldNotRun", "Hangs"])
def test_a_check_that_could_not_run_is_told_and_the_node_returns(end: str) -> None:
    walk = Walk(end)
    walk.through()

    assert walk.site.memory.state == "Healthy"
    assert any(f"compute check skipped: {end}" in message for _, message in walk.told), walk.told
    assert len(walk.made) == 1


def test_a_pod_that_never_ends_is_waited_for_no_longer_than_stated() -> None:
    walk = Walk("Passed")
    walk.until("Verifying")
    while walk.site.memory.check is None:
        walk.world.tick()
    began = walk.world.now
    for _ in range(600):
        if walk.site.check_pod is not None:
            walk.site.check_pod.ends = walk.world.now + timedelta(hours=1)
        walk.world.tick()
        if walk.site.memory.state != "Verifying":
            break

    assert walk.site.memory.state == "Returning"
    assert walk.world.now - began <= COMPUTE_CHECK_TAKES + timedelta(seconds=3)
    assert "no result within 300 s" in walk.site.memory.message


def test_where_no_card_is_free_or_no_check_is_wanted_none_is_made() -> None:
    off = Walk("Failed", policy=replace(POLICY, compute_check=False))
    off.through()
    assert (off.made, off.site.memory.state) == ([], "Healthy")
    assert ("Verified", "good for 10 s") in off.told


def test_an_operator_that_dies_in_between_goes_on_with_the_pod_that_is_there() -> None:
    walk = Walk("Passed")
    walk.until("Verifying")
    while walk.site.check_pod is None:
        walk.world.tick()
    pod = walk.site.check_pod
    walk.world.down_until = walk.world.seconds + 10

    settle(walk.world)

    assert walk.site.memory.state == "Healthy"
    assert len(walk.made) == 1
    assert pod.gone is not None


def test_a_fault_while_the_check_runs_takes_its_pod_away_before_the_cards_are_reset() -> None:
    walk = Walk("Hangs", "Passed")
    walk.until("Verifying")
    while walk.site.check_pod is None:
        walk.world.tick()
    walk.site.cards[1].grade = Grade.RESET
    settle(walk.world)  # world.check: no reset is asked for while the pod holds cards

    assert len(walk.site.done) == 2
    assert walk.site.memory.state == "Healthy"
