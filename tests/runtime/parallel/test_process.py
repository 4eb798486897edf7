"""The real command with a second process: it serves, and whichever of the two dies, the other doesn't stay behind.

Each test starts two processes that import torch: few of them, with long deadlines.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from glm5_runtime.config import ModelConfig
from tests.runtime.engine.client import TINY, expected_rows
from tests.runtime.server.test_process import slow_model
from tests.support.adapters import EVERYTHING, write_adapter
from tests.support.served import ANSWER, Served, served
from tests.support.serving import ask, error_of

KNOWN = expected_rows()[0]
TWO = ("--tensor-parallel-size", "2", "--enable-expert-parallel", "--max-sequences", "4", "--max-model-len", "512")


def child_of(server: Served) -> int:
    pid = server.process.pid
    (child,) = (int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split())
    return child


async def gone(pid: int, seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while Path(f"/proc/{pid}").exists() and "State:\tZ" not in Path(f"/proc/{pid}/status").read_text():  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)


async def test_two_processes_serve_the_known_text_and_a_killed_one_ends_the_server_with_code_1(tmp_path: Path) -> None:
    """It is killed while it is asked for an adapter."""
    for name in ("one", "two"):
        write_adapter(tmp_path / "adapters" / name, ModelConfig.from_dir(TINY), EVERYTHING, strength=0.12)
    async with served(tmp_path, *TWO, "--enable-lora", "--lora-dir", str(tmp_path / "adapters")) as server:
        await server.until("/health/ready", 200)
        question = ask(KNOWN["question"], max_tokens=KNOWN["max_tokens"], temperature=0)
        reply = await server.client.post("/v1/chat/completions", json=question)
        assert reply.json()["choices"][0]["message"]["content"] == KNOWN["answer"]
        loaded = await server.client.post("/v1/load_lora_adapter", json={"lora_name": "one", "lora_path": "one"})
        assert loaded.status_code == 200
        adapted = await server.client.post("/v1/chat/completions", json=question | {"model": "one"})
        assert adapted.json()["choices"][0]["message"]["content"] != KNOWN["answer"]

        os.kill(child_of(server), signal.SIGSTOP)  # so that it takes nothing up any more
        load = asyncio.create_task(server.client.post("/v1/load_lora_adapter", json={"lora_name": "two", "lora_path": "two"}))
        assert (await server.client.get("/v1/models")).status_code == 200
        os.kill(child_of(server), signal.SIGKILL)

        assert error_of(await load)["message"] == "the engine has stopped (rank 1 has ended with code -9); a restart follows"
        assert await server.ended() == 1
        assert "rank 1 has ended with code -9" in server.log.read_text()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 0)], ids=["killed", "told to end"])
async def test_the_second_process_ends_with_the_first(number: signal.Signals, code: int, tmp_path: Path) -> None:
    async with served(tmp_path, *TWO) as server:
        await server.until("/health/ready", 200)
        child = child_of(server)
        server.process.send_signal(number)

        assert await server.ended() == code
        await gone(child)


async def test_both_processes_killed_with_the_first_while_weights_are_read_leave_nothing_that_hinders_the_next(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    async with served(tmp_path, *TWO, model=slow_model(tmp_path / "slow"), TMPDIR=str(temporary)) as server:
        with await server.reading_weights():
            child = child_of(server)
            (left,) = temporary.glob("glm5-ranks-*")
            server.process.kill()

            assert await server.ended() == -signal.SIGKILL
            await gone(child)
    assert left.exists()  # nobody was there to remove it

    async with served(tmp_path, *TWO, port=server.client.base_url.port or 0, TMPDIR=str(temporary)) as again:
        await again.until("/health/ready", 200)
        assert not list(temporary.glob("glm5-ranks-*"))
        assert await again.completes() == ANSWER
