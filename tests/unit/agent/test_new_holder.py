"""A pod that starts between two questions to kubelet. Real: kubelet's own generated server code, the parsers. Scripted: npu-smi."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pod_resources import PodResources, pod, serving
from tests.support.vendor_tools import Bench, exited, text

NOW = "2026-11-30T12:00:00Z"
LOADED = text("info_910b2c_16card_loaded_24.1.rc1.txt")
PROCESS = "| 3       0                 | 1000"
FREE = "No running processes found in NPU 3"


@pytest.fixture
def home() -> Iterator[Path]:
    """Short: a socket's path may have 107 characters at most."""
    with tempfile.TemporaryDirectory(prefix="pr-") as folder:
        yield Path(folder)


@pytest.fixture
def bench(home: Path) -> Bench:
    return Bench.at(home)


@pytest.fixture
def kubelet(bench: Bench) -> Iterator[PodResources]:
    with serving(Path(bench.settings.node.root) / bench.settings.node.kubelet.lstrip("/") / "pod-resources/kubelet.sock") as server:
        yield server


def table(*, used: bool) -> str:
    """Card 3 with its process or without; the others have theirs, and their pods."""
    rows = LOADED.splitlines(keepends=True)
    (number,) = [number for number, row in enumerate(rows) if row.startswith(PROCESS)]
    free = f"| {FREE:<94} |\n"
    return LOADED if used else "".join([*rows[:number], free, *rows[number + 1 :]])


async def test_a_process_that_appears_on_a_free_card_has_its_pod_in_the_same_reading(bench: Bench, kubelet: PodResources) -> None:
    """Or the audit of the pool would tell each pod that starts as a process of nobody."""
    others = pod("others", *(f"Ascend910-{number}" for number in range(16) if number != 3))
    kubelet.say([others])
    bench.runner.answers["npu-smi info"] = exited(table(used=False))
    before = await bench.collector.read(NOW, 0.0)
    assert (before.cards[3].pids, before.cards[3].holder) == ((), None)

    kubelet.say([others, pod("new", "Ascend910-3")])
    bench.runner.answers["npu-smi info"] = exited(table(used=True))
    after = await bench.collector.read(NOW, 2.0)

    assert after.cards[3].pids
    assert after.cards[3].holder is not None
    assert after.cards[3].holder.pod == "new"
