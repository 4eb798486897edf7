"""The table of `npu-smi info`: dies, ids, words for health, processes, and what is said when a row can't be read."""

from collections.abc import Callable

import pytest

from glm5_operator.health.sources.npusmi import parse_info, parse_map, physical_ids
from glm5_operator.health.sources.npusmi.readings import ChipRow, InfoTable, Pair, ProcessRow
from glm5_operator.health.sources.reading import ToolErrorKind
from tests.unit.health.sources.npusmi.files import case, text_of

HEADER = """\
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
"""
FIRST = "| 3     910B3               | OK            | 99.8        40                0    / 0             |\n"
SECOND = "| 0                         | 0000:82:00.0  | 0           0    / 0          3314 / 65536         |\n"
PROCESSES = "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |\n"
RULE = "+===========================+===============+====================================================+\n"


def only(text: str) -> tuple[InfoTable, ChipRow]:
    table = parse_info(text)
    assert len(table.chips) == 1
    return table, table.chips[0]


def reasons(table: InfoTable) -> list[tuple[int, str]]:
    return [(problem.line_number, problem.reason) for problem in table.problems]


# --- C01: two dies a module -----------------------------------------------------------------------------------------------------


def test_a_module_of_a3_is_two_dies_of_which_only_the_first_tells_its_power() -> None:
    table = parse_info(case("a3_two_dies_24.1.txt"))

    assert [(row.npu, row.chip, row.physical) for row in table.chips] == [(0, 0, 0), (0, 1, 1), (1, 0, 2), (1, 1, 3)]
    assert [row.power for row in table.chips] == [174.6, None, 175.6, None]
    assert [row.temperature for row in table.chips] == [33, 34, 33, 34]
    assert sum(row.hbm.total or 0 for row in table.chips) == 4 * 65536
    assert table.complete
    assert physical_ids(table) == {(0, 0): 0, (0, 1): 1, (1, 0): 2, (1, 1): 3}


def test_a_die_on_its_own_keeps_its_neighbour_and_its_ids() -> None:
    whole = text_of("synthetic_info_a3_die1_critical")
    sick = [row for row in parse_info(whole).chips if row.health != "OK"]

    assert [(row.npu, row.chip, row.physical, row.health) for row in sick] == [(5, 1, 11, "Critical")]


def test_a_duo_card_has_two_chips_no_hbm_and_an_id_that_counts_on() -> None:
    table = parse_info(text_of("info_310p3_duo_4card_8chip_25.3.rc1"))

    assert [(row.npu, row.chip, row.physical) for row in table.chips[-2:]] == [(32896, 0, 6), (32896, 1, 7)]
    assert {row.power for row in table.chips} == {None}
    assert table.chips[0].hbm == Pair(None, None)
    assert table.chips[0].main_memory == Pair(35552, 44278)
    assert table.chips[0].hugepages == Pair(16885, 16885)
    assert table.pids(0, 0) == (100001, 100002)
    assert table.pids(0, 1) == (100002,)
    assert table.pids(96, 1) == ()


def test_a_card_of_950_has_one_chip_without_a_number_and_on_servers_no_bus() -> None:
    server, card = parse_info(text_of("info_950dt_8card_idle")), parse_info(text_of("info_950_pcie_1card_docsample"))

    assert {(row.chip, row.physical, row.bus) for row in server.chips} == {(0, None, None)}
    assert server.chips[0].hbm.total == 98304
    assert card.chips[0].bus == "0000:91:00.0"
    assert card.chips[0].name == "xxx"
    assert server.pids(7, 0) == ()


def test_a_process_of_950_counts_for_its_card_though_no_chip_is_named() -> None:
    text = text_of("info_950_pcie_1card_docsample")
    row = "| 0                         | 4711          | python3                  | 4096                     |"
    free = next(line for line in text.splitlines() if "No running" in line)

    table = parse_info(text.replace(free, row))

    assert table.complete
    assert table.pids(0, 0) == (4711,)


# --- C04: ids that don't start at 0 ---------------------------------------------------------------------------------------------


