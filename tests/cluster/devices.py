"""The cards of a fake Ascend node: one JSON file that the device plugin and the fake npu-smi read on the node.

Tests change a card's health, utilisation, temperature or processes, or take a card away, and see it arrive in the
kubelet's allocatable and in npu-smi. They say how a reset goes, and read which cards were reset. The Go side of the format
is go/fake/ascend-fake/state.go and reset.go. Defaults are the values of real machines (tests/fixtures/npu-smi): an idle
8×910B3 server, an idle A3 server of eight modules with two dies, four Duo cards with two 310P each, eight 950.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from tests.cluster.nodes import RESOURCE

# bus id, power in W, temperature in °C, HBM in use in MB
_A2_IDLE: tuple[tuple[str, float | None, int, int], ...] = (
    ("C1", 101.8, 43, 3318),
    ("C2", 92.0, 39, 3314),
    ("81", 102.0, 40, 3314),
    ("82", 99.8, 40, 3314),
    ("01", 98.6, 45, 3314),
    ("02", 99.7, 44, 3314),
    ("41", 103.8, 45, 3314),
    ("42", 98.2, 44, 3315),
)
_A3_IDLE: tuple[tuple[str, float | None, int, int], ...] = (
    *(("9D", 166.9, 38, 3144), ("9F", None, 37, 2885)),
    *(("99", 162.1, 37, 3150), ("9B", None, 37, 2874)),
    *(("95", 160.9, 36, 3140), ("97", None, 37, 2885)),
    *(("91", 166.5, 37, 3150), ("93", None, 41, 2874)),
    *(("8D", 170.5, 37, 3157), ("8F", None, 38, 2874)),
    *(("89", 162.6, 37, 3144), ("8B", None, 37, 2885)),
    *(("85", 165.0, 37, 3156), ("87", None, 39, 2877)),
    *(("81", 165.6, 41, 3157), ("83", None, 39, 2877)),
)


# NPU id, bus id, temperature in °C, memory in use in percent; two chips a card
_DUO_IDLE: tuple[tuple[int, str, tuple[int, int], int], ...] = (
    (0, "01", (86, 84), 3),
    (96, "03", (84, 84), 3),
    (32768, "81", (79, 78), 3),
    (32896, "84", (82, 81), 3),
)
_950_IDLE: tuple[tuple[float, int, int], ...] = (
    *((377.2, 48, 4857), (380.6, 50, 4855), (373.1, 49, 4855), (395.1, 48, 4857)),
    *((366.6, 49, 4856), (370.7, 49, 4855), (373.3, 49, 4856), (372.8, 49, 4856)),
)

Health = Literal["OK", "Warning", "Alarm", "Critical", "UNKNOWN"]
ResetMode = Literal["ok", "stays_sick", "fail", "fail_exit_0", "in_use", "another_user", "hang", "needs_host", "virtual", "not_root"]


@dataclass(frozen=True, slots=True)
class Reset:
    """How `npu-smi set -t reset` goes.

    Attributes:
        mode: `ok` heals the cards; `stays_sick` says so and doesn't; `fail` says Status: Fail, `fail_exit_0` so with exit code
            0; `in_use` exits with 203; `hang` ignores SIGTERM; the others refuse before anything is asked or done.
        seconds: from "resetting …" to the end.
        hccs: A2's cards are joined: a reset of one asks a second question and takes all.
        done: physical ids of each reset that was carried out, oldest first.
    """

    mode: ResetMode = "ok"
    seconds: float = 0.0
    hccs: bool = True
    done: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """What npu-smi prints instead of any answer, and its exit code; without both it works."""

    text: str = ""
    exit: int = 0


@dataclass(frozen=True, slots=True)
class Process:
    """A row of npu-smi's process table; memory in MB."""

    pid: int
    name: str
    memory: int


