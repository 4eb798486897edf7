"""The audit log: one JSON line a request, refused ones included, written by a thread of its own.

Refused at start when its first line can't be written. At run time a full disk or a lost file costs lines, which are counted and reported
once in a while, and never a client anything. Rotation needs no signal: a file that was renamed or removed is opened anew before the next
line, and one that was cut (copytruncate) is written on from its start, since every line is appended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic_core

from glm5_runtime.server.logs import Sparingly

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from glm5_runtime.server.account import Account

logger = logging.getLogger(__name__)
_QUEUED = 10_000  # lines; some 4 MB
_STDOUT = 1
OUTCOMES = ("written", "failed", "dropped")


class AuditLog:
    """Lines to a file, or to standard output for `-`. `count` is called with one of OUTCOMES for each line, from any thread."""

    def __init__(self, target: str, count: Callable[[str], None], *, first: Mapping[str, Any]) -> None:
        """Open the file and write the first line; raises OSError when that can't be."""
        self._path = None if target == "-" else Path(target)
        self._count = count
        self._lines: queue.Queue[bytes | None] = queue.Queue(_QUEUED)
        self._complaint = Sparingly(logger)
        self._torn = False  # a line was cut by a full disk
        self._file = _STDOUT if self._path is None else _opened(self._path)
        self._write(_line(first))
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def tell(self, account: Account) -> None:
        """Queue the line of a request, or drop it when too many wait."""
        try:
            self._lines.put_nowait(_line(account.record()))
        except queue.Full:
            self._count("dropped")
            self._complaint.warning("the audit log can't be written as fast as requests end; lines are dropped")

    async def close(self, seconds: float) -> None:
        """Write what is queued, then end the thread."""
        end = time.monotonic() + seconds
        with contextlib.suppress(queue.Full):
            await asyncio.to_thread(self._lines.put, None, timeout=seconds)
            await asyncio.to_thread(self._thread.join, max(0.0, end - time.monotonic()))
        if self._thread.is_alive():
            logger.error("the audit log still had %d lines to write at the end", self._lines.qsize())
        elif self._path is not None:
            os.close(self._file)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._reopen_when_moved()
                self._write(line)
            except OSError as error:
                self._count("failed")
                self._complaint.error(f"the audit log can't be written: {error.strerror}; lines are lost")
            else:
                self._count("written")

    def _reopen_when_moved(self) -> None:
        if self._path is None:
            return
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self._path), os.fstat(self._file)):
                return
        new = _opened(self._path)
        os.close(self._file)
        self._file, self._torn = new, False

    def _write(self, line: bytes) -> None:
        left = b"\n" + line if self._torn else line
        self._torn = False
        while left:
            try:
                written = os.write(self._file, left)
            except OSError:
                self._torn = left != line
                raise
            left = left[written:]


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)


def _line(value: Mapping[str, Any]) -> bytes:
    return pydantic_core.to_json(value) + b"\n"