def test_ids_are_the_tools_own_and_never_counted_anew() -> None:
    table = parse_info(case("a2_vm_ids_4_5.txt"))

    assert [(row.npu, row.chip) for row in table.chips] == [(4, 0), (5, 0)]


MAP_OF_THE_VM = """\
\tNPU ID                         Chip ID                        Chip Logic ID                  Chip Name
\t4                              0                              0                              Ascend 910B3
\t4                              1                              -                              Mcu
\t5                              0                              1                              Ascend 910B3
\t5                              1                              -                              Mcu
"""


def test_in_a_virtual_machine_the_device_nodes_tell_that_logic_ids_count() -> None:
    table, mapping = parse_info(case("a2_vm_ids_4_5.txt")), parse_map(MAP_OF_THE_VM)

    assert physical_ids(table, mapping, {0, 1}) == {(4, 0): 0, (5, 0): 1}
    # Without a map nothing tells which of the nodes is which card.
    assert physical_ids(table, None, {0, 1}) == {}


def test_in_a_virtual_machine_that_lost_a_card_nobody_knows_which_node_the_other_is() -> None:
    head, _, _, chip, _ = MAP_OF_THE_VM.splitlines()
    counted_anew = chip.replace("0                              1", "0                              0")
    text = case("a2_vm_ids_4_5.txt")
    table = parse_info(text.replace(text[text.index("| 4 ") : text.index("| 5 ")], ""))

    assert [row.npu for row in table.chips] == [5]
    assert physical_ids(table, parse_map(f"{head}\n{counted_anew}\n"), {0, 1}) == {}


def test_a_vanished_card_moves_no_other_cards_id() -> None:
    text = text_of("synthetic_info_910b3_npu3_missing")
    ids = physical_ids(parse_info(text), parse_map(text_of("map_m_910b4_8card")), {0, 1, 2, 4, 5, 6, 7})

    assert ids == {(npu, 0): npu for npu in (0, 1, 2, 4, 5, 6, 7)}


def test_in_a_container_ids_stay_those_of_the_host() -> None:
    assert physical_ids(parse_info(text_of("info_a3_container_subset_npu2_24.1.rc3.7"))) == {(2, 0): 4, (2, 1): 5}


def test_the_maps_physical_id_is_taken_where_the_table_has_none() -> None:
    widths = "\t{:<30} {:<30} {:<30} {:<30} {:<30}\n"
    head = widths.format("NPU ID", "Slot ID", "Chip ID", "Chip Phy-ID", "Chip Name")
    mapping = parse_map(head + widths.format(0, 2, 0, 5, "Ascend950PR"))

    assert physical_ids(parse_info(text_of("info_950_pcie_1card_docsample")), mapping) == {(0, 0): 5}


def test_two_chips_on_a_card_without_any_column_for_it_have_no_known_id() -> None:
    text = HEADER + FIRST + SECOND + FIRST + SECOND.replace("| 0 ", "| 1 ", 1)

    assert physical_ids(parse_info(text)) == {}


# --- C05: words for health ------------------------------------------------------------------------------------------------------


def test_every_documented_word_for_health_is_known() -> None:
    table = parse_info(case("a2_every_health_word.txt"))

    assert [row.health for row in table.chips] == ["OK", "Warning", "Alarm", "Critical", "Unknown"]
    assert table.chips[4].health_text == "UNKNOWN"
    assert table.complete


def test_values_of_a_card_that_does_not_answer_are_absent_and_not_zero() -> None:
    absent = parse_info(case("a2_every_health_word.txt")).chips[4]

    assert (absent.power, absent.temperature, absent.utilisation) == (None, None, None)
    assert absent.hbm == Pair(None, None)


@pytest.mark.parametrize("word", ["Healthy", "ok", "正常", "故障", "Fault", "OK Alarm", "0", ""])
def test_a_word_that_is_not_documented_is_unknown_and_told(word: str) -> None:
    table, chip = only(HEADER + FIRST.replace("| OK  ", f"| {word}  ") + SECOND)

    assert (chip.health, chip.health_text) == ("Unknown", word)
    assert reasons(table) == [(3, f"{word!r} is none of npu-smi's words for health")]


