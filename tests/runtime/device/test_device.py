"""Choosing the device. Every branch over facts; the reader over a folder that looks like a machine."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from glm5_runtime.device import (
    Chip,
    Choice,
    DeviceNode,
    DeviceUnusable,
    HostFacts,
    choose,
    environment,
    npu_lacks,
    parse_npu_map,
    physical_ids,
    read_host,
    visible_devices,
    wanted,
)

OUTPUTS = Path(__file__).parents[2] / "fixtures" / "npu-smi"


def node(name: str, *, usable: bool = True) -> DeviceNode:
    return DeviceNode(f"/dev/{name}", "1000:1000", "0660", usable)


MANAGERS = tuple(node(name) for name in ("davinci_manager", "hisi_hdc", "devmm_svm"))
NPU = HostFacts(
    driver=True,
    nodes=(node("davinci3"), node("davinci4")),
    managers=MANAGERS,
    cann_home="/usr/local/Ascend/ascend-toolkit/latest",
    ascendcl=True,
    torch_npu="2.12.0",
    cuda=False,
    user="uid 1000, groups 1000",
)
PLAIN = HostFacts(
    driver=False, nodes=(), managers=(), cann_home=None, ascendcl=False, torch_npu=None, cuda=False, user="uid 1000, groups 1000"
)


@pytest.mark.parametrize(
    ("change", "part", "remedy"),
    [
        ({"driver": False}, "driver:", "/usr/local/Ascend/driver"),
        ({"nodes": (), "managers": ()}, "device:", "huawei.com/Ascend910"),
        ({"managers": MANAGERS[:1]}, "device:", "/dev/devmm_svm, /dev/hisi_hdc"),
        ({"nodes": (node("davinci3", usable=False),)}, "permission:", "/dev/davinci3 (owner 1000:1000, mode 0660)"),
        ({"managers": (*MANAGERS[:2], node("devmm_svm", usable=False))}, "permission:", "/dev/devmm_svm"),
        ({"cann_home": None}, "CANN:", "set_env.sh"),
        ({"ascendcl": False}, "CANN:", "libascendcl.so"),
        ({"torch_npu": None}, "torch_npu:", "pip install"),
    ],
)
def test_what_an_npu_lacks_is_named_with_its_remedy(change: dict[str, object], part: str, remedy: str) -> None:
    facts = replace(NPU, **change)  # type: ignore[arg-type]

    (lack,) = npu_lacks(facts)

    assert lack.startswith(part)
    assert remedy in lack
    with pytest.raises(DeviceUnusable, match=part):
        choose("npu", facts)
    if facts.nodes:
        with pytest.raises(DeviceUnusable, match=part):
            choose("auto", facts)


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        (replace(PLAIN, assigned="3,4"), "ASCEND_VISIBLE_DEVICES=3,4"),
        (replace(PLAIN, assigned="3", cuda=True), "ASCEND_VISIBLE_DEVICES=3"),
        (replace(NPU, torch_npu=None), "/dev/davinci3, /dev/davinci4"),
    ],
)
def test_auto_beside_a_card_that_cannot_be_used_is_an_error_with_everything_missing_and_the_way_out(facts: HostFacts, named: str) -> None:
    with pytest.raises(DeviceUnusable) as caught:
        choose("auto", facts)

    told = str(caught.value)
    assert named in told
    assert [lack for lack in npu_lacks(facts) if lack not in told] == []
    assert "--device cpu or GLM5_DEVICE=cpu" in told
    assert choose("cpu", facts).device == "cpu"


def test_auto_without_a_card_is_the_cpu_and_the_reason_names_everything_missing() -> None:
    choice = choose("auto", PLAIN)

    assert choice.device == "cpu"
    assert [lack for lack in npu_lacks(PLAIN) if lack not in choice.reason] == []


def test_everything_missing_is_reported_together_in_the_order_of_repair() -> None:
    with pytest.raises(DeviceUnusable) as caught:
        choose("npu", PLAIN)

    parts = [line.strip("- ").partition(":")[0] for line in str(caught.value).splitlines()[1:]]
    assert parts == ["driver", "device", "CANN", "torch_npu"]


def test_the_permission_message_says_who_we_are_and_which_group_to_join() -> None:
    (lack,) = npu_lacks(replace(NPU, nodes=(node("davinci0", usable=False),), user="uid 65532, groups 65532"))

    assert "uid 65532" in lack
    assert "group 1000" in lack


@pytest.mark.parametrize(
    ("requested", "facts", "device"),
    [
        ("auto", NPU, "npu"),
        ("auto", replace(NPU, cuda=True), "npu"),
        ("auto", replace(PLAIN, cuda=True), "cuda"),
        ("auto", PLAIN, "cpu"),
        ("npu", NPU, "npu"),
        ("cuda", replace(PLAIN, cuda=True), "cuda"),
        ("cpu", NPU, "cpu"),
    ],
)
def test_the_device_is_chosen_with_a_reason(requested: str, facts: HostFacts, device: str) -> None:
    choice = choose(requested, facts)

    assert choice.device == device
    assert choice.reason


def test_cuda_that_is_not_there_is_refused() -> None:
    with pytest.raises(DeviceUnusable, match="nvidia"):
        choose("cuda", PLAIN)


def text(name: str) -> str:
    return (OUTPUTS / name).read_text()


@pytest.mark.parametrize(
    ("name", "chips"),
    [
        ("map_m_910b4_8card.txt", [(card, 0, card, card) for card in range(8)]),
        ("map_m_910a_8card.txt", [(card, 0, card, card) for card in range(8)]),
        ("map_m_910b3_container_subset.txt", [(3, 0, 0, 3), (4, 0, 1, 4)]),
        ("map_m_a3_phyid.txt", [(0, 0, 0, 0), (0, 1, 1, 1), (1, 0, 2, 2)]),
        ("err_dcmi_8005_no_device_access.txt", []),
    ],
)
def test_the_map_of_npu_smi_is_read_without_the_mcu_rows(name: str, chips: list[tuple[int, int, int, int]]) -> None:
    assert [(chip.npu, chip.chip, chip.logic, chip.physical) for chip in parse_npu_map(text(name))] == chips


def test_names_with_blanks_and_other_output_are_no_trouble() -> None:
    assert parse_npu_map(text("map_m_910b4_8card.txt"))[0] == Chip(0, 0, 0, 0, "Ascend 910B4")
    assert parse_npu_map("") == ()
    assert parse_npu_map("NPU ID\n0\n\x00 1 2 3 4\n") == ()


@pytest.mark.parametrize(
    ("allocated", "ids"),
    [
        ("3,4", {3, 4}),
        ("Ascend910-3,Ascend910-4", {3, 4}),
        ("Ascend310P-0", {0}),
        ("0-3", {0, 1, 2, 3}),
        ("0-1, 6", {0, 1, 6}),
        ("", set()),
        ("all", set()),
    ],
)
def test_allocated_ids_are_read_in_every_spelling(allocated: str, ids: set[int]) -> None:
    assert physical_ids(allocated) == ids


@pytest.mark.parametrize(
    ("name", "allocated", "visible"),
    [
        ("map_m_910b3_container_subset.txt", "3,4", (0, 1)),  # the runtime shows two cards and CANN counts from 0
        ("map_m_910b4_8card.txt", "0,1,2,3,4,5,6,7", tuple(range(8))),
        ("map_m_910b4_8card.txt", "3,4", (3, 4)),  # privileged: all cards are visible
        ("map_m_a3_phyid.txt", "0,1,2", (0, 1, 2)),
        ("map_m_a3_phyid.txt", "1,2", (1, 2)),
        ("err_dcmi_8005_no_device_access.txt", "3,4", (0, 1)),  # no map: count the device nodes
    ],
)
def test_logical_ids_are_computed_from_what_the_container_sees(name: str, allocated: str, visible: tuple[int, ...]) -> None:
    assert visible_devices(replace(NPU, npu_map=text(name)), allocated) == visible


@pytest.mark.parametrize(
    ("device", "environ", "wanted"),
    [
        ("cpu", {}, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_WAIT_POLICY": "PASSIVE"}),
        ("cuda", {"ASCEND_VISIBLE_DEVICES": "3,4"}, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_WAIT_POLICY": "PASSIVE"}),
        ("cpu", {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1", "OMP_WAIT_POLICY": "ACTIVE"}, {}),
        ("npu", {"ASCEND_VISIBLE_DEVICES": "3,4"}, {"ASCEND_RT_VISIBLE_DEVICES": "0,1"}),
        ("npu", {"ASCEND_VISIBLE_DEVICES": "3,4", "ASCEND_RT_VISIBLE_DEVICES": "1"}, {}),
        ("npu", {}, {}),
    ],
)
def test_the_environment_for_torch_respects_what_is_set(device: str, environ: dict[str, str], wanted: dict[str, str]) -> None:
    assert environment(Choice(device, ""), NPU, environ) == wanted  # type: ignore[arg-type]


# The reader


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder laid out as a container with two cards."""
    (tmp_path / "usr/local/Ascend/driver").mkdir(parents=True)
    (tmp_path / "cann/lib64").mkdir(parents=True)
    (tmp_path / "cann/lib64/libascendcl.so").touch()
    (tmp_path / "dev").mkdir()
    (tmp_path / "bin").mkdir()
    for name in ("davinci3", "davinci10", "davinci_manager", "hisi_hdc", "devmm_svm"):
        (tmp_path / "dev" / name).touch()
        (tmp_path / "dev" / name).chmod(0o660)
    return tmp_path


