"""What is said about adapters: entries of the file of --adapters-file and what is wrong with them, names, states, folders.

Called by `adapters_file` and by the endpoints in `adapters`; knows neither server nor engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, ValidationError

if TYPE_CHECKING:
    from pathlib import Path

NAME = r"^[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}$"
Name = Annotated[str, Field(strict=True, pattern=NAME)]
Sha256 = Annotated[str, Field(strict=True, pattern=r"^[0-9a-fA-F]{64}$")]
MAX_BYTES = 1 << 20
"""A ConfigMap holds no more."""
_MOST_ENTRIES = 1000
"""More than any card has room for; each is looked at where requests are answered."""
_SHOWN_FAULTS = 3


class Entry(BaseModel):
    """One adapter that the file asks for. `path` is absolute, or within --lora-dir."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    path: Annotated[str, Field(strict=True, min_length=1, max_length=1024)]
    sha256: Sha256 | None = None
    """What adapter_model.safetensors must have."""
    share: float = Field(0.0, strict=True, ge=0, le=1)
    """Part of the requests that name the model which this adapter answers."""
    base: Annotated[str, Field(strict=True, min_length=1, max_length=256)] | None = None
    """What adapter_config.json must name as its base; without it another name than the model's is only told."""


@dataclass(frozen=True)
class Contents:
    """What a file says. `faults`: name → what is wrong with its entry; `nameless`: the same of entries whose name can't be read."""

    entries: dict[str, Entry] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    nameless: tuple[str, ...] = ()


class ContentsError(Exception):
    """Nothing of the file can be used."""


def read_contents(raw: bytes, model_name: str) -> Contents:
    """The entries in their order, each good or bad by itself; raises ContentsError. `model_name`: the model's own, which no adapter has."""
    try:
        value = pydantic_core.from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise ContentsError(f"not JSON: {error}") from error
    listed = value.get("adapters") if isinstance(value, dict) else None
    if not isinstance(listed, list) or len(value) > 1:
        raise ContentsError('expected an object with a list under the one key adapters, such as {"adapters": []}')
    if len(listed) > _MOST_ENTRIES:
        raise ContentsError(f"{len(listed)} adapters, more than {_MOST_ENTRIES}")
    entries: dict[str, Entry] = {}
    faults: dict[str, str] = {}
    nameless = []
    for index, item in enumerate(listed):
        try:
            entry = _entry(item, model_name)
        except ContentsError as error:
            name = item.get("name") if isinstance(item, dict) else None
            if isinstance(name, str) and name != model_name:
                faults[name[:128]] = str(error)
            else:
                nameless.append(f"adapters[{index}]: {error}")
            continue
        if entry.name in entries:
            faults[entry.name] = "the name is there twice"
        entries[entry.name] = entry
    if math.fsum(entry.share for entry in entries.values()) > 1 + 1e-9:
        raise ContentsError("the shares add up to more than 1")
    return Contents({name: entry for name, entry in entries.items() if name not in faults}, faults, tuple(nameless))


def _entry(item: object, model_name: str) -> Entry:
    if not isinstance(item, dict):
        raise ContentsError("must be an object")
    try:
        entry = Entry.model_validate({key: value for key, value in item.items() if value is not None})
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))[:40]}: {fault['msg']}" for fault in error.errors()[:_SHOWN_FAULTS]]
        raise ContentsError("; ".join(faults)) from None
    if entry.name == model_name:
        raise ContentsError(f"name: {model_name!r} is the model itself")
    return entry


@dataclass(frozen=True)
class State:
    """One adapter as /health/adapters tells of it. `sha256`: of what answers under this name, None when nothing does."""

    name: str
    sha256: str | None
    state: Literal["Loaded", "Loading", "Failed"]
    message: str = ""
    share: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Its part of the reply."""
        return {"name": self.name, "sha256": self.sha256, "state": self.state, "message": self.message, "share": self.share}


def within(root: Path, asked: str) -> Path | None:
    """The folder that is asked for, resolved; None for one outside of `root`, whatever links lead there."""
    try:
        root = root.resolve()
        folder = (root / asked).resolve()
    except (OSError, ValueError, RuntimeError):  # a name too long, a zero byte, links in a circle
        return None
    return folder if folder != root and folder.is_relative_to(root) else None
