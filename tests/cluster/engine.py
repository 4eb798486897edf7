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
from tests.cluster.processes import Processes, start_time
from tests.cluster.shell import run, wait_for
from tests.cluster.tools import tool

_NAME = "dockerd"
STILL_RUNS = (
    "the Docker engine that was started here still runs: another cluster or process of this tool uses it "
    "(`python -m tests.cluster kind status` lists clusters); the last one to go stops it"
)


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
    found = find()
    if found is None:
        _install()
        found = find()  # a package's start script may have started one
    return found or _start_own()


@contextmanager
def in_use() -> Iterator[None]:
    """Keep our own engine from being stopped by another process of this tool meanwhile."""
    with cache.locked("docker-use", shared=True):
        yield


def every() -> list[Engine]:
    """All engines that may hold a cluster of ours: the environment's, and our own, started again if it died or the machine did."""
    return [*([Engine()] if Engine().answers() else []), *([_start_own()] if left_behind() else [])]


def left_behind() -> bool:
    """Whether our own engine runs, was killed, or kept containers through a restart of the machine, which empties /run.

    Containers that lost their engine can only be ended by a new one on the same folders.
    """
    return exec_root().exists() or any((_data_root() / "containers").glob("*"))


def stop_own() -> bool:
    """Stop our own daemon unless containers or another process still use it; True when none is left running.

    Its images stay in the cache. Nothing happens when the engine is not ours.
    """
    with contextlib.suppress(BlockingIOError), cache.locked("docker-use", wait=False), cache.locked(_NAME):
        if not left_behind():
            return True
        if _start().docker("ps", "--all", "--quiet").strip():
            return False
        _stop(_processes())
        return True
    return False


def _stop(processes: Processes) -> None:
    processes.stop(_NAME, grace=30)
    before = processes.folder / "host.state"
    if before.exists():
        HostState(**json.loads(before.read_text())).restore()
        before.unlink()
    _unmount(exec_root(), _data_root())  # a killed daemon leaves network namespaces and layers mounted
    cache.remove(exec_root())


def _unmount(*folders: Path) -> None:
    points = [Path(line.split()[1]) for line in Path("/proc/self/mounts").read_text().splitlines()]
    for point in reversed(points):  # what was mounted last lies on top
        if any(folder == point or folder in point.parents for folder in folders):
            run("umount", point)


def _data_root() -> Path:
    return cache.root() / "docker"


def _processes() -> Processes:
    return Processes(cache.runs() / "docker")


def exec_root() -> Path:
    """Where our own daemon has its sockets and state while it runs."""
    # Sockets in it must stay under 108 characters, wherever the cache is; and /run is emptied by a boot.
    return Path("/run") / f"glm5-docker-{hashlib.sha256(str(cache.root()).encode()).hexdigest()[:8]}"


def _socket() -> Path:
    return exec_root() / "docker.sock"


def _install() -> None:
    if os.geteuid() != 0:
        raise UnavailableError(
            "no Docker engine answers and this is not root, so none can be started: start Docker (or set DOCKER_HOST), "
            "or run this as root on Debian 12, or use a cluster of your own with CLUSTER=current"
        )
    debian.install_missing(["dockerd", "docker", "containerd", "runc"])


def _start_own() -> Engine:
    _install()
    with cache.locked(_NAME):
        return _start()


def _start() -> Engine:
    """Start our daemon if it doesn't answer. After a killed one it finds that one's containers again."""
    engine = Engine(_socket())
    if engine.answers():
        return engine
    processes = _processes()
    processes.stop(_NAME)
    if not exec_root().exists():  # else what the killed one changed on this host is written down already
        (processes.folder / "host.state").write_text(json.dumps(asdict(HostState.take())))
        exec_root().mkdir(mode=0o700)
    _forget_dead()
    host.prepare()
    arguments = _arguments(tool("runc-clamp"))
    processes.start(_NAME, arguments, env={"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"})

    def answers() -> bool:
        if not processes.alive(_NAME):
            raise UnavailableError(f"dockerd ended; the end of {processes.log(_NAME)}:\n{processes.tail(_NAME)}")
        return engine.answers()

    wait_for("dockerd", answers, timeout=60)
    return engine


def _forget_dead() -> None:
    """Remove what makes dockerd wait for or give way to a process that is dead, also when that only waits to be reaped."""
    (exec_root() / "docker.pid").unlink(missing_ok=True)  # of the daemon that was stopped just now
    record = exec_root() / "exec" / "containerd" / "containerd.pid"
    if record.exists() and start_time(int(record.read_text())) is None:
        record.unlink()


def _arguments(clamp: Path) -> list[str | Path]:
    return [
        "dockerd",
        *("--data-root", _data_root(), "--exec-root", exec_root() / "exec"),
        *("--host", f"unix://{_socket()}", "--pidfile", exec_root() / "docker.pid"),
        *("--add-runtime", f"clamp={clamp}", "--default-runtime", "clamp"),
        "--bridge=none",  # kind makes a network of its own; the default bridge would only be left behind
    ]
