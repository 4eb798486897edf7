"""The work queue. Pure: nothing is faked, time is a number."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from glm5_operator.kube.queue import Backoff, Budget, WorkQueue
from glm5_operator.kube.types import Key, Outcome

BACKOFF = Backoff(base=1.0, longest=60.0, budget=5, recheck=60.0)


def a_queue(backoff: Backoff = BACKOFF) -> WorkQueue:
    return WorkQueue(backoff, random.Random(7))


def key(name: str) -> Key:
    return Key("GLM5Service", "ns", name)


def taken(queue: WorkQueue, now: float) -> Key | None:
    found = queue.take(now)
    return None if found is None else found[0]


def test_a_key_added_twice_is_taken_once() -> None:
    queue = a_queue()
    queue.add(key("a"), 0.0)
    queue.add(key("a"), 0.0)

    assert taken(queue, 0.0) == key("a")
    queue.finish(key("a"), Outcome.done(), 1.0)
    assert taken(queue, 1.0) is None


def test_an_event_during_processing_runs_the_key_once_more() -> None:
    queue = a_queue()
    queue.add(key("a"), 0.0)
    queue.take(0.0)
    queue.add(key("a"), 0.5)
    queue.add(key("a"), 0.6)

    assert taken(queue, 0.7) is None, "a key must not be with two workers"
    queue.finish(key("a"), Outcome.done(), 1.0)

    assert taken(queue, 1.0) == key("a")
    queue.finish(key("a"), Outcome.done(), 2.0)
    assert taken(queue, 2.0) is None


def test_a_delayed_key_is_due_when_its_time_comes_and_sooner_if_asked() -> None:
    queue = a_queue()
    queue.add(key("a"), 0.0, delay=10.0)
    assert taken(queue, 9.9) is None
    assert queue.next_time(0.0) == 10.0

    queue.add(key("a"), 1.0, delay=2.0)

    assert queue.next_time(1.0) == 3.0
    assert taken(queue, 3.0) == key("a")
    queue.finish(key("a"), Outcome.done(), 3.0)
    assert taken(queue, 20.0) is None, "the later time was replaced, not added"


def test_a_later_wish_does_not_put_off_a_sooner_one() -> None:
    queue = a_queue()
    queue.add(key("a"), 0.0, delay=1.0)
    queue.add(key("a"), 0.0, delay=100.0)

    assert taken(queue, 1.0) == key("a")


def test_again_comes_back_after_its_time() -> None:
    queue = a_queue()
    queue.add(key("a"), 0.0)
    queue.take(0.0)
    queue.finish(key("a"), Outcome.again(timedelta(seconds=30)), 1.0)

    assert taken(queue, 30.9) is None
    assert taken(queue, 31.0) == key("a")


def test_failures_wait_longer_each_time_and_success_starts_over() -> None:
    queue, now, waits = a_queue(), 0.0, []
    queue.add(key("a"), now)
    for _ in range(4):
        assert taken(queue, now) == key("a")
        queue.finish(key("a"), Outcome.retry("boom"), now)
        moment = queue.next_time(now)
        assert moment is not None
        waits.append(moment - now)
        now = moment
    for count, wait in enumerate(waits):
        assert 2.0**count / 2 <= wait <= 2.0**count

    queue.take(now)
    queue.finish(key("a"), Outcome.done(), now)
    queue.add(key("a"), now)
    queue.take(now)
    queue.finish(key("a"), Outcome.retry("boom"), now)
    moment = queue.next_time(now)
    assert moment is not None
    assert moment - now <= 1.0


def test_the_servers_own_retry_after_replaces_the_backoff() -> None:
    queue = a_queue()
    queue.add(key("a"), 0.0)
    queue.take(0.0)
    queue.finish(key("a"), Outcome.retry("TooManyRequests", timedelta(seconds=17)), 0.0)

    assert queue.next_time(0.0) == 17.0


def used_up(queue: WorkQueue) -> float:
    """Have `a` fail until its budget is used up; returns when that was."""
    now, said = 0.0, []
    queue.add(key("a"), now)
    for _ in range(BACKOFF.budget):
        now = queue.next_time(now) or now
        assert taken(queue, now) == key("a")
        said.append(queue.finish(key("a"), Outcome.retry("boom"), now))
    assert said == [Budget.LEFT] * (BACKOFF.budget - 1) + [Budget.USED_UP]
    return now


def test_after_the_budget_it_goes_on_slowly_for_ever_and_says_so_once() -> None:
    queue = a_queue()
    now = used_up(queue)

    for _ in range(3):
        moment = queue.next_time(now)
        assert moment is not None
        assert 0.8 * BACKOFF.recheck <= moment - now <= 1.2 * BACKOFF.recheck
        now = moment
        assert taken(queue, now) == key("a")
        assert queue.finish(key("a"), Outcome.retry("boom"), now) is Budget.BEYOND


def test_slow_rechecks_of_many_keys_spread_out() -> None:
    rng = random.Random(7)

    assert len({BACKOFF.slow_delay(rng) for _ in range(10)}) == 10


def test_after_the_budget_an_event_brings_the_key_back_at_once_with_a_fresh_one() -> None:
    queue = a_queue()
    now = used_up(queue) + 1

    queue.add(key("a"), now)

    assert taken(queue, now) == key("a")
    assert queue.finish(key("a"), Outcome.retry("boom"), now) is Budget.LEFT


def test_a_slow_recheck_that_works_ends_the_matter() -> None:
    queue = a_queue()
    now = queue.next_time(used_up(queue)) or 0.0
    assert taken(queue, now) == key("a")

    assert queue.finish(key("a"), Outcome.done(), now) is Budget.LEFT
    assert queue.next_time(now) is None


def test_a_longer_retry_after_of_the_server_puts_the_slow_recheck_off() -> None:
    queue = a_queue(Backoff(1.0, 60.0, budget=1, recheck=60.0))
    queue.add(key("a"), 0.0)
    queue.take(0.0)
    queue.finish(key("a"), Outcome.retry("TooManyRequests", timedelta(seconds=500)), 0.0)

    assert queue.next_time(0.0) == 500.0


def test_an_event_that_arrived_while_the_last_try_failed_is_not_lost() -> None:
    queue = a_queue(Backoff(1.0, 60.0, budget=1, recheck=60.0))
    queue.add(key("a"), 0.0)
    queue.take(0.0)
    queue.add(key("a"), 0.5)

    assert queue.finish(key("a"), Outcome.retry("boom"), 1.0) is Budget.USED_UP
    assert taken(queue, 1.0) == key("a")
    assert queue.finish(key("a"), Outcome.retry("boom"), 1.0) is Budget.USED_UP, "the event gave it a fresh budget"


def test_an_event_overtakes_a_backoff() -> None:
    """A user who has mended the spec doesn't wait a minute for it."""
    queue = a_queue()
    queue.add(key("a"), 0.0)
    queue.take(0.0)
    queue.finish(key("a"), Outcome.retry("boom", timedelta(seconds=60)), 0.0)

    queue.add(key("a"), 1.0)

    assert taken(queue, 1.0) == key("a")


