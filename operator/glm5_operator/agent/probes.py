"""The HTTP port for kubelet's probes: two paths that say whether the agent does its work, and the cards' metrics. Called by `loop`.

A few lines on asyncio's streams: no request has a body, no answer is longer than a few kB, and a web framework would take 15 MB.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LIMIT: Final = 5.0
"""Seconds that a client has for its request."""
_WORDS: Final = {200: "OK", 404: "Not Found", 503: "Service Unavailable"}
_LINE: Final = "text/plain"
_METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"


async def serve(host: str, port: int, checks: Mapping[str, Callable[[], str]], metrics: Callable[[], bytes]) -> asyncio.Server:
    """Answer GET of each path in `checks` with 200, or 503 and what is wrong, and of /metrics with those.

    Raises:
        OSError: The port can't be had.
    """

    def answer_to(path: str) -> tuple[int, str, bytes]:
        if path == "/metrics":
            return 200, _METRICS, metrics()
        check = checks.get(path)
        wrong = check() if check is not None else "no such path"
        return 404 if check is None else 503 if wrong else 200, _LINE, (wrong or "ok").encode() + b"\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(LIMIT):
                words = (await reader.readline()).decode("latin-1").split()
                while (await reader.readline()).strip():
                    pass
                code, kind, body = answer_to(words[1] if len(words) > 1 else "")
                head = f"HTTP/1.1 {code} {_WORDS[code]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
                await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, host, port, limit=8192)
