"""The cache folder outside the clone: what is expensive to make is made once per content key and then only read.

Used by every builder of tests/cluster. An artefact appears whole or not at all (temporary name, then rename), and two
processes that want the same one wait for each other (flock).
"""

import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def root() -> Path:
    """The cache folder: $GLM5_CACHE, else ~/.cache/glm5-ascend."""
    folder = Path(os.environ.get("GLM5_CACHE") or Path.home() / ".cache" / "glm5-ascend")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def logs() -> Path:
    """Where the output of build steps is kept."""
    folder = root() / "logs"
    folder.mkdir(exist_ok=True)
    return folder


def runs() -> Path:
    """Where running clusters have their folders."""
    folder = root() / "run"
    folder.mkdir(exist_ok=True)
    return folder


def content_key(*parts: str | bytes | Path) -> str:
    """Twelve hex digits that change when any part changes; a Path stands for its file's or folder's content."""
    digest = hashlib.sha256()
    for part in parts:
        for chunk in _chunks(part):
            digest.update(len(chunk).to_bytes(8, "big") + chunk)
    return digest.hexdigest()[:12]


def _chunks(part: str | bytes | Path) -> Iterator[bytes]:
    if isinstance(part, str):
        yield part.encode()
    elif isinstance(part, bytes):
        yield part
    elif part.is_dir():
        for file in sorted(part.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                yield str(file.relative_to(part)).encode()
                yield file.read_bytes()
    else:
        yield part.read_bytes()


@contextmanager
def locked(name: str, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
    """Hold the machine-wide lock of that name; the kernel lets go of it when the process dies. A wait is said on standard error.

    Raises:
        BlockingIOError: Someone else holds it and `wait` is False.
    """
    folder = root() / "locks"
    folder.mkdir(exist_ok=True)
    with (folder / f"{name}.lock").open("w") as handle:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise
            print(f"waiting for {name}: another process is at it, and writes to {_log_of(name)}", file=sys.stderr, flush=True)
            fcntl.flock(handle, kind)
        yield


def _log_of(name: str) -> Path:
    """Where the holder of a lock most likely writes: its own log, else the folder of all."""
    named = (logs() / f"{name}.log", logs() / f"build-{name.removeprefix('tool-')}.log")
    return next((log for log in named if log.exists()), logs())


def artefact_path(name: str, key: str) -> Path:
    """Where the artefact is or will be."""
    return root() / f"{name}-{key}"


def artefact(name: str, key: str, build: Callable[[Path], None]) -> Path:
    """Return the artefact, making it first when it isn't there.

    Args:
        name: What it is; part of the folder's name and the name of its lock.
        key: Content key of everything that decides what comes out.
        build: Fills the path it is given, which doesn't exist yet, with a file or a folder.
    """
    target = artefact_path(name, key)
    if target.exists():
        return target
    with locked(name):
        if target.exists():
            return target
        draft = root() / f".draft-{name}"  # one name per lock: what a killed run left is found and removed here
        remove(draft)
        try:
            build(draft)
            draft.rename(target)
        finally:
            remove(draft)
    return target


def remove(path: Path) -> None:
    """Delete a file or a tree, or nothing when it isn't there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
