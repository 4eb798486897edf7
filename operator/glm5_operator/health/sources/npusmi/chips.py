"""What `npu-smi info -t …` says of each chip: health, load, temperature, power, memory.

Error counters, boards and processes are in `counters`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from .pairs import Block, blocks, entries
from .readings import (
    ChipCommon,
    ChipHealth,
    ChipMemory,
    ChipNumber,
    ChipUsage,
    CommonReading,
    FaultEvent,
    FaultEvents,
    HealthReading,
    MemoryReading,
    PowerReading,
    TemperatureReading,
    UsageReading,
)
from .text import COUNT, DEGREES, MEBIBYTES, PERCENT, WATTS, Notes, split, take_error

if TYPE_CHECKING:
    from glm5_operator.health.sources.reading import ToolError

_CODE: Final = re.compile(r"(?:0[xX])?([0-9A-Fa-f]{1,8})")
_EVENT: Final = re.compile(r"event id=(?:0x)?([0-9A-Fa-f]{1,8}), severity=(\S+?),? (.*)")
_HERTZ: Final = (0, 100_000)


def read_blocks(text: str) -> tuple[Notes, ToolError | None, list[Block], list[Block]]:
    """Notes, the tool's error, blocks of chips, blocks of board controllers."""
    error, lines = take_error(split(text))
    notes = Notes()
    found = [block for block in blocks(notes, lines) if block.entries]
    return notes, error, [block for block in found if not block.mcu], [block for block in found if block.mcu]


def need(notes: Notes, error: ToolError | None, found: object, what: str) -> None:
    """A text that says nothing on the question and nothing on why is a problem too."""
    if error is None and not found and not notes.found:
        notes.add(None, f"it says nothing on {what}")


def parse_health(text: str) -> HealthReading:
    """`-t health`. Health of the chip only: the board controller's word stands apart."""
    notes, error, chips, controllers = read_blocks(text)
    found = tuple(health for block in chips if (health := _health(notes, block)) is not None)
    need(notes, error, found, "health")
    words = [entry.word for block in controllers if (entry := block.get("Health", "Health Status"))]
    return HealthReading(problems=notes.problems, error=error, chips=found, mcu=words[0] if words else None)


def _health(notes: Notes, block: Block) -> ChipHealth | None:
    entry = block.get("Health Status", "Health")
    if entry is None:
        notes.add(block.entries[0].line, "a chip without a word on its health")
        return None
    return ChipHealth(
        block.at,
        notes.health(entry.line, entry.value),
        entry.value,
        _codes(notes, block),
        tuple(line.value for line in block.texts("Error Information") if line.word is not None),
    )


def _codes(notes: Notes, block: Block) -> tuple[str, ...]:
    """Newer drivers put blanks between codes, older ones commas."""
    codes = []
    for entry in block.texts("Error Code"):
        for word in entry.value.replace(",", " ").split() if entry.word else ():
            code = _CODE.fullmatch(word)
            if code:
                codes.append(code[1].upper())
            else:
                notes.add(entry.line, f"{word[:40]!r} is no fault code")
    return tuple(dict.fromkeys(codes))


def parse_fault_events(text: str) -> FaultEvents:
    """`-t current-fault-event`."""
    error, lines = take_error(split(text))
    notes = Notes()
    count: int | None = None
    events = []
    for entry in entries(notes, lines):
        if entry.key == "Fault Event Count":
            count = notes.integer(entry.line, entry.value, entry.key, COUNT)
        elif entry.key in ("Fault Event Information", "") and entry.word:
            event = _EVENT.fullmatch(entry.value)
            if event:
                events.append(FaultEvent(event[1].upper(), notes.integer(entry.line, event[2], "severity", (0, 3)), event[3]))
            else:
                notes.add(entry.line, "this is no fault event")
    need(notes, error, count is not None, "fault events")
    if count is not None and count != len(events):
        notes.add(None, f"it counts {count} events and lists {len(events)}")
    return FaultEvents(problems=notes.problems, error=error, count=count, events=tuple(events))


