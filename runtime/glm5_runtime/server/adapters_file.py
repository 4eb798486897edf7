"""Keeps the loaded adapters as a file says, and answers part of the model's requests by them: --adapters-file.

Made by `process`, which runs it beside the server. The file is looked at once a second; in a cluster it is a ConfigMap's, whose folder
changes by a link. What can't be understood is told once and changes nothing: not there, half written, no JSON. Loads and unloads go
through the engine's store, one at a time with those over HTTP, in a thread of their own. What can't be loaded is tried again: the folder
may be on its way.
"""

from __future__ import annotations

import asyncio
import logging
import stat
import time
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from glm5_runtime.engine.errors import EngineDead
from glm5_runtime.server.adapter_entries import MAX_BYTES, Contents, ContentsError, Entry, State, read_contents, within
from glm5_runtime.server.aside import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from glm5_runtime.engine.adapters import AdapterStore, LoadedAdapter
    from glm5_runtime.server.counts import Counts

logger = logging.getLogger(__name__)
LOOK_SECONDS = 1.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Between two tries to load the same adapter, seconds; each pause is twice the one before."""
START_SECONDS = 120.0
"""Longest that adapters keep a starting server from being ready."""


@dataclass(frozen=True)
class _Kept:
    """What is loaded under a name, and the entry that it was loaded for."""

    adapter: LoadedAdapter
    entry: Entry

    def fits(self, entry: Entry) -> bool:
        """Whether it is what the entry asks for; another share is no other adapter."""
        is_same = (entry.path, entry.base) == (self.entry.path, self.entry.base)
        return is_same and (entry.sha256 is None or entry.sha256.lower() == self.adapter.sha256)


@dataclass(frozen=True)
class _Failed:
    """The last try to load an entry."""

    entry: Entry
    message: str
    pause: float
    again: float  # on the clock


class AdaptersFile:
    """The adapters of one file. Lives on the event loop; only reading and loading are done in threads."""

    def __init__(self, path: Path, model_name: str, lora_dir: Path | None, changing: asyncio.Lock, counts: Counts) -> None:
        """`changing` is held while the store changes."""
        self._path, self._model_name, self._lora_dir, self._changing, self._counts = path, model_name, lora_dir, changing, counts
        self._store: AdapterStore | None = None
        self._raw: bytes | None = None
        self._told = ""
        self._contents = Contents()
        self._kept: dict[str, _Kept] = {}
        self._failed: dict[str, _Failed] = {}
        self._work: asyncio.Task[None] | None = None

    def keeps(self, name: str) -> bool:
        """Whether what is loaded under this name came by the file."""
        return name in self._kept

    def wants(self, name: str) -> bool:
        """Whether this name is the file's, loaded or not."""
        return name in self._contents.entries or name in self._kept

    def share_of(self, request_id: str) -> str | None:
        """The adapter that answers a request for the model, None: the model itself. The same id gives the same answer while shares last.

        Each adapter has a stretch of the numbers from 0 to 1, in the file's order, which is the model's while the adapter isn't loaded.
        """
        point = int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest()) / 2**64
        for name, entry in self._contents.entries.items():
            point -= entry.share
            if point < 0:
                return name if name in self._kept else None
        return None

    @property
    def states(self) -> list[State]:
        """What has become of each entry."""
        faulty = [self._state(name, None, f"the entry in the file: {fault}") for name, fault in self._contents.faults.items()]
        return [self._state(name, entry) for name, entry in self._contents.entries.items() if name not in self._contents.faults] + faulty

    def _state(self, name: str, entry: Entry | None, fault: str = "") -> State:
        kept, failed = self._kept.get(name), self._failed.get(name)
        sha256 = kept.adapter.sha256 if kept is not None else None
        share = entry.share if entry is not None else 0.0
        if entry is not None and kept is not None and kept.fits(entry):
            return State(name, sha256, "Loaded", kept.adapter.note, share)
        message = fault or (failed.message if failed is not None and failed.entry == entry else "")
        still = "; what was loaded before answers under this name" if message and kept is not None else ""
        return State(name, sha256, "Failed" if message else "Loading", message + still, share)

    async def start(self, store: AdapterStore) -> None:
        """Try each adapter once, so that a server which starts again is ready with them; it is ready without those that fail."""
        self._store = store
        await self._follow()
        if self._work is not None and not (await asyncio.wait({self._work}, timeout=START_SECONDS))[0]:
            logger.warning("adapters are still being loaded after %d s; the server starts without them", START_SECONDS)

    async def run(self) -> None:
        """Follow the file for ever; cancelled at shutdown."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._follow()

    async def _follow(self) -> None:
        """One look. A load takes as long as it takes; what the file says of shares counts meanwhile."""
        try:
            await self.look()
        except Exception:
            logger.exception("the adapters file could not be followed")
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self.settle(time.monotonic()))

    # --- the file ---------------------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Read the file, and take over what it says if that is new."""
        try:
            raw = await in_thread(lambda: _read(self._path), "adapters file")
        except (OSError, ContentsError) as error:
            self._raw = None  # when it comes back, it is read again
            self._tell(f"can't be read: {getattr(error, 'strerror', None) or error}")
            return
        if raw == self._raw:
            return
        self._raw = raw
        try:
            contents = read_contents(raw, self._model_name)
        except ContentsError as error:
            self._tell(str(error))
            return
        self._told = ""
        for name, fault in contents.faults.items():
            logger.error("--adapters-file %s: adapter %r: %s; the others are served", self._path, name[:80], fault)
        for fault in contents.nameless:
            logger.error("--adapters-file %s: %s; the others are served", self._path, fault)
        self._take_over(contents)

    def _tell(self, fault: str) -> None:
        if fault != self._told:
            self._told = fault
            logger.warning("--adapters-file %s: %s; adapters stay as they are", self._path, fault)

    def _take_over(self, contents: Contents) -> None:
        """An entry that is bad now leaves its adapter as it was."""
        former = {name: entry for name, entry in self._contents.entries.items() if name in contents.faults}
        self._contents = Contents(contents.entries | former, contents.faults, contents.nameless)
        shares = {name: entry.share for name, entry in self._contents.entries.items()}
        logger.info("--adapters-file %s: adapters and shares %s", self._path, shares)

    # --- the store --------------------------------------------------------------------------------------------------------------

    async def settle(self, now: float) -> None:
        """Unload what the file no longer has, load what is new; each adapter by itself, whatever becomes of the others."""
        for name in [name for name in self._kept if name not in self._contents.entries]:
            await self._unload(name)
        for name, entry in list(self._contents.entries.items()):
            kept, failed = self._kept.get(name), self._failed.get(name)
            if kept is not None and kept.fits(entry):
                continue
            if failed is not None and failed.entry == entry and now < failed.again:
                continue
            await self._load(entry, now)
        self._failed = {name: failed for name, failed in self._failed.items() if name in self._contents.entries}

    async def _unload(self, name: str) -> None:
        """Requests that run on it finish; from this moment none is led to it any more."""
        kept, store = self._kept.pop(name), self._store
        assert store is not None
        async with self._changing:
            await in_thread(lambda: store.unload(name), "load")
        logger.info("adapter %r has left the file, sha256=%s", name, kept.adapter.sha256)

    async def _load(self, entry: Entry, now: float) -> None:
        from glm5_runtime.engine.adapters import NoRoom  # noqa: PLC0415 - brings torch, which is loaded by now
        from glm5_runtime.model.adapter_files import AdapterError  # noqa: PLC0415 - as above

        try:
            async with self._changing:
                adapter = await in_thread(self._loading(entry), "load")
        except (AdapterError, EngineDead) as error:
            message = str(error)
            if isinstance(error, NoRoom) and entry.name in self._kept:  # not room for both: the former one goes first
                await self._unload(entry.name)
                message += "; the former adapter of this name made room and is gone"
        except Exception as error:
            logger.exception("adapter %r could not be loaded", entry.name)
            message = f"{type(error).__name__}: {error}"
        else:
            self._kept[entry.name] = _Kept(adapter, entry)
            self._counts.begin(entry.name)
            self._failed.pop(entry.name, None)
            return
        self._note_failure(entry, message, now)

    def _note_failure(self, entry: Entry, message: str, now: float) -> None:
        before = self._failed.get(entry.name)
        is_again = before is not None and before.entry == entry
        pause = min(before.pause * 2, LONGEST_PAUSE) if before is not None and is_again else FIRST_PAUSE
        if before is None or not is_again or before.message != message:
            logger.error("adapter %r of the file: %s; it is tried again", entry.name, message)
        self._failed[entry.name] = _Failed(entry, message, pause, now + pause)

    def _loading(self, entry: Entry) -> Callable[[], LoadedAdapter]:
        """The work of a thread."""
        from glm5_runtime.engine.adapter_parts import Wanted  # noqa: PLC0415 - as above
        from glm5_runtime.model.adapter_files import AdapterError  # noqa: PLC0415 - as above

        store, is_ours = self._store, entry.name in self._kept
        assert store is not None

        def load() -> LoadedAdapter:
            if not is_ours and store.has(entry.name):
                raise AdapterError("an adapter of this name is loaded already, by --lora-modules or /v1/load_lora_adapter; unload it there")
            folder = Path(entry.path) if self._lora_dir is None else within(self._lora_dir, entry.path)
            if folder is None or not folder.is_absolute():
                raise AdapterError(
                    f"path {entry.path!r} is not within --lora-dir" if self._lora_dir else f"path {entry.path!r} is not absolute"
                )
            return store.replace(entry.name, Wanted(folder, entry.sha256, entry.base, any_base=entry.base is None))

        return load


def _read(path: Path) -> bytes:
    """The file's bytes; raises OSError, ContentsError."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ContentsError("it is not a file")  # opening a pipe would wait for whoever writes it
    with path.open("rb") as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise ContentsError(f"larger than {MAX_BYTES} bytes")
    return raw
