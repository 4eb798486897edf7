"""Scheduler and pages under anything that can happen: arrivals of all kinds, steps, guesses, ends, aborts, failures, preemptions."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from glm5_runtime.config import complete_tiers, parse_tiers
from glm5_runtime.engine.draft import wanted_drafts
from glm5_runtime.engine.scheduler import Scheduler
from tests.runtime.engine.plans import LONGEST, PAGE, RIGHT, check, compute, new, scheduler

WRONG = 2
GUESSES = st.lists(st.lists(st.sampled_from([RIGHT, RIGHT, RIGHT, WRONG]), max_size=PAGE + 1), max_size=6)
"""Of the running sequences one after the other, as a drafter leaves them after a step. Some have none."""


class Machine(RuleBasedStateMachine):
    """Texts come in three families that begin alike, salts and adapters in two, clients in three, priorities in three."""

    scheduler: Scheduler

    @initialize(
        pages=st.integers(LONGEST // PAGE, 30),
        places=st.integers(3, 6),
        budget=st.integers(6, 20),
        tiers=st.sampled_from(["", "12", "8:0.5,20:0.3"]),
    )
    def begin(self, pages: int, places: int, budget: int, tiers: str) -> None:
        self.pages, self.places, self.budget = pages, places, budget
        named = complete_tiers(parse_tiers(tiers), LONGEST) if tiers else ()
        self.scheduler = scheduler(pages, places, budget, named)
        self.names = [None, *(tier.name for tier in named)]

    @rule(
        prompt=st.integers(1, LONGEST - 1),
        answer=st.integers(1, LONGEST),
        which=st.tuples(st.integers(0, 2), st.sampled_from(["", "salt"]), st.integers(-1, 1), st.sampled_from("abc"), st.integers(0, 9)),
        adapter=st.integers(0, 1),
        copies=st.sampled_from([1, 1, 1, 3]),
    )
    def add(self, prompt: int, answer: int, which: tuple[int, str, int, str, int], adapter: int, copies: int) -> None:
        first, salt, priority, client, tier = which
        name = self.names[tier % len(self.names)]
        longest = int(next((t.length for t in self.scheduler.tiers if t.name == name), LONGEST))
        prompt = min(prompt, longest)
        limit = max(1, min(answer, LONGEST - prompt))
        fields = {"cache_salt": salt, "priority": priority, "client": client, "tier": name}
        for _ in range(copies):
            self.scheduler.add(new(prompt, first=first, max_tokens=limit, adapter=adapter, **fields))

    @rule(guesses=GUESSES)
    def step(self, guesses: list[list[int]]) -> None:
        most = self.budget // self.places - 1  # what the engine's settings allow
        for sequence, drafts in zip(self.scheduler.running, guesses, strict=False):
            sequence.drafts = drafts[: max(0, wanted_drafts(sequence, most))]
        plan = self.scheduler.schedule()
        check(self.scheduler, plan, places=self.places, budget=self.budget)
        assert plan or not self.scheduler.has_work, "work waits and nothing moves"
        compute(plan)
        for step in plan:
            if step.sequence.produced >= step.sequence.params.max_tokens:
                self.scheduler.remove(step.sequence)

    @rule(times=st.integers(2, 10), guesses=GUESSES)
    def steps(self, times: int, guesses: list[list[int]]) -> None:
        for _ in range(times):
            self.step(guesses)

    @rule(which=st.integers(0, 99), fails=st.booleans())
    def end(self, which: int, fails: bool) -> None:
        if alive := self.scheduler.alive:
            self.scheduler.remove(alive[which % len(alive)], spoiled=fails)

    @invariant()
    def promises_are_of_running_sequences(self) -> None:
        if hasattr(self, "scheduler"):
            assert all(sequence.running for sequence in self.scheduler._promised.values())

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(20_000):
            if not self.scheduler.has_work:
                break
            self.step([])
        else:
            pytest.fail("the sequences never end: two keep preempting each other")
        assert self.scheduler.pool.free == self.pages
        assert not self.scheduler._promised
        assert not self.scheduler._clients
        assert [(tier.running, tier.held, bool(tier.line), tier.reading) for tier in self.scheduler.tiers] == [
            (0, 0, False, []) for _ in self.scheduler.tiers
        ]


TestNoPageIsLost = Machine.TestCase
TestNoPageIsLost.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_ten_thousand_requests_that_end_fail_or_are_preempted_leave_no_page_behind() -> None:
    tiers = complete_tiers(parse_tiers("8:0.5,20:0.3"), LONGEST)
    tested = scheduler(pages=24, sequences=6, budget=20, tiers=tiers)
    chance = random.Random(1)
    for number in range(10_000):
        prompt = chance.randint(1, LONGEST - 1)
        fields = {"priority": chance.randint(-1, 1), "client": chance.choice("abc"), "cache_salt": chance.choice(("", "salt"))}
        tested.add(new(prompt, f"r{number}", first=chance.randint(0, 2), max_tokens=chance.randint(1, LONGEST - prompt), **fields))
        while len(tested.alive) > chance.randint(0, 20):
            _step_and_end(tested, chance, thorough=number % 50 == 0)
    while tested.has_work:
        _step_and_end(tested, chance, thorough=False)

    assert tested.preemptions > 1000
    assert tested.prefix_hits > 10_000
    assert (tested.pool.free, tested._promised, tested._clients) == (24, {}, {})


def _step_and_end(tested: Scheduler, chance: random.Random, *, thorough: bool) -> None:
    """One step; who has all its tokens ends, now and then another one fails or is aborted."""
    plan = tested.schedule()
    assert plan, "work waits and nothing moves"
    if thorough:
        check(tested, plan, places=6, budget=20)
    compute(plan)
    for step in plan:
        if step.sequence.produced >= step.sequence.params.max_tokens:
            tested.remove(step.sequence)
    if chance.random() < 0.05 and (alive := tested.alive):
        tested.remove(chance.choice(alive), spoiled=chance.random() < 0.5)
