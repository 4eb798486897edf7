"""What becomes of npu-smi's answers, whatever they are. Scripted answers, real parsers; cases C01, C04, C06, C07."""

from __future__ import annotations

from pathlib import Path

import pytest

from glm5_operator.agent.collect import ASIDE, KEEP, ONE_BY_ONE
from glm5_operator.agent.runner import Answer, End
from glm5_operator.api.node_facts import CardReport, NodeFactsReport
from tests.support.vendor_tools import NO_SUCH_TYPE, Bench, exited, hung, text

NOW = "2026-11-30T12:00:00Z"
A2 = "info_910b3_8card_idle_24.1.rc1.txt"
A3 = "info_a3_8npu_16die_partial_25.3.rc1.txt"
ALARM = "synthetic_info_910b3_npu3_alarm.txt"
LOADED = "info_910b2c_16card_loaded_24.1.rc1.txt"
"""With a process table: only such a one shows that a card is gone."""
OTHER = "info_950dt_8card_idle.txt"


def health(word: str, *codes: str) -> str:
    return f"\tHealth Status                  : {word}\n\tError Code                     : {','.join(codes) or 'NA'}\n"


async def with_codes(bench: Bench, now: float = 0.0) -> NodeFactsReport:
    """A reading, and what is asked once it has been told."""
    facts = await bench.collector.read(NOW, now)
    return await bench.collector.ask_codes() or facts


def by_id(facts: NodeFactsReport) -> dict[int, CardReport]:
    return {card.physical: card for card in facts.cards}


async def test_an_idle_node_has_all_its_cards_and_no_invented_value(tmp_path: Path) -> None:
    facts = await Bench.at(tmp_path, A3).collector.read(NOW, 0.0)

    assert (facts.tool.state, facts.product, facts.driver) == ("Working", "A3", "25.3.rc1")
    assert [card.physical for card in facts.cards] == list(range(16))
    assert {(card.npu, card.chip) for card in facts.cards} == {(npu, chip) for npu in range(8) for chip in range(2)}
    assert by_id(facts)[1].power is None
    assert by_id(facts)[0].memory_total == 65536
    assert facts.allocations_known is False
    assert "PodResources" in str(facts.problems)


async def test_codes_are_asked_for_cards_that_are_not_well_and_only_for_them(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path, ALARM)
    bench.runner.answers["npu-smi info -t health -i 3 -c 0"] = exited(health("Alarm", "80E18404", "80E01801"))

    facts = await with_codes(bench)

    assert (by_id(facts)[3].health, by_id(facts)[3].codes) == ("Alarm", ("80E18404", "80E01801"))
    assert [command for command in bench.runner.asked if "health" in command] == ["npu-smi info -t health -i 3 -c 0"]


async def test_a_light_poll_asks_nothing_but_the_table_and_keeps_the_codes(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path, ALARM)
    bench.runner.answers["npu-smi info -t health -i 3 -c 0"] = exited(health("Alarm", "80E18404"))
    await with_codes(bench)
    bench.runner.asked.clear()

    facts = await with_codes(bench, 2.0)

    assert bench.runner.asked == ["npu-smi info"]
    assert by_id(facts)[3].codes == ("80E18404",)


async def test_a_fault_is_seen_in_the_first_poll_after_it_which_asks_nothing_else(tmp_path: Path) -> None:
    """Also where kubelet and single cards were to be asked: that is made up for by the next poll."""
    bench = Bench.at(tmp_path, A2)
    await bench.collector.read(NOW, 0.0)
    bench.runner.answers |= {
        "npu-smi info": exited(text(ALARM)),
        "npu-smi info -t health -i 3 -c 0": exited(health("Alarm", "80E18404")),
    }
    bench.runner.asked.clear()

    first = await bench.collector.read(NOW, 11.0)
    assert bench.runner.asked == ["npu-smi info"]
    assert (by_id(first)[3].health, by_id(first)[3].codes) == ("Alarm", None)

    second = await bench.collector.ask_codes()
    assert second is not None
    assert (by_id(second)[3].health, by_id(second)[3].codes) == ("Alarm", ("80E18404",))
    assert await bench.collector.ask_codes() is None

    third = await bench.collector.read(NOW, 13.0)
    assert by_id(third)[3].codes == ("80E18404",)
    assert any("proc-mem" in command for command in bench.runner.asked)