def parse_usages(text: str) -> UsageReading:
    """`-t usages`."""
    notes, error, chips, _ = read_blocks(text)
    found = tuple(
        ChipUsage(
            at=block.at,
            ddr_capacity=block.integer(notes, MEBIBYTES, "DDR Capacity(MB)"),
            ddr_rate=block.integer(notes, PERCENT, "DDR Usage Rate(%)"),
            hbm_capacity=block.integer(notes, MEBIBYTES, "HBM Capacity(MB)"),
            hbm_rate=block.integer(notes, PERCENT, "HBM Usage Rate(%)"),
            aicore=block.integer(notes, PERCENT, "Aicore Usage Rate(%)"),
            aivector=block.integer(notes, PERCENT, "Aivector Usage Rate(%)"),
            aicube=block.integer(notes, PERCENT, "Aicube Usage Rate(%)"),
            aicpu=block.integer(notes, PERCENT, "Aicpu Usage Rate(%)"),
            ctrlcpu=block.integer(notes, PERCENT, "Ctrlcpu Usage Rate(%)"),
            hbm_bandwidth=block.integer(notes, PERCENT, "HBM Bandwidth Usage Rate(%)"),
            npu=block.integer(notes, PERCENT, "NPU Utilization(%)"),
        )
        for block in chips
        if block.get("Aicore Usage Rate(%)", "HBM Usage Rate(%)", "DDR Usage Rate(%)")
    )
    need(notes, error, found, "usage")
    return UsageReading(problems=notes.problems, error=error, chips=found)


def parse_common(text: str) -> CommonReading:
    """`-t common`. The second Temperature(C) is the board controller's."""
    notes, error, chips, controllers = read_blocks(text)
    found = tuple(
        ChipCommon(
            at=block.at,
            ddr_rate=block.integer(notes, PERCENT, "Memory Usage Rate(%)"),
            hbm_rate=block.integer(notes, PERCENT, "HBM Usage Rate(%)"),
            aicore=block.integer(notes, PERCENT, "Aicore Usage Rate(%)"),
            frequency=block.integer(notes, _HERTZ, "Aicore Freq(MHZ)"),
            frequency_now=block.integer(notes, _HERTZ, "Aicore curFreq(MHZ)"),
            aicores=block.integer(notes, COUNT, "Aicore Count"),
            temperature=block.integer(notes, DEGREES, "Temperature(C)"),
            power=block.decimal(notes, WATTS, "NPU Real-time Power(W)"),
        )
        for block in chips
        if block.get("Aicore Usage Rate(%)", "HBM Usage Rate(%)", "Memory Usage Rate(%)")
    )
    need(notes, error, found, "load")
    heat = [degrees for block in controllers if (degrees := block.integer(notes, DEGREES, "Temperature(C)")) is not None]
    return CommonReading(problems=notes.problems, error=error, chips=found, mcu_temperature=heat[0] if heat else None)


def parse_temperature(text: str) -> TemperatureReading:
    """`-t temp`: "NPU Temperature (C)" on servers, "Temperature (C)" on cards, each with a blank that `-t common` doesn't have."""
    notes, error, chips, controllers = read_blocks(text)
    keys = ("NPU Temperature (C)", "Temperature (C)", "Soc Max Temperature (C)")
    found = tuple(ChipNumber(block.at, block.integer(notes, DEGREES, *keys)) for block in chips if block.get(*keys))
    need(notes, error, found, "temperature")
    board = [
        (entry.key, degrees)
        for block in controllers
        for entry in block.entries
        if (degrees := notes.integer(entry.line, entry.value, entry.key, DEGREES)) is not None
    ]
    return TemperatureReading(problems=notes.problems, error=error, chips=found, board=tuple(board))


def parse_power(text: str) -> PowerReading:
    """`-t power`."""
    notes, error, chips, _ = read_blocks(text)
    key = "NPU Real-time Power(W)"
    found = tuple(ChipNumber(block.at, block.decimal(notes, WATTS, key)) for block in chips if block.get(key))
    need(notes, error, found, "power")
    return PowerReading(problems=notes.problems, error=error, chips=found)


def parse_memory(text: str) -> MemoryReading:
    """`-t memory`."""
    notes, error, chips, _ = read_blocks(text)
    found = tuple(
        ChipMemory(
            at=block.at,
            ddr_capacity=block.integer(notes, MEBIBYTES, "DDR Capacity(MB)"),
            hbm_capacity=block.integer(notes, MEBIBYTES, "HBM Capacity(MB)"),
            hbm_clock=block.integer(notes, _HERTZ, "HBM Clock Speed(MHz)"),
            hbm_temperature=block.integer(notes, DEGREES, "HBM Temperature(C)"),
            manufacturer=maker.word if (maker := block.get("HBM Manufacturer ID")) else None,
        )
        for block in chips
        if block.get("HBM Capacity(MB)", "DDR Capacity(MB)")
    )
    need(notes, error, found, "memory")
    return MemoryReading(problems=notes.problems, error=error, chips=found)
