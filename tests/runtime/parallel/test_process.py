"""The real command with a second process: it serves, and whichever of the two dies, the other doesn't stay behind.

Each test starts two processes that import torch: few of them, with long deadlines.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.runtime.engine.client import expected_rows
from tests.runtime.server.test_process import ANSWER, Served, served, slow_model
from tests.support.serving import ask

KNOWN = expected_rows()[0]
TWO = ("--tensor-parallel-size", "2", "--enable-expert-parallel", "--max-sequences", "4", "--max-model-len", "512")


def child_of(server: Served) -> int:
    pid = server.process.pid
    (child,) = (int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split())
    return child


async def gone(pid: int, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while Path(f"/proc/{pid}").exists() and "State:\tZ" not in Path(f"/proc/{pid}/status").read_text():  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)


async def test_two_processes_serve_the_known_text_and_a_killed_one_ends_the_server_with_code_1(tmp_path: Path) -> None:
    async with served(tmp_path, *TWO) as server:
        await server.until("/health/ready", 200)
        reply = await server.client.post("/v1/chat/completions", json=ask(KNOWN["question"], max_tokens=KNOWN["max_tokens"], temperature=0))
        assert reply.json()["choices"][0]["message"]["content"] == KNOWN["answer"]

        os.kill(child_of(server), signal.SIGKILL)

        assert await server.ended(20) == 1
        assert "rank 1 has ended with code -9" in server.log.read_text()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 0)], ids=["killed", "told to end"])
async def test_the_second_process_ends_with_the_first(number: signal.Signals, code: int, tmp_path: Path) -> None:
    async with served(tmp_path, *TWO) as server:
        await server.until("/health/ready", 200)
        child = child_of(server)
        server.process.send_signal(number)

        assert await server.ended(20) == code
        await gone(child, 10)


async def test_both_processes_killed_with_the_first_while_weights_are_read_leave_nothing_that_hinders_the_next(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    async with served(tmp_path, *TWO, model=slow_model(tmp_path / "slow"), TMPDIR=str(temporary)) as server:
        with await server.reading_weights():
            child = child_of(server)
            (left,) = temporary.glob("glm5-ranks-*")
            server.process.kill()

            assert await server.ended() == -signal.SIGKILL
            await gone(child, 60)
    assert left.exists()  # nobody was there to remove it

    async with served(tmp_path, *TWO, port=server.client.base_url.port or 0, TMPDIR=str(temporary)) as again:
        await again.until("/health/ready", 200)
        assert not list(temporary.glob("glm5-ranks-*"))
        assert await again.completes() == ANSWER
