"""The Docker engine of the kind cluster: the one that answers here, else one of our own that leaves no trace when stopped.

Used by kind.py and images.py. An engine that was running before is used as it is and never stopped.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.cluster import cache, debian, host
from tests.cluster.errors import CommandFailedError, UnavailableError
from tests.cluster.host import HostState
from tests.cluster.processes import Processes
from tests.cluster.shell import run, wait_for
from tests.cluster.tools import tool

_NAME = "dockerd"


@dataclass(frozen=True, slots=True)
class Engine:
    """A Docker engine that answers.

    Attributes:
        socket: Our own daemon's socket; None for the engine that the environment points to.
    """

    socket: Path | None = None

    @property
    def own(self) -> bool:
        """Whether it is the daemon that this tool started."""
        return self.socket is not None

    @property
    def env(self) -> Mapping[str, str]:
        """Environment for programs that talk to it; the classic builder, because Debian's engine knows no BuildKit."""
        host = {"DOCKER_HOST": f"unix://{self.socket}"} if self.socket else {}
        return {**host, "DOCKER_BUILDKIT": "0", "DOCKER_CLI_HINTS": "false"}

    def docker(self, *words: str | Path, log: Path | None = None, timeout: float | None = None, stdin: str | None = None) -> str:
        """Run the docker client on it and return its output."""
        return run("docker", *words, env=self.env, log=log, timeout=timeout, stdin=stdin)

    def answers(self) -> bool:
        """Whether a daemon is behind it."""
        if shutil.which("docker") is None:
            return False
        try:
            return bool(self.docker("version", "--format", "{{.Server.Version}}", timeout=15).strip())
        except CommandFailedError:
            return False

    def has_image(self, reference: str) -> bool:
        """Whether it holds that image."""
        return bool(self.docker("images", "--quiet", reference).strip())


def find() -> Engine | None:
    """The engine that answers: the environment's, else our own when it runs; None when neither does."""
    for engine in (Engine(), Engine(_socket())):
        if engine.answers():
            return engine
    return None


def require() -> Engine:
    """The engine that answers, starting our own when there is none.

    Raises:
        UnavailableError: None answers and this is not root on Debian.
    """
    return find() or _start_own()


@contextmanager
def in_use() -> Iterator[None]:
    """Keep our own engine from being stopped by another process of this tool meanwhile."""
    with cache.locked("docker-use", shared=True):
        yield


def revive() -> Engine | None:
    """Our own engine, started again if it died with containers; None when it was stopped properly or never ran.

    A killed dockerd leaves containerd and containers running; only a new one on the same folders can end them.
    """
    return _start_own() if _exec_root().exists() else None


def stop_own() -> bool:
    """Stop our own daemon unless containers or another process still use it; True when none is left running.

    Its images stay in the cache. Nothing happens when the engine is not ours.
    """
    with contextlib.suppress(BlockingIOError), cache.locked("docker-use", wait=False), cache.locked(_NAME):
        processes = _processes()
        engine = Engine(_socket())
        if processes.alive(_NAME) and engine.answers() and engine.docker("ps", "--all", "--quiet").strip():
            return False
        _stop(processes)
        return True
    return False


def _stop(processes: Processes) -> None:
    processes.stop(_NAME, grace=30)
    before = processes.folder / "host.state"
    if before.exists():
        HostState(**json.loads(before.read_text())).restore()
        before.unlink()
    cache.remove(_exec_root())


def _processes() -> Processes:
    return Processes(cache.root() / "run" / "docker")


def _exec_root() -> Path:
    # Sockets in it must stay under 108 characters, wherever the cache is; and /run is emptied by a boot.
    return Path("/run") / f"glm5-docker-{hashlib.sha256(str(cache.root()).encode()).hexdigest()[:8]}"


def _socket() -> Path:
    return _exec_root() / "docker.sock"


def _start_own() -> Engine:
    if os.geteuid() != 0:
        raise UnavailableError(
            "no Docker engine answers and this is not root, so none can be started: start Docker (or set DOCKER_HOST), "
            "or run this as root on Debian 12, or use a cluster of your own with CLUSTER=current"
        )
    debian.install_missing(["dockerd", "docker", "containerd", "runc"])
    engine = find()  # a package's start script may have started one
    if engine is not None:
        return engine
    clamp = tool("runc-clamp")
    with cache.locked(_NAME):
        engine = Engine(_socket())
        if engine.answers():
            return engine
        processes = _processes()
        _stop(processes)  # clears what a killed run left
        (processes.folder / "host.state").write_text(json.dumps(asdict(HostState.take())))
        host.prepare()
        _exec_root().mkdir(mode=0o700)
        processes.start(_NAME, _arguments(clamp), env={"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"})

        def answers() -> bool:
            if not processes.alive(_NAME):
                raise UnavailableError(f"dockerd ended; the end of {processes.log(_NAME)}:\n{processes.tail(_NAME)}")
            return engine.answers()

        wait_for("dockerd", answers, timeout=60)
        return engine


def _arguments(clamp: Path) -> list[str | Path]:
    return [
        "dockerd",
        *("--data-root", cache.root() / "docker", "--exec-root", _exec_root() / "exec"),
        *("--host", f"unix://{_socket()}", "--pidfile", _exec_root() / "docker.pid"),
        *("--add-runtime", f"clamp={clamp}", "--default-runtime", "clamp"),
        "--bridge=none",  # kind makes a network of its own; the default bridge would only be left behind
    ]
