"""How busy the machine was, and with what: by counters written down here, by a made-up /proc, and by a real process of known cost."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from benchmarks import utilisation
from benchmarks.utilisation import Moment, Utilisation, tree_cpu_seconds, watched

if TYPE_CHECKING:
    from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def process(proc: Path, pid: int, own: float, waited_for: float, children: str = "") -> None:
    """A process with so many CPU seconds, half of them in the kernel, in proc(5)'s form."""
    task = proc / str(pid) / "task" / str(pid)
    task.mkdir(parents=True)
    (task / "children").write_text(children)
    times = [round(seconds * TICKS / 2) for seconds in (own, own, waited_for, waited_for)]
    (proc / str(pid) / "stat").write_text(f"{pid} (a ) b) S 1 2 3 4 5 6 7 8 9 10 {' '.join(map(str, times))} 20 0 1 0\n")


def test_shares_are_of_all_cores_and_of_the_whole_time() -> None:
    moments = [Moment(100, 1000, 50), Moment(101, 1001, 51), Moment(102, 1003, 51.5), Moment(104, 1005, 53.5)]

    found = Utilisation.of(moments, cores=2)

    assert (found.seconds, found.busy, found.own) == (4, 5 / 8, 3.5 / 8)
    assert found.others == pytest.approx(1.5 / 8)
    assert found.others_at_most == pytest.approx(1.5 / 2)  # in the second second


def test_a_moment_too_short_for_the_counters_is_no_peak() -> None:
    moments = [Moment(100, 1000, 50), Moment(101, 1001, 51), Moment(101.01, 1001.02, 51)]

    assert Utilisation.of(moments, cores=2).others_at_most == 0


def test_counters_that_are_rounded_differently_make_no_others_of_less_than_nothing() -> None:
    found = Utilisation.of([Moment(0, 0, 0), Moment(1, 1, 1.02)], cores=2)

    assert (found.others, found.others_at_most) == (0, 0)


def test_what_ended_unwaited_for_takes_its_time_along_and_makes_no_peak_of_others() -> None:
    found = Utilisation.of([Moment(0, 0, 300), Moment(1, 1, 301), Moment(2, 2, 10), Moment(3, 3, 11)], cores=2)

    assert found.own == pytest.approx(2 / 6)
    assert found.others_at_most == pytest.approx(1 / 2)


def test_a_tree_is_the_process_all_below_it_and_those_that_ended_there(tmp_path: Path) -> None:
    process(tmp_path, 10, own=1, waited_for=32, children="11 12 ")
    process(tmp_path, 11, own=2, waited_for=0, children="13 ")
    process(tmp_path, 13, own=4, waited_for=8)
    process(tmp_path, 99, own=64, waited_for=0)  # somebody else's; 12 has ended just now

    assert tree_cpu_seconds(10, tmp_path) == 47


def test_what_a_child_burns_is_the_benchmarks_own_though_it_has_ended() -> None:
    with watched() as watch:
        subprocess.run([sys.executable, "-S", "-c", "import time\nwhile time.process_time() < 0.5: pass"], check=True)

    found = watch.utilisation
    assert found.own * found.seconds * found.cores >= 0.48  # the counter is in hundredths
    assert found.busy >= found.own - 0.1


def test_a_process_that_ends_while_the_tree_is_read_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    walks = iter([{10: 6.0, 11: 5.0}, {10: 6.0}, {10: 6.0}])  # 5 of the 6 seconds are those of 11, waited for just now
    monkeypatch.setattr(utilisation, "_walk", lambda _pid, _proc: next(walks))

    assert tree_cpu_seconds(10) == 6
