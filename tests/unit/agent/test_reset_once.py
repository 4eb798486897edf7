"""An id is one reset, before its deadline, and with a record on the node's disk.

Real scripts stand in for npu-smi; card readings and the clock are given.

What happens when the agent is killed is in test_reset_kills.py.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from glm5_operator.agent.reset import Resets
from glm5_operator.api.node_facts import NodeFactsReport
from tests.unit.agent.npu_smi_reset import A2_HCCS, HELD, QUICK, TEN, Look, Script, a_node, a_request, an_agent, asked, until, with_card

# --- deadline ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deadline", "reason"),
    [
        ("2026-11-30T09:59:59Z", "TooLate"),
        ("2026-11-30T11:59:59+02:00", "TooLate"),
        ("2026-11-30T09:59:59", "TooLate"),
        ("soon", "BadDeadline"),
        ("", "BadDeadline"),
    ],
)
async def test_past_its_deadline_nothing_is_begun(tmp_path: Path, deadline: str, reason: str) -> None:
    report, script = await asked(tmp_path, A2_HCCS, a_request(deadline=deadline))

    assert (report.state, report.reason, script.calls) == ("Refused", reason, [])


async def test_a_reading_that_lasts_beyond_the_deadline_is_noticed(tmp_path: Path) -> None:
    times = iter([TEN, TEN.replace(minute=11)])
    script = Script.write(tmp_path, A2_HCCS)

    report = await an_agent(tmp_path, script, now=lambda: next(times, TEN.replace(minute=11))).handle(a_request())

    assert (report.reason, script.calls) == ("TooLate", [])


# --- once -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [A2_HCCS, "risk; work; bad; exit 1\n", "echo 'This command cannot be executed on a VM.'; exit 214\n"])
async def test_the_same_id_is_answered_with_the_same_report_and_never_done_again(tmp_path: Path, body: str) -> None:
    script = Script.write(tmp_path, body)
    agent = an_agent(tmp_path, script)
    first = await agent.handle(a_request())
    calls = len(script.calls)

    again = await agent.handle(a_request())
    restarted = an_agent(tmp_path, script)
    later = await restarted.handle(a_request())

    assert again == later == first
    assert agent.reports() == restarted.reports() == (first,)
    assert len(script.calls) == calls


@pytest.mark.parametrize("look", [with_card(a_node(), 5, holder=HELD), TimeoutError()])
async def test_a_refused_id_stays_refused_when_the_cards_have_become_free(tmp_path: Path, look: Look) -> None:
    script = Script.write(tmp_path, A2_HCCS)
    first = await an_agent(tmp_path, script, look).handle(a_request())

    again = await an_agent(tmp_path, script).handle(a_request())

    assert (again, script.calls) == (first, [])


async def test_requests_at_the_same_time_are_one_reset(tmp_path: Path) -> None:
    script = Script.write(tmp_path, A2_HCCS)
    agent = an_agent(tmp_path, script)

    reports = await asyncio.gather(*(agent.handle(a_request()) for _ in range(20)))

    assert len(set(map(str, reports))) == 1
    assert len(script.calls) == 1


async def test_two_agents_on_one_node_do_it_once(tmp_path: Path) -> None:
    script = Script.write(tmp_path, A2_HCCS)

    reports = await asyncio.gather(*(an_agent(tmp_path, script).handle(a_request()) for _ in range(8)))

    assert len(script.calls) <= 1
    assert {report.state for report in reports} <= {"Succeeded", "Running", "Refused"}
    assert {report.reason for report in reports if report.state == "Refused"} <= {"AnotherReset"}


async def test_what_another_agent_has_answered_meanwhile_is_not_begun(tmp_path: Path) -> None:
    script = Script.write(tmp_path, A2_HCCS)
    looking, go = asyncio.Event(), asyncio.Event()

    async def look() -> NodeFactsReport:
        looking.set()
        await go.wait()
        return a_node()

    slow = asyncio.create_task(
        Resets(tmp_path / "state", look, command=(str(script.path),), now=lambda: TEN, patience=QUICK).handle(a_request())
    )
    await looking.wait()
    refused = await an_agent(tmp_path, script).handle(a_request())
    go.set()

    assert refused.reason == "AnotherReset"
    assert await slow == refused
    assert script.calls == []


async def test_an_agent_that_saw_another_ones_reset_run_learns_how_it_ended(tmp_path: Path) -> None:
    script = Script.write(tmp_path, f"until [ -e $here/go ]; do sleep 0.01; done; {A2_HCCS}")
    first = asyncio.create_task(an_agent(tmp_path, script).handle(a_request()))
    await until(lambda: script.calls, "the command")
    other = an_agent(tmp_path, script)
    assert [report.state for report in other.reports()] == ["Running"]

    (tmp_path / "go").touch()

    assert (await first).state == "Succeeded"
    assert other.reports() == (await first,)


async def test_another_id_while_a_reset_runs_is_refused(tmp_path: Path) -> None:
    script = Script.write(tmp_path, f"until [ -e $here/go ]; do sleep 0.01; done; {A2_HCCS}")
    agent = an_agent(tmp_path, script)
    first = asyncio.create_task(agent.handle(a_request("r1")))
    await until(lambda: script.calls, "the first command")

    second = await agent.handle(a_request("r2"))
    (tmp_path / "go").touch()

    assert (second.state, second.reason) == ("Refused", "AnotherReset")
    assert ((await first).state, len(script.calls)) == ("Succeeded", 1)
    assert [report.id for report in agent.reports()] == ["r1", "r2"]


async def test_it_is_running_meanwhile_and_every_change_is_told(tmp_path: Path) -> None:
    script = Script.write(tmp_path, A2_HCCS)
    seen: list[list[str]] = []
    agent = an_agent(tmp_path, script, changed=lambda: seen.append([report.state for report in agent.reports()]))

    task = asyncio.create_task(agent.handle(a_request()))
    await until(lambda: seen, "the first change")

    assert agent.running
    await agent.finished()
    assert not agent.running
    assert (seen, (await task).state) == ([["Running"], ["Succeeded"]], "Succeeded")


async def test_a_caller_that_gives_up_does_not_end_the_reset(tmp_path: Path) -> None:
    script = Script.write(tmp_path, A2_HCCS)
    agent = an_agent(tmp_path, script)
    caller = asyncio.create_task(agent.handle(a_request()))
    await until(lambda: script.calls, "the command")

    caller.cancel()
    await agent.finished()

    assert [report.state for report in agent.reports()] == ["Succeeded"]


async def test_other_files_of_the_agent_are_no_records(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "cards.json").write_text("{}")

    assert an_agent(tmp_path, tmp_path / "npu-smi").reports() == ()


@pytest.mark.parametrize("name", ["..", ".", "a/b", "../../etc/passwd", "lock", "x" * 63, "r 1", "r%2F1", "\N{SNOWMAN}" * 20, "r1\n"])
async def test_whatever_an_id_looks_like_it_is_one_reset(tmp_path: Path, name: str) -> None:
    script = Script.write(tmp_path / "node", A2_HCCS)

    first = await an_agent(tmp_path / "node", script).handle(a_request(name))
    again = await an_agent(tmp_path / "node", script).handle(a_request(name))

    assert (first.state, first.id, again, len(script.calls)) == ("Succeeded", name, first, 1)
    assert {path.name for path in tmp_path.iterdir()} == {"node"}


async def test_the_newest_five_are_reported_and_all_ids_stay_known(tmp_path: Path) -> None:
    script = Script.write(tmp_path, A2_HCCS)
    for number in range(7):
        await an_agent(tmp_path, script, now=lambda number=number: TEN.replace(second=number)).handle(a_request(f"r{number}"))

    agent = an_agent(tmp_path, script)

    assert [report.id for report in agent.reports()] == ["r2", "r3", "r4", "r5", "r6"]
    assert (await agent.handle(a_request("r0"))).state == "Succeeded"
    assert len(script.calls) == 7


# --- the disk ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\x00", b"[]", b'{"report": {}}', b'{"at": "x", "deadline": "y", "report": {"id": "r1", "state": "Succeeded"}}'],
)
async def test_an_id_whose_record_is_broken_counts_as_begun(tmp_path: Path, content: bytes) -> None:
    script = Script.write(tmp_path, A2_HCCS)
    (tmp_path / "state" / "resets").mkdir(parents=True)
    (tmp_path / "state" / "resets" / "r1.json").write_bytes(content)

    agent = an_agent(tmp_path, script)

    assert [report.state for report in agent.reports()] == ["Unknown"]
    assert (await agent.handle(a_request())).state == "Unknown"
    assert script.calls == []


async def test_without_a_place_for_records_nothing_is_begun(tmp_path: Path) -> None:
    script = Script.write(tmp_path, A2_HCCS)
    (tmp_path / "state").write_text("a file where the folder should be")

    agent = an_agent(tmp_path, script)
    report = await agent.handle(a_request())

    assert (report.state, report.reason, script.calls) == ("Refused", "NoRecord", [])
    assert agent.reports() == (report,)


async def test_a_disk_that_is_full_at_the_end_takes_nothing_from_the_report(tmp_path: Path) -> None:
    script = Script.write(tmp_path, f"{A2_HCCS}mv $here/state $here/gone; echo > $here/state\n")

    agent = an_agent(tmp_path, script)
    report = await agent.handle(a_request())

    assert report.state == "Succeeded"
    assert agent.reports() == (report,)
