"""Long-lived programs of a test cluster: started, remembered in a folder, found again and ended, and never mistaken.

Used by api.py and engine.py. A process is known by its id and its start time, so a reused id is not ours and is left alone.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.cluster.errors import ClusterError
from tests.cluster.shell import wait_for


def start_time(pid: int) -> str | None:
    """The start time of a process in clock ticks since boot, or None when it is gone or only waits to be reaped."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name in brackets may hold spaces and brackets
    return None if fields[0] in "ZX" else fields[19]


def free_ports(count: int) -> list[int]:
    """That many different loopback ports which nothing listened on a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, safe against reuse of its id (boot, id, start time)."""

    pid: int
    started: str
    boot: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The identity of a running process, or None when it is gone."""
        started = start_time(pid)
        return cls(pid, started, _boot()) if started else None

    @property
    def alive(self) -> bool:
        """Whether that very process still runs."""
        return self.boot == _boot() and start_time(self.pid) == self.started


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class Processes:
    """The processes of one cluster, written down in its folder: `<name>.json` who it is, `<name>.log` what it said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, argv: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
        """Start a program in a session of its own; it outlives this process until `stop`."""
        with self.log(name).open("ab") as log:
            try:
                child = subprocess.Popen(
                    [str(word) for word in argv],
                    env={**os.environ, **(env or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                raise ClusterError(f"{name} cannot be started: {error}") from error
        identity = Identity.of(child.pid)
        if identity is None:
            child.wait()
            raise ClusterError(f"{name} ended at once:\n{self.tail(name)}")
        child.returncode = 0  # it is ended through its identity, also by later processes; no warning when this object goes
        self._record(name).write_text(json.dumps({"pid": identity.pid, "started": identity.started, "boot": identity.boot}))

    def log(self, name: str) -> Path:
        """The file with what it printed."""
        return self.folder / f"{name}.log"

    def tail(self, name: str, lines: int = 12) -> str:
        """The last lines it printed."""
        path = self.log(name)
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""

    def identity(self, name: str) -> Identity | None:
        """Who was started under that name, dead or alive."""
        try:
            return Identity(**json.loads(self._record(name).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def alive(self, name: str) -> bool:
        """Whether what was started under that name still runs."""
        identity = self.identity(name)
        if identity is None:
            return False
        _reap(identity.pid)
        return identity.alive

    def names(self) -> list[str]:
        """Everything that was started and not yet stopped, latest first."""
        records = sorted(self.folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        return [path.stem for path in records]

    def stop(self, name: str, *, grace: float = 15.0) -> None:
        """End it: SIGTERM, then SIGKILL when it is still there after `grace` seconds. Nothing happens when it is gone."""
        identity = self.identity(name)
        if identity is not None and self.alive(name):
            _signal(identity, signal.SIGTERM)
            deadline = time.monotonic() + grace
            while self.alive(name) and time.monotonic() < deadline:
                time.sleep(0.02)
            if self.alive(name):
                _signal(identity, signal.SIGKILL)
                wait_for(f"{name} to die", lambda: not self.alive(name), timeout=10, every=0.02)
        self._record(name).unlink(missing_ok=True)

    def stop_all(self, *, grace: float = 15.0) -> None:
        """End all of them, latest first."""
        for name in self.names():
            self.stop(name, grace=grace)

    def _record(self, name: str) -> Path:
        return self.folder / f"{name}.json"


def _signal(identity: Identity, number: signal.Signals) -> None:
    # A pidfd names one process for good: between the check and the signal no other can take its place.
    try:
        handle = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return
    try:
        if identity.alive:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
