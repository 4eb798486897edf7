"""Scheduler and pages under random arrivals, ends and aborts: pure objects, no model."""

from __future__ import annotations

import itertools
from collections import Counter
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


_unlike = itertools.count(1000, 1000)


def _sequence(prompt: int, name: str = "r", *, first: int | None = None, salt: str = "", **params: object) -> Sequence:
    """A prompt of so many tokens, counting up from `first`, or from where no other one begins."""
    start = next(_unlike) if first is None else first
    wanted = SamplingParams(max_tokens=100, **params)  # type: ignore[arg-type]
    return Sequence(Request(name, tuple(range(start, start + prompt)), wanted, salt), lambda _: None, frozenset(), seed=0)


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
    alive = [*scheduler.running, *scheduler.waiting]
    holders = Counter(page for sequence in alive for page in sequence.pages)
    assert 0 not in holders, "page 0 is for padding"
    assert len(holders) + scheduler.pool.free == scheduler.pool.count, "a page is lost"
    texts: dict[int, set[tuple[str, tuple[int, ...]]]] = {}
    for sequence in alive:
        for place, page in enumerate(sequence.pages):
            texts.setdefault(page, set()).add((sequence.request.cache_salt, tuple(sequence.tokens[: (place + 1) * PAGE])))
    assert all(len(texts[page]) == 1 for page, count in holders.items() if count > 1), "a page is shared by two that begin differently"
    for step in plan:
        written = step.sequence.pages[step.sequence.computed // PAGE :]
        assert all(holders[page] == 1 for page in written), "a page that others read would be written"
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
    st.lists(
        st.tuples(st.sampled_from(["add", "step", "step", "abort", "fail"]), st.integers(1, LONGEST - 1), st.integers(0, 99)),
        max_size=80,
    ),
)
def test_no_page_is_lost_and_none_shared_by_different_texts_whatever_happens(pages: int, events: list[tuple[str, int, int]]) -> None:
    scheduler = _scheduler(pages)
    for number, (event, size, which) in enumerate(events):
        alive = [*scheduler.running, *scheduler.waiting]
        if event == "add":
            scheduler.add(_sequence(size, f"r{number}", first=which % 3, salt="ab"[which % 2]))
        elif event in {"abort", "fail"} and alive:
            scheduler.remove(alive[which % len(alive)], spoiled=event == "fail")
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


def _finish(scheduler: Scheduler, sequence: Sequence) -> list[int]:
    """Read a sequence's prompt and end it; the pages it had."""
    scheduler.add(sequence)
    _run_until(scheduler, lambda: sequence.produced > 0)
    pages = list(sequence.pages)
    scheduler.remove(sequence)
    return pages


def test_a_prompt_that_begins_like_another_computes_only_the_rest() -> None:
    scheduler = _scheduler(pages=25)
    pages = _finish(scheduler, _sequence(10, first=0))

    scheduler.add(again := _sequence(12, first=0))
    (step,) = scheduler.schedule()

    assert (again.computed, step.count) == (8, 4)
    assert again.pages[:2] == pages[:2]
    assert (scheduler.prefix_queries, scheduler.prefix_hits) == (22, 8)


def test_two_that_run_at_once_share_what_the_first_has_computed() -> None:
    scheduler = _scheduler(pages=25)
    first, second = _sequence(9, first=0), _sequence(9, first=0)
    scheduler.add(first)
    _compute(scheduler.schedule())
    scheduler.add(second)
    scheduler.schedule()

    assert second.pages[:2] == first.pages[:2]
    scheduler.remove(first)
    assert scheduler.pool.count - scheduler.pool.free == len(second.pages)


def test_of_a_prompt_that_is_known_whole_the_last_page_is_computed_again() -> None:
    scheduler = _scheduler(pages=25)
    _finish(scheduler, _sequence(8, first=0))

    scheduler.add(_sequence(8, first=0))
    (step,) = scheduler.schedule()

    assert step.count == 4


@pytest.mark.parametrize(
    "other",
    [_sequence(10, first=0, salt="mine"), _sequence(10, first=0, prompt_logprobs=1), _sequence(10, first=1)],
    ids=["another salt", "logprobs of the prompt", "another beginning"],
)
def test_some_prompts_share_nothing(other: Sequence) -> None:
    scheduler = _scheduler(pages=25)
    _finish(scheduler, _sequence(10, first=0))

    scheduler.add(other)
    (step,) = scheduler.schedule()

    assert step.count == 10
    assert scheduler.prefix_queries == (10 if other.wants_prompt_logprobs else 20), "who may not look isn't counted"


def test_nothing_is_shared_when_it_is_switched_off() -> None:
    scheduler = Scheduler(PagePool(25), PAGE, max_sequences=3, max_batched_tokens=12, prefix_cache=False)
    _finish(scheduler, _sequence(10, first=0))

    scheduler.add(_sequence(10, first=0))
    (step,) = scheduler.schedule()

    assert (step.count, scheduler.prefix_queries) == (10, 0)


def test_what_failed_is_shared_by_nobody() -> None:
    scheduler = _scheduler(pages=25)
    scheduler.add(broken := _sequence(10, first=0))
    _compute(scheduler.schedule())
    scheduler.remove(broken, spoiled=True)

    scheduler.add(_sequence(10, first=0))
    (step,) = scheduler.schedule()

    assert step.count == 10


def test_a_preempted_sequence_finds_again_what_nobody_took() -> None:
    scheduler = _scheduler(pages=10, budget=40)
    old, new = _sequence(18, "old"), _sequence(18, "new")
    for sequence in (old, new):
        scheduler.add(sequence)
    _run_until(scheduler, lambda: scheduler.preemptions > 0)
    scheduler.remove(old)

    (step,) = scheduler.schedule()

    assert step.sequence is new
    assert new.computed >= 16, "of its five full pages at most the last was taken"


def test_what_was_unused_for_longest_is_forgotten_first_and_the_end_of_a_text_before_its_beginning() -> None:
    pool = PagePool(4)
    for text in (b"a", b"b"):
        pages = pool.take(2)
        for place, page in enumerate(pages):
            pool.name(page, text + bytes([place]))
        pool.give_back(pages)

    pool.take(1)

    assert len(pool.find([b"a\x00"])) == 1
    assert pool.find([b"a\x01"]) == []
    pool.take(1)
    assert pool.find([b"a\x00"]) == []
    assert len(pool.find([b"b\x00", b"b\x01"])) == 2


def test_pages_without_a_name_are_taken_before_those_that_may_be_found_again() -> None:
    pool = PagePool(2)
    (named,) = pool.take(1)
    (other,) = pool.take(1)
    pool.name(named, b"a")
    pool.give_back([named])
    pool.give_back([other])

    assert pool.take(1) == [other]