async def test_codes_that_cannot_be_read_are_a_problem_until_they_can_and_the_fault_stands(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path, ALARM)
    facts = await with_codes(bench)
    assert (by_id(facts)[3].health, by_id(facts)[3].codes) == ("Alarm", None)
    assert "card 3: fault codes can't be read" in str(facts.problems)

    asked = len(bench.runner.asked)
    again = await with_codes(bench, 2.0)
    assert again.problems == facts.problems
    assert len(bench.runner.asked) == asked + 1, "the table alone: it is asked again with the next full reading"

    bench.runner.answers["npu-smi info -t health -i 3 -c 0"] = exited(health("Alarm", "80E18404"))
    facts = await with_codes(bench, 12.0)
    assert by_id(facts)[3].codes == ("80E18404",)
    assert "fault codes" not in str(facts.problems)


async def test_codes_of_a_card_that_is_well_again_are_gone(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path, ALARM)
    bench.runner.answers["npu-smi info -t health -i 3 -c 0"] = exited(health("Alarm", "80E18404"))
    await with_codes(bench)
    bench.runner.answers["npu-smi info"] = exited(text(A2))

    facts = await with_codes(bench, 2.0)

    assert (by_id(facts)[3].health, by_id(facts)[3].codes) == ("OK", None)


async def test_950_is_asked_without_a_chip(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path)
    bench.runner.answers |= {
        "npu-smi info": exited(text("info_950dt_8card_idle.txt").replace("| OK ", "| Alarm ", 1)),
        "npu-smi info -t health -i 0": exited(text("t_health_ok_950.txt")),
    }
    await with_codes(bench)

    assert [command for command in bench.runner.asked if "health" in command] == ["npu-smi info -t health -i 0"]


async def test_processes_are_asked_for_singly_where_the_table_says_nothing_of_them(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path, A2)  # its process table is missing
    none = text("t_procmem_none.txt")
    bench.runner.answers |= {f"npu-smi info -t proc-mem -i {npu} -c 0": exited(none) for npu in range(8)}
    bench.runner.answers["npu-smi info -t proc-mem -i 2 -c 0"] = exited(
        "\tNPU ID                         : 2\n\tChip ID                        : 0\n"
        "\tProcess id:4711    Process name:python            Process memory(MB):60000\n"
    )
    bench.runner.answers["npu-smi info -t proc-mem -i 3 -c 0"] = exited("dcmi module initialize failed. ret is -8005\n")

    facts = await bench.collector.read(NOW, 0.0)
    again = await bench.collector.read(NOW, 2.0)

    assert [card.pids for card in facts.cards] == [(), (), (4711,), None, (), (), (), ()]
    assert [card.pids for card in again.cards] == [card.pids for card in facts.cards]
    assert sum("proc-mem" in command for command in bench.runner.asked) == 8


# --- the tool fails (C06) ---------------------------------------------------------------------------------------------------

