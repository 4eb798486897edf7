"""Every answer of the fake npu-smi, on every product, is one that the parsers read whole, with the node's own values in it."""

import signal
import subprocess
from dataclasses import replace
from typing import TypeVar

import pytest

from glm5_operator.health.sources import hccn, npusmi
from glm5_operator.health.sources.reading import ToolErrorKind
from tests.cluster.devices import Failure, NodeDevices, Process
from tests.cluster.shell import wait_for
from tests.unit.cluster.npu_smi import Smi, deaf_to_sigterm, fixture, smi

__all__ = ["smi"]

PRODUCTS = ["A2", "A3", "310P", "950"]
T = TypeVar("T")
BUSY = (Process(4711, "python3", 2048), Process(4712, "VLLM::Worker", 1024))


def busy(product: str) -> NodeDevices:
    """One where each value of one chip is its own."""
    return NodeDevices.idle(product).change(
        1, health="Warning", codes=("80E01801", "8C1F8608"), temperature=61, aicore=97, processes=BUSY, ecc_single=3, ecc_double=2
    )


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_table_is_read_whole_and_says_what_the_node_is(smi: Smi, product: str) -> None:
    node = busy(product)
    table = npusmi.parse_info(smi.raw(node, "info")[1])
    mapping = npusmi.parse_map(smi.raw(node, "info", "-m")[1])

    assert table.problems == mapping.problems == ()
    assert table.whole
    assert table.product == product
    assert table.driver == table.version == node.version
    ids = npusmi.physical_ids(table, mapping)
    for row, device in zip(table.chips, node.devices, strict=True):
        assert (row.npu, row.chip, ids[row.npu, row.chip]) == (device.npu, device.chip, device.physical)
        assert (row.health, row.temperature, row.utilisation, row.power) == (device.health, device.temperature, device.aicore, device.power)
        assert row.main_memory.total == (device.hbm_total or device.ddr_total)
        assert table.pids(row.npu, row.chip) == tuple(process.pid for process in device.processes)


@pytest.mark.parametrize(("product", "name"), [("310P", "info_310p3_duo_4card_8chip_25.3.rc1"), ("950", "info_950dt_8card_idle")])
def test_headers_rules_and_widths_are_those_of_the_product(smi: Smi, product: str, name: str) -> None:
    printed = [line for line in smi(NodeDevices.idle(product), "info")[1].splitlines() if not line.startswith("| npu-smi")]
    real = [line for line in fixture(name).splitlines() if not line.startswith("| npu-smi")]

    def fixed(lines: list[str]) -> set[str]:
        return {line for line in lines if line.startswith("+") or "NPU " in line.split("|")[1] or "Bus-Id" in line or "No running" in line}

    assert {len(line) for line in printed} == {len(line) for line in real}
    assert fixed(real) - fixed(printed) <= {line for line in real if line.startswith("+-")}, "950: the paste begins below its first rules"


@pytest.mark.parametrize("product", PRODUCTS)
def test_lists_count_cards(smi: Smi, product: str) -> None:
    cards = npusmi.parse_list(smi.raw(NodeDevices.idle(product), "info", "-l")[1])

    assert cards.problems == ()
    assert [card.npu for card in cards.cards] == list(dict.fromkeys(device.npu for device in NodeDevices.idle(product).devices))
    assert {card.chips for card in cards.cards} == {{"A2": 1, "A3": 2, "310P": 2, "950": None}[product]}


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("one", [True, False], ids=["chip", "card"])
def test_each_question_about_a_card_is_answered_with_its_values(smi: Smi, product: str, one: bool) -> None:
    node = busy(product)
    device = node.devices[1]
    which = ("-i", str(device.npu), *(("-c", str(device.chip)) if one and product != "950" else ()))

    def ask(question: str) -> str:
        code, text = smi.raw(node, "info", "-t", question, *which)
        assert code == 0, text
        return text

    def mine(chips: tuple[T, ...]) -> T:
        return next(chip for chip in chips if chip.at.chip in (device.chip, None))  # type: ignore[attr-defined] # all have one

    readings = (
        health := npusmi.parse_health(ask("health")),
        common := npusmi.parse_common(ask("common")),
        usages := npusmi.parse_usages(ask("usages")),
        heat := npusmi.parse_temperature(ask("temp")),
        power := npusmi.parse_power(ask("power")),
        ecc := npusmi.parse_ecc(ask("ecc")),
        processes := npusmi.parse_process_memory(ask("proc-mem")),
        counts := npusmi.parse_error_counts(ask("err-count")),
        board := npusmi.parse_board(ask("board")),
    )
    assert [reading.problems for reading in readings] == [()] * len(readings)
    assert (mine(health.chips).health, mine(health.chips).codes) == ("Warning", device.codes)
    assert (mine(common.chips).aicore, mine(common.chips).temperature, mine(common.chips).power) == (97, 61, device.power)
    assert mine(usages.chips).aicore == 97
    assert mine(heat.chips).value == 61
    assert mine(power.chips).value == device.power
    hbm = mine(ecc.chips).hbm
    assert hbm is not None
    assert (hbm.single, hbm.double) == (3, 2)
    assert [(row.pid, row.memory) for row in processes.processes] == [(4711, 2048), (4712, 1024)]
    assert dict(mine(counts.chips).counts)["Retry Count"] == 0
    assert board.firmware


