"""What is asked rarely, by a clock that the test moves: ports, counters, versions, the host. Scripted answers, real parsers."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from glm5_operator.agent.runner import Answer, End
from glm5_operator.api.node_facts import NodeFactsReport
from tests.support.vendor_tools import Bench, exited, hung, text

NOW = "2026-11-30T12:00:00Z"
A2 = "info_910b3_8card_idle_24.1.rc1.txt"
A3 = "info_a3_8npu_16die_partial_25.3.rc1.txt"


async def read_all(bench: Bench, now: float = 0.0) -> None:
    """A poll, and every rare question that is due then."""
    await bench.collector.read(NOW, now)
    while await bench.rare.ask_next(now):
        pass


def ports(bench: Bench, link: str = "hccn_link_up.txt") -> None:
    for card in range(8):
        bench.runner.answers |= {
            f"hccn_tool -i {card} -link -g": exited(text(link)),
            f"hccn_tool -i {card} -net_health -g": exited(text("hccn_net_health_success.txt")),
            f"hccn_tool -i {card} -ip -g": exited(text("hccn_ip.txt")),
            f"hccn_tool -i {card} -tls -g": exited(text("hccn_tls.txt")),
            f"npu-smi info -t ecc -i {card} -c 0": exited(text("t_ecc_910a.txt")),
        }


async def test_ports_and_counters_of_each_card_are_in_the_next_report(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path, A2)
    ports(bench)
    bench.runner.answers["npu-smi info -t topo"] = exited(text("topo_910b3_8card.txt"))
    await read_all(bench)

    facts = await bench.collector.read(NOW, 2.0)

    assert {(card.link, card.net_health, card.tls) for card in facts.cards} == {("Up", "Success", False)}
    assert all(card.address for card in facts.cards)
    assert {card.ecc_double for card in facts.cards} == {0}
    assert facts.hccs is True


async def test_a_link_that_goes_down_is_seen_within_its_period(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path, A2)
    ports(bench)
    await read_all(bench)
    bench.runner.answers["hccn_tool -i 5 -link -g"] = exited(text("hccn_link_down.txt"))

    await read_all(bench, bench.settings.every.link)
    facts = await bench.collector.read(NOW, bench.settings.every.link + 2)

    assert {card.physical for card in facts.cards if card.link == "Down"} == {5}


async def test_each_question_is_asked_in_its_own_period_and_never_16_times_a_poll(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path, A3)  # its table has physical ids and processes, so nothing else is asked for them
    await read_all(bench)
    bench.runner.asked.clear()

    for tick in range(1, 31):  # a minute of polls
        await read_all(bench, 2.0 * tick)

    kinds = Counter(re.sub(r" -i \d+", "", command) for command in bench.runner.asked)
    assert kinds == {"npu-smi info": 30, "hccn_tool -link -g": 32, "hccn_tool -net_health -g": 16}


async def test_without_hccn_tool_no_port_is_reported_and_it_is_looked_for_again_later(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path, A2)
    for card in range(8):
        bench.runner.answers[f"hccn_tool -i {card} -link -g"] = Answer(End.MISSING, why="hccn_tool: not found")
        bench.runner.answers[f"hccn_tool -i {card} -net_health -g"] = Answer(End.MISSING, why="hccn_tool: not found")
    await read_all(bench)

    facts = await bench.collector.read(NOW, 2.0)
    assert {card.link for card in facts.cards} == {None}
    assert "hccn_tool:" not in str(facts.problems)

    ports(bench)
    await read_all(bench, bench.settings.every.rare)
    facts = await bench.collector.read(NOW, bench.settings.every.rare + 2)
    assert {card.link for card in facts.cards} == {"Up"}


async def test_a_hanging_hccn_tool_makes_the_link_unknown_and_is_told(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path, A2)
    ports(bench)
    await read_all(bench)
    bench.runner.answers["hccn_tool -i 2 -link -g"] = hung("hccn_tool -i 2 -link -g")

    await read_all(bench, bench.settings.every.link)
    facts = await bench.collector.read(NOW, bench.settings.every.link + 2)

    assert {card.physical for card in facts.cards if card.link == "Unknown"} == {2}
    assert "`hccn_tool -i 2 -link -g` gave no answer" in str(facts.problems)
    assert {card.health for card in facts.cards} == {"OK"}


async def test_versions_come_from_the_hosts_files(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path, A2)
    for name, file in {
        "usr/local/Ascend/driver/version.info": "driver_version.info.txt",
        "usr/local/Ascend/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info": "ascend_toolkit_install.info.txt",
    }.items():
        target = tmp_path / "host" / name
        target.parent.mkdir(parents=True)
        target.write_text(text(file))
    await read_all(bench)

    facts = await bench.collector.read(NOW, 2.0)

    assert (facts.driver, facts.cann) == ("23.0.7", "8.3.RC2")


async def test_a_word_without_end_is_cut_so_that_the_rest_of_the_report_is_taken(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path, A2)
    version = tmp_path / "host/usr/local/Ascend/driver/version.info"
    version.parent.mkdir(parents=True)
    version.write_text("Version=" + "1" * 5000)
    bench.runner.answers["hccn_tool -i 0 -net_health -g"] = exited(f"net health status: {':' * 500} Success\n")
    await read_all(bench)

    facts = await bench.collector.read(NOW, 2.0)

    assert NodeFactsReport.model_validate(facts.model_dump()) == facts
    assert facts.driver == "1" * 128


async def test_pcie_link_and_numa_node_of_a_card_come_from_its_slot(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path, A2)
    slot = tmp_path / "host/sys/bus/pci/devices/0000:c1:00.0"
    slot.mkdir(parents=True)
    for name, value in {
        "current_link_speed": "16.0 GT/s PCIe",
        "current_link_width": "8",
        "max_link_speed": "16.0 GT/s PCIe",
        "max_link_width": "16",
        "numa_node": "6",
    }.items():
        (slot / name).write_text(f"{value}\n")
    await read_all(bench)
    await read_all(bench, bench.settings.every.rare)

    card = (await bench.collector.read(NOW, bench.settings.every.rare + 2)).cards[0]

    assert (card.pcie, card.pcie_most, card.numa) == ("16.0 GT/s x8", "16.0 GT/s x16", 6)
