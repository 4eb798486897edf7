"""The table of `npu-smi info` in its four layouts: two lines a chip, then the processes.

Cells are found by their bars, not by columns: the vendor's own samples are misaligned, and HDK 26 is wider. Rules (+---+) carry nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from .readings import ChipRow, InfoTable, Layout, Pair, ProcessRow
from .text import DEGREES, ID, LEFT_OUT, MEBIBYTES, MOST_LINES, PERCENT, PID, WATTS, Line, Notes, note_strangers, split, take_error

_BANNER: Final = re.compile(r"npu-smi (\S+)\s+Version: (\S+)")
_RULE: Final = re.compile(r"\+[-=+]+\+")
_FREE: Final = re.compile(r"No running processes found in NPU ([0-9]{1,9})")
_BUS: Final = re.compile(r"[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
_PAIR: Final = r"([^\s/]+)\s*/\s*([^\s/]+)"
_POWER: Final = re.compile(rf"([^\s/]+)\s+([^\s/]+)\s+{_PAIR}")
_USE: Final = re.compile(rf"([^\s/]+)\s+{_PAIR}(?:\s+{_PAIR})?")
_SECOND_HEADERS: Final = {"Chip": Layout.ONE_CHIP, "Chip Phy-ID": Layout.PHYSICAL_ID, "Chip Device": Layout.DEVICE, "": Layout.SPLIT}
_WARNING: Final = re.compile(r"\s*\[WARNING\]:?\s*(.+)")


@dataclass(slots=True)
class _Table:
    """What was found so far.

    Attributes:
        first: a chip's first line, until its second one comes.
        lost: a line among the chips couldn't be read, and may have been one's.
        below: the process table has begun.
        block: NPUs whose processes are being listed, since the last rule.
        broken: a line of that block couldn't be read.
    """

    notes: Notes = field(default_factory=Notes)
    version: str | None = None
    driver: str | None = None
    layout: Layout | None = None
    first: tuple[Line, list[str]] | None = None
    chips: dict[tuple[int, int], ChipRow] = field(default_factory=dict)
    lost: bool = False
    below: bool = False
    processes: list[ProcessRow] = field(default_factory=list)
    free: set[int] = field(default_factory=set)
    block: set[int] = field(default_factory=set)
    broken: bool = False
    listed: set[int] = field(default_factory=set)


def parse_info(text: str) -> InfoTable:
    """Read the table.

    A chip stands in it only if both of its lines could be read. Every line but the last is guarded by its closing bar, so that a text
    cut anywhere never changes a value.
    """
    error, lines = take_error(split(text))
    table = _Table()
    strangers = []
    for line in lines:
        row = line.text.strip()
        if not row:
            continue
        if _RULE.fullmatch(row):
            _end_block(table)
        elif row == LEFT_OUT:
            table.notes.add(line, "rows were left out here: by whoever copied it, or for being too many")
            _broke(table)
        elif len(row) > 1 and row.startswith("|") and row.endswith("|"):
            _row(table, line, [cell.strip() for cell in row[1:-1].split("|")])
        else:
            strangers.append(line)
            _broke(table)
    _no_second_line(table)
    note_strangers(table.notes, strangers)
    if error is None and not table.chips and not table.notes.found:
        table.notes.add(None, "there is no chip in the table")
    return InfoTable(
        problems=table.notes.problems,
        error=error,
        version=table.version,
        driver=table.driver,
        layout=table.layout,
        chips=tuple(table.chips.values()),
        processes=tuple(table.processes),
        free_npus=frozenset(table.free - {row.npu for row in table.processes}),
        listed_npus=frozenset(table.listed),
        whole=table.below and not table.lost and error is None,
        warnings=tuple(found[1] for line in text.split("\n", MOST_LINES)[:MOST_LINES] if (found := _WARNING.fullmatch(line.rstrip()))),
    )


def _row(table: _Table, line: Line, cells: list[str]) -> None:
    banner = _BANNER.fullmatch(cells[0])
    if banner:
        table.version, table.driver = banner.groups()
    elif "Health" in cells and any(cell.startswith("Power(W)") for cell in cells):
        _no_second_line(table)
    elif "Bus-Id" in cells:
        _second_header(table, line, cells)
    elif "Process id" in cells:
        _no_second_line(table)
        table.below = True
    elif table.below:
        npu = _process(table, line, cells)
        table.broken = table.broken or npu is None
        table.block.update(() if npu is None else (npu,))
    elif table.layout is None:
        table.notes.add(line, "a row before any header that is known")
        table.lost = True
    else:
        _chip_line(table, line, cells)


def _broke(table: _Table) -> None:
    """A line in between couldn't be read: above the processes it may have been a chip's, below it a process's."""
    table.broken = table.below
    table.lost = table.lost or not table.below


def _second_header(table: _Table, line: Line, cells: list[str]) -> None:
    layout = _SECOND_HEADERS.get(" ".join(cells[0].split()))
    if layout is None:
        table.notes.add(line, "no layout with this header is known")
    table.layout = layout


def _no_second_line(table: _Table) -> None:
    if table.first is not None:
        table.notes.add(table.first[0], "the chip's second line is missing")
        table.first = None
        table.lost = True


