"""The operator with the small controller as a real process, which tests can kill and freeze."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import httpx

# Times as short as they may be; every other setting is as users have it.
QUICK = {
    "LEASE_DURATION": "8",
    "WATCH_SERVER_TIMEOUT": "5",
    "WATCH_GRACE": "1",
    "WATCH_DEAD_AFTER": "12",
    "API_REQUEST_TIMEOUT": "2",
    "API_CONNECT_TIMEOUT": "1",
    "ADMIN_HOST": "127.0.0.1",
    "ADMIN_PORT": "0",
}


@dataclass
class SmallOperator:
    """One process; `settings` by their names without the prefix."""

    kubeconfig: Path
    log: Path
    namespace: str
    settings: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        own = {"SCOPE_NAMESPACES": self.namespace, "LEASE_NAMESPACE": self.namespace}
        variables = {f"GLM5_OPERATOR_{name}": value for name, value in {**QUICK, **own, **self.settings}.items()}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.api.kube.small"],
                cwd=Path(__file__).parents[3],
                env={**os.environ, "KUBECONFIG": str(self.kubeconfig), **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def said(self, words: str) -> bool:
        return words in self.log.read_text(errors="replace")

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, timeout: float) -> int:
        assert self.process is not None
        return self.process.wait(timeout)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(10)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.admin_url + path, timeout=10)

    @property
    def admin_url(self) -> str:
        found = re.search(r"probes and metrics at http://[^:]+:(\d+)", self.log.read_text())
        assert found, self.tail()
        return f"http://127.0.0.1:{found[1]}"

    def requests(self) -> dict[tuple[str, str], float]:
        """API requests so far, by verb and kind."""
        counts: dict[tuple[str, str], float] = {}
        for labels, value in re.findall(r"^glm5_operator_api_requests_total\{(.*)\} (\S+)$", self.get("/metrics").text, re.MULTILINE):
            label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            key = (label["verb"], label["kind"])
            counts[key] = counts.get(key, 0.0) + float(value)
        return counts

    def writes(self) -> dict[tuple[str, str], float]:
        """The writes among them, lease renewals aside."""
        return {key: count for key, count in self.requests().items() if key[0] not in {"get", "list", "watch"} and key[1] != "Lease"}
