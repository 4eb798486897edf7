"""Which cores each rank of a node runs on: those near its card, so that launches and copies don't cross the machine's sockets.

Called by the launcher; each rank binds itself before it has threads. `divide` and the parsers are pure; `near` looks at the machine.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_SECONDS = 20
"""npu-smi answers in under one second, and can hang for ever on a card that has fallen off the bus."""
_BUS = re.compile(r"\b([0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\b")


def divide(allowed: set[int], near: Sequence[set[int] | None]) -> list[set[int]]:
    """The cores of each local rank: those of its card's node that it may use, shared with the other ranks there; evenly without facts.

    `allowed`: cores of this process; `near[rank]`: those near its card. Where there are more ranks than cores, ranks share one.
    """
    wanted = [(own or allowed) & allowed or allowed for own in near]
    if any(own is None for own in near):
        wanted = [allowed] * len(near)
    places: dict[frozenset[int], list[int]] = {}
    for rank, own in enumerate(wanted):
        places.setdefault(frozenset(own), []).append(rank)
    given: list[set[int]] = [set() for _ in near]
    for cores, ranks in places.items():
        ordered = sorted(cores)
        for place, rank in enumerate(ranks):
            start, end = (len(ordered) * at // len(ranks) for at in (place, place + 1))
            given[rank] = set(ordered[start:end]) or {ordered[place % len(ordered)]}
    return given


def parse_list(text: str) -> set[int]:
    """Cores of `0-3,8` as the kernel and npu-smi write them; raises ValueError."""
    cores: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores


def parse_topology(text: str) -> list[set[int]]:
    """Cores near each card, of `npu-smi info -t topo`, in the cards' order; empty for any other text."""
    found = []
    for line in text.splitlines():
        cells = line.split()
        if cells and re.fullmatch(r"(NPU|Phy-ID)\d+", cells[0]) and re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", cells[-1]):
            found.append(parse_list(cells[-1]))
    return found


def parse_buses(text: str) -> list[str]:
    """PCI addresses of the chips of `npu-smi info`, in their order."""
    return [match[1].lower() for line in text.splitlines() if (match := _BUS.search(line))]


def near_bus(bus: str, root: Path = Path("/")) -> set[int] | None:
    """Cores of the NUMA node that a PCI device hangs on; None where the machine doesn't say."""
    try:
        node = int((root / "sys/bus/pci/devices" / bus / "numa_node").read_text())
        return None if node < 0 else parse_list((root / f"sys/devices/system/node/node{node}/cpulist").read_text())
    except (OSError, ValueError):
        return None


def near(count: int, environ: Mapping[str, str]) -> list[set[int] | None]:
    """Cores near each of this process's cards, as far as the machine tells; by the topology, else by their places on the bus."""
    nothing: list[set[int] | None] = [None] * count
    if environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":  # no NPU is used (`device.environment`)
        return nothing
    picked = _picked(environ)
    for found in (parse_topology(_npu_smi("info", "-t", "topo")), [near_bus(bus) for bus in parse_buses(_npu_smi("info"))]):
        chosen = [found[index] for index in picked if index < len(found)] if picked else list(found)
        if len(chosen) >= count:
            return list(chosen[:count])
    return nothing


def _picked(environ: Mapping[str, str]) -> list[int]:
    """Which of the cards in sight are this process's (`device.environment`); empty: all."""
    text = environ.get("ASCEND_RT_VISIBLE_DEVICES", "")
    return [int(item) for item in text.split(",") if item.strip().isdecimal()]


def _npu_smi(*arguments: str) -> str:
    try:
        return subprocess.run(
            ["npu-smi", *arguments], capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def bind(cores: Iterable[int]) -> None:
    """This process and the threads that it will start. A machine that refuses is left alone: it is only slower."""
    try:
        os.sched_setaffinity(0, set(cores))
    except OSError:
        return
