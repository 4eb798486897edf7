"""Which cards there are: `npu-smi info -l` and `npu-smi info -m`."""

from __future__ import annotations

import re
from typing import Final

from .pairs import Entry, entries
from .readings import CardEntry, CardList, CardMap, MapEntry
from .text import ID, Line, Notes, note_strangers, split, take_error

_COLUMNS: Final = frozenset({"NPU ID", "Slot ID", "Chip ID", "Chip Logic ID", "Chip Phy-ID", "Chip Name"})
_GAP: Final = re.compile(r" {2,}")
_NO_CHIPS: Final = frozenset({"mcu", "3559"})
"""Names of the board's own controllers, which have rows among the chips."""


def parse_list(text: str) -> CardList:
    """Read `npu-smi info -l`."""
    error, lines = take_error(split(text))
    notes = Notes()
    total: int | None = None
    cards: list[dict[str, Entry]] = []
    for entry in entries(notes, lines):
        if entry.key == "Total Count":
            total = notes.integer(entry.line, entry.value, "count of cards", ID)
        elif entry.key == "NPU ID":
            cards.append({entry.key: entry})
        elif not cards:
            notes.add(entry.line, "a card without NPU id")
        else:
            cards[-1][entry.key] = entry
    found = [card for fields in cards if (card := _card(notes, fields)) is not None]
    if total is not None and total != len(found):
        notes.add(None, f"it counts {total} cards and lists {len(found)}")
    if error is None and total is None and not notes.found:
        notes.add(None, "there is no count of cards")
    return CardList(problems=notes.problems, error=error, total=total, cards=tuple(found))


def _card(notes: Notes, fields: dict[str, Entry]) -> CardEntry | None:
    npu = notes.integer(fields["NPU ID"].line, fields["NPU ID"].value, "NPU id", ID)
    if npu is None:
        return None
    count = fields.get("Chip Count")
    chips = notes.integer(count.line, count.value, "count of chips", ID) if count else None
    return CardEntry(npu, chips, *(fields[key].word if key in fields else None for key in ("Product Name", "Serial Number")))


def parse_map(text: str) -> CardMap:
    """Read `npu-smi info -m`, in any order of its columns; rows of the board's own controllers are left out."""
    error, lines = take_error(split(text))
    notes = Notes()
    columns: list[str] = []
    chips: list[MapEntry] = []
    strangers: list[Line] = []
    for line in lines:
        if not notes.whole(line):
            continue
        words = _GAP.split(line.text.strip())
        if words[0] == "NPU ID":
            columns = words if _COLUMNS.issuperset(words) and "Chip Name" in words else []
            if not columns:
                notes.add(line, "no map with these columns is known")
        elif line.text and not columns:
            strangers.append(line)
        elif line.text:
            entry = _chip(notes, line, columns, words)
            if entry is not None:
                chips.append(entry)
    note_strangers(notes, strangers)
    if error is None and not columns and not notes.found:
        notes.add(None, "there is no map")
    return CardMap(problems=notes.problems, error=error, chips=tuple(chips))


def _chip(notes: Notes, line: Line, columns: list[str], words: list[str]) -> MapEntry | None:
    """The row's chip; None for a controller, and, with a problem, for a row that can't be read."""
    if len(words) != len(columns):
        notes.add(line, f"{len(words)} cells where {len(columns)} belong")
        return None
    cells = dict(zip(columns, words, strict=True))
    if cells["Chip Name"].casefold() in _NO_CHIPS:
        return None
    numbers = {name: notes.integer(line, word, name, ID) for name, word in cells.items() if name != "Chip Name"}
    npu = numbers["NPU ID"]
    chip = numbers.get("Chip ID", 0)
    if npu is None or chip is None:
        notes.add(line, "a chip without an id")
        return None
    return MapEntry(npu, chip, numbers.get("Chip Logic ID"), numbers.get("Chip Phy-ID"), cells["Chip Name"], numbers.get("Slot ID"))
