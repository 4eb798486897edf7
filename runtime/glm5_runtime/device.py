"""Chooses the device, says what an unusable NPU lacks, and prepares the environment. Runs before torch is imported.

Called by the command line only. `read_host` is the one function that looks at the machine; everything else is pure over its facts, so that
each missing part (driver, device nodes, permission, CANN, torch_npu) is a tested branch on machines without any of them.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import stat
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from glm5_runtime.versions import Stack, misfits, read_cann, read_driver, read_kernels

if TYPE_CHECKING:
    from collections.abc import Mapping

Device = Literal["cpu", "npu", "cuda"]

_DRIVER = Path("usr/local/Ascend/driver")
_MANAGERS = ("davinci_manager", "hisi_hdc", "devmm_svm")  # every process that opens a card opens these first
_NO_CARD = "void"  # Ascend's container runtime gives no card for this word, as for an empty variable
_NPU_SMI_SECONDS = 20  # it answers in under one second, and can hang for ever on a card that has fallen off the bus


class DeviceUnusable(Exception):  # noqa: N818 - a state of the machine
    """The device asked for can't be used here; the message lists what is missing and how to supply it."""

    exit_code = 2


class VersionsDoNotFit(DeviceUnusable):
    """All is there, and of different sets: driver, CANN, torch_npu or chip. Only another image or driver helps."""

    exit_code = 9


@dataclass(frozen=True)
class DeviceNode:
    """One file under /dev that a card needs."""

    path: str
    owner: str  # uid:gid
    mode: str  # as ls shows it, octal
    usable: bool  # this process may read and write it


@dataclass(frozen=True)
class HostFacts:
    """What this machine or container has for accelerators."""

    driver: bool  # the driver's folder is there (mounted into a container)
    nodes: tuple[DeviceNode, ...]  # /dev/davinci<N>
    managers: tuple[DeviceNode, ...]  # /dev/davinci_manager and companions
    cann_home: str | None  # set by CANN's set_env.sh
    ascendcl: bool  # libascendcl.so is on the library path
    torch_npu: str | None  # installed version
    cuda: bool  # an NVIDIA device node and a torch built for it
    user: str  # uid:gid of this process, with its groups
    npu_map: str = ""  # output of `npu-smi info -m`; empty without the tool
    assigned: str = (
        ""  # ASCEND_VISIBLE_DEVICES: the cards that the device plugin or the container runtime gave this process; empty for none
    )
    stack: Stack = field(default_factory=Stack)

    @property
    def has_card(self) -> bool:
        """Whether a card is held for this process, usable or not."""
        return bool(self.assigned or self.nodes)


@dataclass(frozen=True)
class Choice:
    """The device and why it was taken."""

    device: Device
    reason: str


def wanted(stated: str, environ: Mapping[str, str]) -> str:
    """What a file of settings says; where that is auto, what GLM5_DEVICE says."""
    return stated if stated != "auto" else environ.get("GLM5_DEVICE") or "auto"


def choose(requested: str, facts: HostFacts) -> Choice:
    """`auto` takes an NPU, else CUDA, else the CPU; a named device must be usable. Raises DeviceUnusable.

    With a card in hand `auto` means that card: serving on the CPU instead would be a hundred times slower, look healthy, and keep the card
    from others.
    """
    lacking = npu_lacks(facts)
    missing = "\n".join(f"  - {item}" for item in lacking)
    unusable = VersionsDoNotFit if lacking and len(lacking) == len(misfits(facts.stack)) else DeviceUnusable
    if requested == "npu":
        if lacking:
            raise unusable(f"--device npu can't be used here:\n{missing}")
        return Choice("npu", f"asked for, {len(facts.nodes)} device nodes are usable")
    if requested == "cuda":
        if not facts.cuda:
            raise DeviceUnusable("--device cuda can't be used here:\n  - there is no /dev/nvidia* or torch is built without CUDA")
        return Choice("cuda", "asked for")
    if requested == "cpu":
        return Choice("cpu", "asked for")
    if not lacking:
        return Choice("npu", f"auto: {len(facts.nodes)} NPU device nodes are usable")
    if facts.has_card:
        card = f"ASCEND_VISIBLE_DEVICES={facts.assigned}" if facts.assigned else ", ".join(node.path for node in facts.nodes[:3])
        raise unusable(
            f"a card is held for this process ({card}) and can't be used:\n{missing}\n"
            "  To serve on the CPU all the same, say so: --device cpu or GLM5_DEVICE=cpu"
        )
    if facts.cuda:
        return Choice("cuda", f"auto: an NVIDIA device is there; no NPU: {'; '.join(lacking)}")
    return Choice("cpu", f"auto: no accelerator; no NPU: {'; '.join(lacking)}")