# --- processes ------------------------------------------------------------------------------------------------------------------


def test_processes_are_unknown_where_the_table_ends_before_them() -> None:
    table = parse_info(text_of("info_910b3_8card_idle_24.1.rc1"))

    assert not table.whole
    assert {table.pids(row.npu, row.chip) for row in table.chips} == {None}


def test_processes_without_a_name_are_processes() -> None:
    table = parse_info(text_of("info_a3_8npu_16die_partial_25.3.rc1"))

    assert table.processes[1] == ProcessRow(npu=0, chip=1, pid=1000002, name="", memory=43266)
    assert (table.pids(0, 0), table.pids(0, 1), table.pids(2, 0)) == ((1000001,), (1000002,), ())


def test_the_process_id_in_the_container_is_beside_the_hosts() -> None:
    text = text_of("info_910b3_2card_busy_wide_norules_26.x")

    assert parse_info(text).processes[0].pid_in_container is None
    inside = parse_info(text.replace("| NA                      |", "| 77                      |"))
    assert (inside.processes[0].pid, inside.processes[0].pid_in_container) == (1000001, 77)


def test_an_excerpt_without_rules_lists_processes_but_proves_no_card_free() -> None:
    table = parse_info(text_of("info_910b3_2card_busy_wide_norules_26.x"))

    assert [row.pid for row in table.processes] == [1000001]
    assert (table.pids(0, 0), table.pids(1, 0)) == (None, None)


@pytest.mark.parametrize(
    "row",
    [
        "| 3       0                 | 12x           | python3                  | 4096                    |\n",
        "| 3                         | 1234          | python3                  | 4096                    |\n",
        "| 3       0                 | 1234          | python3                  | 4096\n",
        "| 3       0                 |               | python3                  | 4096                    |\n",
        "| 3       0                 | 1234          | python3 |\n",
        "Segmentation fault\n",
        "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)| 3       0                 | 1234          | python3 | 4096 |\n",
    ],
)
def test_a_row_of_a_process_that_cannot_be_read_leaves_its_card_neither_free_nor_listed(row: str) -> None:
    other = "| 3       0                 | 77            | python3                  | 4096                    |\n"
    table = parse_info(HEADER + RULE + FIRST + SECOND + RULE + PROCESSES + RULE + other + row + RULE)

    assert table.pids(3, 0) is None
    assert {problem.line_number for problem in table.problems} == {10}


def test_a_broken_row_of_one_card_leaves_the_other_cards_listed() -> None:
    text = text_of("info_a3_8npu_16die_partial_25.3.rc1").replace("| 1000004 ", "| garbage ")
    table = parse_info(text)

    assert (table.pids(0, 1), table.pids(1, 0), table.pids(2, 0)) == ((1000002,), None, ())


def test_a_card_that_is_told_free_and_has_processes_is_not_free() -> None:
    row = "| 3       0                 | 77            | python3                  | 4096                    |\n"
    free = "| No running processes found in NPU 3                                                            |\n"
    table = parse_info(HEADER + RULE + FIRST + SECOND + RULE + PROCESSES + RULE + free + RULE + row + RULE)

    assert table.pids(3, 0) == (77,)


# --- rows that can't be read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "field", "reason"),
    [
        ("99.8 ", "9x.8 ", "power", "power is no number: '9x.8'"),
        ("40  ", "4O  ", "temperature", "temperature is no whole number: '4O'"),
        ("40  ", "32765", "temperature", "temperature can't be 32765"),
        ("99.8 ", "-1.0 ", "power", "power can't be -1.0"),
        ("40  ", "٤٠  ", "temperature", "temperature is no whole number: '٤٠'"),
        ("40  ", "4" * 3000, "temperature", f"temperature is no whole number: {'4' * 200!r}"),
    ],
)
def test_a_number_that_is_none_is_absent_and_told_with_its_line(old: str, new: str, field: str, reason: str) -> None:
    table, chip = only(HEADER + FIRST.replace(old, new, 1) + SECOND)

    assert getattr(chip, field) is None
    assert reasons(table) == [(3, reason)]
    assert chip.health == "OK"


