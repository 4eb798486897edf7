"""The fake npu-smi prints what real machines printed, byte for byte, where the state is the same.

The program is the one that pods get; the fixtures are pastes from real machines (their origin: README beside them).
"""

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.devices import Device, NodeDevices, Process
from tests.unit.cluster.npu_smi import Smi, fixture, smi

__all__ = ["smi"]


def rows(text: str) -> list[tuple[str, float | None, int, int, str]]:
    """Bus id, power, temperature, HBM in use and health of each device in a table of npu-smi."""
    found = re.findall(r"\| \d+ +\S+ +\| (\w+) +\| ([\d.]+|-) +(\d+) .*\n\|[^|]+\| (\S+) +\| \d+ +\d+ +/ \d+ +(\d+) */", text)
    return [(bus, None if power == "-" else float(power), int(heat), int(used), health) for health, power, heat, bus, used in found]


def processes(text: str) -> dict[tuple[int, int], tuple[Process, ...]]:
    found: dict[tuple[int, int], tuple[Process, ...]] = {}
    for npu, chip, pid, name, memory in re.findall(r"\| (\d+) +(\d+) +\| (\d+) +\| (\S*) +\| (\d+) +\|", text):
        key = (int(npu), int(chip))
        found[key] = (*found.get(key, ()), Process(int(pid), name, int(memory)))
    return found


def node_as_in(text: str, base: NodeDevices) -> NodeDevices:
    """The base with the numbers of a table: what the fake must know to print that table again."""
    running = processes(text)
    chips = 2 if base.product == "A3" else 1
    devices = [
        Device(i // chips, i % chips, i, bus, health=health, power=power, temperature=heat, hbm_used=used)
        for i, (bus, power, heat, used, health) in enumerate(rows(text))
    ]
    with_processes = tuple(replace(device, processes=running.get((device.npu, device.chip), ())) for device in devices)
    version = re.search(r"npu-smi (\S+)", text)
    assert version is not None
    return replace(base, version=version[1], devices=with_processes)


def test_an_idle_a2_node_prints_the_table_of_a_real_one(smi: Smi) -> None:
    expected = fixture("info_910b3_8card_idle_24.1.rc1")  # that paste ends before the process table
    code, printed = smi(NodeDevices.idle("A2"), "info")
    assert code == 0
    assert printed[: len(expected)] == expected
    assert printed[len(expected) :].count("No running processes found in NPU") == 8


def test_a_loaded_box_of_sixteen_prints_the_same_table_with_its_processes(smi: Smi) -> None:
    expected = fixture("info_910b2c_16card_loaded_24.1.rc1")
    node = replace(node_as_in(expected, NodeDevices.idle("A2")), name="910B2C")
    assert len(node.devices) == 16
    assert smi(node, "info")[1] == expected


def test_an_a3_node_prints_both_dies_of_each_module(smi: Smi) -> None:
    expected = fixture("info_a3_8npu_16die_partial_25.3.rc1")
    node = node_as_in(expected, NodeDevices.idle("A3"))
    assert len(node.devices) == 16
    assert smi(node, "info")[1] == expected


def test_a_container_on_a3_sees_its_module_under_physical_ids(smi: Smi) -> None:
    expected = fixture("info_a3_container_subset_npu2_24.1.rc3.7")
    node = replace(NodeDevices.idle("A3"), version="24.1.rc3.7")
    numbers = rows(expected)
    for physical, (bus, power, heat, used, health) in zip((4, 5), numbers, strict=True):
        node = node.change(physical, bus=bus, power=power, temperature=heat, hbm_used=used, health=health)
    assert smi(node, "info", visible="4,5")[1] == expected


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("synthetic_info_910b3_npu3_alarm", NodeDevices.idle("A2").change(3, health="Alarm")),
        ("synthetic_info_910b3_npu3_missing", NodeDevices.idle("A2").only({0, 1, 2, 4, 5, 6, 7})),
    ],
)
def test_a_sick_or_lost_card_shows_in_the_table(smi: Smi, name: str, node: NodeDevices) -> None:
    expected = fixture(name)
    assert smi(node, "info")[1].startswith(expected)


@pytest.mark.parametrize(("product", "name"), [("A2", "list_l_910b_8card"), ("A3", "list_l_a3_8npu")])
def test_the_list_counts_modules_and_their_chips(smi: Smi, product: str, name: str) -> None:
    assert smi(NodeDevices.idle(product), "info", "-l")[1] == fixture(name)


