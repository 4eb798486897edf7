"""Checkpoints that survive a kill at any moment: written beside training, complete or not there, checked before they are used.

A checkpoint is a folder `checkpoint-<step>` with torch's distributed format (each rank writes its shards; any number of ranks reads them),
`state.json` and `manifest.json`, which holds the size and SHA-256 of every other file. It is written under a hidden name, forced to the
disk, and renamed. What a kill leaves behind has a hidden name and is removed by the next run; what a disk damages is found by the manifest,
set aside as `damaged-checkpoint-<step>`, and the one before it is used.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

log = logging.getLogger(__name__)

MANIFEST, STATE = "manifest.json", "state.json"
_NAME = re.compile(r"checkpoint-(\d{1,12})")
_WRITING, _LEAVING, _DAMAGED = ".writing-", ".leaving-", "damaged-"


class CheckpointError(Exception):
    """A checkpoint can't be written or used; the message names the folder and the cause."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A complete checkpoint whose files are what the manifest says."""

    step: int
    path: Path
    state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest complete checkpoint, for whoever asks how far the run is: when it was written, and the SHA-256 of its manifest."""

    step: int
    time: datetime
    sha256: str

    def to_json(self) -> dict[str, Any]:
        """With the time as RFC 3339 has it."""
        return {"step": self.step, "time": self.time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "sha256": self.sha256}


class Checkpoints:
    """The checkpoints of one run in a folder of their own. At most one is being written; the next one waits for it."""

    def __init__(self, directory: Path, keep: int) -> None:
        self._directory, self._keep = directory, keep
        self._writer: threading.Thread | None = None
        self._failure: BaseException | None = None
        self.newest_step: int | None = None
        self.newest_written: Newest | None = None
        self.kept_step: int | None = None
        """One more that stays: the best by evaluation."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"checkpoint.directory {directory}: {error.strerror}") from error
        for leftover in directory.glob(".*"):
            if leftover.name.startswith((_WRITING, _LEAVING)):
                shutil.rmtree(leftover, ignore_errors=True)

    def steps(self) -> list[int]:
        """Steps of the checkpoints that are there, by number, the newest last. Other names in the folder are left alone."""
        found = (_NAME.fullmatch(path.name) for path in self._directory.iterdir() if path.is_dir())
        return sorted(int(match[1]) for match in found if match)

    def newest(self) -> Saved | None:
        """The newest one that is whole; damaged ones in front of it are set aside and named in the log."""
        for step in reversed(self.steps()):
            path = self._path(step)
            try:
                state = _verified(path)
            except CheckpointError as error:
                log.warning("%s; it is set aside, and the checkpoint before it is used", error)
                self.set_aside(step)
                continue
            self.newest_step, self.newest_written = step, _newest(step, path)
            return Saved(step, path, state)
        return None

    def at(self, step: int) -> Saved:
        """The one of a step; raises CheckpointError."""
        return Saved(step, self._path(step), _verified(self._path(step)))

    def load(self, saved: Saved, tensors: dict[str, Tensor]) -> None:
        """Read its tensors into these, which must be the ones that were saved."""
        try:
            load(dict(tensors), storage_reader=FileSystemReader(saved.path), no_dist=True)
        except (CheckpointException, RuntimeError, ValueError) as error:
            raise CheckpointError(f"{saved.path}: doesn't fit this run: {' '.join(str(error).split())[:300]}") from error

    def save(self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Copy the tensors and write them in the background. Raises CheckpointError when the one before could not be written."""
        self.wait()
        if step in self.steps():
            return
        staged = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        self._writer = threading.Thread(target=self._write, args=(step, staged, dict(state)), name="checkpoint")
        self._writer.start()

    def wait(self) -> None:
        """Until the one under way is complete; raises CheckpointError when it failed."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        if (failure := self._failure) is not None:
            self._failure = None
            raise CheckpointError(_explain(self._directory, failure)) from failure

    def set_aside(self, step: int) -> None:
        """Keep a checkpoint that must not be used, under another name, for whoever wants to know why."""
        aside = self._directory / f"{_DAMAGED}{self._path(step).name}"
        shutil.rmtree(aside, ignore_errors=True)
        self._path(step).rename(aside)

    def _path(self, step: int) -> Path:
        return self._directory / f"checkpoint-{step}"

    def _write(self, step: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """In a thread of its own; the cause of a failure is told to whoever asks next."""
        started = time.monotonic()
        temporary = self._directory / f"{_WRITING}{step}-{os.getpid()}"
        try:
            temporary.mkdir()
            save(tensors, storage_writer=FileSystemWriter(temporary, sync_files=True), no_dist=True)
            _write_synced(temporary / STATE, json.dumps(state))
            _write_synced(temporary / MANIFEST, json.dumps({"step": step, "files": _digests(temporary)}, indent=1))
            _sync_folder(temporary)
            temporary.rename(self._path(step))
            _sync_folder(self._directory)
            self.newest_step, self.newest_written = step, _newest(step, self._path(step))
            self._drop_old()
        except BaseException as error:  # noqa: BLE001 - raised again by `wait`, in the thread that trains
            self._failure = error
            shutil.rmtree(temporary, ignore_errors=True)
            return
        log.info("checkpoint %s written in %.1f s", self._path(step), time.monotonic() - started)

    def _drop_old(self) -> None:
        """By a hidden name first: a kill while it is being removed must not leave half of it behind."""
        for step in self.steps()[: -self._keep]:
            if step != self.kept_step:
                leaving = self._directory / f"{_LEAVING}{step}"
                self._path(step).rename(leaving)
                shutil.rmtree(leaving, ignore_errors=True)


def _verified(path: Path) -> dict[str, Any]:
    """The state of a checkpoint whose every file is as it was written; raises CheckpointError."""
    try:
        files = json.loads((path / MANIFEST).read_bytes())["files"]
        present = {each.name for each in path.iterdir()} - {MANIFEST}
        if strange := present ^ files.keys():
            raise CheckpointError(f"{path}: {sorted(strange)[0]} is missing, or not in {MANIFEST}")
        for name, (size, digest) in files.items():
            if (path / name).stat().st_size != size or _digest(path / name) != digest:
                raise CheckpointError(f"{path}: {name} is not what was written")
        state: dict[str, Any] = json.loads((path / STATE).read_bytes())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: incomplete ({type(error).__name__}: {error})") from error
    return state


def _newest(step: int, path: Path) -> Newest:
    return Newest(step, datetime.fromtimestamp((path / MANIFEST).stat().st_mtime, UTC), _digest(path / MANIFEST))


def _digests(folder: Path) -> dict[str, tuple[int, str]]:
    return {path.name: (path.stat().st_size, _digest(path)) for path in sorted(folder.iterdir())}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_synced(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Names are data too: without it a rename may be lost by a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _explain(directory: Path, failure: BaseException) -> str:
    cause: BaseException | None = failure
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, OSError) and cause.errno in {errno.ENOSPC, errno.EDQUOT}:
        return f"checkpoint.directory {directory}: the disk is full; make room, keep fewer checkpoints or write to another volume"
    return f"checkpoint.directory {directory}: not written: {type(failure).__name__}: {' '.join(str(failure).split())[:300]}"
