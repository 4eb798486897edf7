"""Typed answers of npu-smi, one class for each question; those to rarer ones are in `rare_readings`.

Units are in the names' descriptions; None is "not printed" or "unknown".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from glm5_operator.health.sources.reading import Reading
from glm5_operator.plan.facts import Product

if TYPE_CHECKING:
    from datetime import timedelta

    from glm5_operator.api.node_facts import HealthWord


class Layout(StrEnum):
    """Which of the known tables `npu-smi info` printed, by its header."""

    ONE_CHIP = "OneChip"
    """`Chip` alone: 910A, 910B (A2)."""
    PHYSICAL_ID = "PhysicalId"
    """`Chip Phy-ID`: A3, two dies a module."""
    DEVICE = "Device"
    """`Chip Device`: 310 and 310P, Duo too; no HBM."""
    SPLIT = "Split"
    """`NPU ID | Name`: 950."""


@dataclass(frozen=True, slots=True)
class Pair:
    """`used / total`."""

    used: int | None
    total: int | None


@dataclass(frozen=True, slots=True)
class ChipRow:
    """One chip (die on A3) in the table of `npu-smi info`.

    Attributes:
        npu: NPU id, for -i.
        chip: chip id, for -c; 0 on 950, whose table has none.
        physical: Phy-ID or Device column; None where the table has no such column (see `identify`).
        name: for example 910B3; on A3 just Ascend910.
        health: Unknown for UNKNOWN and for every word that isn't documented.
        health_text: the word as printed.
        bus: PCI address; None on 950 servers (NA).
        power: W; None on the second die of an A3 module and on 310P.
        temperature: °C.
        utilisation: AI core (950: NPU) in percent.
        hugepages: pages.
        memory: MiB of DDR; on 310P the memory that models use.
        hbm: MiB; both None where there is no such column.
    """

    npu: int
    chip: int
    physical: int | None
    name: str
    health: HealthWord
    health_text: str
    bus: str | None = None
    power: float | None = None
    temperature: int | None = None
    utilisation: int | None = None
    hugepages: Pair = Pair(None, None)
    memory: Pair = Pair(None, None)
    hbm: Pair = Pair(None, None)

    @property
    def main_memory(self) -> Pair:
        """MiB of what models live in: HBM, or DDR on a card without HBM."""
        return self.memory if self.hbm.total is None else self.hbm


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A process on a chip.

    Attributes:
        npu: NPU id.
        chip: chip id; None on 950, which names none.
        pid: as the host counts.
        name: cut by the tool to 13-15 characters; empty inside containers.
        memory: MiB.
        pid_in_container: HDK 26 prints it; None for NA.
    """

    npu: int
    chip: int | None
    pid: int
    name: str = ""
    memory: int | None = None
    pid_in_container: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InfoTable(Reading):
    """`npu-smi info`.

    Attributes:
        version: of npu-smi.
        driver: of the driver, as the banner says.
        layout: None when no header was found.
        chips: in printed order.
        processes: what is listed; look at `pids` before concluding that a chip is free.
        free_npus: NPU ids for which the tool said that no process runs on them.
        listed_npus: NPU ids whose processes were all read, up to the rule that ends them.
        whole: all chips that the tool knows are here: a process table follows them, and no line among them was unreadable. Only then a
            chip that isn't here is missing.
        warnings: what the tool itself warns of, for example a driver package that isn't completely installed.
    """

    version: str | None = None
    driver: str | None = None
    layout: Layout | None = None
    chips: tuple[ChipRow, ...] = ()
    processes: tuple[ProcessRow, ...] = ()
    free_npus: frozenset[int] = frozenset()
    listed_npus: frozenset[int] = frozenset()
    whole: bool = False
    warnings: tuple[str, ...] = ()

    def pids(self, npu: int, chip: int) -> tuple[int, ...] | None:
        """Processes on the chip; None when that isn't sure: no process table, not a word on this NPU, or a row that can't be read."""
        if npu in self.free_npus:
            return ()
        if npu not in self.listed_npus:
            return None
        return tuple(row.pid for row in self.processes if row.npu == npu and row.chip in (chip, None))

    @property
    def product(self) -> Product | None:
        """Generation, as far as layout and names tell; None for what isn't one of ours (910A, 310) or unclear."""
        products = {_product(self.layout, row.name) for row in self.chips}
        return products.pop() if len(products) == 1 else None


def _product(layout: Layout | None, name: str) -> Product | None:
    if layout is Layout.SPLIT:
        return Product.A5
    name = name.removeprefix("Ascend").strip()
    if name.startswith("310P"):
        return Product.ATLAS_310P
    if name.startswith("910B"):
        return Product.A2
    if layout is Layout.PHYSICAL_ID and (name == "910" or name.startswith(("910C", "910_93"))):
        return Product.A3
    return Product.A5 if name.startswith("950") else None


