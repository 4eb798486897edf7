"""Sends an answer while watching the client: server-sent events, or one JSON body.

Used by the generating endpoints. When the client goes away, the work behind the answer is cancelled at once, in each phase: before the
first byte, between events, or while a whole answer is computed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

import pydantic_core
from starlette.responses import Response

from glm5_runtime.server.errors import ApiError, ClientGone

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping

    from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)
T = TypeVar("T")
DONE = b"data: [DONE]\n\n"


def event(value: Mapping[str, Any]) -> bytes:
    """One event with a JSON payload."""
    return b"data: " + pydantic_core.to_json(value) + b"\n\n"


def json_line(value: Mapping[str, Any]) -> bytes:
    """One line of newline-delimited JSON."""
    return pydantic_core.to_json(value) + b"\n"


class JsonReply(Response):
    """A JSON body, UTF-8 as it is."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Serialise the body."""
        return pydantic_core.to_json(content)


class EventStream(Response):
    """Streams events. Headers go out with the first event, so a failure before it is a real HTTP error; a later one is an event."""

    media_type = "text/event-stream"
    frame = staticmethod(event)  # makes bytes of an error
    end = DONE

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], None], headers: Mapping[str, str]) -> None:
        self.events = events
        self.close = close  # ends the work behind the events; generators alone would do so only when collected
        super().__init__(content=None, headers={**headers, "cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; ends quietly when the client leaves."""
        try:
            await while_connected(receive, self._send(send))
        except ClientGone:
            logger.debug("the client of a stream has gone")
        finally:
            self.close()

    async def _send(self, send: Send) -> None:
        started = False
        try:
            async for chunk in self.events:
                if not started:
                    await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                    started = True
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except Exception as error:
            if not started:
                raise
            if not isinstance(error, ApiError):
                logger.exception("a stream failed")
                error = ApiError(500, "internal error; the server's log has the details")
            await send({"type": "http.response.body", "body": self.frame(error.body()), "more_body": True})
        await send({"type": "http.response.body", "body": self.end, "more_body": False})


class PlainEventStream(EventStream):
    """Events without [DONE], for clients that take each for JSON."""

    end = b""


class LineStream(PlainEventStream):
    """JSON objects, one a line."""

    media_type = "application/x-ndjson"
    frame = staticmethod(json_line)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, or ClientGone as soon as the client disconnects; `work` never outlives this call."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        watcher.cancel()
        task.cancel()
        await asyncio.wait({task, watcher})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
