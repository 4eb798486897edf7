"""A temporary folder that is its process's own. Used by `team` for the file over which ranks meet.

A process that is killed removes nothing, so whoever makes such a folder removes those whose owner is gone. An owner holds a lock on its
folder, and the system drops the lock when the process ends, however it ends. A process id in the name would not tell: in a container each
start has the same.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path


class OwnFolder:
    """A new folder `prefix…` in the system's temporary one; removes others of this prefix that nobody owns any more.

    Attributes:
        path: of the folder.
    """

    def __init__(self, prefix: str) -> None:
        for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            _remove_unowned(folder)
        self.path, lock = _make(prefix)
        self._lock: int | None = lock

    def remove(self) -> None:
        """Remove it with all that is in it; a second time does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _make(prefix: str) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix))
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # another start has found it before it was locked, and removed it
        with suppress(OSError):  # a file system without locks: then nobody else gets one either, and nothing is removed
            fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return path, lock
        os.close(lock)


def _remove_unowned(folder: Path) -> None:
    with suppress(OSError):  # it is owned, or another user's, or has just been removed
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
