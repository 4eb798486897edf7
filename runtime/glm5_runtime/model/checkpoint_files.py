"""A checkpoint folder's safetensors files: found, checked by their headers, and opened memory-mapped.

Used by `weights`. Everything that can be wrong with files is found here, within seconds and before any tensor is read: pointers
instead of data, cut downloads, missing shards, tensors in two places. Knows nothing of the model.
"""

from __future__ import annotations

import json
import logging
import os
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from glm5_runtime.config import LFS_MAGIC, pointer_fault

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

log = logging.getLogger(__name__)

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.safetensors")
_AGAIN = "download it again"


class WeightsError(Exception):
    """The checkpoint's weights can't be used; the message names the file, the tensor and the cause."""


class Checkpoint:
    """Tensors of a folder by name, or those of `single`, a file in it. Opening maps the files; only what is read takes memory."""

    def __init__(self, model_dir: Path, single: str | None = None) -> None:
        self._dir = model_dir
        paths, index = _find_files(model_dir) if single is None else ([model_dir / single], {})
        for path in paths:
            _check_header(path)
        for leftover in model_dir.glob("*.incomplete"):
            log.warning("%s: a download was interrupted here; every file in use is complete, so it is ignored", leftover)
        self._file_of: dict[str, Path] = {}
        self._open: dict[Path, Any] = {}
        for path in paths:
            self._add(path)
        for name, file_name in index.items():
            if self._file_of.get(name) != model_dir / file_name:
                raise WeightsError(f"{model_dir / file_name}: tensor {name!r} is not in it, though {_INDEX} says so; {_AGAIN}")

    def _add(self, path: Path) -> None:
        try:
            opened: Any = safe_open(path, framework="pt", device="cpu")
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{path}: not a complete safetensors file ({error}); {_AGAIN}") from error
        self._open[path] = opened
        for name in opened.keys():  # noqa: SIM118 - not a mapping
            if name in self._file_of:
                raise WeightsError(f"{path}: tensor {name!r} is also in {self._file_of[name].name}; remove files of another download")
            self._file_of[name] = path

    @cached_property
    def names(self) -> frozenset[str]:
        """All tensors' names."""
        return frozenset(self._file_of)

    def where(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self._file_of[name]

    def form(self, name: str) -> tuple[tuple[int, ...], str]:
        """Shape and safetensors dtype of a tensor, from the header alone."""
        part = self._open[self._file_of[name]].get_slice(name)
        return tuple(part.get_shape()), str(part.get_dtype())

    def read(self, name: str) -> Tensor:
        """The tensor, mapped from its file: the system reads it when it is used."""
        tensor: Tensor = self._open[self._file_of[name]].get_tensor(name)
        return tensor


def _find_files(model_dir: Path) -> tuple[list[Path], dict[str, str]]:
    """The safetensors files to use, and the index (tensor → file name) when there is one."""
    if (model_dir / _SINGLE).exists():
        return [model_dir / _SINGLE], {}
    if (model_dir / _INDEX).exists():
        index = _read_index(model_dir / _INDEX)
        names = sorted(set(index.values()))
        for name in names:
            if not (model_dir / name).is_file():
                raise WeightsError(f"{model_dir / name}: {_missing(name, names, model_dir)}")
        return [model_dir / name for name in names], index
    found = sorted(path.name for path in model_dir.glob("*.safetensors"))
    if not found:
        raise WeightsError(f"{model_dir}: no {_SINGLE} and no {_INDEX}; model must name a folder with safetensors weights")
    for name in found:
        _refuse_pointer(model_dir / name)
    expected = _siblings(found[0])
    for name in expected:
        if name not in found:
            raise WeightsError(f"{model_dir / name}: {_missing(name, expected, model_dir)}")
    return [model_dir / name for name in expected], {}


def _read_index(path: Path) -> dict[str, str]:
    _refuse_pointer(path)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                raise WeightsError(f"{path}: names {key!r} twice; {_AGAIN}")
            seen[key] = value
        return seen

    try:
        index = json.loads(path.read_bytes(), object_pairs_hook=unique)
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: not readable as JSON ({error}); {_AGAIN}") from error
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{path}: has no weight_map; {_AGAIN}")
    for name, file_name in weight_map.items():
        if not isinstance(file_name, str) or "/" in file_name or not file_name.endswith(".safetensors"):
            raise WeightsError(f"{path}: tensor {name!r} is said to be in {file_name!r}, which is no safetensors file of this folder")
    return weight_map


def _siblings(name: str) -> list[str]:
    """All names of a sharded set, from one of them; a name without a shard number stands alone."""
    match = _SHARD.fullmatch(name)
    if match is None:
        return [name]
    total = match["total"]
    return [f"{match['stem']}-{number:05d}-of-{total}.safetensors" for number in range(1, int(total) + 1)]


def _missing(name: str, names: list[str], model_dir: Path) -> str:
    partial = " (an .incomplete file lies beside it: the download did not finish)" if any(model_dir.glob("*.incomplete")) else ""
    match = _SHARD.fullmatch(name)
    which = f"shard {int(match['number'])} of {int(match['total'])}" if match else f"one of {len(names)} files"
    return f"{which} missing{partial}; {_AGAIN}"


def _refuse_pointer(path: Path) -> None:
    if fault := pointer_fault(path, _start(path, len(LFS_MAGIC))):
        raise WeightsError(fault)


def _check_header(path: Path) -> None:
    """A file starts with its header's length (8 bytes, little endian) and the header; a text or a cut file shows at once."""
    _refuse_pointer(path)
    length = int.from_bytes(_start(path, 8), "little")
    size = path.stat().st_size
    if size < 8 or length > size - 8:
        raise WeightsError(f"{path}: header truncated: {size} bytes, the header alone needs {length + 8 if size >= 8 else 8}; {_AGAIN}")


def _start(path: Path, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError as error:
        raise WeightsError(f"{path}: not readable ({error.strerror}); the files must be readable for uid {os.getuid()}") from error
