"""Which adapters are loaded, under which names, and who is using them.

The server loads and unloads from its own threads while the engine computes: new stacks are made beside the old ones and put in their place
in one assignment (`adapter_parts`), so a step sees the ones or the others and a load that fails has changed nothing. As in vLLM an unloaded
adapter's name is gone at once and requests that run on it finish; its memory is free after the last of them.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from glm5_runtime.engine.adapter_parts import Wanted
from glm5_runtime.model.adapter_files import AdapterError

if TYPE_CHECKING:
    from pathlib import Path

    from glm5_runtime.config import EngineConfig
    from glm5_runtime.engine.adapter_parts import AdapterPart, AllParts, Taken

log = logging.getLogger(__name__)


class UnknownAdapter(Exception):  # noqa: N818 - told to the client as it is
    """No adapter of this name is loaded."""


class NoRoom(AdapterError):  # noqa: N818 - an AdapterError already
    """As many adapters are loaded as the server takes."""


@dataclass(slots=True)
class LoadedAdapter:
    """One adapter. `number` is its own among all that this process ever loads; `users` are requests that have not ended.

    `note`: what somebody should know of it, empty for nothing.
    """

    name: str
    path: Path
    sha256: str
    rank: int
    number: int
    loaded: float  # Unix time
    note: str = ""
    users: int = 0
    unloaded: bool = False


class AdapterStore:
    """The adapters of one engine. Every method may be called from any thread."""

    def __init__(self, parts: AdapterPart | AllParts, config: EngineConfig) -> None:
        self.most, self.max_rank = config.max_loras, config.max_lora_rank
        self._parts = parts
        self._changing = threading.Lock()  # held while parts change
        self._lock = threading.Lock()  # of what is below; held for a moment only
        self._by_name: dict[str, LoadedAdapter] = {}
        self._held: dict[int, LoadedAdapter] = {}  # all that take memory
        self._numbers = count(1)
        for (name, path), taken in zip(config.lora_modules, parts.first, strict=True):
            self._add(name, path, next(self._numbers), taken)

    @property
    def loaded(self) -> list[LoadedAdapter]:
        """Those that requests can name, in order of loading."""
        with self._lock:
            return list(self._by_name.values())

    def load(self, name: str, path: Path, sha256: str | None = None) -> LoadedAdapter:
        """As `AdapterPart.take`, under a new name. Raises EngineDead beside AdapterError when a rank is gone."""
        with self._changing:
            self._check_room(name, may_replace=False)
            return self._take(name, Wanted(path, sha256))

    def replace(self, name: str, wanted: Wanted) -> LoadedAdapter:
        """As `load`, under a new name or one that is loaded, whose requests finish on what they began with.

        Both are held for a moment: raises NoRoom when only one can be. After any error the name means what it did before.
        """
        with self._changing:
            self._check_room(name, may_replace=True)
            return self._take(name, wanted)

    def _take(self, name: str, wanted: Wanted) -> LoadedAdapter:
        number = next(self._numbers)
        return self._add(name, wanted.path, number, self._parts.take(number, wanted))

    def _add(self, name: str, path: Path, number: int, taken: Taken) -> LoadedAdapter:
        adapter = LoadedAdapter(name, path, taken.sha256, taken.rank, number, time.time(), taken.note)
        with self._lock:
            former = self._by_name.get(name)
            self._held[number] = self._by_name[name] = adapter
            if former is not None:
                former.unloaded = True
            is_idle = former is not None and former.users == 0
        log.info("adapter %r loaded path=%s sha256=%s rank=%d", name, path, taken.sha256, taken.rank)
        if taken.note:
            log.warning("adapter %r: %s", name, taken.note)
        if former is not None and is_idle:
            self._drop_held(former)
        return adapter

    def _check_room(self, name: str, *, may_replace: bool) -> None:
        with self._lock:
            if name in self._by_name and not may_replace:
                raise AdapterError(f"an adapter named {name!r} is loaded already; unload it first")
            if len(self._held) >= self.most:
                leaving = sum(adapter.unloaded for adapter in self._held.values())
                still = f" ({leaving} of them unloaded, but requests still run on it)" if leaving else ""
                raise NoRoom(f"{self.most} adapters are loaded{still}, the most this server takes (--max-loras); unload one")

    def unload(self, name: str) -> None:
        """Take the name away, and the memory when no request needs it any more; raises UnknownAdapter."""
        with self._lock:
            adapter = self._by_name.pop(name, None)
            if adapter is None:
                raise UnknownAdapter(name)
            adapter.unloaded = True
            idle = adapter.users == 0
        log.info("adapter %r unloaded, %d requests finish on it", name, adapter.users)
        if idle:
            self._drop(adapter)

    def hold(self, name: str) -> int:
        """The number of an adapter for a request that will run on it, 0 when there is none of that name."""
        with self._lock:
            adapter = self._by_name.get(name)
            if adapter is None:
                return 0
            adapter.users += 1
            return adapter.number

    def release(self, number: int) -> None:
        """A request that held an adapter has ended. Costs the caller, the engine, no more than a thread's start."""
        with self._lock:
            adapter = self._held[number]
            adapter.users -= 1
            is_last = adapter.unloaded and adapter.users == 0
        if is_last:
            threading.Thread(target=self._drop, args=(adapter,), name="adapter", daemon=True).start()

    def _drop(self, adapter: LoadedAdapter) -> None:
        with self._changing:
            self._drop_held(adapter)

    def _drop_held(self, adapter: LoadedAdapter) -> None:
        self._parts.drop(adapter.number)
        with self._lock:
            del self._held[adapter.number]
        log.info("adapter %r is not in use any more, its memory is free", adapter.name)

    def has(self, name: str) -> bool:
        """Whether a request can name it."""
        with self._lock:
            return name in self._by_name

    def in_use(self) -> dict[str, int]:
        """Unfinished requests by adapter."""
        with self._lock:
            return {adapter.name: adapter.users for adapter in self._held.values() if adapter.users}
