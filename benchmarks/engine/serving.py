"""64 streaming HTTP clients against the same engine without a server: two processes, since a server's clients are elsewhere too.

Beside the share: processor time a token of the server's event loop, of its other threads (the engine), and of the engine alone.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from benchmarks.engine.sides import TINY, Ours, prompt

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CLIENTS, NEW, REPEATS = 64, 128, 5


def http_share() -> dict[str, list[float]]:
    """Tokens a second of the clients together, as a share of what the engine alone makes of the same prompts."""
    names = ("http_share", "http_tokens_s", "offline_tokens_s", "loop_us", "engine_us", "offline_us")
    figures: dict[str, list[float]] = {name: [] for name in names}
    prompts = [prompt(32 + client % 16) for client in range(CLIENTS)]
    offline = Ours(TINY, max_sequences=CLIENTS)
    offline.generate(prompts, 8)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "glm5_runtime.cli", "serve", f"--model={TINY}", f"--port={port}", f"--max-sequences={CLIENTS}"]
    server = subprocess.Popen(
        [*command, "--prefix-cache=off", "--served-model-name=tiny", "--log-level=warning"], stderr=subprocess.DEVNULL
    )
    try:
        _wait(port)
        asyncio.run(_stream_all(port, prompts, 8))
        for _ in range(REPEATS):
            used = time.process_time()
            alone = CLIENTS * NEW / offline.generate(prompts, NEW)
            used = time.process_time() - used
            before = _cpu_seconds(server.pid)
            served = CLIENTS * NEW / asyncio.run(_stream_all(port, prompts, NEW))
            loop, others = (after - begin for after, begin in zip(_cpu_seconds(server.pid), before, strict=True))
            found = (served / alone, served, alone, *(seconds / (CLIENTS * NEW) * 1e6 for seconds in (loop, others, used)))
            for name, value in zip(names, found, strict=True):
                figures[name].append(value)
    finally:
        server.terminate()
        server.wait(30)
    return figures


def _cpu_seconds(pid: int) -> tuple[float, float]:
    """Of a process's main thread, where its event loop runs, and of its other threads. From the scheduler's count, in nanoseconds."""
    used = {int(task.name): int((task / "schedstat").read_text().split()[0]) / 1e9 for task in Path(f"/proc/{pid}/task").iterdir()}
    return used[pid], sum(used.values()) - used[pid]


def _wait(port: int) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise TimeoutError("the server was not ready within 120 s")


async def _stream_all(port: int, prompts: list[list[int]], new: int) -> float:
    """Seconds until every client has read its last token. Plain sockets: a client library would cost as much as the server."""
    begin = time.perf_counter()
    counts = await asyncio.gather(*(_stream(port, tokens, new) for tokens in prompts))
    took = time.perf_counter() - begin
    assert counts == [new] * len(prompts), "every client gets all its tokens"
    return took


async def _stream(port: int, tokens: list[int], new: int) -> int:
    """One streamed completion; how many tokens its usage says."""
    body = {"model": "tiny", "prompt": tokens, "max_tokens": new, "temperature": 0, "ignore_eos": True, "stream": True}
    data = json.dumps({**body, "stream_options": {"include_usage": True}}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    usage = 0
    async for event in _events(reader):
        if event == b"[DONE]":
            break
        if b'"usage"' in event and (said := json.loads(event).get("usage")):
            usage = said["completion_tokens"]
    writer.close()
    return usage


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while line := await reader.readline():
        if line.startswith(b"data: "):
            yield line[6:].strip()
