"""What a canary counts over pods that start anew, fall silent, come and go. Pure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from glm5_operator.status.adapters import Counts, Held, PodAnswer
from glm5_operator.status.canary import Tally, tally

LIVE = frozenset({"a", "b"})


def pod(
    uid: str, mine: tuple[int, int], base: tuple[int, int] = (0, 0), others: dict[str, tuple[float, int, int]] | None = None
) -> PodAnswer:
    held = {"support": Held("support", "", "Loaded", "", 0.1, Counts(*mine))}
    held |= {
        name: Held(name, "", "Loaded", "", share, Counts(requests, failures))
        for name, (share, requests, failures) in (others or {}).items()
    }
    return PodAnswer(uid, uid, held, Counts(*base))


def begun(*pods: PodAnswer) -> Tally:
    return tally(Tally(), pods, LIVE, "support", counts_before=True)


def counted(before: Tally, *pods: PodAnswer, live: frozenset[str] = LIVE) -> Tally:
    return tally(before, pods, live, "support")


def test_what_was_counted_before_the_canary_is_not_counted() -> None:
    found = counted(begun(pod("a", (50, 9), (70, 3))), pod("a", (52, 10), (80, 3)))

    assert found.sums == (2, 1, 10, 0)


def test_sums_are_those_of_all_pods() -> None:
    found = counted(begun(pod("a", (1, 0)), pod("b", (2, 0))), pod("a", (4, 1)), pod("b", (7, 2)))

    assert found.sums == (8, 3, 0, 0)


def test_a_pod_that_started_anew_counts_from_zero_and_takes_nothing_back() -> None:
    before = counted(begun(pod("a", (10, 0), (10, 0))), pod("a", (16, 4), (30, 1)))

    found = counted(before, pod("a", (3, 1), (2, 0)))

    assert found.sums == (9, 5, 22, 1)


def test_a_pod_that_comes_later_counts_from_its_start() -> None:
    assert counted(begun(pod("a", (10, 0))), pod("a", (10, 0)), pod("b", (5, 1))).sums == (5, 1, 0, 0)


def test_a_silent_pod_keeps_its_place_and_is_not_counted_twice() -> None:
    before = begun(pod("a", (100, 5)))
    silent = counted(before, PodAnswer("a", "a"))
    gone_from_ready = counted(silent)

    assert counted(gone_from_ready, pod("a", (101, 5))).sums == (1, 0, 0, 0)


def test_a_pod_that_has_gone_is_forgotten_and_its_part_stays() -> None:
    before = counted(begun(pod("a", (0, 0))), pod("a", (8, 2)))

    found = counted(before, pod("b", (1, 0)), live=frozenset({"b"}))

    assert found.sums == (9, 2, 0, 0)
    assert set(found.pods) == {"b"}


def test_beside_the_model_those_adapters_count_that_answer_for_its_name() -> None:
    others = {"old": (0.9, 20, 2), "unused": (0.0, 500, 500)}

    assert counted(begun(), pod("a", (1, 0), (10, 1), others)).sums == (1, 0, 30, 3)


def test_the_excess_is_of_rates_and_no_request_is_no_failure() -> None:
    assert Tally((10, 2, 100, 10)).excess == 0.1
    assert Tally((0, 0, 100, 10)).excess == -0.1
    assert Tally().excess == 0.0


def test_it_lives_in_the_status() -> None:
    found = counted(begun(pod("a", (1, 0))), pod("a", (4, 1), (9, 2)), pod("b", (0, 0)))

    assert Tally.of(found.as_json()) == found
    assert Tally.of({}) == Tally()


NUMBERS = st.integers(0, 50)


@given(st.lists(st.tuples(st.sampled_from("ab"), NUMBERS, NUMBERS, NUMBERS, NUMBERS), max_size=20))
def test_sums_never_go_back_whatever_pods_say(answers: list[tuple[str, int, int, int, int]]) -> None:
    found = begun()
    for uid, *numbers in answers:
        after = counted(found, pod(uid, (numbers[0], numbers[1]), (numbers[2], numbers[3])))
        assert all(new >= old for new, old in zip(after.sums, found.sums, strict=True))
        assert counted(after, pod(uid, (numbers[0], numbers[1]), (numbers[2], numbers[3]))) == after, "the same answer says nothing new"
        found = after
