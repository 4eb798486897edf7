"""Reads a request body within limits: size while streaming; then as JSON: nesting, encoding, no NaN.

Called by `service` for every POST endpoint before anything else. Keeps at most `limit` bytes however much is sent and puts no part of a
body into a message or the log.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pydantic_core

from glm5_runtime.server.errors import ApiError, ClientGone, bad_request, draining

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from starlette.requests import Request
    from starlette.types import Receive, Scope

SILENCE_SECONDS = 30.0  # between two parts of a body
DRAIN_SECONDS = 3.0  # for the rest of a body once the server drains
_DISCARD_SECONDS = 5.0


class BodyClock:
    """Ends the reads of bodies that don't come: each after a silence, all soon after `hurry`."""

    def __init__(self) -> None:
        self._reads: set[asyncio.Timeout] = set()
        self._end: float | None = None  # of all reads, time of the loop

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Callable[[], None]]:
        """Gives what to call for each part that came; raises ApiError 408, or 503 when the server drains."""
        now = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout_at(self._end or now() + SILENCE_SECONDS) as limit:
                self._reads.add(limit)

                def heard() -> None:
                    if self._end is None and not limit.expired():
                        limit.reschedule(now() + SILENCE_SECONDS)

                try:
                    yield heard
                finally:
                    self._reads.discard(limit)
        except TimeoutError:
            if self._end is not None:
                raise draining() from None
            raise ApiError(408, f"nothing came of the request body for {SILENCE_SECONDS:g} s", code="body_timeout") from None

    def hurry(self) -> None:
        """The server drains: what isn't read in a few seconds won't be."""
        self._end = asyncio.get_running_loop().time() + DRAIN_SECONDS
        for limit in self._reads:
            if not limit.expired():
                limit.reschedule(self._end)


def parse_object(body: bytes) -> dict[str, Any]:
    """The body as a JSON object, keys with null left out (null equals absent); raises ApiError 400."""
    if not body:
        raise bad_request("the request body is empty; send a JSON object")
    try:
        value = pydantic_core.from_json(body, allow_inf_nan=False)  # its parser stops at 200 levels by itself
    except ValueError as error:
        raise bad_request(f"the request body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise bad_request(f"the request body must be a JSON object, not {type(value).__name__}")
    if not _is_finite(value):
        raise bad_request("the request body has a number too large for a float, such as 1e400; JSON has no infinity")
    return {key: item for key, item in value.items() if item is not None}


def _is_finite(value: dict[str, Any]) -> bool:
    """Whether all numbers are. The parser refuses the word Infinity and makes one of 1e400."""
    left: list[Iterable[Any]] = [value.values()]
    while left:
        for item in left.pop():
            if isinstance(item, float):
                if not math.isfinite(item):
                    return False
            elif isinstance(item, dict):
                left.append(item.values())
            elif isinstance(item, list):
                left.append(item)
    return True


async def discard(scope: Scope, receive: Receive, limit: int) -> None:
    """Read and drop the body of a request that is refused unread, within limits.

    An answer that closes the connection under a body on its way would reset it, and the client would see no answer at all.
    """
    if any(name == b"expect" for name, _ in scope["headers"]):
        return  # the client waits for our word before it sends anything
    left = limit
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            while left >= 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return


async def read_body(request: Request, limit: int, clock: BodyClock) -> bytes:
    """All bytes of the body; raises ApiError 413 past the limit, 408 or 503 by the clock, ClientGone when the client leaves in between."""
    declared = request.headers.get("content-length", "")
    too_large = declared.isdigit() and int(declared) > limit
    if too_large and request.headers.get("expect", "").lower() == "100-continue":
        raise _too_large(limit)  # the client waits for our word before it sends anything
    kept = bytearray()
    async with clock.reading() as heard:
        async for chunk in _chunks(request):
            heard()
            # Past the limit the rest is read and dropped: closing with unread data would reset the connection, and the
            # client would see a broken pipe instead of the 413.
            if too_large or len(kept) + len(chunk) > limit:
                too_large = True
                kept.clear()
            else:
                kept += chunk
    if too_large:
        raise _too_large(limit)
    return bytes(kept)


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the request body is larger than the limit of {limit} bytes (--max-request-bytes)", code="request_too_large")
