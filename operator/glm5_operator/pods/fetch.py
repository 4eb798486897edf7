"""One GET from pods, side by side: JSON objects in, and nothing of a pod that is slow, gone, or says something else.

Used through `pods`. A pod that doesn't answer is a fact like any other, so no failure of the network leaves this module.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any, Final

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 2.0
"""Whole time of one request: a pod's HTTP thread answers in milliseconds, also while its engine computes."""
MOST_BYTES: Final = 256 * 1024
"""Of an answer; a longer one is none."""
MOST_AT_ONCE: Final = 32
"""Pods of one object asked at the same time."""


class PodReader:
    """Reads one path from pods."""

    def __init__(self, seconds: float = ANSWER_SECONDS, most_bytes: int = MOST_BYTES) -> None:
        self._timeout = aiohttp.ClientTimeout(total=seconds)
        self._most = most_bytes

    async def read(self, hosts: Iterable[str], port: int, path: str) -> dict[str, dict[str, Any]]:
        """Host → the JSON object that it answered with status 200; hosts that didn't are left out. No key, no proxy, no redirect."""
        wanted = sorted(set(hosts))
        if not wanted:
            return {}
        # A session for each round: a pod's address may be somebody else's by the next one, so there is no connection to keep.
        connector = aiohttp.TCPConnector(force_close=True, limit=MOST_AT_ONCE)
        async with aiohttp.ClientSession(connector=connector, timeout=self._timeout, trust_env=False) as session:
            answers = await asyncio.gather(*(self._one(session, f"http://{_authority(host, port)}{path}") for host in wanted))
        return {host: answer for host, answer in zip(wanted, answers, strict=True) if answer is not None}

    async def _one(self, session: aiohttp.ClientSession, url: str) -> dict[str, Any] | None:
        try:
            async with session.get(url, allow_redirects=False) as response:
                if response.status != 200:
                    log.debug("%s: status %d", url, response.status)
                    return None
                raw = b""
                while len(raw) <= self._most and (more := await response.content.read(self._most + 1 - len(raw))):
                    raw += more
        except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
            log.debug("%s: %s", url, error)
            return None
        return _object(raw) if len(raw) <= self._most else None


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