def test_the_map_of_a_host_numbers_every_chip(smi: Smi) -> None:
    node = replace(NodeDevices.idle("A2"), chip_name="Ascend 910B4")
    assert smi(node, "info", "-m")[1] == fixture("map_m_910b4_8card")


@pytest.mark.parametrize("visible", ["3,4", "3-4", "Ascend910-3,Ascend910-4"])
def test_the_map_in_a_container_counts_logic_ids_from_zero(smi: Smi, visible: str) -> None:
    assert smi(NodeDevices.idle("A2"), "info", "-m", visible=visible)[1] == fixture("map_m_910b3_container_subset")


def test_the_map_of_a3_has_physical_ids(smi: Smi) -> None:
    expected = fixture("map_m_a3_phyid").splitlines()  # its first four rows and a part of the fifth
    printed = smi(NodeDevices.idle("A3"), "info", "-m")[1].splitlines()
    assert printed[: len(expected)] == expected
    assert len(printed) == 1 + 8 * 3


def test_health_of_a_good_and_of_a_faulty_chip(smi: Smi) -> None:
    node = NodeDevices.idle("A2")
    assert smi(node, "info", "-t", "health", "-i", "0", "-c", "0")[1] == fixture("t_health_ok_910")
    text = "node type=HBM, sensor type=ECC, event state=Multi Bit ECC"
    faulty = node.change(0, health="Warning", codes=("80E01801",), information=(text,))
    assert smi(faulty, "info", "-t", "health", "-i", "0", "-c", "0")[1] == fixture("synthetic_t_health_warning")


def test_usages_temperature_and_memory_have_the_real_keys_and_widths(smi: Smi) -> None:
    node = NodeDevices.idle("A2")
    small = node.change(0, ddr_total=13553, ddr_rate=6, hbm_total=31129, hbm_used=0)
    assert smi(small, "info", "-t", "usages", "-i", "0")[1] == fixture("t_usages_910a")
    assert smi(node.change(0, temperature=39), "info", "-t", "temp", "-i", "0")[1] == fixture("t_temp_910b_server")
    large = node.change(0, hbm_total=131072, hbm_clock=3200, hbm_temperature=63)
    assert smi(large, "info", "-t", "memory", "-i", "0")[1] == fixture("t_memory_950")


def test_a_busy_card_shows_its_utilisation(smi: Smi) -> None:
    busy = NodeDevices.idle("A2").change(0, aicore=97, hbm_used=65000)
    printed = smi(busy, "info", "-t", "usages", "-i", "0")[1]
    assert re.search(r"Aicore Usage Rate\(%\) +: 97\n", printed)
    assert re.search(r"HBM Usage Rate\(%\) +: 99\n", printed)


def test_a_card_that_fell_off_the_bus_is_an_invalid_id(smi: Smi) -> None:
    code, printed = smi(NodeDevices.idle("A2").only(range(7)), "info", "-t", "health", "-i", "7")
    assert (code, printed) == (1, fixture("err_card_lost_invalid_id"))


def test_a_container_without_cards_cannot_open_the_driver(smi: Smi) -> None:
    code, printed = smi(NodeDevices.idle("A2"), "info", visible="void")
    assert (code, printed) == (1, fixture("err_dcmi_8005_no_device_access"))


@pytest.mark.parametrize("words", [("reset", "-i", "0"), ("dmon",)])
def test_commands_that_do_not_exist_are_refused_as_the_real_tool_does(smi: Smi, words: tuple[str, ...]) -> None:
    assert smi(NodeDevices.idle("A2"), *words) == (1, fixture("err_unknown_subcommand"))


def test_the_version_line(smi: Smi) -> None:
    assert smi(replace(NodeDevices.idle("A2"), version="25.5.2"), "-v")[1] == fixture("version")


def test_a_file_that_is_no_json_is_no_device(smi: Smi, tmp_path: Path) -> None:
    smi(NodeDevices.idle("A2"), "-v")
    smi.state.write_text(json.dumps({"devices": "none"}))
    done = subprocess.run([smi.program, "info"], env={"GLM5_FAKE_ASCEND": str(smi.state)}, capture_output=True, text=True, check=False)
    assert (done.returncode, "-8005" in done.stdout) == (1, True)
