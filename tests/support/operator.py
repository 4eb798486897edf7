"""The operator as a real process (`python -m glm5_operator`) with a kubeconfig, as tests on a real API server run it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.support.kube import until


@dataclass
class OperatorProcess:
    """One operator. Killed and started at will; its log is kept in one file over all its lives."""

    kubeconfig: Path
    log: Path
    settings: dict[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None
    _begin: int = 0

    def start(self, *, leading: bool = True) -> None:
        """Start it, and wait until it leads (or, as a second one, until its cache is complete)."""
        assert self.ended, "it runs"
        self._begin = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "glm5_operator", "--kubeconfig", str(self.kubeconfig), "--admin-port", "0", "--log-level", "debug"],
                env={**os.environ, **self.settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        mark = "leading as" if leading else "the cache is complete"
        until(f"the operator to log {mark!r}", lambda: mark in self.said() or self.ended, 60, self.tail)
        assert not self.ended, self.tail()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    @property
    def crashed(self) -> bool:
        """It ended and nobody here ended it."""
        return self._process is not None and self._process.poll() is not None

    @property
    def leads(self) -> bool:
        return not self.ended and "leading as" in self.said()

    def stop(self) -> int:
        """SIGTERM, as kubelet does; returns the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def wait(self, timeout: float = 30) -> int:
        """Wait until it has ended by itself; returns the exit code."""
        assert self._process is not None
        code = self._process.wait(timeout)
        self._process = None
        return code

    def said(self) -> str:
        """The log of its present life."""
        with self.log.open("rb") as log:
            log.seek(self._begin)
            return log.read().decode(errors="replace")

    def tail(self) -> str:
        return "\n".join(self.said().splitlines()[-15:])

    def get(self, path: str) -> httpx.Response:
        """One of its own endpoints: /healthz, /readyz, /metrics."""
        found = re.search(r"probes and metrics at http://[^:]+:(\d+)", self.said())
        assert found, self.tail()
        return httpx.get(f"http://127.0.0.1:{found[1]}{path}")

    def requests(self) -> dict[tuple[str, str], float]:
        """API requests so far, by verb and kind."""
        counts: dict[tuple[str, str], float] = {}
        for line in self.get("/metrics").text.splitlines():
            if found := re.match(r"glm5_operator_api_requests_total\{(.*)\} (\S+)", line):
                labels = dict(re.findall(r'(\w+)="([^"]*)"', found[1]))
                key = (labels["verb"], labels["kind"])
                counts[key] = counts.get(key, 0) + float(found[2])
        return counts

    def writes(self) -> float:
        """Writes so far, other than its lease."""
        return sum(count for (verb, kind), count in self.requests().items() if verb not in {"get", "list", "watch"} and kind != "Lease")

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        code = self._process.wait(30)
        self._process = None
        return code
