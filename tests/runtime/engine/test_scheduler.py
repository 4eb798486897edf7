"""Scheduler and pages under random arrivals, ends and aborts: pure objects, no model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glm5_runtime.engine.blocks import PagePool
from glm5_runtime.engine.request import Request, SamplingParams
from glm5_runtime.engine.scheduler import Scheduler, Step
from glm5_runtime.engine.sequence import Sequence

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = 4
LONGEST = 40


def _sequence(prompt: int, name: str = "r") -> Sequence:
    return Sequence(Request(name, tuple(range(prompt)), SamplingParams(max_tokens=100)), lambda _: None, frozenset(), seed=0)


def _scheduler(pages: int, sequences: int = 3, budget: int = 12) -> Scheduler:
    return Scheduler(PagePool(pages), PAGE, max_sequences=sequences, max_batched_tokens=budget)


def _compute(plan: list[Step]) -> None:
    """What the runner and the engine do to a plan's sequences: everything scheduled is computed, complete ones get a token."""
    for step in plan:
        completes = step.completes
        step.sequence.computed += step.count
        if completes:
            step.sequence.append(1)


def _check(scheduler: Scheduler, plan: list[Step]) -> None:
    """What must hold after every schedule."""
    held = [page for sequence in (*scheduler.running, *scheduler.waiting) for page in sequence.pages]
    assert len(held) == len(set(held)), "a page belongs to two"
    assert 0 not in held, "page 0 is for padding"
    assert len(held) + scheduler.pool.free == scheduler.pool.count, "a page is lost"
    assert not any(sequence.pages or sequence.computed for sequence in scheduler.waiting)
    assert len(scheduler.running) <= 3
    assert sum(step.count for step in plan) <= 12
    assert len({id(step.sequence) for step in plan}) == len(plan)
    for step in plan:
        assert step.sequence in scheduler.running
        assert 0 < step.count <= step.sequence.pending
        assert len(step.sequence.pages) * PAGE >= step.sequence.computed + step.count


@settings(max_examples=400, deadline=None)
@given(
    st.integers(LONGEST // PAGE, 25),
    st.lists(st.tuples(st.sampled_from(["add", "step", "step", "abort"]), st.integers(1, LONGEST - 1), st.integers(0, 99)), max_size=80),
)
def test_no_page_is_lost_or_shared_whatever_happens(pages: int, events: list[tuple[str, int, int]]) -> None:
    scheduler = _scheduler(pages)
    for number, (event, size, which) in enumerate(events):
        alive = [*scheduler.running, *scheduler.waiting]
        if event == "add":
            scheduler.add(_sequence(size, f"r{number}"))
        elif event == "abort" and alive:
            scheduler.remove(alive[which % len(alive)])
        elif event == "step":
            _step_and_finish_full_ones(scheduler)
    _drain(scheduler)
    assert scheduler.pool.free == pages
    assert scheduler.pool.usage == 0.0


def _step_and_finish_full_ones(scheduler: Scheduler) -> None:
    plan = scheduler.schedule()
    _check(scheduler, plan)
    assert plan or not scheduler.has_work, "work waits and nothing moves"
    _compute(plan)
    assert all(sequence.pending == 1 for sequence in scheduler.running[:-1]), "a prompt half read stands before others"
    for step in plan:
        if len(step.sequence.tokens) >= LONGEST:
            scheduler.remove(step.sequence)


def _drain(scheduler: Scheduler) -> None:
    for _ in range(100_000):
        if not scheduler.has_work:
            return
        _step_and_finish_full_ones(scheduler)
    pytest.fail("the sequences never end: two keep preempting each other")


def test_a_long_prompt_is_cut_so_that_decodes_keep_flowing() -> None:
    scheduler = _scheduler(pages=25)
    first, long = _sequence(2), _sequence(30)
    scheduler.add(first)
    _compute(scheduler.schedule())
    scheduler.add(long)
    counts = []
    for _ in range(3):
        plan = scheduler.schedule()
        counts.append({id(step.sequence): step.count for step in plan})
        _compute(plan)
    assert counts == [{id(first): 1, id(long): 11}, {id(first): 1, id(long): 11}, {id(first): 1, id(long): 8}]


def test_arrival_order_is_kept_and_places_are_bounded() -> None:
    scheduler = _scheduler(pages=25)
    sequences = [_sequence(2, f"r{n}") for n in range(5)]
    for sequence in sequences:
        scheduler.add(sequence)
    assert [step.sequence for step in scheduler.schedule()] == sequences[:3]
    scheduler.remove(sequences[1])
    assert sequences[3] in [step.sequence for step in scheduler.schedule()]
    assert list(scheduler.waiting) == [sequences[4]]


def test_the_newest_gives_way_when_pages_run_out_and_comes_back_first() -> None:
    scheduler = _scheduler(pages=10, budget=40)
    old, new, later = _sequence(18, "old"), _sequence(18, "new"), _sequence(1, "later")
    for sequence in (old, new, later):
        scheduler.add(sequence)
    _run_until(scheduler, lambda: scheduler.preemptions > 0)
    assert scheduler.running == [old]
    assert list(scheduler.waiting) == [new, later]
    assert (new.pages, new.computed) == ([], 0)
    assert len(new.tokens) > 18  # its answer so far is kept and computed again
    scheduler.remove(old)
    assert next(step.sequence for step in scheduler.schedule()) is new


def _run_until(scheduler: Scheduler, condition: Callable[[], bool]) -> None:
    for _ in range(100):
        if condition():
            return
        _compute(scheduler.schedule())
    pytest.fail("never happened")


def test_nobody_newer_takes_the_pages_of_a_preempted_sequence_in_the_same_step() -> None:
    scheduler = _scheduler(pages=10, budget=40)
    for size in (19, 17):
        scheduler.add(_sequence(size))
    _run_until(scheduler, lambda: all(sequence.pending == 1 for sequence in scheduler.running) and len(scheduler.running) == 2)
    scheduler.add(_sequence(1, "small"))
    _run_until(scheduler, lambda: scheduler.preemptions > 0)
    assert scheduler.waiting[0].request.id != "small"


def test_a_page_cannot_come_back_twice() -> None:
    pool = PagePool(2)
    pages = pool.take(2)
    pool.give_back(list(pages))
    with pytest.raises(AssertionError, match="twice"):
        pool.give_back(list(pages))
