"""A TCP proxy in front of the API server that can lose connections the way networks do: silently, or with a reset."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlparse

import yaml

_CHUNK = 65536
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass
class Proxy:
    """Forwards everything until told otherwise. `swallow` keeps connections open and drops what they carry."""

    target: tuple[str, int]
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    accepted: int = 0
    _swallowed: set[socket.socket] = field(default_factory=set)
    _pairs: dict[socket.socket, socket.socket] = field(default_factory=dict)
    _swallow_new: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def before(cls, server: str) -> Proxy:
        parsed = urlparse(server)
        proxy = cls((parsed.hostname or "127.0.0.1", parsed.port or 443))
        threading.Thread(target=proxy._run, daemon=True).start()
        return proxy

    def kubeconfig(self, original: Path, folder: Path) -> Path:
        """The same credentials through this proxy."""
        document = yaml.safe_load(original.read_text())
        document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self.listener.getsockname()[1]}"
        copy = folder / "proxied.kubeconfig"
        copy.write_text(yaml.safe_dump(document))
        return copy

    def swallow(self, *, new_too: bool = False) -> int:
        """From now on nothing passes on the connections of now (or on any); returns how many there are."""
        with self._lock:
            self._swallowed |= set(self._pairs)
            self._swallow_new = new_too
            return len(self._pairs) // 2

    def restore(self) -> None:
        """New connections pass again; the swallowed ones stay dead."""
        with self._lock:
            self._swallow_new = False

    def reset(self) -> int:
        """Break all connections of now with a TCP reset."""
        with self._lock:
            ends = list(self._pairs)
            for end in ends:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            for end in ends:
                self._close(end)
            return len(ends) // 2

    def close(self) -> None:
        self._stop.set()
        with self._lock:
            for end in list(self._pairs):
                self._close(end)
            self.listener.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                ends = [end for end in self._pairs if end.fileno() >= 0]
                listener = [self.listener] if self.listener.fileno() >= 0 else []
            with contextlib.suppress(OSError, ValueError):
                for end in select.select([*listener, *ends], [], [], 0.05)[0]:
                    self._accept() if end is self.listener else self._forward(end)

    def _accept(self) -> None:
        client, _ = self.listener.accept()
        server = socket.create_connection(self.target)
        with self._lock:
            self.accepted += 1
            self._pairs |= {client: server, server: client}
            if self._swallow_new:
                self._swallowed |= {client, server}

    def _forward(self, end: socket.socket) -> None:
        try:
            data = end.recv(_CHUNK)
        except OSError:
            data = b""
        with self._lock:
            other = self._pairs.get(end)
            if other is None:
                return
            if not data:
                if end in self._swallowed:
                    self._pairs.pop(end, None)  # its goodbye is lost too; the other end never hears of it
                    end.close()
                    return
                self._close(end)
                return
            dropped = end in self._swallowed
        if not dropped:
            with contextlib.suppress(OSError):
                other.sendall(data)

    def _close(self, end: socket.socket) -> None:
        other = self._pairs.pop(end, None)
        end.close()
        if other is not None:
            self._pairs.pop(other, None)
            other.close()