def test_one_busy_object_does_not_starve_the_others() -> None:
    queue = a_queue()
    for name in "abc":
        queue.add(key(name), 0.0)
    order = []
    for step in range(6):
        now = float(step)
        found = taken(queue, now)
        assert found is not None
        order.append(found.name)
        queue.add(key("a"), now)
        queue.finish(found, Outcome.done(), now)

    assert order[:3] == ["a", "b", "c"]
    assert set(order[3:]) == {"a"}


@pytest.mark.parametrize("failures", [1, 5, 50, 10_000])
def test_backoff_stays_within_its_limits(failures: int) -> None:
    delay = BACKOFF.delay(failures, random.Random(failures))

    assert 0.5 <= delay <= BACKOFF.longest


OUTCOMES = st.one_of(
    st.just(Outcome.done()),
    st.floats(0.1, 50).map(lambda seconds: Outcome.again(timedelta(seconds=seconds))),
    st.just(Outcome.retry("boom")),
    st.just(Outcome.stalled("Cannot")),
)


@dataclass
class _World:
    now: float = 0.0
    running: set[Key] = field(default_factory=set)
    owed: set[Key] = field(default_factory=set)  # an event came and no run has started since


class AnyHistory(RuleBasedStateMachine):
    """Whatever happens in whatever order: one worker a key, and no wake-up is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = a_queue()
        self.world = _World()

    @rule(name=st.sampled_from("abcde"), delay=st.sampled_from([0.0, 0.1, 3.0]))
    def event(self, name: str, delay: float) -> None:
        self.queue.add(key(name), self.world.now, delay)
        self.world.owed.add(key(name))

    @rule(seconds=st.floats(0.01, 100))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    @rule()
    def worker_asks(self) -> None:
        found = taken(self.queue, self.world.now)
        if found is not None:
            assert found not in self.world.running
            self.world.running.add(found)
            self.world.owed.discard(found)

    @precondition(lambda self: self.world.running)
    @rule(data=st.data(), outcome=OUTCOMES)
    def worker_finishes(self, data: st.DataObject, outcome: Outcome) -> None:
        done = data.draw(st.sampled_from(sorted(self.world.running)))
        self.world.running.discard(done)
        self.queue.finish(done, outcome, self.world.now)

    @invariant()
    def every_wake_up_is_planned(self) -> None:
        planned = self.queue.next_time(self.world.now)
        waiting = self.world.owed - self.world.running
        if waiting:
            assert planned is not None
            assert planned <= self.world.now + 3.0 + 1e-9
        assert self.queue.sizes()["running"] == len(self.world.running)

    def teardown(self) -> None:
        """Left alone, the queue hands out everything that is still owed."""
        for done in sorted(self.world.running):
            self.queue.finish(done, Outcome.done(), self.world.now)
        self.world.now += 1000.0
        handed_out = set()
        while (found := taken(self.queue, self.world.now)) is not None:
            handed_out.add(found)
        assert self.world.owed <= handed_out


AnyHistory.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyHistory = AnyHistory.TestCase


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=60))
def test_keys_are_taken_in_the_order_in_which_they_became_due(names: list[str]) -> None:
    queue = a_queue()
    for moment, name in enumerate(names):
        queue.add(key(name), float(moment))

    order = []
    while (found := taken(queue, 1000.0)) is not None:
        order.append(found.name)

    assert order == list(dict.fromkeys(names))
