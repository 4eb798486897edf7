"""The host's files under a root of the test's: what is there is read, what isn't is absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from glm5_operator.agent.host import Host, Pcie
from glm5_operator.api.node_facts import HostReport


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {
        "proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd sve bf16 i8mm\n\nprocessor\t: 1\nFeatures\t: fp asimd sve bf16 i8mm\n",
        "proc/meminfo": "MemTotal:       2113530112 kB\nHugePages_Total:     512\n",
        "proc/sys/kernel/osrelease": "5.10.0-216.0.0\n",
        "sys/devices/system/node/node0/cpulist": "",
        "sys/devices/system/node/node1/cpulist": "",
        "sys/block/nvme0n1/size": "7501476528\n",
        "sys/block/sda/size": "100\n",
        "dev/davinci0": "",
        "dev/davinci10": "",
        "dev/davinci_manager": "",
        "dev/null": "",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "dev/davinci0").chmod(0o660)
    return tmp_path


def test_cpu_memory_disks_and_kernel_are_read(root: Path) -> None:
    report = Host(root).report()

    assert (report.kernel, report.cpus, report.numa_nodes) == ("5.10.0-216.0.0", 2, 2)
    assert (report.memory, report.hugepages) == (2063994, 512)
    assert report.cpu_flags == ("asimd", "bf16", "i8mm", "sve")
    assert report.disks == ("nvme0n1=3576",)


def test_device_files_have_their_owner_and_mode(root: Path) -> None:
    host = Host(root)
    owner = (root / "dev/davinci0").stat()

    nodes = {node.path: node for node in host.report().device_nodes or ()}

    assert set(nodes) == {"/dev/davinci0", "/dev/davinci10", "/dev/davinci_manager"}
    assert (nodes["/dev/davinci0"].owner, nodes["/dev/davinci0"].mode) == (f"{owner.st_uid}:{owner.st_gid}", "0660")
    assert host.davinci() == {0, 10}


def test_an_empty_root_gives_an_empty_report_and_no_zero(tmp_path: Path) -> None:
    host = Host(tmp_path / "nothing")

    assert host.report() == HostReport(architecture=host.report().architecture)
    assert host.davinci() == frozenset()
    assert host.pcie("0000:C1:00.0") == Pcie()


@pytest.mark.parametrize("text", ["", "-1\n", "many\n", "\xff"])
def test_a_numa_node_that_is_none_is_absent(tmp_path: Path, text: str) -> None:
    slot = tmp_path / "sys/bus/pci/devices/0000:c1:00.0"
    slot.mkdir(parents=True)
    (slot / "numa_node").write_text(text, encoding="latin-1")

    assert Host(tmp_path).pcie("0000:C1:00.0").numa is None


def test_what_is_no_file_is_absent_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "file").write_text("Version=25.2.0")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(500 * 2**20)

    host, open_files = Host(tmp_path), len(os.listdir("/proc/self/fd"))

    assert [host.text(name) for name in ("pipe", "folder", "zero", "none", "file")] == [None, None, None, None, "Version=25.2.0"]
    assert len(host.text("huge") or "") == 4 * 2**20
    assert len(os.listdir("/proc/self/fd")) == open_files
