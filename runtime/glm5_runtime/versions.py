"""Which driver, CANN and torch_npu are here, and whether they are of one set.

Read before anything loads: a mismatch would show as an undefined symbol ten minutes later, or as wrong answers.
Used by `device` and `doctor`. Knows only the set that this package is made for (docs/decisions/0007); the table of all is the operator's
(`glm5 compat`), and tests/contract holds both together. What can't be read is no mismatch.
"""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MADE_FOR_CANN = "9.1.0"
LEAST_DRIVER = "25.2"
"""Of MADE_FOR_CANN."""
_DRIVER_FILES = ("usr/local/Ascend/driver/version.info",)
_CANN_FILES = ("ascend_toolkit_install.info", f"{platform.machine()}-linux/ascend_toolkit_install.info", "opp/version.info", "version.cfg")
_KERNELS = "opp/built-in/op_impl/ai_core/tbe/kernel"
_UNITS = (("910_?93|910C", "ascend910_93"), ("910B", "ascend910b"), ("310P", "ascend310p"), ("950", "ascend950"))
"""Names of chips as npu-smi prints them, and of the folder with their kernels. A3's is just Ascend910, as 910A's: nothing is concluded."""


@dataclass(frozen=True)
class Stack:
    """What was found; None and empty for what wasn't."""

    driver: str | None = None
    cann: str | None = None
    torch: str | None = None
    torch_npu: str | None = None
    kernels: tuple[str, ...] = ()  # folders of CANN's built-in kernels: ascend910b, …
    chips: tuple[str, ...] = ()  # names of the cards: Ascend 910B3, …


def read_driver(root: Path) -> str | None:
    """Version of the driver; `root` is where the machine's files are."""
    return _read(root, _DRIVER_FILES)


def read_cann(home: str | None) -> str | None:
    """Version of the CANN in this folder."""
    return _read(Path(home), _CANN_FILES) if home else None


def read_kernels(home: str | None) -> tuple[str, ...]:
    """For which chips CANN's own operators are compiled there."""
    try:
        folders = list((Path(home) / _KERNELS).iterdir()) if home else []
    except OSError:
        return ()
    return tuple(sorted(folder.name for folder in folders if folder.name.startswith("ascend")))


def misfits(stack: Stack) -> tuple[str, ...]:
    """Pairs that can't work, as `found X, need Y for Z` and what to do; empty when all fit as far as is known."""
    made = _numbers(MADE_FOR_CANN)[:2]
    found = []
    if stack.cann and stack.driver and _numbers(stack.cann)[:2] == made and () < _numbers(stack.driver)[:2] < _numbers(LEAST_DRIVER):
        found.append(
            f"found driver {stack.driver}, need {LEAST_DRIVER} or later for CANN {stack.cann}; update the driver on the host,"
            " or take an image with an older CANN"
        )
    if stack.torch and stack.torch_npu and () < _numbers(stack.torch)[:2] != _numbers(stack.torch_npu)[:2] > ():
        base = stack.torch.partition("+")[0]
        found.append(f"found torch_npu {stack.torch_npu}, need {base} for torch {base}; install that one")
    elif stack.torch_npu and stack.cann and _numbers(stack.cann) and _numbers(stack.cann)[:2] != made and _is_pinned(stack.torch_npu):
        found.append(f"found CANN {stack.cann}, need {MADE_FOR_CANN} for torch_npu {stack.torch_npu}; take an image based on it")
    wanted = sorted({unit for chip in stack.chips if (unit := _unit(chip))})
    if stack.kernels and wanted and not set(wanted) & set(stack.kernels):
        found.append(
            f"found kernels of {', '.join(stack.kernels)} in CANN, need {', '.join(wanted)} for {stack.chips[0]};"
            " take the image for these cards"
        )
    return tuple(found)


def _is_pinned(torch_npu: str) -> bool:
    """Of the series that is made for MADE_FOR_CANN; older ones have a CANN of their own."""
    return _numbers(torch_npu)[:2] == (2, 12)


def _unit(chip: str) -> str | None:
    return next((unit for pattern, unit in _UNITS if re.search(pattern, chip, re.IGNORECASE)), None)


def _numbers(version: str) -> tuple[int, ...]:
    """Leading numbers: 24.1.rc1 is (24, 1)."""
    found = re.match(r"[vV]?(\d{1,6}(?:\.\d{1,6})*)", version.strip(), re.ASCII)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def _read(folder: Path, names: Iterable[str]) -> str | None:
    """The value of `version=` in the first of these files that has one."""
    for name in names:
        try:
            lines = (folder / name).read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            key, _, value = line.partition("=")
            if key.strip().lower() in {"version", "runtime_running_version"} and value.strip():
                return value.strip().strip("[]").rpartition(":")[2]
    return None
