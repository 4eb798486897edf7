"""A running `glm5-runtime serve` for tests that need the real process."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx

from tests.support.serving import EXPECTED, TINY

_ROW = next(row for row in EXPECTED if row["kind"] == "text")
TEXT = {"model": "glm-5", "prompt": _ROW["prompt"], "temperature": 0, "max_tokens": 200}
ANSWER: str = _ROW["text"].removesuffix("<|endoftext|>")


@dataclass
class Served:
    """A running `glm5-runtime serve` and a client of it."""

    process: Process
    client: httpx.AsyncClient
    log: Path
    model: Path

    async def until(self, path: str, status: int, seconds: float = 180) -> httpx.Response:
        """Poll `path` until it answers with `status`."""
        async with asyncio.timeout(seconds):
            while True:
                assert self.process.returncode is None, self.log.read_text()
                with suppress(httpx.TransportError):
                    reply = await self.client.get(path)
                    if reply.status_code == status:
                        return reply
                await asyncio.sleep(0.02)

    async def until_running(self, count: int) -> None:
        """Poll until the engine works on `count` requests."""
        series = re.compile(r"^vllm:num_requests_running\{.*\} " + f"{count}.0$", re.MULTILINE)
        async with asyncio.timeout(60):
            while not series.search((await self.client.get("/metrics")).text):  # noqa: ASYNC110 - the state is in another process
                await asyncio.sleep(0.005)

    async def reading_weights(self, seconds: float = 180) -> BinaryIO:
        """Wait until a `slow_model`'s weights are opened; as long as what is returned stays open, their reader waits for the first byte."""
        async with asyncio.timeout(seconds):
            while True:
                assert self.process.returncode is None, self.log.read_text()
                with suppress(OSError):  # ENXIO: nobody has it open for reading
                    return os.fdopen(os.open(self.model / "model.safetensors", os.O_WRONLY | os.O_NONBLOCK), "wb")
                await asyncio.sleep(0.02)

    async def completes(self) -> str:
        """The text of a completion that the model is known for: `ANSWER`."""
        reply = await self.client.post("/v1/completions", json=TEXT)
        assert reply.status_code == 200, reply.text
        text: str = reply.json()["choices"][0]["text"]
        return text

    async def ended(self, seconds: float = 60) -> int:
        """Wait for the end; the exit code."""
        return await asyncio.wait_for(self.process.wait(), seconds)

    def rss(self) -> int:
        """Resident memory, bytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def served(tmp_path: Path, *flags: str, model: Path = TINY, port: int = 0, **environ: str) -> AsyncIterator[Served]:
    """Start the real command; whatever happens, it has ended afterwards."""
    if port == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
    log = tmp_path / "log"
    command = [
        sys.executable,
        "-m",
        "glm5_runtime.cli",
        "serve",
        "--model",
        str(model),
        "--port",
        str(port),
        "--served-model-name",
        "glm-5",
    ]
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *command, *flags, stdout=out, stderr=out, env=os.environ | {"OMP_NUM_THREADS": "1"} | environ
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield Served(process, client, log, model)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
