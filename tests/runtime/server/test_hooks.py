"""Post-inference hooks with real programs and a real HTTP server: what they get, and that a bad one costs no request anything."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from glm5_runtime.engine.engine import Engine
from glm5_runtime.server import hooks, logs
from glm5_runtime.server.account import Account
from glm5_runtime.server.hooks import Hook
from glm5_runtime.server.logs import Sparingly
from tests.support import serving
from tests.support.serving import MODEL, ask, until

CHAT = "/v1/chat/completions"
SECRET = "a secret that no hook may get"


class Counted(Counter[str]):
    def add(self, outcome: str) -> None:
        self[outcome] += 1


def account() -> Account:
    return Account("10.0.0.1", "POST", CHAT, MODEL, 1_700_000_000.5, 200, finish_reasons=["stop"])


@asynccontextmanager
async def listening(answer: Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """The URL of a server that reads a request's body and then does what the test says."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        try:
            await answer(await reader.readexactly(length), writer)
        finally:
            writer.close()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(handle(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook?token=t0ken"
    finally:
        server.close()
        for task in tasks:
            task.cancel()


async def test_a_command_and_a_url_get_one_record_for_each_request_that_was_computed(engine: Engine, tmp_path: Path) -> None:
    got: list[bytes] = []

    async def accept(body: bytes, writer: asyncio.StreamWriter) -> None:
        got.append(body)
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    service = serving.make_service(engine)
    async with listening(accept) as url:
        service.listeners += [Hook(f"tee '{tmp_path}/a b'", service.metrics.hooked), Hook(url, service.metrics.hooked)]
        async with serving.on_a_socket(service) as client:
            answer = (await client.post(CHAT, json=ask(SECRET, max_tokens=3))).json()
            await client.post(CHAT, json=ask(SECRET, temperature=9))
            await client.get("/v1/models")
            for listener in service.listeners:
                await listener.close(5)

    by_command = json.loads((tmp_path / "a b").read_bytes())
    assert by_command == json.loads(got[0])
    assert len(got) == 1
    assert (by_command["request_id"], by_command["client"], by_command["status"]) == (answer["id"], "127.0.0.1", 200)
    assert (by_command["model"], by_command["finish_reasons"], by_command["completion_tokens"]) == (MODEL, ["length"], 3)
    assert by_command["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert by_command["time"].endswith("Z")
    assert SECRET not in json.dumps(by_command)
    assert b'glm5:hook_records_total{engine="0",model_name="glm-5",outcome="ok"} 2.0' in service.metrics.render()


async def outcomes_of(target: str, records: int = 1, run_seconds: float = 5.0) -> Counter[str]:
    counts = Counted()
    hook = Hook(target, counts.add, run_seconds=run_seconds)
    for _ in range(records):
        hook.tell(account())
    await hook.close(10)
    return counts


async def test_a_shell_never_sees_the_command(tmp_path: Path) -> None:
    assert await outcomes_of(f"tee {tmp_path}/a;id {tmp_path}/$(id) '{tmp_path}/b c'") == {"ok": 1}

    assert {path.name for path in tmp_path.iterdir()} == {"a;id", "$(id)", "b c"}


@pytest.mark.parametrize("target", ["false", "http://127.0.0.1:1/", "true-no-more"], ids=["exit code", "no server", "gone program"])
async def test_a_hook_that_fails_is_counted_reported_once_and_not_tried_again(target: str, caplog: pytest.LogCaptureFixture) -> None:
    assert await outcomes_of(target, records=3) == {"error": 3}
    assert len([record for record in caplog.records if record.name == "glm5_runtime.server.hooks"]) == 1


async def test_a_program_that_does_not_read_its_input_is_no_failure() -> None:
    assert await outcomes_of("true", records=3) == {"ok": 3}


@pytest.fixture
def process_logging() -> Iterator[None]:
    """Log levels as the process sets them, its most talkative one."""
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    logs.set_up("debug")
    root.handlers += before[1]
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]


@pytest.mark.usefixtures("process_logging")
@pytest.mark.parametrize("status", [b"500 No", b"302 Found\r\nlocation: http://127.0.0.1:1/"])
async def test_any_answer_but_success_is_a_failure_and_no_part_of_the_url_is_told(status: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def refuse(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\n\r\n")

    async with listening(refuse) as url:
        assert await outcomes_of(url) == {"error": 1}

    assert "hook 127.0.0.1 failed: it answered with status" in caplog.text
    assert "t0ken" not in caplog.text


async def test_a_command_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    script = tmp_path / "hook"
    script.write_text(f"#!/bin/sh\nsleep 60 &\necho $! >{tmp_path}/child\nwait\n")
    script.chmod(0o755)

    for seconds in (0.5, 5.0):  # on a busy machine the first may end before the script has got as far as its child
        assert await outcomes_of(str(script), run_seconds=seconds) == {"timeout": 1}
        if (tmp_path / "child").exists() and (tmp_path / "child").read_text():
            break

    child = int((tmp_path / "child").read_text())
    await until(lambda: not Path(f"/proc/{child}/cmdline").exists() or not Path(f"/proc/{child}/cmdline").read_bytes())


async def test_a_server_that_drips_its_answer_is_given_up() -> None:
    async def drip(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"x: y\r\n")
            await writer.drain()
            await asyncio.sleep(0.05)

    async with listening(drip) as url:
        assert await outcomes_of(url, run_seconds=0.3) == {"timeout": 1}


async def test_a_slow_hook_loses_records_and_no_request_waits(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "_QUEUED", 2)
    service = serving.make_service(engine)
    counts = Counted()
    slow = Hook("sleep 60", counts.add, run_seconds=30)
    service.listeners.append(slow)
    async with serving.asgi_client(service) as client:
        started = time.monotonic()
        for _ in range(10):
            assert (await client.post(CHAT, json=ask("Hi", max_tokens=1))).status_code == 200
        assert time.monotonic() - started < 25  # less than one run of the hook
    await slow.close(0)

    assert counts["dropped"] == 10 - 4 - 2  # four run side by side, two wait


async def test_the_key_is_not_handed_to_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLM5_API_KEY", "k3y")
    script = tmp_path / "hook"
    script.write_text(f"#!/bin/sh\nenv >{tmp_path}/env\n")
    script.chmod(0o755)

    assert await outcomes_of(str(script)) == {"ok": 1}

    env = (tmp_path / "env").read_text()
    assert "PATH=" in env
    assert "k3y" not in env


def test_what_happens_with_every_request_is_said_once_a_minute_with_a_count(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    complaint = Sparingly(hooks.logger, lambda: now)

    for _ in range(3):
        complaint.error("it failed")
    now = 61.0
    complaint.error("it failed")

    assert [record.getMessage() for record in caplog.records] == ["it failed", "it failed (2 more such lines were kept back)"]


def test_records_hold_names_counts_and_times_only() -> None:
    record: dict[str, Any] = account().record()

    assert record["time"] == "2023-11-14T22:13:20.500Z"
    assert {type(value) for value in record.values()} <= {str, int, float, list, type(None)}
