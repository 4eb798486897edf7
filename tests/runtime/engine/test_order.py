"""Whose turn it is: priorities, clients, context tiers, prompts that several share. Pure objects, no model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glm5_runtime.config import complete_tiers, parse_tiers
from tests.runtime.engine.plans import PAGE, compute, new, run_until, scheduler

if TYPE_CHECKING:
    from glm5_runtime.engine.scheduler import Scheduler
    from glm5_runtime.engine.sequence import Sequence


def add(tested: Scheduler, *sequences: Sequence) -> None:
    for sequence in sequences:
        tested.add(sequence)


def names(sequences: list[Sequence]) -> list[str]:
    return [sequence.request.id for sequence in sequences]


# Priorities


def test_the_lower_number_is_first_whatever_arrived_before() -> None:
    tested = scheduler(sequences=2)
    add(tested, new(2, "late", priority=5), new(2, "plain"), new(2, "urgent", priority=-1))

    tested.schedule()

    assert (names(tested.running), names(tested.waiting)) == (["urgent", "plain"], ["late"])


def test_an_urgent_request_takes_the_place_of_the_newest_of_the_least_urgent_and_gives_it_back() -> None:
    tested = scheduler(sequences=3)
    add(tested, *(new(2, name, priority=priority) for name, priority in (("a", 0), ("b", 5), ("c", 5))))
    compute(tested.schedule())
    tested.add(urgent := new(2, "urgent", priority=-1))

    plan = tested.schedule()

    assert [step.sequence.request.id for step in plan] == ["a", "b", "urgent"]
    assert (names(tested.waiting), tested.preemptions) == (["c"], 1)
    compute(plan)
    tested.remove(urgent)
    assert "c" in names([step.sequence for step in tested.schedule()])


def test_an_urgent_request_takes_the_pages_of_less_urgent_ones() -> None:
    tested = scheduler(pages=10, sequences=6, budget=60)
    add(tested, new(16, "a", priority=1), new(16, "b", priority=2))
    compute(tested.schedule())
    tested.add(new(20, "urgent"))

    tested.schedule()

    assert (names(tested.running), names(tested.waiting)) == (["urgent", "a"], ["b"])


def test_equals_take_nothing_from_each_other() -> None:
    tested = scheduler(sequences=1)
    tested.add(new(2, "first"))
    compute(tested.schedule())
    tested.add(new(2, "second"))
    tested.schedule()

    assert (names(tested.running), tested.preemptions) == (["first"], 0)


def test_an_urgent_long_prompt_is_read_before_the_rest_of_one_that_is_not() -> None:
    tested = scheduler(budget=12)
    tested.add(slow := new(39, priority=1))
    compute(tested.schedule())
    tested.add(urgent := new(30))

    compute(tested.schedule())
    steps = run_until(tested, lambda: urgent.produced)

    assert steps <= 3
    assert slow.pending > 1
    run_until(tested, lambda: slow.produced)


# Clients


def _served(tested: Scheduler, places: dict[str, int], steps: int) -> None:
    """Run with each client always having so many requests waiting."""
    for _ in range(steps):
        waiting = [sequence.request.client for sequence in tested.waiting]
        for client, most in places.items():
            for _ in range(most - waiting.count(client)):
                tested.add(new(3 + len(waiting) % 7, client=client, max_tokens=6))
        plan = tested.schedule()
        compute(plan)
        for step in plan:
            if step.sequence.produced >= 6:
                tested.remove(step.sequence)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(8, 24), st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(1, 30)))
def test_clients_that_always_have_work_get_equal_numbers_of_tokens(places: int, budget: int, waiting: tuple[int, int, int]) -> None:
    tested = scheduler(pages=60, sequences=places, budget=budget)
    _served(tested, dict(zip("abc", waiting, strict=True)), steps=60)

    served = [client.served for client in tested._clients.values()]
    longest = 10 + 6
    assert max(served) - min(served) <= 2 * places * longest  # of what stands in the batch, however long they go on
    assert sum(served) > 60


def test_one_request_of_a_newcomer_waits_for_no_more_than_two_of_two_hundred() -> None:
    tested = scheduler(sequences=1)
    add(tested, *(new(3, client="crowd", max_tokens=2) for _ in range(200)))
    _served(tested, {}, steps=30)
    tested.add(alone := new(3, client="alone", max_tokens=2))
    before = {sequence.number for sequence in tested.alive if sequence.running}

    passed: set[int] = set()
    while not alone.running:
        _served(tested, {}, steps=1)
        passed |= {sequence.number for sequence in tested.running if sequence is not alone}
        assert len(passed - before) <= 2

    assert len(tested.waiting) > 100


def test_who_was_away_brings_no_claim_from_that_time() -> None:
    tested = scheduler(sequences=1)
    add(tested, *(new(3, client="busy", max_tokens=6) for _ in range(40)))
    _served(tested, {}, steps=100)

    add(tested, *(new(3, client="back", max_tokens=6) for _ in range(40)))
    _served(tested, {}, steps=48)

    by = {name: client.served for name, client in tested._clients.items()}
    assert abs(by["busy"] - by["back"]) <= 2 * 9


def test_clients_take_turns_within_one_step() -> None:
    tested = scheduler(sequences=4)
    add(tested, *(new(2, name, client=name[0]) for name in ("a1", "a2", "a3", "b1", "b2")))
    tested.schedule()

    assert names(tested.running) == ["a1", "b1", "a2", "b2"]


def test_a_clients_own_requests_keep_their_order() -> None:
    tested = scheduler(sequences=1)
    add(tested, *(new(2, name, client="one") for name in ("a", "b", "c")))

    assert names(tested.waiting) == ["a", "b", "c"]


# A short prompt beside a long one


@pytest.mark.parametrize("tiers", ["", "8", "8:0.1"])
def test_a_short_question_gets_its_first_token_in_two_steps_whatever_is_being_read(tiers: str) -> None:
    named = complete_tiers(parse_tiers(tiers), 4000) if tiers else ()
    tested = scheduler(pages=3000, sequences=6, budget=16, tiers=named)
    add(tested, new(4000, "long"), new(3000, "next"))
    for _ in range(5):
        compute(tested.schedule())
        tested.add(short := new(4, max_tokens=2))
        assert run_until(tested, lambda short=short: short.produced) <= 2
        tested.remove(short)

    long = tested.find("long")
    assert long is not None
    assert long.computed >= 5 * 8, "and the long one goes on"
    assert names(tested.running) == ["long"], "one long prompt at a time"


def test_a_prompt_that_does_not_fit_beside_waits_and_delays_no_shorter_one_behind_it() -> None:
    tested = scheduler(sequences=4, budget=12)
    tested.add(new(36, "long"))
    compute(tested.schedule())
    add(tested, new(20, "middle"), new(4, "short"))

    plan = tested.schedule()

    assert {step.sequence.request.id: step.count for step in plan} == {"short": 4, "long": 8}


# Context tiers


def test_places_of_a_small_tier_stay_free_for_it() -> None:
    tested = scheduler(pages=200, sequences=6, budget=1000, tiers=complete_tiers(parse_tiers("8:0.5"), 40))
    add(tested, *(new(20) for _ in range(6)))
    tested.schedule()
    assert len(tested.running) == 3

    add(tested, *(new(4, max_tokens=4) for _ in range(6)))
    tested.schedule()

    assert sorted(len(sequence.request.prompt) for sequence in tested.running) == [4, 4, 4, 20, 20, 20]


def test_a_crowd_of_small_requests_leaves_a_large_one_its_tokens() -> None:
    tested = scheduler(pages=200, sequences=20, budget=32, tiers=complete_tiers(parse_tiers("8:0.5"), 400))
    tested.add(large := new(400))
    compute(tested.schedule())
    read = large.computed
    for _ in range(5):
        add(tested, *(new(8, max_tokens=1, tier="8") for _ in range(8)))
        plan = tested.schedule()
        compute(plan)
        for step in plan:
            if step.sequence is not large and step.sequence.produced:
                tested.remove(step.sequence)

    assert large.computed - read == 5 * 16


def test_a_large_request_is_not_starved_by_small_ones_that_use_its_idle_places() -> None:
    tested = scheduler(pages=200, sequences=4, budget=100, tiers=complete_tiers(parse_tiers("8:0.5"), 40))
    add(tested, *(new(4, max_tokens=4) for _ in range(20)))
    tested.schedule()
    assert len(tested.running) == 4

    tested.add(large := new(30))
    for _ in range(30):
        plan = tested.schedule()
        compute(plan)
        for step in plan:
            if step.sequence.produced >= 4 and step.sequence is not large:
                tested.remove(step.sequence)
        if large.running:
            break

    assert large.running
    assert len(tested.waiting) > 10


def test_answers_of_large_requests_leave_a_small_tier_its_pages() -> None:
    """Ten pages for one of full length, twenty shared: ten for each tier."""
    tested = scheduler(pages=30, sequences=8, budget=100, tiers=complete_tiers(parse_tiers("8:0.5"), 40))
    add(tested, *(new(18, max_tokens=22) for _ in range(4)))
    for _ in range(12):
        compute(tested.schedule())
    assert tested.pool.free >= 10
    assert tested.preemptions > 0

    add(tested, *(new(4, f"small {n}", max_tokens=4) for n in range(3)))
    tested.schedule()

    assert {"small 0", "small 1", "small 2"} <= {*names(tested.running)}


def test_who_must_give_pages_is_never_in_a_tier_that_has_no_more_than_its_part() -> None:
    tested = scheduler(pages=30, sequences=8, budget=100, tiers=complete_tiers(parse_tiers("8:0.5"), 40))
    add(tested, *(new(16, f"large {n}", max_tokens=22) for n in range(5)))
    compute(tested.schedule())
    tested.add(small := new(4, "small", max_tokens=4))  # the newest of all
    compute(tested.schedule())
    assert small.running

    run_until(tested, lambda: tested.preemptions > 0)

    assert small.running
    assert tested.preemptions == 1, "one of the large ones, not the newest first"


def test_an_answer_that_outgrows_its_tier_goes_on_in_the_next() -> None:
    tested = scheduler(pages=30, sequences=4, budget=100, tiers=complete_tiers(parse_tiers("8,16"), 40))
    tested.add(chat := new(6, max_tokens=30, tier="8"))
    seen = []
    while len(chat.tokens) < 36:
        compute(tested.schedule())
        seen.append(chat.tier.name)

    assert [name for name, before in zip(seen, [None, *seen], strict=False) if name != before] == ["8", "16", "40"]
    assert [tier.held for tier in tested.tiers] == [0, 0, len(chat.pages)]
    assert [tier.running for tier in tested.tiers] == [0, 0, 1]


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "asked", "tier"), [(4, 4, None, "8"), (4, 5, None, "16"), (4, 30, None, "40"), (4, 4, "40", "40")]
)
def test_a_request_is_in_the_tier_it_asks_for_or_the_smallest_that_holds_it(
    prompt: int, max_tokens: int, asked: str | None, tier: str
) -> None:
    tested = scheduler(tiers=complete_tiers(parse_tiers("8,16"), 40))
    tested.add(sequence := new(prompt, max_tokens=max_tokens, tier=asked))

    assert sequence.tier.name == tier


# Several answers to one prompt


def _computed(tested: Scheduler, sequences: list[Sequence]) -> int:
    """Tokens computed until all have their first."""
    total = 0
    for _ in range(100):
        if all(sequence.produced for sequence in sequences):
            return total
        plan = tested.schedule()
        total += sum(step.count for step in plan if not step.sequence.produced)
        compute(plan)
    raise AssertionError("they never get there")


@pytest.mark.parametrize("budget", [12, 200])
def test_several_answers_to_one_prompt_read_its_full_pages_once(budget: int) -> None:
    tested = scheduler(pages=100, sequences=8, budget=budget)
    answers = [new(30, first=7) for _ in range(5)]
    add(tested, *answers)

    assert _computed(tested, answers) == 30 + 4 * (30 - 7 * PAGE)
    assert len({page for sequence in answers for page in sequence.pages[:7]}) == 7


def test_who_waits_for_anothers_prompt_reads_it_when_the_other_goes_away() -> None:
    tested = scheduler(pages=100, sequences=8, budget=8)
    first, second = new(30, first=7), new(30, first=7)
    add(tested, first, second)
    compute(tested.schedule())
    compute(tested.schedule())
    assert not second.running
    tested.remove(first)

    (step,) = tested.schedule()

    assert step.sequence is second
    assert second.computed == 16, "what the other had read is not lost"


def test_waiting_for_a_shared_prompt_holds_up_nobody_else() -> None:
    tested = scheduler(pages=100, sequences=8, budget=12)
    add(tested, new(30, "first", first=7), new(30, "copy", first=7), new(4, "other"))
    compute(tested.schedule())

    assert names([step.sequence for step in tested.schedule()]) == ["other", "first"]


# Aborts


def test_an_abort_frees_place_and_pages_before_the_next_step() -> None:
    tested = scheduler(sequences=1)
    tested.add(gone := new(30, "gone"))
    compute(tested.schedule())  # half read
    tested.add(new(2, "next"))
    tested.remove(gone)

    assert tested.pool.free == tested.pool.count
    assert names([step.sequence for step in tested.schedule()]) == ["next"]