def npu_smi(machine: Path, body: str) -> dict[str, str]:
    """An environment whose npu-smi does `body`."""
    tool = machine / "bin" / "npu-smi"
    tool.write_text(f"#!/bin/sh\n{body}\n")
    tool.chmod(0o755)
    return {"PATH": f"{machine / 'bin'}:{os.environ['PATH']}", "ASCEND_HOME_PATH": str(machine / "cann")}


def test_a_machine_is_read_as_it_is(machine: Path) -> None:
    environ = npu_smi(machine, f'test "$*" = "info -m" && cat {OUTPUTS / "map_m_910b3_container_subset.txt"}')

    facts = read_host(environ, machine)

    assert (facts.driver, facts.ascendcl, facts.cann_home) == (True, True, str(machine / "cann"))
    assert [node.path for node in facts.nodes] == ["/dev/davinci3", "/dev/davinci10"]
    assert {node.path for node in facts.managers} == {"/dev/davinci_manager", "/dev/hisi_hdc", "/dev/devmm_svm"}
    assert {(node.owner, node.mode, node.usable) for node in facts.nodes} == {(f"{os.getuid()}:{os.getgid()}", "0660", True)}
    assert visible_devices(facts, "3,10") == (0, 1)
    assert read_host(environ | {"ASCEND_VISIBLE_DEVICES": " 3,10\n"}, machine).assigned == "3,10"


