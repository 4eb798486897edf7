"""A kubelet's PodResources API on a socket, served by kubelet's own generated Go code; what it answers is written into a file."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.shell import wait_for
from tests.cluster.tools import tool


@dataclass(frozen=True)
class PodResources:
    """The server and what it says."""

    socket: Path
    file: Path

    def say(self, pods: list[dict[str, Any]] | None = None, *, allocatable: list[str] | None = None, refuse: str = "") -> None:
        """What it answers from now on; without `allocatable` it knows that question as little as an old kubelet."""
        draft = self.file.with_suffix(".draft")
        draft.write_text(json.dumps({"refuse": refuse, "allocatable": allocatable, "pods": pods or []}))
        draft.replace(self.file)


def pod(
    name: str, *devices: str, namespace: str = "team-a", resource: str = "huawei.com/Ascend910", container: str = "engine"
) -> dict[str, Any]:
    """A pod with one container that was given those devices."""
    given = [{"resource": resource, "ids": list(devices)}] if devices else []
    return {"namespace": namespace, "name": name, "containers": [{"name": container, "devices": given}]}


@contextlib.contextmanager
def serving(socket: Path | None = None) -> Iterator[PodResources]:
    """Serve until the block ends; without a path in a folder of its own, since a socket's path may have 107 characters at most."""
    with tempfile.TemporaryDirectory(prefix="pr-") as folder:
        at = socket or Path(folder) / "kubelet.sock"
        server = PodResources(at, Path(folder) / "answer.json")
        server.say()
        at.parent.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen([tool("pod-resources"), at, server.file])
        try:
            wait_for("the PodResources socket", at.exists, timeout=30)
            yield server
        finally:
            process.kill()
            process.wait()
