"""Cores of each rank from what real tools and kernels print; nothing of this machine is looked at."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from glm5_runtime.train.distributed import affinity
from glm5_runtime.train.distributed.affinity import divide, near_bus, parse_buses, parse_list, parse_topology

if TYPE_CHECKING:
    from collections.abc import Callable

# `npu-smi info -t topo` of a server with eight 910B3, as it was printed.
TOPOLOGY = """\
\t   NPU0       NPU1       NPU2       NPU3       NPU4       NPU5       NPU6       NPU7       CPU Affinity
NPU0       X          HCCS       HCCS       HCCS       HCCS       HCCS       HCCS       HCCS       144-167
NPU1       HCCS       X          HCCS       HCCS       HCCS       HCCS       HCCS       HCCS       144-167
NPU2       HCCS       HCCS       X          HCCS       HCCS       HCCS       HCCS       HCCS       96-119
NPU3       HCCS       HCCS       HCCS       X          HCCS       HCCS       HCCS       HCCS       96-119
NPU4       HCCS       HCCS       HCCS       HCCS       X          HCCS       HCCS       HCCS       0-23
NPU5       HCCS       HCCS       HCCS       HCCS       HCCS       X          HCCS       HCCS       0-23
NPU6       HCCS       HCCS       HCCS       HCCS       HCCS       HCCS       X          HCCS       48-71
NPU7       HCCS       HCCS       HCCS       HCCS       HCCS       HCCS       HCCS       X          48-71

Legend:

  X    = Self
  SYS  = Path traversing PCIe and NUMA nodes. Nodes are connected through SMP, such as QPI, UPI.
"""
INFO = """\
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 101.8       43                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3318 / 65536         |
+===========================+===============+====================================================+
| 1     910B3               | OK            | 92.0        39                0    / 0             |
| 0                         | 0000:01:00.0  | 0           0    / 0          3314 / 65536         |
+===========================+===============+====================================================+
"""


def test_ranks_run_near_their_cards_and_share_what_is_near_both() -> None:
    cores = divide(set(range(192)), parse_topology(TOPOLOGY))

    assert cores[0] == set(range(144, 156))
    assert cores[1] == set(range(156, 168))
    assert cores[4] == set(range(12))
    assert cores[7] == set(range(60, 72))
    assert len(set.union(*cores)) == sum(map(len, cores)) == 96


@pytest.mark.parametrize(
    ("allowed", "near", "expected"),
    [
        ({0, 1, 2, 3}, [None, None], [{0, 1}, {2, 3}]),
        ({0, 1, 2}, [None, None], [{0}, {1, 2}]),
        ({5}, [None, None], [{5}, {5}]),
        ({0, 1, 2, 3}, [{0}, None], [{0, 1}, {2, 3}]),
        ({0, 1, 2, 3}, [{8, 9}, {2, 3, 8}], [{0, 1, 2, 3}, {2, 3}]),
        ({3}, [{2, 3}, {2, 3}, {2, 3}], [{3}, {3}, {3}]),
    ],
    ids=["no facts", "an odd core", "too few cores", "facts of one alone", "a container without the near ones", "more ranks than cores"],
)
def test_every_rank_gets_cores_that_it_may_use(allowed: set[int], near: list[set[int] | None], expected: list[set[int]]) -> None:
    assert divide(allowed, near) == expected


def test_lists_of_cores_are_read_as_the_kernel_writes_them() -> None:
    assert parse_list("0-2,8,10-11\n") == {0, 1, 2, 8, 10, 11}
    with pytest.raises(ValueError, match="invalid literal"):
        parse_list("")


def test_the_bus_says_the_node_and_the_node_its_cores(tmp_path: Path) -> None:
    devices, nodes = tmp_path / "sys/bus/pci/devices", tmp_path / "sys/devices/system/node"
    for bus, node in (("0000:c1:00.0", "3"), ("0000:01:00.0", "-1")):
        (devices / bus).mkdir(parents=True)
        (devices / bus / "numa_node").write_text(f"{node}\n")
    (nodes / "node3").mkdir(parents=True)
    (nodes / "node3" / "cpulist").write_text("144-191\n")

    assert parse_buses(INFO) == ["0000:c1:00.0", "0000:01:00.0"]
    assert near_bus("0000:c1:00.0", tmp_path) == set(range(144, 192))
    assert near_bus("0000:01:00.0", tmp_path) is None
    assert near_bus("0000:ff:00.0", tmp_path) is None


@pytest.fixture
def npu_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A tool of that name that prints this text."""

    def install(text: str) -> None:
        (tmp_path / "printed").write_text(text)
        (tmp_path / "npu-smi").write_text(f'#!/bin/sh\n[ "$3" = topo ] && cat {tmp_path}/printed\nexit 0\n')
        (tmp_path / "npu-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return install


def test_the_cards_that_are_visible_are_those_that_count(npu_smi: Callable[[str], None]) -> None:
    npu_smi(TOPOLOGY)

    assert affinity.near(2, {}) == [set(range(144, 168)), set(range(144, 168))]
    assert affinity.near(2, {"ASCEND_RT_VISIBLE_DEVICES": "3,4"}) == [set(range(96, 120)), set(range(24))]


def test_a_tool_that_says_nothing_or_no_card_leaves_cores_to_be_divided(npu_smi: Callable[[str], None]) -> None:
    npu_smi("Error: command not supported")

    assert affinity.near(2, {}) == [None, None]
    npu_smi(TOPOLOGY)
    assert affinity.near(9, {}) == [None] * 9
    assert affinity.near(2, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}) == [None, None]