def _chip_line(table: _Table, line: Line, cells: list[str]) -> None:
    ids = 2 if table.layout is Layout.SPLIT else 1
    if len(cells) != ids + 2:
        table.notes.add(line, f"{len(cells)} cells where {ids + 2} belong")
        table.lost = True
        _no_second_line(table)
        return
    bus = cells[ids]
    bare = all(word.isdecimal() for cell in cells[:ids] for word in cell.split())  # a second line has numbers only, or nothing
    if not _BUS.fullmatch(bus) and not (bus == "NA" and bare):
        _no_second_line(table)
        table.first = (line, cells)
        return
    if table.first is None:
        table.notes.add(line, "the chip's first line is missing")
        table.lost = True
        return
    first_line, first = table.first
    table.first = None
    chip = _chip(table, first_line, first, line, cells)
    if chip is None:
        table.lost = True
        return
    if (chip.npu, chip.chip) in table.chips:
        table.notes.add(line, f"NPU {chip.npu} chip {chip.chip} stands here a second time")
        table.lost = True  # one of both may be another chip with a garbled number
        return
    table.chips[chip.npu, chip.chip] = chip


def _chip(table: _Table, first_line: Line, first: list[str], second_line: Line, second: list[str]) -> ChipRow | None:
    notes = table.notes
    ids = _ids(table, first_line, first, second_line, second)
    load = _POWER.fullmatch(first[-1])
    use = _USE.fullmatch(second[-1])
    if not load:
        notes.add(first_line, "power, temperature and huge pages can't be told apart")
    if not use:
        notes.add(second_line, "utilisation and memory can't be told apart")
    if ids is None or not load or not use:
        return None
    npu, chip, physical, name = ids
    hbm = Pair(None, None)
    if use[4] is not None:
        hbm = _pair(notes, second_line, use[4], use[5], "HBM")
    return ChipRow(
        npu=npu,
        chip=chip,
        physical=physical,
        name=name,
        health=notes.health(first_line, first[-2]),
        health_text=first[-2],
        bus=None if second[-2] == "NA" else second[-2],
        power=notes.decimal(first_line, load[1], "power", WATTS),
        temperature=notes.integer(first_line, load[2], "temperature", DEGREES),
        hugepages=_pair(notes, first_line, load[3], load[4], "huge pages"),
        utilisation=notes.integer(second_line, use[1], "utilisation", PERCENT),
        memory=_pair(notes, second_line, use[2], use[3], "memory"),
        hbm=hbm,
    )


def _ids(
    table: _Table, first_line: Line, first: list[str], second_line: Line, second: list[str]
) -> tuple[int, int, int | None, str] | None:
    """NPU, chip, physical id and name; None, with a problem, if one that the layout has can't be read."""
    notes = table.notes
    if table.layout is Layout.SPLIT:
        npu = notes.integer(first_line, first[0], "NPU id", ID)
        return None if npu is None else (npu, 0, None, first[1])
    number, _, name = first[0].partition(" ")
    npu = notes.integer(first_line, number, "NPU id", ID)
    words = second[0].split()
    if len(words) != (1 if table.layout is Layout.ONE_CHIP else 2):
        notes.add(second_line, "chip id and physical id can't be told apart")
        return None
    chip = notes.integer(second_line, words[0], "chip id", ID)
    physical = notes.integer(second_line, words[1], "physical id", ID) if len(words) > 1 else None
    if npu is None or chip is None or (len(words) > 1 and physical is None):
        notes.add(second_line, "a chip without an id")
        return None
    return npu, chip, physical, name.strip()


def _pair(notes: Notes, line: Line, used: str, total: str, what: str) -> Pair:
    return Pair(notes.integer(line, used, f"{what} in use", MEBIBYTES), notes.integer(line, total, what, MEBIBYTES))


def _end_block(table: _Table) -> None:
    """A rule ends the processes of an NPU: only now it is sure that all of them were seen."""
    if not table.broken:
        table.listed.update(table.block)
    table.block.clear()
    table.broken = False


def _process(table: _Table, line: Line, cells: list[str]) -> int | None:
    """The NPU that the row is about; None, with a problem, when it can't be read."""
    notes = table.notes
    free = _FREE.fullmatch(" ".join(cells[0].split()))
    if free and len(cells) == 1:
        table.free.add(int(free[1]))
        return int(free[1])
    ids = cells[0].split()
    expected = 1 if table.layout is Layout.SPLIT else 2
    if len(cells) not in (4, 5) or len(ids) != expected:
        notes.add(line, "no row of a process")
        return None
    npu = notes.integer(line, ids[0], "NPU id", ID)
    chip = notes.integer(line, ids[1], "chip id", ID) if expected > 1 else None
    pid = notes.integer(line, cells[1], "process id", PID)
    if npu is None or pid is None or (expected > 1 and chip is None):
        notes.add(line, "a process without ids")
        return None
    inside = notes.integer(line, cells[4], "process id in the container", PID) if len(cells) > 4 else None
    memory = notes.integer(line, cells[3], "memory of the process", MEBIBYTES)
    table.processes.append(ProcessRow(npu, chip, pid, cells[2], memory, inside))
    return npu
