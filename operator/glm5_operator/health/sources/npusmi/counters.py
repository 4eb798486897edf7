"""What `npu-smi info -t …` says of errors, processes and the board."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from .chips import need, read_blocks
from .pairs import blocks, entries
from .rare_readings import (
    BoardReading,
    ChipCounts,
    ChipEcc,
    CountReading,
    EccCounts,
    EccReading,
    MemoryProcess,
    ProcessReading,
    RemapReading,
    ShareReading,
)
from .readings import Address
from .text import COUNT, ID, MEBIBYTES, PID, Line, Notes, split, take_error

if TYPE_CHECKING:
    from .pairs import Block

_PROCESS: Final = re.compile(r"Process id:([0-9]{1,10}) +Process name:(.*?) *Process memory\(MB\):([0-9]{1,12})")
_NO_PROCESS: Final = re.compile(r"No process in device\.")
_NAME_FAILED: Final = "Get pid name failed."
"""The process ended between two looks of the tool; its row follows, without a name."""


def parse_ecc(text: str) -> EccReading:
    """`-t ecc`."""
    notes, error, chips, _ = read_blocks(text)
    found = tuple(
        ChipEcc(block.at, _ecc(notes, block, "DDR"), _ecc(notes, block, "HBM"))
        for block in chips
        if any("Bit" in entry.key for entry in block.entries)
    )
    need(notes, error, found, "ECC")
    return EccReading(problems=notes.problems, error=error, chips=found)


def _ecc(notes: Notes, block: Block, memory: str) -> EccCounts | None:
    if not any(entry.key.startswith(f"{memory} ") for entry in block.entries):
        return None

    def count(key: str) -> int | None:
        return block.integer(notes, COUNT, f"{memory} {key}")

    return EccCounts(
        single=count("Single Bit Error Count"),
        double=count("Double Bit Error Count"),
        single_total=count("Single Bit Aggregate Total Err Cnt"),
        double_total=count("Double Bit Aggregate Total Err Cnt"),
        single_isolated=count("Single Bit Isolated Pages Count"),
        double_isolated=count("Double Bit Isolated Pages Count"),
        single_next=count("Single Bit Next-Isolated Pages Count"),
        double_next=count("Double Bit Next-Isolated Pages Count"),
    )


def parse_error_counts(text: str) -> CountReading:
    """`-t err-count`, which is `-t pcie-err` on older tools: counters of the PCIe link."""
    notes, error, chips, _ = read_blocks(text)
    found = tuple(
        ChipCounts(block.at, tuple((entry.key, notes.integer(entry.line, entry.value, entry.key, COUNT)) for entry in counters))
        for block in chips
        if (counters := [entry for entry in block.entries if entry.key.endswith(" Count")])
    )
    need(notes, error, found, "errors")
    return CountReading(problems=notes.problems, error=error, chips=found)


def parse_process_memory(text: str) -> ProcessReading:
    """`-t proc-mem`, of one chip or of all chips of an NPU."""
    error, lines = take_error(split(text))
    notes = Notes()
    processes: list[MemoryProcess] = []
    none_on: list[Address] = []
    at = Address()
    for paragraph in _paragraphs(lines):
        rows: list[tuple[Line, re.Match[str] | None]] = []
        others: list[Line] = []
        for line in paragraph:
            row = line.text.strip()
            process = _PROCESS.fullmatch(row)
            if line.cut or not (process or _NO_PROCESS.fullmatch(row)):
                others.extend([line] if row != _NAME_FAILED else [])
            else:
                rows.append((line, process))
        at = _address(notes, others, at.npu)
        for line, process in rows:
            if process is None:
                none_on.append(at)
                continue
            pid = notes.integer(line, process[1], "process id", PID)
            if pid is not None:
                processes.append(MemoryProcess(at, pid, process[2], notes.integer(line, process[3], "memory of the process", MEBIBYTES)))
    need(notes, error, processes or none_on, "processes")
    return ProcessReading(problems=notes.problems, error=error, processes=tuple(processes), none_on=tuple(none_on))


def _paragraphs(lines: list[Line]) -> list[list[Line]]:
    """By NPU and chip: a paragraph ends with a blank line or with the chip's number."""
    found: list[list[Line]] = [[]]
    for line in lines:
        if line.text:
            found[-1].append(line)
        if not line.text or line.text.lstrip().startswith("Chip ID"):
            found.append([])
    return [paragraph for paragraph in found if paragraph]


def _address(notes: Notes, lines: list[Line], npu: int | None) -> Address:
    """The NPU is named once for all its chips: a paragraph without its number goes on with the NPU above."""
    chip: int | None = None
    for entry in entries(notes, lines):
        if entry.key == "NPU ID":
            npu = notes.integer(entry.line, entry.value, entry.key, ID)
        elif entry.key == "Chip ID":
            chip = notes.integer(entry.line, entry.value, entry.key, ID)
    return Address(npu, chip)


def parse_board(text: str) -> BoardReading:
    """`-t board`, of a card (-i) or a chip (-i -c)."""
    error, lines = take_error(split(text))
    notes = Notes()
    fields = {entry.key: entry for entry in entries(notes, lines)}
    need(notes, error, fields, "the board")

    def number(key: str) -> int | None:
        return notes.integer(fields[key].line, fields[key].value, key, ID) if key in fields else None

    def word(key: str) -> str | None:
        return fields[key].word if key in fields else None

    return BoardReading(
        error=error,
        at=Address(number("NPU ID"), number("Chip ID")),
        driver=word("Software Version"),
        firmware=word("Firmware Version"),
        bus=word("PCIe Bus Info"),
        pci_device=word("PCI Device ID"),
        chip_name=word("Chip Name"),
        chip_count=number("Chip Count"),
        fields=tuple((key, entry.value) for key, entry in fields.items()),
        problems=notes.problems,  # last: reading the numbers finds some
    )


def parse_phyid_remap(text: str) -> RemapReading:
    """`-t phyid-remap`.

    No output of it is published: what has a physical id in its name is taken for it, all lines are kept.
    """
    error, lines = take_error(split(text))
    notes = Notes()
    fields = entries(notes, lines)
    need(notes, error, fields, "physical ids")
    ids = [entry for entry in fields if "phy" in entry.key.casefold()]
    physical = notes.integer(ids[0].line, ids[0].value, ids[0].key, ID) if len(ids) == 1 else None
    return RemapReading(problems=notes.problems, error=error, physical=physical, fields=tuple((entry.key, entry.value) for entry in fields))


def parse_device_share(text: str) -> ShareReading:
    """`-t device-share`."""
    error, lines = take_error(split(text))
    notes = Notes()
    found: list[tuple[Address, bool | None]] = []
    for block in blocks(notes, lines):
        entry = block.get("Device-share Status")
        if entry is None:
            continue
        if entry.value not in ("True", "False"):
            notes.add(entry.line, f"{entry.value[:40]!r} is neither True nor False")
        found.append((block.at, {"True": True, "False": False}.get(entry.value)))
    need(notes, error, found, "device sharing")
    return ShareReading(problems=notes.problems, error=error, chips=tuple(found))