@pytest.mark.parametrize("value", ["void", " void\n", "", " "])
def test_a_value_that_ascend_reads_as_no_card_holds_none(value: str, tmp_path: Path) -> None:
    facts = read_host({"ASCEND_VISIBLE_DEVICES": value}, tmp_path)

    assert not facts.has_card
    assert choose("auto", replace(facts, cuda=False)).device == "cpu"


@pytest.mark.parametrize("body", ["exit 1", f"cat {OUTPUTS / 'err_dcmi_8005_no_device_access.txt'}; exit 2", r"printf '\377\376'"])
def test_an_npu_smi_that_fails_leaves_the_count_of_device_nodes(machine: Path, body: str) -> None:
    facts = read_host(npu_smi(machine, body), machine)

    assert visible_devices(facts, "3,10") == (0, 1)


def test_an_empty_machine_lacks_everything(tmp_path: Path) -> None:
    facts = read_host({}, tmp_path)

    assert (facts.driver, facts.nodes, facts.cann_home, facts.ascendcl, facts.cuda, facts.npu_map) == (False, (), None, False, False, "")
    assert choose("auto", facts).device == "cpu"


def test_atlas_inference_cards_bring_a_manager_of_another_name(machine: Path) -> None:
    (machine / "dev/davinci_manager").rename(machine / "dev/davinci_manager_docker")

    assert not [lack for lack in npu_lacks(read_host({}, machine)) if lack.startswith("device")]


@pytest.mark.parametrize(("stated", "variable", "taken"), [("auto", "cpu", "cpu"), ("npu", "cpu", "npu"), ("auto", "", "auto")])
def test_the_variable_counts_where_a_training_file_says_auto(stated: str, variable: str, taken: str) -> None:
    assert wanted(stated, {"GLM5_DEVICE": variable}) == taken
