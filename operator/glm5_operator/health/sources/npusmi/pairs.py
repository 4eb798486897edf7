"""`key : value` lines, how `-l` and every `-t` answer, and their division into one block for each chip.

Where a chip's number stands differs: before its values (`-t common`), after them (`-t usages`, `-t temp`), or nowhere (asked with -c, 950).
The board controller (MCU) has a block of its own with keys that chips have too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from .readings import Address
from .text import ABSENT, ID, Line, Notes

if TYPE_CHECKING:
    from collections.abc import Iterable

_PAIR: Final = re.compile(r"(?P<key>[^:]*?) *: ?(?P<value>.*)")
_HEADER: Final = frozenset({"NPU ID", "Chip Count"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One line; `key` is empty where the line goes on with the value above it."""

    line: Line
    key: str
    value: str

    @property
    def word(self) -> str | None:
        """The value, or None for the tool's ways to say that there is none."""
        return None if self.value in ABSENT else self.value


@dataclass(slots=True)
class Block:
    """The values of one chip, or of the board controller."""

    at: Address = field(default_factory=Address)
    mcu: bool = False
    entries: list[Entry] = field(default_factory=list)

    def get(self, *keys: str) -> Entry | None:
        """The first line with one of the keys."""
        return next((entry for entry in self.entries if entry.key in keys), None)

    def texts(self, key: str) -> list[Entry]:
        """The line with that key and those that go on with its value."""
        keys = [entry.key for entry in self.entries]
        if key not in keys:
            return []
        start = keys.index(key)
        end = next((index for index in range(start + 1, len(keys)) if keys[index]), len(keys))
        return self.entries[start:end]

    def integer(self, notes: Notes, limits: tuple[int, int], *keys: str) -> int | None:
        """That line's whole number; None when there is no such line, or it has none."""
        entry = self.get(*keys)
        return notes.integer(entry.line, entry.value, entry.key, limits) if entry else None

    def decimal(self, notes: Notes, limits: tuple[int, int], *keys: str) -> float | None:
        """The same for a decimal number."""
        entry = self.get(*keys)
        return notes.decimal(entry.line, entry.value, entry.key, limits) if entry else None


def entries(notes: Notes, lines: Iterable[Line]) -> list[Entry]:
    """All `key : value` lines; a problem for each other one."""
    found = []
    for line in lines:
        if not notes.whole(line):
            continue
        pair = _PAIR.fullmatch(line.text.strip())
        if pair:
            found.append(Entry(line, pair["key"], pair["value"].strip()))
        elif line.text:
            notes.add(line, "this is no `key : value`")
    return found


def blocks(notes: Notes, lines: Iterable[Line]) -> list[Block]:
    """One block for each chip and controller, in printed order. Keys that a block has twice are a problem, and the first one counts."""
    paragraphs: list[list[Line]] = [[]]
    for line in lines:
        if line.text:
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    npu: int | None = None
    found: list[Block] = []
    for paragraph in paragraphs:
        values: list[Entry] = []
        for entry in entries(notes, paragraph):
            if entry.key == "NPU ID":
                npu = notes.integer(entry.line, entry.value, entry.key, ID)
            elif entry.key not in _HEADER:
                values.append(entry)
        found.extend(_block(notes, npu, part) for part in _parts(values))
    return found


def _is_mark(entry: Entry) -> bool:
    return entry.key == "Chip ID" or (entry.key == "Chip Name" and entry.value.casefold() == "mcu")


def _parts(values: list[Entry]) -> list[list[Entry]]:
    """Divides a paragraph that has several chips, as when blank lines got lost, at the lines that name them."""
    if not values:
        return []
    first = 0 if _is_mark(values[0]) else 1  # the mark opens a chip's values, or closes them
    borders = [0, *(index for index in range(1, len(values)) if _is_mark(values[index - first])), len(values)]
    return [values[start:end] for start, end in pairwise(borders)]


def _block(notes: Notes, npu: int | None, values: list[Entry]) -> Block:
    block = Block()
    chip: int | None = None
    seen: set[str] = set()
    for entry in values:
        if entry.key == "Chip ID":
            chip = notes.integer(entry.line, entry.value, entry.key, ID)
        elif _is_mark(entry):
            block.mcu = True
        elif entry.key and entry.key in seen:
            notes.add(entry.line, f"{entry.key} stands here a second time")
        else:
            seen.add(entry.key)
            block.entries.append(entry)
    block.at = Address(npu, chip)
    return block