FAILURES = {
    "dcmi -8005, exit 0": (exited(text("err_dcmi_8005_no_device_access.txt")), "Failing", "-8005"),
    "dcmi -8020, exit 255": (exited(text("err_dcmi_8020_device_used.txt"), code=255), "Failing", "-8020"),
    "on stderr": (exited(error="dcmi module initialize failed. ret is -8005\n", code=1), "Failing", "-8005"),
    "silent": (exited(), "Failing", "exit 0: the tool printed nothing"),
    "killed": (exited(code=-11), "Failing", "exit -11"),
    "garbage": (exited("\x00\x7fELF 何かがおかしい\n" * 40), "Failing", "exit 0"),
    "not there": (Answer(End.MISSING, why="chroot: failed to run command 'npu-smi': No such file or directory"), "Missing", "No such file"),
    "no permission": (Answer(End.MISSING, why="npu-smi: Permission denied"), "Missing", "Permission denied"),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_tool_that_fails_says_nothing_about_cards_which_keep_their_last_word_and_become_unknown(
    tmp_path: Path, failure: str
) -> None:
    answer, state, words = FAILURES[failure]
    bench = Bench.at(tmp_path, A3)
    assert {card.pids for card in (await bench.collector.read(NOW, 0.0)).cards} != {None}
    bench.runner.answers["npu-smi info"] = answer

    soon = await bench.collector.read(NOW, 2.0)
    later = await bench.collector.read(NOW, KEEP + 2.0)

    assert soon.tool.state == later.tool.state == state
    assert words in soon.tool.message
    assert soon.tool.message.isprintable()
    assert {(card.health, card.stale) for card in soon.cards} == {("OK", True)}
    assert {(card.health, card.stale) for card in later.cards} == {("Unknown", True)}
    assert (soon.missing, later.missing) == (None, None)
    assert {card.pids for card in soon.cards} == {None}  # whether they are idle nobody knows


async def test_a_tool_that_works_again_makes_cards_fresh_again(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path)
    assert (await bench.collector.read(NOW, 0.0)).tool.state == "Failing"
    bench.runner.answers["npu-smi info"] = exited(text(A2))

    facts = await bench.collector.read(NOW, 2.0)

    assert facts.tool.state == "Working"
    assert {(card.health, card.stale) for card in facts.cards} == {("OK", None)}


# --- the tool hangs (C07) ---------------------------------------------------------------------------------------------------


async def hanging_at_card_three(tmp_path: Path) -> Bench:
    bench = Bench.at(tmp_path, A2)
    await bench.collector.read(NOW, 0.0)
    bench.runner.answers |= {f"npu-smi info -t health -i {npu} -c 0": exited(health("OK")) for npu in range(8)}
    bench.runner.answers |= {"npu-smi info": hung(), "npu-smi info -t health -i 3 -c 0": hung("npu-smi info -t health -i 3 -c 0")}
    return bench


async def test_while_the_table_hangs_for_one_card_the_others_are_read_singly(tmp_path: Path) -> None:
    bench = await hanging_at_card_three(tmp_path)

    facts = await bench.collector.read(NOW, 2.0)

    assert facts.tool.state == "Working"
    assert "one by one" in facts.tool.message
    assert {card.physical for card in facts.cards if card.stale} == {3}
    assert "card 3: `npu-smi info -t health -i 3 -c 0` gave no answer" in str(facts.problems)
    assert facts.missing is None


async def test_a_fault_elsewhere_is_still_seen_with_its_code(tmp_path: Path) -> None:
    bench = await hanging_at_card_three(tmp_path)
    bench.runner.answers["npu-smi info -t health -i 5 -c 0"] = exited(health("Critical", "80E18402"))

    facts = await bench.collector.read(NOW, 2.0)

    assert (by_id(facts)[5].health, by_id(facts)[5].codes) == ("Critical", ("80E18402",))


async def test_a_card_that_hangs_is_left_alone_for_a_while_and_becomes_unknown(tmp_path: Path) -> None:
    bench = await hanging_at_card_three(tmp_path)
    await bench.collector.read(NOW, 2.0)
    bench.runner.asked.clear()

    facts = await bench.collector.read(NOW, 4.0)
    assert "npu-smi info -t health -i 3 -c 0" not in bench.runner.asked
    assert "npu-smi info" not in bench.runner.asked
    assert by_id(facts)[3].health == "OK"

    facts = await bench.collector.read(NOW, 4.0 + max(KEEP, ASIDE))
    assert "npu-smi info -t health -i 3 -c 0" in bench.runner.asked
    assert by_id(facts)[3].health == "Unknown"


async def test_the_table_is_tried_again_after_a_while(tmp_path: Path) -> None:
    bench = await hanging_at_card_three(tmp_path)
    await bench.collector.read(NOW, 2.0)
    bench.runner.answers["npu-smi info"] = exited(text(A2))

    facts = await bench.collector.read(NOW, 3.0 + ONE_BY_ONE)

    assert (facts.tool.state, facts.tool.message) == ("Working", "")
    assert not any(card.stale for card in facts.cards)


async def test_when_every_card_hangs_the_tool_hangs(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path, A2)
    await bench.collector.read(NOW, 0.0)
    bench.runner.answers = dict.fromkeys(["npu-smi info", *(f"npu-smi info -t health -i {npu} -c 0" for npu in range(8))], hung())

    facts = await bench.collector.read(NOW, 2.0)

    assert facts.tool.state == "Hanging"
    assert {card.stale for card in facts.cards} == {True}


async def test_a_table_that_hangs_at_the_first_reading_leaves_a_node_without_cards_and_says_why(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path)
    bench.runner.answers["npu-smi info"] = hung()

    facts = await bench.collector.read(NOW, 0.0)

    assert (facts.tool.state, facts.tool.message, facts.cards) == ("Hanging", "`npu-smi info` gave no answer within 15 s", ())


# --- cards that go (C04) ----------------------------------------------------------------------------------------------------


def without(table: str, npu: int) -> str:
    """The table without that NPU's two lines, its rule and its processes."""
    lines, kept, skip = table.splitlines(keepends=True), list[str](), 0
    for line in lines:
        words = line.split()
        if skip:
            skip -= 1
        elif len(words) > 2 and words[:2] == ["|", str(npu)] and ("910" in words[2] or "No running" in line):
            skip = 2 if "910" in words[2] else 1
        elif len(words) > 4 and words[:2] == ["|", str(npu)]:
            skip = 1
        else:
            kept.append(line)
    return "".join(kept)


async def test_a_card_that_vanished_is_missing_and_stays_so_over_a_restart_of_the_agent(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path, LOADED)
    full = await bench.collector.read(NOW, 0.0)
    assert len(full.cards) == 16
    bench.runner.answers["npu-smi info"] = exited(without(text(LOADED), 3))

    facts = await bench.collector.read(NOW, 2.0)
    assert facts.missing == (3,)
    assert (by_id(facts)[3].health, by_id(facts)[3].stale) == ("Unknown", True)

    facts = await bench.again().collector.read(NOW, 2.0)
    assert facts.missing == (3,)
    assert len(facts.cards) == 16


async def test_a_card_that_comes_back_is_no_longer_missing(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path, LOADED)
    await bench.collector.read(NOW, 0.0)
    bench.runner.answers["npu-smi info"] = exited(without(text(LOADED), 3))
    await bench.collector.read(NOW, 2.0)
    bench.runner.answers["npu-smi info"] = exited(text(LOADED))

    facts = await bench.collector.read(NOW, 4.0)

    assert facts.missing is None
    assert (by_id(facts)[3].health, by_id(facts)[3].stale) == ("OK", None)


async def test_a_table_that_ends_early_makes_no_card_missing(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path, LOADED)
    await bench.collector.read(NOW, 0.0)
    bench.runner.answers["npu-smi info"] = exited("\n".join(text(LOADED).splitlines()[:20]))

    facts = await bench.collector.read(NOW, 2.0)

    assert facts.missing is None
    assert {card.health for card in facts.cards} == {"OK"}
    assert any(card.stale for card in facts.cards)


async def test_a_card_that_was_taken_out_on_purpose_is_forgotten_once_the_file_is_removed(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path, LOADED)
    await bench.collector.read(NOW, 0.0)
    bench.runner.answers["npu-smi info"] = exited(without(text(LOADED), 3))
    assert (await bench.collector.read(NOW, 2.0)).missing == (3,)

    (tmp_path / "state/cards.json").unlink()
    facts = await bench.collector.read(NOW, 4.0)
    assert (facts.missing, len(facts.cards)) == (None, 15)
    bench.runner.answers["npu-smi info"] = exited(without(without(text(LOADED), 3), 4))
    assert (await bench.collector.read(NOW, 6.0)).missing == (4,), "what is there is remembered anew"
    assert (await bench.again().collector.read(NOW, 8.0)).missing == (4,)


async def test_a_removed_file_is_obeyed_only_by_a_reading_of_all_cards(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path, LOADED)
    await bench.collector.read(NOW, 0.0)
    (tmp_path / "state/cards.json").unlink()
    for answer in (exited("\n".join(text(LOADED).splitlines()[:20])), exited(code=1)):
        bench.runner.answers["npu-smi info"] = answer
        assert len((await bench.collector.read(NOW, 2.0)).cards) == 16


async def test_a_node_whose_disk_keeps_nothing_still_notices_a_card_that_vanishes(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    bench = Bench.at(tmp_path, LOADED)
    await bench.collector.read(NOW, 0.0)
    bench.runner.answers["npu-smi info"] = exited(without(text(LOADED), 3))

    for second in (2.0, 4.0):
        assert (await bench.collector.read(NOW, second)).missing == (3,)


async def test_boards_of_another_product_do_not_make_the_old_ones_cards_missing(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path, LOADED)
    await bench.collector.read(NOW, 0.0)
    other = bench.again()
    other.runner.answers["npu-smi info"] = exited("\n".join(text(OTHER).splitlines()[:20]))
    assert len((await other.collector.read(NOW, 2.0)).cards) == 16, "not all cards of the other product were read"
    other.runner.answers["npu-smi info"] = exited(text(OTHER))

    facts = await other.collector.read(NOW, 4.0)

    assert facts.missing is None
    assert facts.product != "A2"
    assert {card.stale for card in facts.cards} == {None}
    assert (await other.again().collector.read(NOW, 6.0)).missing is None


async def test_records_of_seen_cards_that_cannot_be_read_stop_nothing(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/cards.json").write_text('{"0": "no chip"}')

    assert len((await Bench.at(tmp_path, A2).collector.read(NOW, 0.0)).cards) == 8


async def test_ids_are_those_of_the_device_nodes_in_a_virtual_machine(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path, "cases/a2_vm_ids_4_5.txt")
    for number in (0, 1):
        node = tmp_path / f"host/dev/davinci{number}"
        node.parent.mkdir(parents=True, exist_ok=True)
        node.touch()
    bench.runner.answers["npu-smi info -m"] = exited(
        "\tNPU ID                         Chip ID                        Chip Logic ID                  Chip Name                     \n"
        + "".join(f"\t{npu:<30} {0:<30} {logic:<30} Ascend 910B3\n" for npu, logic in ((4, 0), (5, 1)))
    )

    facts = await bench.collector.read(NOW, 0.0)

    assert [(card.physical, card.npu) for card in facts.cards] == [(0, 4), (1, 5)]


async def test_an_answer_in_words_nobody_knows_is_told_and_nothing_is_made_up(tmp_path: Path) -> None:
    bench = Bench.at(tmp_path, ALARM)
    bench.runner.answers["npu-smi info"] = exited(text(ALARM).replace("| Alarm ", "| Krank "))
    bench.runner.answers["npu-smi info -t health -i 3 -c 0"] = exited(NO_SUCH_TYPE, code=1)

    facts = await bench.collector.read(NOW, 0.0)

    assert (by_id(facts)[3].health, by_id(facts)[3].codes) == ("Unknown", None)