def npu_lacks(facts: HostFacts) -> tuple[str, ...]:
    """What stands between this process and an NPU, in the order in which to repair it; empty when nothing does."""
    lacking = []
    if not facts.driver:
        lacking.append("driver: /usr/local/Ascend/driver is not there; install it on the host, or mount it into the container (read-only)")
    if not facts.nodes:
        lacking.append(
            "device: no /dev/davinci<N>; request a card (resources.limits huawei.com/Ascend910), or see `npu-smi info` on the host"
        )
    else:
        absent = sorted(set(_MANAGERS) - {Path(node.path).name.removesuffix("_docker") for node in facts.managers})
        if absent:
            lacking.append(f"device: {', '.join('/dev/' + name for name in absent)} not there; mount them beside the card's own node")
    refused = [node for node in (*facts.nodes, *facts.managers) if not node.usable]
    if refused:
        shown = ", ".join(f"{node.path} (owner {node.owner}, mode {node.mode})" for node in refused[:3])
        lacking.append(
            f"permission: this process ({facts.user}) may not open {shown}{' …' if len(refused) > 3 else ''};"
            f" run as the owner or in its group (uid or supplemental group {refused[0].owner.partition(':')[2]})"
        )
    if facts.cann_home is None:
        lacking.append("CANN: ASCEND_HOME_PATH is not set; install CANN and source its set_env.sh before the start")
    elif not facts.ascendcl:
        lacking.append(f"CANN: libascendcl.so is neither in {facts.cann_home}/lib64 nor on LD_LIBRARY_PATH; source CANN's set_env.sh")
    if facts.torch_npu is None:
        lacking.append("torch_npu: not installed; in a clone: pip install '.[npu]' brings the version that fits torch")
    return (*lacking, *(f"versions: {misfit}" for misfit in misfits(facts.stack)))