def test_hbm_in_use_below_zero_is_absent_and_told() -> None:
    table, chip = only(HEADER + FIRST + SECOND.replace("3314 /", "-12  /"))

    assert chip.hbm == Pair(None, 65536)
    assert reasons(table) == [(4, "HBM in use can't be -12")]


def test_utilisation_above_a_hundred_is_absent_and_told() -> None:
    table, chip = only(HEADER + FIRST + SECOND.replace("| 0           0    / 0", "| 250         0    / 0"))

    assert chip.utilisation is None
    assert reasons(table) == [(4, "utilisation can't be 250")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (HEADER + FIRST, (3, "the chip's second line is missing")),
        (HEADER + SECOND, (3, "the chip's first line is missing")),
        (HEADER + FIRST + FIRST.replace("3 ", "4 ", 1), (3, "the chip's second line is missing")),
        (HEADER + "| 3     910B3               | OK            |\n", (3, "2 cells where 3 belong")),
        (HEADER + FIRST + SECOND.replace("| 0  ", "| -  ", 1), (4, "a chip without an id")),
        (HEADER + FIRST + SECOND.replace("| 0  ", "| 0 7", 1), (4, "chip id and physical id can't be told apart")),
        (HEADER + FIRST.replace("| 3 ", "| x ", 1) + SECOND, (3, "NPU id is no whole number: 'x'")),
        (HEADER.replace("Chip  ", "Slot  "), (2, "no layout with this header is known")),
        (FIRST + SECOND, (1, "a row before any header that is known")),
        (HEADER + FIRST.replace("0    / 0", "0        "), (3, "the chip's second line is missing")),
    ],
)
def test_a_chip_stands_in_the_table_only_with_both_its_lines(text: str, problem: tuple[int, str]) -> None:
    table = parse_info(text)

    assert table.chips == ()
    assert problem in reasons(table)


def test_a_chip_that_stands_there_twice_counts_once_and_is_told() -> None:
    text = HEADER + FIRST + SECOND + FIRST.replace("| OK  ", "| Alarm") + SECOND
    table = parse_info(text)

    assert [(row.npu, row.health) for row in table.chips] == [(3, "OK")]
    assert reasons(table) == [(6, "NPU 3 chip 0 stands here a second time")]


def test_one_broken_chip_leaves_the_others() -> None:
    text = text_of("info_910b3_8card_idle_24.1.rc1")
    lines = text.splitlines(keepends=True)
    broken = next(number for number, line in enumerate(lines) if line.startswith("| 4 "))
    lines[broken] = "dcmi_get_device_temperature failed\n"
    table = parse_info("".join(lines))

    assert [row.npu for row in table.chips] == [0, 1, 2, 3, 5, 6, 7]
    assert (broken + 1, "no such line is known here") in reasons(table)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda text: text.replace("| 3     910B2 ", "| 3     910B2 |"),
        lambda text: text.replace("| 3     910B2 ", "| x     910B2 "),
        lambda text: text.replace("| 0000:C4:00.0  |", "| 0000:C4:0"),
        lambda text: "".join(line for line in text.splitlines(keepends=True) if "0000:C4:00.0" not in line),
        lambda text: text.replace("| 3     910B2 ", "dcmi failed\n| 3     910B2 "),
        lambda text: text.replace("| 3     910B2 ", "| 2     910B2 "),
        lambda text: text.replace("| 3     910B2 ", "...\n| 3     910B2 "),
        lambda text: text + "Failed to execute npu-smi info. ret is -8006.\n",
    ],
)
def test_of_a_table_with_an_unreadable_line_among_its_chips_nothing_is_missing(break_it: Callable[[str], str]) -> None:
    text = case("a2_every_health_word.txt")
    broken = break_it(text)

    assert broken != text
    assert parse_info(text).whole
    assert not parse_info(broken).whole


def test_an_unknown_word_or_number_loses_no_chip() -> None:
    text = case("a2_every_health_word.txt").replace("| Critical ", "| Terrible ").replace("40                0", "4x                0", 1)
    table = parse_info(text)

    assert len(table.problems) == 2
    assert table.whole


