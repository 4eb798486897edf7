"""The agent's part of an AscendNode: cards, tool and host, as they were read.

A value that couldn't be read is absent, never zero. `node` has the whole object.
"""

from typing import Annotated, Final, Literal

from pydantic import Field

from .common import StatusModel

HealthWord = Literal["OK", "Warning", "Alarm", "Critical", "Unknown"]
"""npu-smi's words; Unknown also for UNKNOWN, for a word that nobody knows, and for a card that couldn't be read."""
ToolState = Literal["Working", "Failing", "Hanging", "Missing"]

MOST_CARDS: Final = 64
MOST_CODES: Final = 32
MOST_PROBLEMS: Final = 16

_Text = Annotated[str, Field(max_length=512)]
_Time = Annotated[str, Field(max_length=40)]
_Word = Annotated[str, Field(max_length=128)]


class Holder(StatusModel):
    """Who was given a card, from kubelet's PodResources API."""

    namespace: _Word
    """Of the pod."""
    pod: Annotated[str, Field(max_length=253)]
    """Its name."""
    container: _Word = ""
    """In which container."""


class CardReport(StatusModel):
    """One schedulable card; on A3 that is a die."""

    physical: int
    """Physical id: Phy-ID of npu-smi, N of /dev/davinciN, what ASCEND_VISIBLE_DEVICES counts in."""
    npu: int
    """NPU id, what npu-smi's -i takes."""
    chip: int = 0
    """Chip on that NPU, what npu-smi's -c takes."""
    health: HealthWord
    """As npu-smi says it."""
    codes: Annotated[tuple[Annotated[str, Field(max_length=32)], ...], Field(strict=False, max_length=MOST_CODES)] | None = None
    """Fault codes, for example 80E01801."""
    stale: bool | None = None
    """The values are of an earlier reading, since the card couldn't be read this time."""
    name: _Word | None = None
    """For example 910B3; on A3 just Ascend910."""
    temperature: int | None = None
    """°C."""
    power: float | None = None
    """W."""
    utilisation: int | None = None
    """AI cores in use, percent."""
    memory_used: int | None = None
    """HBM in use, MiB; an idle card has some GiB in use."""
    memory_total: int | None = None
    """HBM, MiB."""
    pids: Annotated[tuple[int, ...], Field(strict=False, max_length=64)] | None = None
    """Processes on the card; absent when that couldn't be read."""
    ecc_double: int | None = None
    """Uncorrectable HBM errors since the driver counts."""
    link: Literal["Up", "Down", "Unknown"] | None = None
    """Of the RoCE port."""
    net_health: _Word | None = None
    """As hccn_tool says it: Success, Init, Socket failed, …"""
    address: _Word | None = None
    """IP of the RoCE port."""
    tls: bool | None = None
    """TLS switch of the RoCE port; equal on all cards or collectives fail."""
    pcie: _Word | None = None
    """Link now, for example 16.0 GT/s x16."""
    pcie_most: _Word | None = None
    """Link that card and slot can do."""
    numa: int | None = None
    """NUMA node of its PCIe slot."""
    holder: Holder | None = None
    """Who was given it; absent when nobody was."""


class DeviceNode(StatusModel):
    """A device file of the driver."""

    path: Annotated[str, Field(max_length=128)]
    """For example /dev/davinci0."""
    owner: _Word
    """user:group as numbers."""
    mode: _Word
    """For example 0660."""


class HostReport(StatusModel):
    """The host, as preflight and doctor want to know it."""

    kernel: _Word | None = None
    """Release of the kernel."""
    architecture: _Word | None = None
    """x86_64 or aarch64."""
    cpu_flags: Annotated[tuple[_Word, ...], Field(strict=False, max_length=32)] | None = None
    """Of those that matter: avx512f, avx512_bf16, amx_bf16; asimd, sve, bf16, i8mm."""
    cpus: int | None = None
    """Logical CPUs."""
    numa_nodes: int | None = None
    """NUMA nodes."""
    memory: int | None = None
    """MiB."""
    hugepages: int | None = None
    """Pages reserved."""
    disks: Annotated[tuple[_Word, ...], Field(strict=False, max_length=32)] | None = None
    """NVMe disks as name=GiB."""
    device_nodes: Annotated[tuple[DeviceNode, ...], Field(strict=False, max_length=96)] | None = None
    """Device files of the driver."""


class ToolReport(StatusModel):
    """npu-smi itself."""

    state: ToolState
    """Anything but Working says nothing about the cards."""
    message: _Text = ""
    """What it printed instead, or how long it hung."""
    version: _Word | None = None
    """Of npu-smi."""


class NodeFactsReport(StatusModel):
    """What the node agent has read."""

    observed_at: _Time
    """When this was read that is written here; written anew on change, and as a sign of life every heartbeat."""
    tool: ToolReport
    """npu-smi itself."""
    cards: Annotated[tuple[CardReport, ...], Field(strict=False, max_length=MOST_CARDS)] = ()
    """By physical id."""
    missing: Annotated[tuple[int, ...], Field(strict=False, max_length=MOST_CARDS)] | None = None
    """Physical ids of cards that were there since the agent first saw the node and aren't any more; `cards` has them as Unknown."""
    product: _Word | None = None
    """A2, A3, 310P or 950, as far as npu-smi's layout and names tell."""
    driver: _Word | None = None
    """HDK version."""
    firmware: _Word | None = None
    """Firmware version."""
    cann: _Word | None = None
    """CANN toolkit on the host, where there is one."""
    allocations_known: bool | None = None
    """kubelet's PodResources API answered, so a card without a holder is free."""
    virtual: bool | None = None
    """Cards are cut into vNPUs, which rules resets out."""
    hccs: bool | None = None
    """Cards are joined by HCCS, so that a reset of one takes all (A2)."""
    problems: Annotated[tuple[_Text, ...], Field(strict=False, max_length=MOST_PROBLEMS)] | None = None
    """What couldn't be read or understood, with the line."""
    host: HostReport | None = None
    """The host."""