def environment(choice: Choice, facts: HostFacts, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables to set before torch is imported; those that the user has set stay as they are."""
    wanted: dict[str, str] = {}
    if choice.device != "npu":
        # torch loads an installed torch_npu by itself, and torch_npu without CANN breaks `import torch`
        wanted["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        # OpenMP's threads would spin while they wait for each other; where another process wants the cores, a decode step then took
        # four to twenty times as long (2 threads on 2 busy cores, 16 sequences of the tiny model)
        wanted["OMP_WAIT_POLICY"] = "PASSIVE"
    elif environ.get("ASCEND_VISIBLE_DEVICES"):
        visible = visible_devices(facts, environ["ASCEND_VISIBLE_DEVICES"])
        if visible:
            wanted["ASCEND_RT_VISIBLE_DEVICES"] = ",".join(str(logic) for logic in visible)
    return {name: value for name, value in wanted.items() if name not in environ}


def visible_devices(facts: HostFacts, allocated: str) -> tuple[int, ...]:
    """CANN's logical ids of the allocated cards.

    The device plugin hands out physical ids (ASCEND_VISIBLE_DEVICES), CANN counts what the container sees from 0. Normally both sets are
    the same cards, so the answer is 0..n-1. A privileged container sees every card of the host; then the physical ids pick theirs.
    """
    chips = parse_npu_map(facts.npu_map)
    if not chips:
        return tuple(range(len(facts.nodes)))
    wanted = physical_ids(allocated)
    picked = tuple(chip.logic for chip in chips if chip.physical in wanted)
    if len(chips) > len(wanted) and len(picked) == len(wanted):
        return picked
    return tuple(range(len(chips)))


@dataclass(frozen=True)
class Chip:
    """One row of `npu-smi info -m`."""

    npu: int
    chip: int
    logic: int
    physical: int  # the Phy-ID column of A3; elsewhere one chip a card, and the NPU id is the physical one
    name: str


def parse_npu_map(text: str) -> tuple[Chip, ...]:
    """The chips of `npu-smi info -m`, without the rows of the MCU (logic id "-"); empty for any other text."""
    chips, has_physical = [], False
    for line in text.splitlines():
        cells = re.split(r"\s{2,}|\t", line.strip())
        if cells[0] == "NPU ID":
            has_physical = "Chip Phy-ID" in cells
        elif len(cells) >= 4 and all(cell.isdigit() for cell in cells[:3]):
            physical = int(cells[3]) if has_physical and cells[3].isdigit() else int(cells[0])
            chips.append(Chip(int(cells[0]), int(cells[1]), int(cells[2]), physical, cells[-1]))
    return tuple(chips)


def physical_ids(allocated: str) -> frozenset[int]:
    """Ids in ASCEND_VISIBLE_DEVICES: `3,4`, `0-3`, `Ascend910-3,Ascend910-4`."""
    ids: set[int] = set()
    for item in allocated.split(","):
        if match := re.fullmatch(r"\s*(\d+)-(\d+)\s*", item):
            first, last = int(match[1]), int(match[2])
            ids.update(range(first, min(last, first + 1024) + 1))
        elif match := re.fullmatch(r"\s*(?:[A-Za-z]\w*-)?(\d+)\s*", item):
            ids.add(int(match[1]))
    return frozenset(ids)


def read_host(environ: Mapping[str, str], root: Path = Path("/")) -> HostFacts:
    """Look at this machine. `root` is where its files are."""
    dev = root / "dev"
    managers = [path for name in _MANAGERS for path in (dev / name, dev / f"{name}_docker") if path.exists()]
    cards = sorted(
        (path for path in dev.glob("davinci*") if path.name.removeprefix("davinci").isdigit()), key=lambda path: int(path.name[7:])
    )
    home = environ.get("ASCEND_HOME_PATH") or environ.get("ASCEND_TOOLKIT_HOME")
    libraries = [Path(folder) for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    if home:
        libraries.append(Path(home) / "lib64")
    assigned = environ.get("ASCEND_VISIBLE_DEVICES", "").strip()
    npu_map, torch_npu = _npu_map(environ) if cards else "", _installed("torch_npu")
    stack = Stack(
        driver=read_driver(root),
        cann=read_cann(home),
        torch=_installed("torch"),
        torch_npu=torch_npu,
        kernels=read_kernels(home),
        chips=tuple(chip.name for chip in parse_npu_map(npu_map)),
    )
    return HostFacts(
        driver=(root / _DRIVER).is_dir(),
        nodes=tuple(_node(path, root) for path in cards),
        managers=tuple(_node(path, root) for path in managers),
        cann_home=home,
        ascendcl=any((folder / "libascendcl.so").exists() for folder in libraries),
        torch_npu=torch_npu,
        cuda=any(dev.glob("nvidia[0-9]*")) and not (_installed("torch") or "+cpu").endswith("+cpu"),
        user=f"uid {os.getuid()}, groups {','.join(str(group) for group in sorted({os.getgid(), *os.getgroups()}))}",
        npu_map=npu_map,
        assigned="" if assigned == _NO_CARD else assigned,
        stack=stack,
    )


def _node(path: Path, root: Path) -> DeviceNode:
    info = path.stat()
    usable = os.access(path, os.R_OK | os.W_OK)
    return DeviceNode(f"/{path.relative_to(root)}", f"{info.st_uid}:{info.st_gid}", f"{stat.S_IMODE(info.st_mode):04o}", usable)


def _installed(package: str) -> str | None:
    """Version of a package that can be imported, without importing it."""
    if importlib.util.find_spec(package) is None:
        return None
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _npu_map(environ: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            ["npu-smi", "info", "-m"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_NPU_SMI_SECONDS,
            check=False,
            env=dict(environ),
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
