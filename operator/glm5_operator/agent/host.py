"""The host's own files, under its root as it is mounted: devices, PCIe, NUMA, memory, disks, versions. Called by `collect` and `rare`.

Only reads; what isn't there or can't be read is absent.
"""

from __future__ import annotations

import os
import platform
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from glm5_operator.api.node_facts import DeviceNode, HostReport

if TYPE_CHECKING:
    from pathlib import Path

CPU_FLAGS: Final = frozenset({"avx512f", "avx512_bf16", "amx_bf16", "amx_tile", "asimd", "sve", "bf16", "i8mm"})
DRIVER_NODES: Final = ("davinci[0-9]*", "davinci_manager", "devmm_svm", "hisi_hdc")
_DAVINCI = re.compile(r"davinci(\d+)")
_MOST_NODES, _MOST_DISKS = 96, 32
_MOST_BYTES: Final = 4 * 2**20
"""Of a file: what is read of /proc/cpuinfo for a thousand processors."""


@dataclass(frozen=True, slots=True)
class Pcie:
    """A card's slot."""

    now: str | None = None
    most: str | None = None
    numa: int | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """The host's files."""

    root: Path

    def path(self, name: str | Path) -> Path:
        """Where a path of the host is found."""
        return self.root / str(name).lstrip("/")

    def text(self, name: str) -> str | None:
        """A file's text, or its beginning; None when there is none or it can't be read. What is no file (a pipe) would never end."""
        try:
            opened = os.open(self.path(name), os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                return None
            with os.fdopen(opened, "rb", closefd=False) as file:
                return file.read(_MOST_BYTES).decode(errors="replace")
        except OSError:
            return None
        finally:
            os.close(opened)

    def davinci(self) -> frozenset[int]:
        """N of every /dev/davinciN."""
        try:
            names = [entry.name for entry in self.path("dev").iterdir()]
        except OSError:
            return frozenset()
        return frozenset(int(found[1]) for name in names if (found := _DAVINCI.fullmatch(name)))

    def pcie(self, bus: str | None) -> Pcie:
        """Link and NUMA node of a PCI device, by npu-smi's bus id (0000:C1:00.0)."""
        if bus is None:
            return Pcie()
        folder = f"sys/bus/pci/devices/{bus.lower()}"
        numa = _number(self.text(f"{folder}/numa_node"))
        return Pcie(
            now=self._link(folder, "current"),
            most=self._link(folder, "max"),
            numa=numa if numa is not None and numa >= 0 else None,  # -1 is the kernel's word for none
        )

    def _link(self, folder: str, which: str) -> str | None:
        speed, width = self.text(f"{folder}/{which}_link_speed"), self.text(f"{folder}/{which}_link_width")
        if speed is None or width is None or not speed.strip():
            return None
        return f"{speed.strip().removesuffix(' PCIe')} x{width.strip()}"[:128]

    def report(self) -> HostReport:
        """All that preflight and doctor want to know of the host."""
        cpus = self.text("proc/cpuinfo") or ""
        memory = self.text("proc/meminfo") or ""
        total = re.search(r"^MemTotal:\s+(\d+) kB", memory, re.MULTILINE)
        pages = re.search(r"^HugePages_Total:\s+(\d+)", memory, re.MULTILINE)
        nodes = self._glob("sys/devices/system/node", "node[0-9]*")
        flags = set(re.findall(r"\w+", "\n".join(re.findall(r"^(?:flags|Features)\s*:(.*)", cpus, re.MULTILINE))))
        return HostReport(
            kernel=(self.text("proc/sys/kernel/osrelease") or "").strip()[:128] or None,
            architecture=platform.machine()[:128] or None,
            cpu_flags=tuple(sorted(flags & CPU_FLAGS)) or None,
            cpus=len(re.findall(r"^processor\s*:", cpus, re.MULTILINE)) or None,
            numa_nodes=len(nodes) or None,
            memory=int(total[1]) // 1024 if total else None,
            hugepages=int(pages[1]) if pages else None,
            disks=self._disks() or None,
            device_nodes=self._device_nodes() or None,
        )

    def _disks(self) -> tuple[str, ...]:
        disks = []
        for disk in self._glob("sys/block", "nvme*"):
            sectors = _number(self.text(f"sys/block/{disk.name}/size"))
            if sectors:
                disks.append(f"{disk.name}={sectors * 512 // 2**30}")
        return tuple(disks[:_MOST_DISKS])

    def _device_nodes(self) -> tuple[DeviceNode, ...]:
        found = []
        for pattern in DRIVER_NODES:
            for file in self._glob("dev", pattern):
                try:
                    state = file.stat()
                except OSError:
                    continue
                found.append(
                    DeviceNode(path=f"/dev/{file.name}", owner=f"{state.st_uid}:{state.st_gid}", mode=f"{state.st_mode & 0o7777:04o}")
                )
        return tuple(found[:_MOST_NODES])

    def _glob(self, folder: str, pattern: str) -> list[Path]:
        try:
            return sorted(self.path(folder).glob(pattern), key=lambda path: (len(path.name), path.name))
        except OSError:
            return []


def _number(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None
