"""What a measured process and the rest of the machine used, read from /proc. Used by the benchmarks."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """Accumulated use of one process.

    Attributes:
        cpu: user and system seconds since its start.
        children_cpu: the same of its children that have ended.
        rss_mb: resident megabytes now.
        peak_mb: resident megabytes at the highest.
    """

    cpu: float
    children_cpu: float
    rss_mb: float
    peak_mb: float

    @classmethod
    def of(cls, pid: int) -> Self:
        """Read it for a running process."""
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
        return cls(
            cpu=(int(fields[11]) + int(fields[12])) / _TICKS,
            children_cpu=(int(fields[13]) + int(fields[14])) / _TICKS,
            rss_mb=int(status["VmRSS"].split()[0]) / 1024,
            peak_mb=int(status["VmHWM"].split()[0]) / 1024,
        )


def family_rss_mb(pid: int) -> float:
    """Resident megabytes of a running process and of its children now; one that ends meanwhile doesn't count."""
    found = Usage.of(pid).rss_mb
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError, KeyError):  # threads and children end while they are looked at
            found += sum(Usage.of(int(child)).rss_mb for child in (thread / "children").read_text().split())
    return found


def machine_cpu_seconds() -> float:
    """CPU seconds that all processes of the machine have used since boot."""
    numbers = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    idle = numbers[3] + numbers[4]
    return (sum(numbers[:8]) - idle) / _TICKS


def machine() -> str:
    """One line about the machine and the versions that decide the numbers."""
    model = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "CPU")
    memory = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    size = f"{os.cpu_count()} x {model}, {memory / 2**20:.0f} GB"
    return f"{size}, Linux {'.'.join(platform.release().split('.')[:2])}, Python {platform.python_version()}, commit {commit}"