@dataclass(frozen=True, slots=True)
class CardEntry:
    """One NPU of `npu-smi info -l`; `chips` is None on 950, which prints no count."""

    npu: int
    chips: int | None = None
    product: str | None = None
    serial: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardList(Reading):
    """`npu-smi info -l`; `total` counts NPUs (modules on A3), not dies."""

    total: int | None = None
    cards: tuple[CardEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class MapEntry:
    """One chip of `npu-smi info -m`; the board controller's (Mcu) rows aren't among them.

    Attributes:
        npu: NPU id.
        chip: chip id; 0 where there is no such column.
        logic: what ASCEND_RT_VISIBLE_DEVICES counts in; starts at 0 in a container.
        physical: Chip Phy-ID; None where there is no such column.
        name: for example Ascend 910B4.
        slot: Slot ID (950).
    """

    npu: int
    chip: int
    logic: int | None
    physical: int | None = None
    name: str = ""
    slot: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardMap(Reading):
    """`npu-smi info -m`."""

    chips: tuple[MapEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Address:
    """Which chip a block of `-t` is about; None is what the block doesn't say, the caller knows what it asked for."""

    npu: int | None = None
    chip: int | None = None


@dataclass(frozen=True, slots=True)
class ChipHealth:
    """One chip of `-t health`; codes as printed, for example 80E01801, without 0x, upper case."""

    at: Address
    health: HealthWord
    health_text: str
    codes: tuple[str, ...] = ()
    information: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReading(Reading):
    """`-t health`; the board controller's word (`mcu`) is never taken for a chip's."""

    chips: tuple[ChipHealth, ...] = ()
    mcu: str | None = None


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """One event of `-t current-fault-event`; severity 0 warning, 1 minor, 2 major, 3 critical."""

    code: str
    severity: int | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultEvents(Reading):
    """`-t current-fault-event`; `count` is what the tool says there are."""

    count: int | None = None
    events: tuple[FaultEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class ChipUsage:
    """One chip of `-t usages`: MiB, pages and percent."""

    at: Address
    ddr_capacity: int | None = None
    ddr_rate: int | None = None
    hbm_capacity: int | None = None
    hbm_rate: int | None = None
    aicore: int | None = None
    aivector: int | None = None
    aicube: int | None = None
    aicpu: int | None = None
    ctrlcpu: int | None = None
    hbm_bandwidth: int | None = None
    npu: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReading(Reading):
    """`-t usages`."""

    chips: tuple[ChipUsage, ...] = ()


@dataclass(frozen=True, slots=True)
class ChipCommon:
    """One chip of `-t common`: percent, MHz, °C, W."""

    at: Address
    ddr_rate: int | None = None
    hbm_rate: int | None = None
    aicore: int | None = None
    frequency: int | None = None
    frequency_now: int | None = None
    aicores: int | None = None
    temperature: int | None = None
    power: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonReading(Reading):
    """`-t common`; `mcu_temperature` in °C."""

    chips: tuple[ChipCommon, ...] = ()
    mcu_temperature: int | None = None


@dataclass(frozen=True, slots=True)
class ChipNumber:
    """One number of one chip: °C of `-t temp`, W of `-t power`."""

    at: Address
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureReading(Reading):
    """`-t temp`: chips in °C; `board` holds the board's own sensors, by their printed names."""

    chips: tuple[ChipNumber, ...] = ()
    board: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerReading(Reading):
    """`-t power`, W."""

    chips: tuple[ChipNumber, ...] = ()


@dataclass(frozen=True, slots=True)
class ChipMemory:
    """One chip of `-t memory`: MiB, MHz, °C; `manufacturer` as printed (0x5A)."""

    at: Address
    ddr_capacity: int | None = None
    hbm_capacity: int | None = None
    hbm_clock: int | None = None
    hbm_temperature: int | None = None
    manufacturer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading(Reading):
    """`-t memory`."""

    chips: tuple[ChipMemory, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionReading(Reading):
    """`npu-smi -v`."""

    version: str | None = None


class ResetOutcome(StrEnum):
    """What a reset's text says. Only SUCCEEDED is success, and that only with exit status 0 and good health afterwards."""

    SUCCEEDED = "Succeeded"
    """`Status : OK` and "Reset … successfully."."""
    FAILED = "Failed"
    """`Status : Fail`."""
    REFUSED = "Refused"
    """Not begun; `reason` says why."""
    CUT = "Cut"
    """It waits for an answer, or ended before it said how it went."""


class ResetRefusal(StrEnum):
    """Why it wasn't begun."""

    NOT_ROOT = "NotRoot"
    ANOTHER_RESET = "AnotherReset"
    """"Another user is resetting the NPU(s)."."""
    CARDS_BUSY = "CardsBusy"
    """A process or a container is on it."""
    NEEDS_HOST = "NeedsHost"
    """Not from a container, not from a virtual machine."""
    VIRTUAL_NPU = "VirtualNPU"
    """Cards are cut into vNPUs."""
    HCCS_ON = "HccsOn"
    """The agent's own: less than the node was asked for, and the tool would take all cards. The tool asks instead of refusing."""
    NOT_SUPPORTED = "NotSupported"
    WRONG_CARD = "WrongCard"
    """No such NPU or chip, or -c is missing."""
    NO_ACCESS = "NoAccess"
    """dcmi could not be started."""
    ABORTED = "Aborted"
    """It took an answer of ours for a no."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetTranscript(Reading):
    """Everything that `set -t reset` printed, standard error included.

    Attributes:
        outcome: what the text says.
        refusal: why it was refused or failed, where the text tells.
        message: the line that decided.
        whole_node: it said that it resets all devices ("reboot all devices", "Reset server").
        expected: how long it says the reset takes; None when it doesn't.
        asked: questions that were asked.
        unanswered: it ends with a question.
    """

    outcome: ResetOutcome
    refusal: ResetRefusal | None = None
    message: str = ""
    whole_node: bool = False
    expected: timedelta | None = None
    asked: int = 0
    unanswered: bool = False
