"""The HTTP port for kubelet's probes: two paths that say whether the agent does its work. Called by `loop`.

A few lines on asyncio's streams: no request has a body or an answer longer than a line, and a web framework would take 15 MB.
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


async def serve(host: str, port: int, checks: Mapping[str, Callable[[], str]]) -> asyncio.Server:
    """Answer GET of each path in `checks` with 200, or 503 and what is wrong.

    Raises:
        OSError: The port can't be had.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(LIMIT):
                words = (await reader.readline()).decode("latin-1").split()
                while (await reader.readline()).strip():
                    pass
                check = checks.get(words[1]) if len(words) > 1 else None
                wrong = check() if check is not None else "no such path"
                code = 404 if check is None else 503 if wrong else 200
                body = (wrong or "ok").encode() + b"\n"
                head = f"HTTP/1.1 {code} {_WORDS[code]}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
                writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
                await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, host, port, limit=8192)