@dataclass(frozen=True, slots=True)
class Device:
    """One chip (on A3 one die).

    Attributes:
        npu: NPU id of npu-smi.
        chip: Chip on that NPU.
        physical: Physical id, which ASCEND_VISIBLE_DEVICES and the plugin's device names use.
        bus: PCI bus id.
        health: One of Health; from Alarm on the kubelet no longer offers it.
        codes: Fault codes of `npu-smi info -t health`.
        information: Their texts, one line each.
        power: Watts; None prints "-".
        temperature: °C.
        aicore: Utilisation in percent.
        ddr_total: MB; 0 on A2 and A3.
        ddr_rate: Percent of it in use.
        hbm_used: MB.
        hbm_total: MB.
        hbm_clock: MHz.
        hbm_temperature: °C.
        processes: Who uses it.
        ecc_single: Corrected errors of HBM.
        ecc_double: Uncorrectable errors of HBM.
        hang: `info -t` about this chip's card never answers, nor hccn_tool about this chip.
        link: Of its RoCE port: UP or DOWN. A2 and A3 have hccn_tool, which tells this and the next three.
        net_health: As hccn_tool says it.
        address: Of its RoCE port.
        tls: TLS switch of its RoCE port.
    """

    npu: int
    chip: int
    physical: int
    bus: str
    health: str = "OK"
    codes: tuple[str, ...] = ()
    information: tuple[str, ...] = ()
    power: float | None = None
    temperature: int = 40
    aicore: int = 0
    ddr_total: int = 0
    ddr_rate: int = 0
    hbm_used: int = 3314
    hbm_total: int = 65536
    hbm_clock: int = 1600
    hbm_temperature: int = 42
    processes: tuple[Process, ...] = ()
    ecc_single: int = 0
    ecc_double: int = 0
    hang: bool = False
    link: str = "UP"
    net_health: str = "Success"
    address: str = ""
    tls: bool = False


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """All cards of one node; immutable, `write` puts it in force.

    Attributes:
        product: A2, A3, 310P or 950: decides npu-smi's layouts.
        name: As in npu-smi's table.
        chip_name: As in npu-smi's map.
        version: Of npu-smi and the driver.
        devices: By physical id.
        resource: Extended resource that the plugin registers.
        reset: How a reset goes.
        hang: npu-smi prints half of its table and stays.
        failure: npu-smi prints this and nothing else.
    """

    product: str
    name: str
    chip_name: str
    version: str
    devices: tuple[Device, ...]
    resource: str = field(default=RESOURCE)
    reset: Reset = Reset()
    hang: bool = False
    failure: Failure = Failure()

    @classmethod
    def idle(cls, product: str) -> Self:
        """A healthy idle node of that product (A2, A3, 310P or 950)."""
        if product == "310P":
            return cls("310P", "310P3", "Ascend 310P3", "25.3.rc1", _duo_devices())
        if product == "950":
            return cls("950", "Ascend950DT", "Ascend950DT", "26.0.rc1", _950_devices())
        rows, chips = (_A2_IDLE, 1) if product == "A2" else (_A3_IDLE, 2)
        devices = tuple(
            Device(
                *(index // chips, index % chips, index, f"0000:{bus}:00.0"),
                power=power,
                temperature=heat,
                hbm_used=used,
                address=f"10.20.11.{11 + index}",
            )
            for index, (bus, power, heat, used) in enumerate(rows)
        )
        if product == "A2":
            return cls("A2", "910B3", "Ascend 910B3", "24.1.rc1.b030", devices)
        return cls("A3", "Ascend910", "Ascend910", "25.3.rc1", devices)

    @classmethod
    def read(cls, path: Path) -> Self:
        """What the file says now."""
        data: dict[str, Any] = json.loads(path.read_text())
        rows = data.pop("devices")
        reset = data.pop("reset", {})
        done = tuple(tuple(cards) for cards in reset.pop("done", None) or ())
        failure = Failure(**data.pop("failure", {}))
        return cls(devices=tuple(_device(row) for row in rows), reset=Reset(**reset, done=done), failure=failure, **data)

    def change(self, *physical: int, **fields: object) -> Self:
        """The same node with those fields changed on those devices: `node.change(3, health="Alarm")`."""
        devices = tuple(replace(device, **fields) if device.physical in physical else device for device in self.devices)  # type: ignore[arg-type] # replace() checks the names itself
        return replace(self, devices=devices)

    def resetting(self, mode: ResetMode = "ok", **fields: object) -> Self:
        """The same node on which resets go that way from now on; what was reset before is kept."""
        return replace(self, reset=replace(self.reset, mode=mode, **fields))  # type: ignore[arg-type] # replace() checks the names itself

    def only(self, physical: Iterable[int]) -> Self:
        """The node with just those devices, as when the others fell off the bus."""
        kept = set(physical)
        return replace(self, devices=tuple(device for device in self.devices if device.physical in kept))

    def write(self, path: Path) -> None:
        """Put it in force; readers see the old file or the new one, never a part."""
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(self), indent=1))
        os.replace(draft, path)


def _duo_devices() -> tuple[Device, ...]:
    """Their memory is DDR, and their power isn't measured."""
    return tuple(
        Device(npu, chip, 2 * card + chip, f"0000:{bus}:00.0", temperature=heat, ddr_total=44278, ddr_rate=rate, hbm_used=0, hbm_total=0)
        for card, (npu, bus, heats, rate) in enumerate(_DUO_IDLE)
        for chip, heat in enumerate(heats)
    )


def _950_devices() -> tuple[Device, ...]:
    """On servers they aren't on PCIe."""
    return tuple(
        Device(npu, 0, npu, "NA", power=power, temperature=heat, hbm_used=used, hbm_total=98304)
        for npu, (power, heat, used) in enumerate(_950_IDLE)
    )


def _device(row: dict[str, Any]) -> Device:
    processes = tuple(Process(**process) for process in row.pop("processes"))
    codes, information = tuple(row.pop("codes")), tuple(row.pop("information"))
    return Device(**row, codes=codes, information=information, processes=processes)
