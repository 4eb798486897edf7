"""How connections are taken, how many there may be, and how long one may be silent before it has asked for anything.

uvicorn knows none of this: idle connections would use up the process's descriptors, and /health would stop answering with them. Here one
too many takes the place of the connection that has been idle longest, and is closed itself only when all others have a request under way.
Requests are read by h11: httptools is faster, but loses the body of a request that offers another protocol, as Java's client does.
"""

from __future__ import annotations

import asyncio
import resource
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import socket

    from uvicorn.config import Config
    from uvicorn.server import ServerState

HEADER_SECONDS = 30.0
_MOST = 4096
_RESERVE = 320  # descriptors for files, other ranks, and connections that are closed and not yet free
_BREATH = 0.1  # seconds until the next attempt when the process or the system has no descriptor left


def raise_limit() -> int:
    """Raise the process's limit of open descriptors as far as it may; how many connections that is good for."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return _MOST
    return min(_MOST, max(hard - _RESERVE, hard // 2))


class Server(uvicorn.Server):
    """uvicorn without its signal handling: it would stop serving at the first signal, and health must answer while we drain.

    It takes connections one by one, each known before the next is taken: a burst waits in the kernel, where it costs no descriptors.
    """

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """Leave signals to the process."""
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the doors, which listen already."""
        await super().startup([])
        self._accepting = [asyncio.create_task(self._accept(door)) for door in sockets or []]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close them, and let requests under way end."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        await super().shutdown(sockets)

    async def _accept(self, door: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        door.setblocking(False)
        while True:
            try:
                client, _ = await loop.sock_accept(door)
                await loop.connect_accepted_socket(self._connection, client)
            except OSError:  # no descriptor left, or the client is gone again
                await asyncio.sleep(_BREATH)

    def _connection(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        connection: asyncio.Protocol = make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        return connection


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
