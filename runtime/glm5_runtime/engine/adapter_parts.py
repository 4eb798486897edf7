"""Adapters where they are computed: each rank reads and holds its part of every one, and nobody names one that a rank hasn't.

`AdapterPart` is one rank's. `AllParts` is rank 0's hold on all: the others answer it from a thread of their own (`answer`), on a channel
beside that of the steps, so that a load stops no step. Steps know adapters by numbers, which are used only after all ranks have answered
and never again after they are dropped: neither waits for the other. Called by `engine.adapters`, one call at a time.
"""

from __future__ import annotations

import hmac
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from glm5_runtime.config import ConfigError
from glm5_runtime.engine.errors import EngineDead
from glm5_runtime.model.adapter_files import AdapterError, Part, is_same_model, read_adapter
from glm5_runtime.model.adapters import install, stack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection
    from pathlib import Path

    from glm5_runtime.config import EngineConfig
    from glm5_runtime.model.decoder import Decoder

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What shall be taken up: a folder, and what is asked of it beside fitting the model."""

    path: Path
    sha256: str | None = None  # what the tensors' file must have
    base: str | None = None  # what adapter_config.json must name as its base, if it names one; None: this server's model
    any_base: bool = False  # the sizes decide; another name is only told


@dataclass(frozen=True, slots=True)
class Taken:
    """What was read: SHA-256 of the tensors, adapter_config.json, the largest rank of a matrix. The same on all ranks."""

    sha256: str
    settings: dict[str, Any]
    rank: int
    note: str = ""  # what somebody should know of it


class AdapterPart:
    """One rank's part of all adapters; `first` has what was read of those that are loaded at start, numbers 1 and on."""

    def __init__(self, decoder: Decoder, base_names: list[str], config: EngineConfig, kind: tuple[torch.device, torch.dtype]) -> None:
        self.model = install(decoder)
        self._config, self._base_names, self._max_rank, self._kind = decoder.config, base_names, config.max_lora_rank, kind
        self._part = Part(decoder.ranks, self.model.shapes)
        self._held: set[int] = set()
        self.first: list[Taken] = []
        for number, (name, path) in enumerate(config.lora_modules, start=1):
            try:
                self.first.append(self.take(number, Wanted(path)))
            except AdapterError as error:
                raise ConfigError(f"--lora-modules: {name}: {error}") from error

    def enter(self) -> None:
        """Called in a thread that will load: each has a current device of its own, at first that of rank 0."""
        device, _ = self._kind
        if device.index is not None:
            torch.accelerator.set_device_index(device.index)

    def take(self, number: int, wanted: Wanted) -> Taken:
        """Read, check and take up an adapter; raises AdapterError, and then everything is as it was. Takes as long as its file."""
        device, dtype = self._kind
        path, sha256 = wanted.path, wanted.sha256
        bases = [] if wanted.any_base else self._base_names if wanted.base is None else [wanted.base]
        try:
            file = read_adapter(path, self._config, bases, self._max_rank, device=device, dtype=dtype, part=self._part)
            if sha256 is not None and not hmac.compare_digest(file.sha256, sha256.lower()):
                raise AdapterError(f"{path}: the SHA-256 of the tensors is {file.sha256}, not the expected {sha256.lower()[:64]}")
            stacks = stack(self.model.stacks, {number: file.pairs}, self._held)
        except OSError as error:
            raise AdapterError(f"{str(path)[-100:]}: not readable ({error.strerror})") from error
        except RuntimeError as error:  # torch's word for no memory
            raise AdapterError(f"{path}: could not be taken up: {error}; unload another one or raise --memory-reserve") from error
        self.model.stacks = stacks
        self._held.add(number)
        return Taken(file.sha256, file.settings, file.rank, self._note(file.settings) if wanted.any_base else "")

    def _note(self, settings: Mapping[str, Any]) -> str:
        base = str(settings.get("base_model_name_or_path") or "")
        if not base or any(is_same_model(base, name) for name in self._base_names):
            return ""
        return f"the adapter names {base[:80]!r} as its base, this server has {' = '.join(map(repr, self._base_names))}; its sizes fit"

    def drop(self, number: int) -> None:
        """Take an adapter away; of one that isn't here nothing."""
        if number in self._held:
            self._held.discard(number)
            self.model.stacks = stack(self.model.stacks, {}, self._held)


class AllParts:
    """The parts of all ranks, as if they were one. `channels` lead to the others, by rank; `limit` is the longest load in seconds."""

    def __init__(self, own: AdapterPart, channels: Mapping[int, Connection], limit: float, obituary: Callable[[], str | None]) -> None:
        self.first = own.first
        self._own, self._channels, self._limit, self._obituary = own, channels, limit, obituary

    def take(self, number: int, wanted: Wanted) -> Taken:
        """As a part's, on all ranks or on none; raises EngineDead when one is gone."""
        until = time.monotonic() + self._limit
        try:
            self._tell(number, wanted)
            taken = self._own.take(number, wanted)
            for rank in self._channels:
                answer = self._answer(rank, number, until)
                if isinstance(answer, str):
                    raise AdapterError(f"rank {rank}: {answer}")
                if answer != taken:
                    raise AdapterError(f"{wanted.path}: rank {rank} has read something else than rank 0; is the folder being written?")
        except BaseException:
            self.drop(number)
            raise
        return taken

    def drop(self, number: int) -> None:
        """As a part's. Nobody waits for the others: they do what they are told in order, and one that is gone ends the engine anyway."""
        self._own.drop(number)
        try:
            self._tell(number, None)
        except EngineDead as dead:
            log.error("adapter %d stays where it is: %s", number, dead)

    def _tell(self, number: int, wanted: Wanted | None) -> None:
        for rank, channel in self._channels.items():
            try:
                channel.send((number, wanted))
            except OSError as error:
                raise self._lost(rank) from error

    def _answer(self, rank: int, number: int, until: float) -> Taken | str:
        """What a rank says of this adapter; answers to loads that were given up are skipped."""
        try:
            while self._channels[rank].poll(max(0.0, until - time.monotonic())):
                answered, answer = self._channels[rank].recv()
                if answered == number:
                    found: Taken | str = answer
                    return found
        except (EOFError, OSError) as error:
            raise self._lost(rank) from error
        raise AdapterError(f"rank {rank} has not loaded the adapter within {self._limit:g} s")

    def _lost(self, rank: int) -> EngineDead:
        return EngineDead(self._obituary() or f"rank {rank} is gone")


def answer(part: AdapterPart, channel: Connection) -> None:
    """The thread of a rank that isn't the first: takes adapters up and drops them as rank 0 says, until that is gone."""
    part.enter()
    while True:
        try:
            number, wanted = channel.recv()
        except (EOFError, OSError):
            return
        try:
            if wanted is None:
                part.drop(number)
                continue
            said: Taken | str = part.take(number, wanted)
        except AdapterError as error:
            said = str(error)
        except Exception as error:  # whatever it is, rank 0 waits
            log.exception("adapter %d: %s", number, wanted)
            said = f"{type(error).__name__}: {error}"
        try:
            if wanted is not None:
                channel.send((number, said))
        except OSError:
            return


def adapter_part(decoder: Decoder, model_dir: Path, config: EngineConfig, device: torch.device, dtype: torch.dtype) -> AdapterPart | None:
    """The part of a decoder with the adapters that are loaded at start, None when there shall be none; raises ConfigError."""
    if not config.max_loras:
        return None
    names = [model_dir.resolve().name]
    if config.served_model_name and config.served_model_name not in names:
        names.append(config.served_model_name)
    return AdapterPart(decoder, names, config, (device, dtype))
