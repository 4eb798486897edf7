"""`GET /progress`: how far a run is, for whoever asks, in JSON. Served beside training by a thread that is never waited for.

Started by the `train` command in the process of rank 0. It must not disturb training: a port that is taken costs the page, not the run.
A client has a short time in all, and a few are answered side by side: one that drips its request costs the others nothing, and no number
of them makes more threads than that.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

PATH = "/progress"
CLIENT_SECONDS = 2.0
"""For a whole request, from its connection to the last byte of the answer. Then the connection is cut."""
_AT_ONCE = 8
"""Clients side by side; the next one waits until one of them is done or cut."""


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_SECONDS
    read: ClassVar[Callable[[], dict[str, Any]]]

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = json.dumps(type(self).read()).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        log.debug("progress: " + format, *args)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def server_bind(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # where IPv6 is off there is only one stack
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socket.socket.bind(self.socket, self.server_address)  # HTTPServer's own asks the name service for the host's name
        self.server_name, self.server_port = "", self.socket.getsockname()[1]

    def __init__(self, port: int, handler: type[_Handler]) -> None:
        self._places = threading.BoundedSemaphore(_AT_ONCE)
        super().__init__(("", port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as socketserver has it
        self._places.acquire()  # bounded: each client is cut after its time
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread to be had
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as above
        cut = threading.Timer(CLIENT_SECONDS, _cut, [request])
        try:
            cut.start()
            super().process_request_thread(request, client_address)
        finally:
            cut.cancel()
            self._places.release()

    def handle_error(self, request: object, client_address: object) -> None:  # a client that hung up is no news
        log.debug("progress: %s went away", client_address)


def _cut(connection: socket.socket) -> None:
    """Whoever waits for it goes on; closing alone would not wake them."""
    with contextlib.suppress(OSError):  # it is closed by now
        connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def serving(port: int | None, read: Callable[[], dict[str, Any]]) -> Iterator[int | None]:
    """Answer `GET /progress` on all addresses with what `read` gives, until the block ends; yields the port, None when nothing is served.

    `port` 0 takes a free one, None serves nothing. `read` is called in the server's thread and must not wait.
    """
    if port is None:
        yield None
        return
    try:
        server = _Server(port, type("Handler", (_Handler,), {"read": staticmethod(read)}))
    except OSError as error:
        log.warning("progress can't be served on port %d: %s", port, error.strerror or error)
        yield None
        return
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, name="progress", daemon=True).start()
    log.info("progress at port %d, %s", server.server_port, PATH)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
