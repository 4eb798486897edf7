"""`down` leaves nothing, even when the Docker engine was killed.

With an engine, a cache folder and a network namespace of its own: whatever else runs on this host, all that is found is the test's.
The cache's finished parts are links to the usual ones. Only root can start an engine, hence the skip.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster import cache, engine, nodeimage
from tests.cluster.errors import ClusterError
from tests.cluster.processes import Processes
from tests.cluster.shell import run, wait_for

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0, reason="an engine of its own needs root; another's engine is never stopped"),
]
NAME = "glm5-gone"
NOT_ARTEFACTS = {"docker", "go", "images", "locks", "logs", "run"}


@dataclass(frozen=True)
class Host:
    """A network namespace and a cache folder: to the cluster tool, a machine on which nothing has run yet."""

    namespace: str
    cache: Path

    def run(self, *argv: str | Path) -> str:
        return run("nsenter", f"--net=/run/netns/{self.namespace}", *argv)

    def cluster_tool(self, *words: str) -> None:
        self.run(sys.executable, "-m", "tests.cluster", "kind", *words, "--name", NAME)

    def traces(self) -> dict[str, list[str]]:
        """All that cluster and engine could leave, by kind."""
        marks = (str(self.cache), engine.exec_root().name, NAME)
        commands = _of_processes("cmdline")
        rules = [line for line in self.run("iptables-save").splitlines() if line.startswith(("-A", ":"))]
        containers = self.cache / "docker" / "containers"
        return {
            "processes": sorted(text for text in commands if any(mark in text for mark in marks)),
            "mounts": [line for line in Path("/proc/self/mounts").read_text().splitlines() if any(mark in line for mark in marks)],
            "interfaces": [line.split(":")[1].strip() for line in self.run("ip", "-oneline", "link").splitlines()],
            "packet filter": [line for line in rules if " ACCEPT " not in line],  # a chain that lets all through is no rule
            "folders": sorted(str(path) for path in (engine.exec_root(), *(self.cache / "run").glob("kind-*")) if path.exists()),
            "containers": sorted(path.name for path in containers.glob("*")),
            "volumes": sorted(path.name for path in (self.cache / "docker" / "volumes").glob("*") if path.is_dir()),
        }


def _of_processes(file: str) -> list[str]:
    """That file of /proc for every process."""
    texts = []
    for path in Path("/proc").glob(f"[0-9]*/{file}"):
        with contextlib.suppress(OSError):  # it may end meanwhile
            texts.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return texts


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    if not cache.artefact_path("node-image", nodeimage.key()).exists():
        pytest.skip("no node image was made here: this machine's own Docker engine pulls one, and that engine is never stopped")
    own = tmp_path / "cache"
    own.mkdir()
    for part in cache.root().iterdir():
        if part.name not in NOT_ARTEFACTS and not part.name.startswith("."):
            (own / part.name).symlink_to(part)
    monkeypatch.setenv("GLM5_CACHE", str(own))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine")  # so that it starts its own
    host = Host(engine.exec_root().name, own)
    run("ip", "netns", "add", host.namespace)
    host.run("ip", "link", "set", "lo", "up")
    yield host
    host.cluster_tool("down")
    run("ip", "netns", "delete", host.namespace)
    cache.remove(own)  # pytest would keep its gigabytes for three runs


def test_down_after_a_killed_engine_leaves_nothing(host: Host) -> None:
    before = host.traces()
    host.cluster_tool("up", "--bare")
    running = host.traces()
    assert [kind for kind in before if len(running[kind]) <= len(before[kind])] == [], "of every kind there is something to leave behind"
    daemon = Processes(cache.runs() / "docker")
    identity = daemon.identity("dockerd")
    assert identity is not None
    os.kill(identity.pid, signal.SIGKILL)
    wait_for("the daemon's death", lambda: not daemon.alive("dockerd"), timeout=30)

    host.cluster_tool("down")

    # Connections of killed containers say goodbye to peers that are gone; until the kernel gives up (seen: 100 s) they hold an interface.
    with contextlib.suppress(ClusterError):
        wait_for("interfaces to go", lambda: host.traces()["interfaces"] == before["interfaces"], timeout=240)
    assert host.traces() == before
    assert [text for text in _of_processes("cgroup") if any(container in text for container in running["containers"])] == []
    assert [path.name for path in (host.cache / "run").rglob("*")] == ["docker", "dockerd.log"], "only what the engine said is kept"
