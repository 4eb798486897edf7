"""Typed answers of npu-smi to what is asked seldom: error counters, processes, links, the board, the watch. Rules as in `readings`."""

from __future__ import annotations

from dataclasses import dataclass, field

from glm5_operator.health.sources.reading import Reading

from .readings import Address


@dataclass(frozen=True, slots=True)
class EccCounts:
    """Errors and isolated pages of one memory.

    Attributes:
        single: corrected errors since the driver started.
        double: uncorrectable errors since the driver started.
        single_total: corrected errors in the card's life.
        double_total: uncorrectable errors in the card's life.
        single_isolated: pages isolated for corrected errors.
        double_isolated: pages isolated for uncorrectable errors.
        single_next: pages that the next reset isolates, for corrected errors.
        double_next: the same for uncorrectable errors (0-64).
    """

    single: int | None = None
    double: int | None = None
    single_total: int | None = None
    double_total: int | None = None
    single_isolated: int | None = None
    double_isolated: int | None = None
    single_next: int | None = None
    double_next: int | None = None


@dataclass(frozen=True, slots=True)
class ChipEcc:
    """One chip of `-t ecc`."""

    at: Address
    ddr: EccCounts | None = None
    hbm: EccCounts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EccReading(Reading):
    """`-t ecc`."""

    chips: tuple[ChipEcc, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryProcess:
    """A process of `-t proc-mem`; memory in MiB."""

    at: Address
    pid: int
    name: str
    memory: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReading(Reading):
    """`-t proc-mem`; `none_on` are the blocks that say "No process in device."."""

    processes: tuple[MemoryProcess, ...] = ()
    none_on: tuple[Address, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology(Reading):
    """`-t topo`.

    Attributes:
        ids: NPU ids (A3: physical ids) in the table's order.
        links: (row id, column id) -> HCCS, SYS, PHB, PIX, PXB, NA …, without the diagonal.
        cpus: id -> CPU affinity as printed.
    """

    ids: tuple[int, ...] = ()
    links: tuple[tuple[int, int, str], ...] = ()
    cpus: tuple[tuple[int, str], ...] = ()

    @property
    def hccs(self) -> bool | None:
        """Any two are joined by HCCS; None when nothing was read or a link is NA."""
        words = {word for _, _, word in self.links}
        if any(word.startswith("HCCS") for word in words):
            return True
        return None if not words or "NA" in words or self.problems else False


@dataclass(frozen=True, slots=True)
class ChipCounts:
    """One chip of `-t err-count` or of another list of counters, by printed names."""

    at: Address
    counts: tuple[tuple[str, int | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountReading(Reading):
    """`-t err-count`."""

    chips: tuple[ChipCounts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardReading(Reading):
    """`-t board` of a card or a chip; `fields` has every printed line."""

    at: Address = field(default_factory=Address)
    driver: str | None = None
    firmware: str | None = None
    bus: str | None = None
    pci_device: str | None = None
    chip_name: str | None = None
    chip_count: int | None = None
    fields: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RemapReading(Reading):
    """`-t phyid-remap`: whether physical ids are remapped, where the tool says so; `fields` has every printed line."""

    physical: int | None = None
    fields: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareReading(Reading):
    """`-t device-share`: for each block, whether the device may be in several containers; None for a word that isn't known."""

    chips: tuple[tuple[Address, bool | None], ...] = ()


@dataclass(frozen=True, slots=True)
class WatchRow:
    """One line of `info watch`: W, °C and percent, by printed column names."""

    npu: int
    chip: int | None
    values: tuple[tuple[str, float | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchReading(Reading):
    """`info watch`."""

    columns: tuple[str, ...] = ()
    rows: tuple[WatchRow, ...] = ()
