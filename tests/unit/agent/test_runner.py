"""The runner on real processes: whatever a tool does, the agent gets an answer and goes on. Cases C06, C07."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from glm5_operator.agent import runner as runner_module
from glm5_operator.agent.runner import MOST_OUTPUT, End, Runner
from glm5_operator.agent.settings import Node, Tool
from tests.support.vendor_tools import ToolFolder

PATIENT = 20.0


@pytest.fixture
def tools(tmp_path: Path) -> ToolFolder:
    return ToolFolder.at(tmp_path / "bin")


@pytest.fixture
def runner(tools: ToolFolder) -> Runner:
    return Runner(Node(root="/"), tools.tool)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def test_output_error_and_exit_code_come_back_as_they_are(tools: ToolFolder, runner: Runner) -> None:
    tools.answer("npu-smi info", "a table\n", error="a warning\n", code=3)

    answer = await runner.run("npu-smi", "info", limit=PATIENT)

    assert (answer.end, answer.text, answer.error, answer.exit_code) == (End.EXITED, "a table\n", "a warning\n", 3)
    assert answer.said == "a table\na warning"


@pytest.mark.parametrize("then", ["sleep 600", "trap '' TERM; sleep 600", "sleep 600 & wait"], ids=["sleeps", "ignores TERM", "children"])
async def test_a_tool_that_hangs_is_killed_with_all_it_started_and_what_it_said_is_kept(
    tools: ToolFolder, runner: Runner, then: str
) -> None:
    tools.answer("npu-smi info", "half a table\n", then=f'echo $$ > "$here/pid"; {then}')

    answer = await runner.run("npu-smi", "info", limit=0.5)

    assert (answer.end, answer.exit_code) == (End.TIMED_OUT, None)
    assert answer.why == "`npu-smi info` gave no answer within 0.5 s"
    pid_file = tools.folder / "pid"
    if pid_file.exists():  # a slow machine may not have got so far
        assert answer.text == "half a table\n"
        assert not alive(int(pid_file.read_text()))


async def test_a_second_call_is_not_started_while_the_first_cannot_be_killed(
    tools: ToolFolder, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools.answer("npu-smi info -t health -i 3", "", then="sleep 600")
    with monkeypatch.context() as unkillable:
        unkillable.setattr(os, "killpg", lambda *_: None)  # as in the kernel, while the driver doesn't answer
        first = await runner.run("npu-smi", "info", "-t", "health", "-i", "3", limit=0.2, key="card 3")
    second = await runner.run("npu-smi", "info", "-t", "health", "-i", "3", limit=0.2, key="card 3")

    assert (first.end, second.end) == (End.TIMED_OUT, End.BUSY)
    assert "can't be killed" in second.why
    tools.answer("npu-smi info -t health -i 4", "well\n")
    assert (await runner.run("npu-smi", "info", "-t", "health", "-i", "4", limit=PATIENT, key="card 4")).text == "well\n"

    process = runner._stuck["card 3"]
    os.killpg(process.pid, signal.SIGKILL)
    await asyncio.wait_for(process.wait(), PATIENT)
    tools.answer("npu-smi info -t health -i 3", "well again\n")
    assert (await runner.run("npu-smi", "info", "-t", "health", "-i", "3", limit=PATIENT, key="card 3")).text == "well again\n"


async def test_a_tool_that_prints_without_end_fills_no_memory(tools: ToolFolder, runner: Runner) -> None:
    tools.answer("npu-smi info", "", then="head -c 8388608 /dev/zero")

    answer = await runner.run("npu-smi", "info", limit=PATIENT)

    assert (answer.end, len(answer.text)) == (End.EXITED, MOST_OUTPUT)


async def test_bytes_that_are_no_text_are_replaced(tools: ToolFolder, runner: Runner) -> None:
    tools.answer("npu-smi info", "", then="printf 'ok \\377\\n'")

    assert (await runner.run("npu-smi", "info", limit=PATIENT)).text == "ok \N{REPLACEMENT CHARACTER}\n"


@pytest.mark.parametrize("prefix", [(), ("env",)], ids=["without a root", "as in a root"])
async def test_a_tool_that_is_not_there_or_may_not_be_executed_is_missing(
    tmp_path: Path, prefix: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runner, "prefix", prefix)  # chroot needs root; env ends with the same codes
    (tmp_path / "npu-smi").write_text("no program")
    runner = Runner(Node(), Tool(path=str(tmp_path) + ("" if not prefix else ":/usr/bin:/bin")))

    for name in ("npu-smi", "hccn_tool"):
        answer = await runner.run(name, "info", limit=PATIENT)
        assert answer.end is End.MISSING
        assert name in answer.why


async def test_a_tool_sees_nothing_of_the_agents_environment(tools: ToolFolder, runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_VISIBLE_DEVICES", "0")  # would hide cards from npu-smi
    tools.answer("npu-smi info", "", then="env")

    environ = (await runner.run("npu-smi", "info", limit=PATIENT)).text

    assert "ASCEND_VISIBLE_DEVICES" not in environ
    assert "/usr/local/Ascend/driver/lib64" in environ


def test_with_a_root_of_the_host_tools_run_in_it() -> None:
    runner = Runner(Node(root="/host"), Tool(path="/usr/bin", libraries="/lib"))

    chroot, *words = runner.command("npu-smi")
    assert Path(chroot).name == "chroot"
    assert Path(chroot).is_absolute()
    assert words == ["/host", "env", "PATH=/usr/bin", "LD_LIBRARY_PATH=/lib", "LC_ALL=C", "npu-smi"]


@pytest.mark.parametrize("turns", range(8))
async def test_whoever_ends_the_agent_while_a_tool_ends_does_end_it(
    tools: ToolFolder, runner: Runner, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    tools.answer("npu-smi info", "a table\n")
    loop, read, processes = asyncio.get_running_loop(), runner_module._read, []
    finish = runner._finish

    async def finished(process: asyncio.subprocess.Process, *rest: object) -> object:
        processes.append(process)
        return await finish(process, *rest)

    async def last(stream: asyncio.StreamReader, kept: bytearray) -> None:
        """The last part of a call to end, and that many turns of the loop later the call is cancelled."""
        await read(stream, kept)
        await processes[0].wait()
        await asyncio.sleep(0)  # a turn of the loop, of which the rest is counted
        later(turns)

    def later(left: int) -> None:
        loop.call_soon(later, left - 1) if left else call.cancel()

    monkeypatch.setattr(runner, "_finish", finished)
    monkeypatch.setattr(runner_module, "_read", last)

    async def agent() -> None:
        while True:
            await runner.run("npu-smi", "info", limit=PATIENT)
            await asyncio.sleep(3600)  # until the next reading

    call = asyncio.create_task(agent())

    assert [type(end) for end in await asyncio.wait_for(asyncio.gather(call, return_exceptions=True), 5)] == [asyncio.CancelledError]
