"""What tables say of a figure's repetitions."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.engine.figures import Figure, section
from benchmarks.utilisation import Utilisation


def test_of_five_repetitions_the_least_and_the_most_do_not_count_for_the_spread() -> None:
    figure = Figure("x", [10.0, 900.0, 11.0, 12.0, 0.1])

    assert figure.kept == [10.0, 11.0, 12.0]
    assert figure.spread == pytest.approx(1 / 11)
    assert figure.row() == ("x", "11", "0.1", "900", "5", "± 9.1 %", "")  # least and most are still told


def test_of_fewer_than_five_nothing_is_dropped() -> None:
    assert Figure("x", [4.0, 1.0, 2.0, 3.0]).kept == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("count", [5, 6, 9])
def test_the_median_is_the_same_with_and_without_the_extremes(count: int) -> None:
    figure = Figure("x", [value**2.5 for value in range(count)])

    assert figure.median == statistics.median(figure.kept)


def test_a_single_repetition_has_no_spread() -> None:
    assert Figure("x", [3.0], "≥ 2").row() == ("x", "3", "3", "3", "1", "–", "≥ 2")


def test_a_section_has_the_figures_then_how_busy_the_machine_was() -> None:
    parts = {"decode1": Utilisation(seconds=61.2, cores=2, busy=0.97, own=0.9, others_at_most=0.4)}

    assert section("Engine, today", "2 x CPU", [Figure("decode1_x", [2.0, 3.0], "≥ 6")], parts) == (
        "\n## Engine, today\n\n2 x CPU\n\n"
        "| figure | median | least | most | runs | spread | aim |\n"
        "|---|---|---|---|---|---|---|\n"
        "| decode1_x | 2.5 | 2 | 3 | 2 | ± 28.3 % | ≥ 6 |\n"
        "\n"
        "| part | seconds | cores busy | by the benchmark | by others | by others, at most |\n"
        "|---|---|---|---|---|---|\n"
        "| decode1 | 61 | 97 % of 2 | 90 % | 7 % | 40 % |\n"
    )
