"""Build steps: order, lanes, and what happens after a failure."""

import io
import threading

import pytest
from rich.console import Console

from tests.cluster.steps import Step, run_steps


def console() -> Console:
    return Console(file=io.StringIO())


def test_steps_wait_for_what_they_need_and_others_run_side_by_side() -> None:
    meeting = threading.Barrier(2, timeout=5)  # two steps get through it only together
    order: list[str] = []
    steps = [
        Step("last", lambda: order.append("last"), after=("left", "right")),
        Step("left", meeting.wait),
        Step("right", meeting.wait),
        Step("after last", lambda: order.append("after last"), after=("last",)),
    ]
    seconds = run_steps(steps, console())
    assert order == ["last", "after last"]
    assert set(seconds) == {"left", "right", "last", "after last"}


def test_steps_of_one_lane_take_turns() -> None:
    busy = threading.Lock()

    def alone() -> None:
        assert busy.acquire(blocking=False), "another step of the lane runs"
        threading.Event().wait(0.02)
        busy.release()

    run_steps([Step(f"go {n}", alone, lane="go") for n in range(4)], console())


def test_the_first_failure_is_raised_and_nothing_new_starts() -> None:
    started: list[str] = []

    def fail() -> None:
        raise ValueError("no space")

    steps = [Step("bad", fail, lane="x"), Step("next", lambda: started.append("next"), lane="x")]
    out = console()
    with pytest.raises(ValueError, match="no space"):
        run_steps(steps, out)
    assert started == []
    assert isinstance(out.file, io.StringIO)
    assert "bad" in out.file.getvalue()


class Told(io.StringIO):
    """A file that tells when a step's beginning has been written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()

    def write(self, text: str) -> int:
        if "… long one" in text:
            self.begun.set()
        return super().write(text)


def test_where_no_spinner_is_seen_a_step_that_takes_a_while_is_named_while_it_runs() -> None:
    out = Told()
    steps = [Step("cached", lambda: None), Step("long one", lambda: out.begun.wait(30), after=("cached",))]
    seconds = run_steps(steps, Console(file=out))
    assert out.begun.is_set()
    assert seconds["long one"] < 30
    assert "cached" not in out.getvalue(), "what takes no time is no news"
