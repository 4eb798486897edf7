"""What the scheduler decides in plain cases: cutting, order, preemption, sharing. Pure objects, no model."""

from __future__ import annotations

import pytest

from glm5_runtime.engine.blocks import PagePool
from glm5_runtime.engine.scheduler import Scheduler
from glm5_runtime.engine.sequence import Sequence
from tests.runtime.engine.plans import PAGE, compute, new, run_until, scheduler


def test_a_long_prompt_is_cut_so_that_decodes_keep_flowing() -> None:
    tested = scheduler(pages=25)
    first, long = new(2), new(30)
    tested.add(first)
    compute(tested.schedule())
    tested.add(long)
    counts = []
    for _ in range(3):
        plan = tested.schedule()
        counts.append({id(step.sequence): step.count for step in plan})
        compute(plan)
    assert counts == [{id(first): 1, id(long): 11}, {id(first): 1, id(long): 11}, {id(first): 1, id(long): 8}]


def test_arrival_order_is_kept_and_places_are_bounded() -> None:
    tested = scheduler(pages=25)
    sequences = [new(2, f"r{n}") for n in range(5)]
    for sequence in sequences:
        tested.add(sequence)
    assert [step.sequence for step in tested.schedule()] == sequences[:3]
    tested.remove(sequences[1])
    assert sequences[3] in [step.sequence for step in tested.schedule()]
    assert list(tested.waiting) == [sequences[4]]


def test_the_newest_gives_way_when_pages_run_out_and_comes_back_first() -> None:
    tested = scheduler(pages=10, budget=40)
    old, recent, later = new(18, "old"), new(18, "recent"), new(1, "later")
    for sequence in (old, recent, later):
        tested.add(sequence)
    run_until(tested, lambda: tested.preemptions > 0)
    assert tested.running == [old]
    assert list(tested.waiting) == [recent, later]
    assert (recent.pages, recent.computed) == ([], 0)
    assert len(recent.tokens) > 18  # its answer so far is kept and computed again
    tested.remove(old)
    assert next(step.sequence for step in tested.schedule()) is recent


def test_nobody_newer_takes_the_pages_of_a_preempted_sequence_in_the_same_step() -> None:
    tested = scheduler(pages=10, budget=40)
    for size in (19, 17):
        tested.add(new(size))
    run_until(tested, lambda: all(sequence.pending == 1 for sequence in tested.running) and len(tested.running) == 2)
    tested.add(new(1, "small"))
    run_until(tested, lambda: tested.preemptions > 0)
    assert tested.waiting[0].request.id != "small"


def test_a_page_cannot_come_back_twice() -> None:
    pool = PagePool(2)
    pages = pool.take(2)
    pool.give_back(list(pages))
    with pytest.raises(AssertionError, match="twice"):
        pool.give_back(list(pages))


def _finish(tested: Scheduler, sequence: Sequence) -> list[int]:
    """Read a sequence's prompt and end it; the pages it had."""
    tested.add(sequence)
    run_until(tested, lambda: sequence.produced > 0)
    pages = list(sequence.pages)
    tested.remove(sequence)
    return pages


def test_a_prompt_that_begins_like_another_computes_only_the_rest() -> None:
    tested = scheduler(pages=25)
    pages = _finish(tested, new(10, first=0))

    tested.add(again := new(12, first=0))
    (step,) = tested.schedule()

    assert (again.computed, step.count) == (8, 4)
    assert again.pages[:2] == pages[:2]
    assert (tested.prefix_queries, tested.prefix_hits) == (22, 8)


def test_two_that_run_at_once_share_what_the_first_has_computed() -> None:
    tested = scheduler(pages=25)
    first, second = new(9, first=0), new(9, first=0)
    tested.add(first)
    compute(tested.schedule())
    tested.add(second)
    tested.schedule()

    assert second.pages[:2] == first.pages[:2]
    tested.remove(first)
    assert tested.pool.count - tested.pool.free == len(second.pages)


def test_of_a_prompt_that_is_known_whole_the_last_page_is_computed_again() -> None:
    tested = scheduler(pages=25)
    _finish(tested, new(8, first=0))

    tested.add(new(8, first=0))
    (step,) = tested.schedule()

    assert step.count == 4


@pytest.mark.parametrize(
    "other",
    [new(10, first=0, cache_salt="mine"), new(10, first=0, prompt_logprobs=1), new(10, first=1)],
    ids=["another salt", "logprobs of the prompt", "another beginning"],
)
def test_some_prompts_share_nothing(other: Sequence) -> None:
    tested = scheduler(pages=25)
    _finish(tested, new(10, first=0))

    tested.add(other)
    (step,) = tested.schedule()

    assert step.count == 10
    assert tested.prefix_queries == (10 if other.wants_prompt_logprobs else 20), "who may not look isn't counted"


def test_nothing_is_shared_when_it_is_switched_off() -> None:
    tested = Scheduler(PagePool(25), PAGE, max_sequences=3, max_batched_tokens=12, prefix_cache=False)
    _finish(tested, new(10, first=0))

    tested.add(new(10, first=0))
    (step,) = tested.schedule()

    assert (step.count, tested.prefix_queries) == (10, 0)


def test_what_failed_is_shared_by_nobody() -> None:
    tested = scheduler(pages=25)
    tested.add(broken := new(10, first=0))
    compute(tested.schedule())
    tested.remove(broken, spoiled=True)

    tested.add(new(10, first=0))
    (step,) = tested.schedule()

    assert step.count == 10


def test_a_preempted_sequence_finds_again_what_nobody_took() -> None:
    tested = scheduler(pages=10, budget=40)
    old, recent = new(18, "old"), new(18, "recent")
    for sequence in (old, recent):
        tested.add(sequence)
    run_until(tested, lambda: tested.preemptions > 0)
    tested.remove(old)

    (step,) = tested.schedule()

    assert step.sequence is recent
    assert recent.computed >= 16, "of its five full pages at most the last was taken"


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
