"""Which resets were begun and how they ended, on the node's disk; and the lock that a reset holds as long as its command lives.

Used by `reset`. One file an id: making it is what begins a reset, and a file can be made only once, by whichever agent. So an id is never
begun twice, also when the agent is killed at any moment, when two agents overlap, or when a file's content is lost.
The lock is inherited by the command: it is free when the command is gone, not when the agent is.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from pydantic import ValidationError

from glm5_operator.api.node import MOST_RESETS, ResetReport

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_RECORDS: Final = 64
"""Files kept at least; older ones go once their deadline has long passed, since a request past its deadline isn't begun anyway."""
KEPT_PAST_DEADLINE: Final = timedelta(days=7)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Record:
    """One reset.

    Attributes:
        report: how far it is.
        deadline: when the request ran out.
        at: when it was taken up, for the order.
    """

    report: ResetReport
    deadline: datetime
    at: datetime


class Records:
    """The folder of records. Raises OSError where the disk can't be read or written: then nothing is begun."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, Record] = {}

    def newest(self) -> tuple[ResetReport, ...]:
        """The newest reports, oldest first. What ran under an agent that is gone is Unknown once its command is gone too."""
        self._read()
        for record in tuple(self._known.values()):
            if record.report.state == "Running":
                self._settle(record)
        ordered = sorted(self._known.values(), key=lambda record: record.at)
        return tuple(record.report for record in ordered[-MOST_RESETS:])

    def find(self, name: str) -> ResetReport | None:
        """The report on that id, if it was ever taken up."""
        record = self._known.get(name) or self._load(self._path(name))
        if record is None:
            return None
        self._known[name] = record
        return self._settle(record).report if record.report.state == "Running" else record.report

    def claim(self, record: Record) -> bool:
        """Make the id's file; False when there is one. From here on the reset counts as begun."""
        path = self._path(record.report.id)
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return False
        try:
            with open(file, "wb") as out:
                out.write(_encode(record))
                out.flush()
                os.fsync(out.fileno())
            self._sync()
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        self.remember(record)
        return True

    def write(self, record: Record) -> None:
        """Put a newer report in its place; readers see the old one or the new one."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(record.report.id)
        draft = path.with_suffix(".draft")
        with draft.open("wb") as out:
            out.write(_encode(record))
            out.flush()
            os.fsync(out.fileno())
        draft.replace(path)
        self._sync()
        self.remember(record)

    def remember(self, record: Record) -> None:
        """Know it as long as this agent lives: for what the disk doesn't take."""
        self._known[record.report.id] = record

    def prune(self, now: datetime) -> None:
        """Remove files that nobody can ask for again."""
        self._read()
        ordered = sorted(self._known.values(), key=lambda record: record.at)
        for record in ordered[:-MOST_RECORDS]:
            if record.deadline + KEPT_PAST_DEADLINE < now:
                self._path(record.report.id).unlink(missing_ok=True)
                del self._known[record.report.id]

    @contextlib.contextmanager
    def locked(self) -> Iterator[int | None]:
        """Hold the node's lock; gives its file descriptor, for the command to inherit, or None while another reset runs."""
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = True
            except BlockingIOError:
                held = False
            yield lock if held else None
        finally:
            os.close(lock)  # and not unlocked: a command that couldn't be killed keeps it

    def _settle(self, record: Record) -> Record:
        with self.locked() as lock:
            if lock is None:
                return record
            latest = self._load(self._path(record.report.id)) or record  # its agent may have written the end just now
            if latest.report.state == "Running":
                report = latest.report.model_copy(
                    update={
                        "state": "Unknown",
                        "reason": "AgentEnded",
                        "message": "the node agent ended while this reset ran; what became of it shows only in the cards' health",
                    }
                )
                latest = replace(latest, report=report)
                with contextlib.suppress(OSError):  # found out again after the next start
                    self.write(latest)
            self._known[record.report.id] = latest
            return latest

    def _read(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            for path in self._folder.glob("*.json"):
                if unquote(path.stem) not in self._known and (record := self._load(path)) is not None:
                    self._known[record.report.id] = record

    def _load(self, path: Path) -> Record | None:
        try:
            text, changed = path.read_bytes(), path.stat().st_mtime
        except FileNotFoundError:
            return None
        try:
            data = json.loads(text)
            report = ResetReport.model_validate_json(json.dumps(data["report"]))
            return Record(report, datetime.fromisoformat(data["deadline"]), datetime.fromisoformat(data["at"]))
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            _log.warning("The record %s can't be read, so this reset counts as begun: %s", path.name, error)
            at = datetime.fromtimestamp(changed, UTC)
            report = ResetReport(
                id=unquote(path.stem)[:63],
                state="Running",
                message="the record of this reset can't be read",
            )
            return Record(report, at, at)

    def _path(self, name: str) -> Path:
        return self._folder / f"{quote(name, safe='')}.json"

    def _sync(self) -> None:
        """A new name in a folder is on disk only when the folder is."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _encode(record: Record) -> bytes:
    return json.dumps(
        {
            "at": record.at.isoformat(),
            "deadline": record.deadline.isoformat(),
            "report": record.report.model_dump(mode="json", by_alias=True, exclude_none=True),
        },
        indent=1,
    ).encode()
