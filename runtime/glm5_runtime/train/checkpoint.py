"""Checkpoints that survive a kill at any moment: written beside training, complete or not there, checked before they are used.

A checkpoint is a folder `checkpoint-<step>` with torch's distributed format (each rank writes its shards; any number of ranks reads them),
`state.json` and `manifest.json`, which holds the size and SHA-256 of every other file. It is written under a hidden name, forced to the
disk, and renamed. What a kill leaves behind has a hidden name and is removed by the next run; what a disk damages is found by the manifest,
set aside as `damaged-checkpoint-<step>`, and the one before it is used.

With several ranks all of them call the same methods at the same time. Rank 0 alone looks at names and checks files, makes the folder and
renames it; what it finds, and every failure, is the same for all. What ranks exchange here has a group of its own.
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

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from glm5_runtime.train.distributed.ranks import ALONE, causes
from glm5_runtime.train.fence import Fence, Superseded

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from glm5_runtime.train.distributed.ranks import Ranks

log = logging.getLogger(__name__)

MANIFEST, STATE = "manifest.json", "state.json"
_NAME = re.compile(r"checkpoint-(0|[1-9][0-9]{0,11})")
_Digests = dict[str, tuple[int, str]]
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

    def __init__(self, directory: Path, keep: int, ranks: Ranks = ALONE, fence: Fence | None = None) -> None:
        """Raises CheckpointError; Superseded where `fence` says so, here and before anything appears."""
        self._directory, self._keep, self._ranks = directory, keep, ranks.beside()
        self._fence = fence or Fence(directory, None)
        self._writer: threading.Thread | None = None
        self._copy: dict[str, Tensor] = {}
        self._failure: BaseException | None = None
        self.newest_step: int | None = None
        self.newest_written: Newest | None = None
        self.kept_step: int | None = None
        """One more that stays: the best by evaluation."""
        self._ranks.agree(self._open)

    def _open(self) -> None:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._fence.claim()
        except OSError as error:
            raise CheckpointError(f"checkpoint.directory {self._directory}: {error.strerror}") from error
        for leftover in self._directory.glob(".*"):
            if leftover.name.startswith((_WRITING, _LEAVING)):
                shutil.rmtree(leftover, ignore_errors=True)

    def steps(self) -> list[int]:
        """Steps of the checkpoints that are there, by number, the newest last. Other names in the folder are left alone."""
        found = (_NAME.fullmatch(path.name) for path in self._directory.iterdir() if path.is_dir())
        return sorted(int(match[1]) for match in found if match)

    def newest(self) -> Saved | None:
        """The newest one that is whole; damaged ones in front of it are set aside and named in the log."""
        saved, self.newest_written = self._ranks.agree(self._newest)
        self.newest_step = saved.step if saved else None
        return saved

    def _newest(self) -> tuple[Saved | None, Newest | None]:
        for step in reversed(self.steps()):
            try:
                return self._at(step), _newest(step, self._path(step))
            except CheckpointError as error:
                log.warning("%s; it is set aside, and the checkpoint before it is used", error)
                self._set_aside(step)
        return None, None

    def at(self, step: int) -> Saved:
        """The one of a step; raises CheckpointError."""
        return self._ranks.agree(lambda: self._at(step))

    def _at(self, step: int) -> Saved:
        return Saved(step, self._path(step), _verified(self._path(step)))

    def load(self, saved: Saved, tensors: dict[str, Tensor]) -> None:
        """Read its tensors into these, which must be the ones that were saved; on any number of ranks."""
        try:
            load(dict(tensors), storage_reader=FileSystemReader(saved.path), process_group=self._ranks.group, no_dist=self._ranks.is_alone)
        except (CheckpointException, RuntimeError, ValueError) as error:
            raise CheckpointError(f"{saved.path}: doesn't fit this run: {' '.join(str(error).split())[:300]}") from error

    def save(self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Copy the tensors and write them in the background. Raises CheckpointError when the one before could not be written."""
        self.wait()
        if self._ranks.agree(lambda: step in self.steps()):
            return
        self._writer = threading.Thread(target=self._write, args=(step, self._copied(tensors), dict(state)), name="checkpoint", daemon=True)
        self._writer.start()

    @torch.no_grad()
    def _copied(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors in main memory as they are now. The copy's memory is kept for the next: new pages took as long as the copying."""
        if self._copy.keys() == tensors.keys():
            for name, tensor in tensors.items():
                self._copy[name].copy_(tensor)
        else:
            self._copy = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        return dict(self._copy)

    def wait(self) -> None:
        """Until the one under way is complete; raises CheckpointError when it failed, Superseded."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        if (failure := self._failure) is not None:
            self._failure = None
            if isinstance(failure, Superseded):
                raise failure
            raise CheckpointError(_explain(self._directory, failure)) from failure

    def set_aside(self, step: int) -> None:
        """Keep a checkpoint that must not be used, if there is one, under another name, for whoever wants to know why."""
        self._ranks.agree(lambda: self._set_aside(step))

    def _set_aside(self, step: int) -> None:
        if not self._path(step).exists():
            return
        self._fence.check()
        aside = self._directory / f"{_DAMAGED}{self._path(step).name}"
        shutil.rmtree(aside, ignore_errors=True)
        self._path(step).rename(aside)

    def _path(self, step: int) -> Path:
        return self._directory / f"checkpoint-{step}"

    def _write(self, step: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """In a thread of its own; the cause of a failure is told to whoever asks next."""
        started, ranks = time.monotonic(), self._ranks
        folder: Path | None = None
        try:
            temporary = folder = ranks.agree(lambda: self._begin(step))
            writer = FileSystemWriter(temporary, sync_files=True)
            save(tensors, storage_writer=writer, process_group=ranks.group, no_dist=ranks.is_alone)
            digests = ranks.each(lambda: _digests(temporary, f"__{ranks.rank}_*"))
            self.newest_written = ranks.agree(lambda: self._complete(step, temporary, digests, state))
            self.newest_step = step
        except BaseException as error:  # noqa: BLE001 - raised again by `wait`, in the thread that trains
            self._failure = error
            if folder is not None and ranks.is_first:
                shutil.rmtree(folder, ignore_errors=True)
            return
        log.info("checkpoint %s written in %.1f s", self._path(step), time.monotonic() - started)

    def _begin(self, step: int) -> Path:
        temporary = self._directory / f"{_WRITING}{step}-{os.getpid()}"
        temporary.mkdir()
        return temporary

    def _complete(self, step: int, temporary: Path, digests: list[_Digests], state: dict[str, Any]) -> Newest:
        """What ranks have written becomes a checkpoint."""
        _write_synced(temporary / STATE, json.dumps(state))
        files = _digests(temporary, STATE) | _digests(temporary, ".metadata")
        for each in digests:
            files |= each
        _write_synced(temporary / MANIFEST, json.dumps({"step": step, "files": dict(sorted(files.items()))}, indent=1))
        _sync_folder(temporary)
        self._fence.check()
        temporary.rename(self._path(step))
        _sync_folder(self._directory)
        self._drop_old()
        return _newest(step, self._path(step))

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


def _digests(folder: Path, pattern: str) -> _Digests:
    return {path.name: (path.stat().st_size, _digest(path)) for path in sorted(folder.glob(pattern))}


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
    """The disk's word where there is one, of whatever rank."""
    errors = list(causes(failure))
    if any(isinstance(each, OSError) and each.errno in {errno.ENOSPC, errno.EDQUOT} for each in errors):
        return f"checkpoint.directory {directory}: the disk is full; make room, keep fewer checkpoints or write to another volume"
    if any(isinstance(each, OSError) and each.errno in {errno.ENOTEMPTY, errno.EEXIST} for each in errors):
        return f"checkpoint.directory {directory}: another run has written this checkpoint meanwhile; give each run a folder of its own"
    return f"checkpoint.directory {directory}: not written: {type(failure).__name__}: {' '.join(str(failure).split())[:300]}"