def test_a_broken_process_row_makes_no_chip_missing() -> None:
    table = parse_info(case("a2_every_health_word.txt").replace("| 812345 ", "| 8123x5 "))

    assert table.problems
    assert (table.whole, table.pids(1, 0), table.pids(0, 0)) == (True, None, ())


def test_a_table_in_another_language_is_no_table() -> None:
    text = text_of("info_910b3_8card_idle_24.1.rc1").replace("Bus-Id", "总线号").replace("Health", "健康状态")
    table = parse_info(text)

    assert table.chips == ()
    assert {problem.reason for problem in table.problems} == {"a row before any header that is known"}
    assert table.problems[0].line_number == 4


def test_the_tools_own_warning_is_kept_and_is_no_fault_of_the_table() -> None:
    warning = "[WARNING]The driver package may not be completely installed, which may cause function abnormal. Please reinstall it.\n"
    table = parse_info(text_of("info_910b4_1card_idle_wide_26.0.rc1") + warning)

    assert table.complete
    assert len(table.warnings) == 1
    assert table.warnings[0].startswith("The driver package may not be completely installed")


def test_problems_are_no_longer_than_a_status_can_hold() -> None:
    table = parse_info("x" * 10_000 + "\n" + "no table\n" * 9_000)

    assert len(table.problems) == 64
    assert len(table.problems[0].line) == 200


# --- errors of the tool (with C06) ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        ("", ToolErrorKind.EMPTY, None),
        (" \n\n", ToolErrorKind.EMPTY, None),
        ("dcmi module initialize failed. ret is -8005\n", ToolErrorKind.NO_ACCESS, -8005),
        ("dcmi module initialize failed. ret is -8005", ToolErrorKind.NO_ACCESS, -8005),
        ("dcmi model initialized failed, because the device is used. ret is -8020\n", ToolErrorKind.IN_USE, -8020),
        ("Failed to execute npu-smi info. ret is -8008.\n", ToolErrorKind.CARD_LOST, -8008),
        ("npu get board type failed. ret is -8012\n", ToolErrorKind.NOT_READY, -8012),
        ("dcmi module initialize failed. ret is -8099\n", ToolErrorKind.DRIVER, -8099),
        ("This command can be executed only by the root user.\n", ToolErrorKind.NOT_PERMITTED, None),
        ("Operation not permitted, only root user on physical machine can call this api.\n", ToolErrorKind.NOT_PERMITTED, None),
        ("This device does not support querying ecc.\n", ToolErrorKind.NOT_SUPPORTED, None),
        ("This command cannot be executed on a VM or container.\n", ToolErrorKind.NOT_SUPPORTED, None),
        ("There is no NPU card on this server.\n", ToolErrorKind.NO_CARDS, None),
        ("Failed to get card number.\n", ToolErrorKind.DRIVER, None),
        ("Error parameter of -t\nUsage: npu-smi info <watch>\n", ToolErrorKind.INVALID_PARAMETER, None),
        (
            "npu-smi: error while loading shared libraries: libc_sec.so: cannot open shared object file: No such file or directory\n",
            ToolErrorKind.LIBRARY_MISSING,
            None,
        ),
    ],
)
def test_the_tools_own_words_for_why_it_has_no_answer_are_told_apart(text: str, kind: ToolErrorKind, code: int | None) -> None:
    table = parse_info(text)

    assert table.error is not None
    assert (table.error.kind, table.error.code) == (kind, code)
    assert (table.problems, table.chips, table.complete) == ((), (), False)


def test_an_error_after_half_a_table_leaves_the_half_and_says_that_it_is_one() -> None:
    text = HEADER + FIRST + SECOND + "Failed to execute npu-smi info. ret is -8006.\n"
    table, chip = only(text)

    assert chip.npu == 3
    assert table.error is not None
    assert table.error.kind == ToolErrorKind.TIMEOUT
    assert not table.whole


def test_garbage_is_neither_a_table_nor_an_error_but_a_problem() -> None:
    table = parse_info("\x00\x01 ELF\n<html>502 Bad Gateway</html>\n")

    assert table.error is None
    assert [line for line, _ in reasons(table)] == [1, 2]
