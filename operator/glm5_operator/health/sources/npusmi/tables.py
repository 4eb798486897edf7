"""Answers in columns without bars: `-t topo`, `info watch`; and `npu-smi -v`."""

from __future__ import annotations

import re
from typing import Final

from .rare_readings import Topology, WatchReading, WatchRow
from .readings import VersionReading
from .text import ID, Line, Notes, note_strangers, split, take_error

_LABEL: Final = re.compile(r"(NPU|Phy-ID|NIC)([0-9]{1,6})")
_LINKS: Final = frozenset({"X", "SYS", "PHB", "HCCS", "PXB", "PIX", "SIO", "HCCS_SW", "UB", "NA"})
_LEGEND: Final = re.compile(r"Legend:|[A-Z_]+ *= .+|NIC[0-9]+:.*")
_COLUMN: Final = re.compile(r" *([^()]+?\([^()]*\))")
_FIRST_COLUMN: Final = "NpuID(Idx)"
_CHIP_COLUMN: Final = "ChipId(Idx)"
_MEASURE: Final = (0, 100_000)
_VERSION: Final = re.compile(r"npu-smi version: *(\S+)")


def parse_topology(text: str) -> Topology:
    """`-t topo`: links between NPUs (A3: dies, by physical id). Network cards' rows and columns are left out."""
    error, lines = take_error(split(text))
    notes = Notes()
    columns: list[str] = []
    links: list[tuple[int, int, str]] = []
    cpus: list[tuple[int, str]] = []
    strangers: list[Line] = []
    for line in lines:
        words = line.text.split()
        if not words or _LEGEND.fullmatch(line.text.strip()):
            continue
        if not notes.whole(line):
            continue
        if not columns and _LABEL.fullmatch(words[0]):
            columns = [word for word in words if _LABEL.fullmatch(word)]
        elif columns and _LABEL.fullmatch(words[0]):
            found, affinity = _links(notes, line, columns, words)
            links.extend(found)
            cpus.extend(affinity)
        else:
            strangers.append(line)
    note_strangers(notes, strangers)
    ids = tuple(int(label[2]) for word in columns if (label := _LABEL.fullmatch(word)) and label[1] != "NIC")
    rows = {row for row, _, _ in links}
    if error is None and not notes.found and (not ids or (len(ids) > 1 and rows != set(ids))):
        notes.add(None, "the table isn't whole")
    return Topology(problems=notes.problems, error=error, ids=ids, links=tuple(links), cpus=tuple(cpus))


def _links(notes: Notes, line: Line, columns: list[str], words: list[str]) -> tuple[list[tuple[int, int, str]], list[tuple[int, str]]]:
    """Links and CPU affinity of one row; nothing for a network card's, and, with a problem, for a row that can't be read."""
    label = _LABEL.fullmatch(words[0])
    if label is None or label[1] == "NIC":
        return [], []
    row = int(label[2])
    cells = words[1 : len(columns) + 1]
    rest = words[len(columns) + 1 :]
    others = [_LABEL.fullmatch(column) for column in columns]
    if len(cells) != len(columns) or len(rest) > 1 or not _LINKS.issuperset(cells):
        notes.add(line, "no row of the table of links")
        return [], []
    pairs = [(int(other[2]), cell) for other, cell in zip(others, cells, strict=True) if other and other[1] != "NIC"]
    if any((cell == "X") != (other == row) for other, cell in pairs):
        notes.add(line, "X can only stand where row and column meet")
        return [], []
    return [(row, other, cell) for other, cell in pairs if cell != "X"], [(row, word) for word in rest]


def parse_watch(text: str) -> WatchReading:
    """`info watch`, with or without a column for the chip (products before 950 have it), with any choice of values."""
    error, lines = take_error(split(text))
    notes = Notes()
    columns: list[str] = []
    rows: list[WatchRow] = []
    strangers: list[Line] = []
    for line in lines:
        words = line.text.split()
        if not words or not notes.whole(line):
            continue
        if words[0] == _FIRST_COLUMN:
            columns = _COLUMN.findall(line.text)
        elif columns:
            row = _watch_row(notes, line, columns, words)
            rows.extend([row] if row else [])
        else:
            strangers.append(line)
    note_strangers(notes, strangers)
    if error is None and not columns and not notes.found:
        notes.add(None, "there is no table")
    return WatchReading(problems=notes.problems, error=error, columns=tuple(columns), rows=tuple(rows))


def _watch_row(notes: Notes, line: Line, columns: list[str], words: list[str]) -> WatchRow | None:
    if len(words) != len(columns):
        notes.add(line, f"{len(words)} values where {len(columns)} belong")
        return None
    cells = dict(zip(columns, words, strict=True))
    npu = notes.integer(line, cells.pop(_FIRST_COLUMN), "NPU id", ID)
    chip_word = cells.pop(_CHIP_COLUMN, None)
    chip = None if chip_word is None else notes.integer(line, chip_word, "chip id", ID)
    values = tuple((name, notes.decimal(line, word, name, _MEASURE)) for name, word in cells.items())
    return None if npu is None else WatchRow(npu, chip, values)


def parse_version(text: str) -> VersionReading:
    """`npu-smi -v`."""
    error, lines = take_error(split(text))
    notes = Notes()
    versions = []
    for line in lines:
        found = _VERSION.fullmatch(line.text.strip())
        if found and notes.whole(line):
            versions.append(found[1])
        elif not found and line.text:
            notes.add(line, "no such line is known here")
    if error is None and not versions and not notes.found:
        notes.add(None, "it names no version")
    return VersionReading(problems=notes.problems, error=error, version=versions[0] if versions else None)
