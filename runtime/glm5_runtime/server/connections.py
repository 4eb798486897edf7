"""How many connections there may be, and how long one may be silent before it has asked for anything.

uvicorn knows neither: idle connections would use up the process's descriptors, and /health would stop answering with them. Here one too
many takes the place of the connection that has been idle longest, and is closed itself only when all others have a request under way.
"""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

    from uvicorn.config import Config
    from uvicorn.server import ServerState

ACCEPTED_AT_ONCE = 64  # in one turn of the loop, before any of them is known here; asyncio's `backlog`
HEADER_SECONDS = 30.0
_MOST = 4096
_RESERVE = 5 * ACCEPTED_AT_ONCE  # what is accepted and not yet known, or closed and not yet free, takes four turns; the rest is files


def raise_limit() -> int:
    """Raise the process's limit of open descriptors as far as it may; how many connections that is good for."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return _MOST
    return min(_MOST, max(hard - _RESERVE, hard // 2))


class Connection(H11Protocol):
    """One connection of at most `most`. It is closed when no complete request header has come within `HEADER_SECONDS`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        most: int,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._most = most
        self._idle_since = self.loop.time()
        self._header_timer: asyncio.TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a request is under way: its header is complete, its answer isn't."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room, then wait for a header."""
        super().connection_made(transport)
        others = [other for other in self.connections if isinstance(other, Connection) and not other.transport.is_closing()]
        if len(others) > self._most:
            idle = [other for other in others if other is not self and not other.is_busy]
            min(idle, key=lambda other: other._idle_since, default=self).transport.close()
        self._watch_header()

    def data_received(self, data: bytes) -> None:
        """Stop waiting when the header is complete; begin when these are the first bytes of a later one."""
        super().data_received(data)
        self._watch_header()

    def on_response_complete(self) -> None:
        """Note when the connection became idle; uvicorn's own timer ends it."""
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._stop_watching()
        super().connection_lost(exc)

    def _watch_header(self) -> None:
        if self.is_busy:
            self._stop_watching()
        elif self._header_timer is None:
            self._header_timer = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _stop_watching(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
