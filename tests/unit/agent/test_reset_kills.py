"""An agent that is killed (SIGKILL) while it resets, and the next one on that node: real processes, real files, real locks."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from glm5_operator.agent import reset, reset_records, terminal
from glm5_operator.api.node import ResetReport
from tests.unit.agent.npu_smi_reset import A2_HCCS, QUICK, Script, a_request, an_agent

OURS = {module.__file__ for module in (reset, reset_records, terminal)}
SHOWS = ("Resets.", "Records.", "converse", "_ended")
"""What can be seen from outside happens in these; the rest of the modules only thinks."""
QUICKEST = replace(QUICK, settle=0.001, poll=0.001)
Place = tuple[str, int]


def in_a_process(work: Callable[[], object]) -> int:
    """Do it in a process of its own; gives its process id."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def ended(pid: int) -> int:
    """Wait for it; gives the signal that ended it, 0 for none."""
    return os.WTERMSIG(os.waitpid(pid, 0)[1])


def traced(folder: Path, script: Script, reached: Callable[[Place], None]) -> None:
    """One reset by an agent in this process, which tells each line of ours before it runs it for the first time."""
    seen: set[Place] = set()

    def on_line(frame: FrameType, event: str, _: Any) -> Any:  # noqa: ANN401  a trace function's own types
        if frame.f_code.co_filename not in OURS or not frame.f_code.co_qualname.startswith(SHOWS):
            return None
        place = (os.path.basename(frame.f_code.co_filename), frame.f_lineno)
        if event == "line" and place not in seen:
            seen.add(place)
            reached(place)
        return on_line

    sys.settrace(on_line)
    asyncio.run(an_agent(folder, script, patience=QUICKEST).handle(a_request()))


def lines_of_a_reset(folder: Path) -> list[Place]:
    script = Script.write(folder, A2_HCCS)
    noted = folder / "lines"

    def note(place: Place) -> None:
        with noted.open("a") as out:
            out.write(f"{place[0]} {place[1]}\n")

    assert ended(in_a_process(lambda: traced(folder, script, note))) == 0
    return [(name, int(number)) for name, number in (line.split() for line in noted.read_text().splitlines())]


def final(folder: Path, script: Script, name: str = "r1") -> ResetReport:
    """What a next agent says of the request in the end; it is asked again and again, as its loop does."""
    deadline = time.monotonic() + 20
    while True:
        report = asyncio.run(an_agent(folder, script, patience=QUICKEST).handle(a_request(name)))
        if report.state != "Running":
            return report
        assert time.monotonic() < deadline, f"{report} after 20 s"
        time.sleep(0.005)


def test_killed_before_any_line_of_a_reset_it_is_done_at_most_once_and_the_next_agent_knows_what_became_of_it(tmp_path: Path) -> None:
    lines = lines_of_a_reset(tmp_path / "whole")
    assert len(lines) > 60
    outcomes: dict[str, int] = {}

    for number, place in enumerate(lines):
        folder = tmp_path / str(number)
        script = Script.write(folder, A2_HCCS)

        def die(reached: Place, at: Place = place) -> None:
            if reached == at:
                os.kill(os.getpid(), signal.SIGKILL)

        child = in_a_process(lambda folder=folder, script=script, die=die: traced(folder, script, die))  # type: ignore[misc]
        assert ended(child) == signal.SIGKILL, f"it never came to {place}"
        report = final(folder, script)

        assert len(script.calls) <= 1, f"killed before {place}"
        assert report.state in {"Succeeded", "Unknown"}, f"killed before {place}: {report}"
        assert report.state == "Unknown" or script.resets == 1, f"killed before {place}"
        assert final(folder, script) == report
        outcomes[report.state] = outcomes.get(report.state, 0) + 1

    assert set(outcomes) == {"Succeeded", "Unknown"}  # before the record: done anew; with it: never again


@pytest.fixture
def killed(tmp_path: Path) -> Script:
    """A reset that is under way, whose agent is gone; it goes on when the file `go` is there."""
    script = Script.write(tmp_path, f"{A2_HCCS.replace('good', 'until [ -e $here/go ]; do sleep 0.01; done; good; touch $here/through')}")
    agent = in_a_process(lambda: asyncio.run(an_agent(tmp_path, script).handle(a_request())))
    wait_until(lambda: script.resets == 1, "the reset")
    os.kill(agent, signal.SIGKILL)
    assert ended(agent) == signal.SIGKILL
    return script


def test_the_command_goes_on_without_its_agent_and_no_other_is_begun_beside_it(tmp_path: Path, killed: Script) -> None:
    agent = an_agent(tmp_path, killed)

    assert [(report.id, report.state) for report in agent.reports()] == [("r1", "Running")]
    assert asyncio.run(agent.handle(a_request("r1"))).state == "Running"
    assert asyncio.run(agent.handle(a_request("r2"))).reason == "AnotherReset"

    (tmp_path / "go").touch()
    wait_until((tmp_path / "through").exists, "the end of the command")
    report = final(tmp_path, killed)
    assert (report.state, report.reason) == ("Unknown", "AgentEnded")
    assert report.started == "2026-11-30T10:00:00Z"
    assert [(each.id, each.state) for each in agent.reports()] == [("r1", "Unknown"), ("r2", "Refused")]
    assert len(killed.calls) == 1


def test_after_it_a_new_id_is_a_new_reset(tmp_path: Path, killed: Script) -> None:
    (tmp_path / "go").touch()
    final(tmp_path, killed)

    assert final(tmp_path, killed, "r2").state == "Succeeded"
    assert len(killed.calls) == 2


def test_an_agent_that_is_asked_to_end_leaves_the_command_alone_too(tmp_path: Path) -> None:
    script = Script.write(tmp_path, f"{A2_HCCS.replace('good', 'until [ -e $here/go ]; do sleep 0.01; done; good; touch $here/through')}")

    async def cut_short() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)  # type: ignore[union-attr]
        await an_agent(tmp_path, script).handle(a_request())

    agent = in_a_process(lambda: asyncio.run(cut_short()))
    wait_until(lambda: script.resets == 1, "the reset")
    os.kill(agent, signal.SIGTERM)
    ended(agent)

    (tmp_path / "go").touch()
    wait_until((tmp_path / "through").exists, "the end of the command")
    assert final(tmp_path, script).state == "Unknown"


def wait_until(seen: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 20
    while not seen():
        assert time.monotonic() < deadline, f"{what} didn't come in 20 s"
        time.sleep(0.005)