def test_the_light_answer_of_common_has_the_real_keys_in_the_real_order(smi: Smi) -> None:
    node = NodeDevices.idle("A2").change(1, hbm_used=59638, aicore=6, temperature=46, power=130.4)

    assert smi(node, "info", "-t", "common", "-i", "1")[1] == fixture("t_common_910b_light")


def test_error_counters_have_the_real_keys_and_widths(smi: Smi) -> None:
    assert smi(NodeDevices.idle("A2"), "info", "-t", "ecc", "-i", "1")[1] == fixture("t_ecc_910a")


def test_no_process_is_said_as_the_real_tool_says_it(smi: Smi) -> None:
    assert smi(NodeDevices.idle("A2"), "info", "-t", "proc-mem", "-i", "0")[1].endswith(fixture("t_procmem_none"))


@pytest.mark.parametrize("question", ["health", "common", "ecc"])
def test_950_knows_no_chip(smi: Smi, question: str) -> None:
    code, text = smi.raw(NodeDevices.idle("950"), "info", "-t", question, "-i", "0", "-c", "0")

    reading = npusmi.parse_health(text)
    assert code == 1
    assert reading.error is not None
    assert reading.error.kind == ToolErrorKind.INVALID_PARAMETER


def test_the_links_of_an_a2_server_are_those_of_a_real_one(smi: Smi) -> None:
    assert smi(NodeDevices.idle("A2"), "info", "-t", "topo")[1] == fixture("topo_910b3_8card")


@pytest.mark.parametrize(("product", "hccs"), [("A3", True), ("310P", False), ("950", False)])
def test_links_of_other_products_are_read_whole(smi: Smi, product: str, hccs: bool) -> None:
    topology = npusmi.parse_topology(smi.raw(NodeDevices.idle(product), "info", "-t", "topo")[1])

    assert topology.problems == ()
    assert topology.hccs is hccs


def test_an_a2_server_with_hccs_off_is_joined_by_pcie(smi: Smi) -> None:
    node = NodeDevices.idle("A2").resetting(hccs=False)

    assert npusmi.parse_topology(smi.raw(node, "info", "-t", "topo")[1]).hccs is False


# --- hccn_tool ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "changes", "name"),
    [
        ("-link", {}, "hccn_link_up"),
        ("-link", {"link": "DOWN"}, "hccn_link_down"),
        ("-net_health", {}, "hccn_net_health_success"),
        ("-net_health", {"net_health": "Init"}, "hccn_net_health_init"),
        ("-ip", {"address": "10.20.11.24"}, "hccn_ip"),
        ("-tls", {}, "hccn_tls"),
    ],
)
def test_hccn_tool_answers_for_a_port_as_the_real_one_does(smi: Smi, question: str, changes: dict[str, str], name: str) -> None:
    node = NodeDevices.idle("A3").change(0, **changes)

    assert smi.hccn(node, "-i", "0", question, "-g") == (0, fixture(name))


def test_hccn_tool_knows_no_lost_card_and_no_product_without_ports(smi: Smi) -> None:
    assert smi.hccn(NodeDevices.idle("A2").only(range(7)), "-i", "7", "-link", "-g")[0] == 1
    assert smi.hccn(NodeDevices.idle("310P"), "-i", "0", "-link", "-g")[0] == 1
    assert hccn.parse_tls(smi.hccn(NodeDevices.idle("A2").change(2, tls=True), "-i", "2", "-tls", "-g")[1]).enabled is True


# --- C06 and C07: it fails, it hangs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 255])
def test_a_tool_that_cannot_start_prints_what_it_is_told(smi: Smi, code: int) -> None:
    text = "dcmi module initialize failed. ret is -8005\n"
    node = replace(NodeDevices.idle("A2"), failure=Failure(text, code))

    assert smi(node, "info") == (code, text)
    assert smi(node, "info", "-t", "health", "-i", "0") == (code, text)


def test_a_card_that_hangs_leaves_the_table_and_the_other_cards_answering(smi: Smi) -> None:
    node = NodeDevices.idle("A2").change(3, hang=True)

    assert npusmi.parse_info(smi.raw(node, "info")[1]).complete
    assert smi.raw(node, "info", "-t", "health", "-i", "2")[0] == 0
    assert _hangs(smi, node, "info", "-t", "health", "-i", "3") == ""


def test_a_table_that_hangs_in_the_middle_leaves_its_first_half(smi: Smi) -> None:
    half = _hangs(smi, replace(NodeDevices.idle("A2"), hang=True), "info")
    table = npusmi.parse_info(half)

    assert [row.npu for row in table.chips] == [0, 1, 2, 3, 4]
    assert not table.whole


def _hangs(smi: Smi, node: NodeDevices, *words: str) -> str:
    """What it has printed when it waits, deaf to SIGTERM, and SIGKILL ends it."""
    node.write(smi.state)
    with subprocess.Popen([smi.program, *words], env=smi.env(), stdout=subprocess.PIPE, text=True) as process:
        try:
            wait_for("it to ignore SIGTERM", lambda: deaf_to_sigterm(process.pid), timeout=20, every=0.01)
            process.terminate()
        finally:
            process.kill()
        output, _ = process.communicate(timeout=20)
    assert process.returncode == -signal.SIGKILL
    return output
