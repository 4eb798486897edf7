"""`npu-smi info -t …` of one chip and of all chips of a card; the board's controller never counts as a chip."""

import pytest

from glm5_operator.health.sources import npusmi
from glm5_operator.health.sources.npusmi.rare_readings import MemoryProcess
from glm5_operator.health.sources.npusmi.readings import Address, ChipHealth, FaultEvent
from glm5_operator.health.sources.reading import ToolErrorKind
from tests.unit.health.sources.npusmi.files import case, text_of


def pair(key: str, value: str) -> str:
    return f"\t{key:<30} : {value}\n"


# --- C05: health by card and by chip --------------------------------------------------------------------------------------------


def test_the_health_of_the_boards_controller_is_not_the_chips() -> None:
    reading = npusmi.parse_health(case("health_by_card_with_mcu.txt"))

    assert [(chip.at, chip.health) for chip in reading.chips] == [(Address(0, 0), "Alarm")]
    assert reading.mcu == "OK"


def test_a_sick_controller_does_not_make_the_chip_sick() -> None:
    text = case("health_by_card_with_mcu.txt")
    swapped = text.replace(": Alarm", ": later").replace(": OK", ": Alarm").replace(": later", ": OK")
    reading = npusmi.parse_health(swapped)

    assert ([chip.health for chip in reading.chips], reading.mcu) == (["OK"], "Alarm")


@pytest.mark.parametrize("first", [True, False], ids=["number first", "number last"])
def test_blocks_are_told_apart_where_blank_lines_got_lost(first: bool) -> None:
    words = ("OK", "Critical")
    blocks = [[pair("Chip ID", str(chip)), pair("Health", word)] for chip, word in enumerate(words)]
    mcu = [pair("Health", "Warning"), pair("Chip Name", "mcu")]
    parts = [*blocks, mcu[::-1]] if first else [*(block[::-1] for block in blocks), mcu]
    text = pair("NPU ID", "7") + pair("Chip Count", "2") + "".join(line for part in parts for line in part)

    reading = npusmi.parse_health(text)

    assert [(chip.at, chip.health) for chip in reading.chips] == [(Address(7, 0), "OK"), (Address(7, 1), "Critical")]
    assert reading.mcu == "Warning"
    assert reading.complete


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ("80E18402,80E18401", ("80E18402", "80E18401")),
        ("80E18402 80E18401", ("80E18402", "80E18401")),
        ("80E18402, 80e18401", ("80E18402", "80E18401")),
        ("0x80E18402", ("80E18402",)),
        ("80E18402,80E18402", ("80E18402",)),
        ("A419", ("A419",)),
        ("NA", ()),
        ("", ()),
    ],
)
def test_codes_are_told_apart_by_commas_and_by_blanks(codes: str, expected: tuple[str, ...]) -> None:
    reading = npusmi.parse_health(pair("Health Status", "Alarm") + pair("Error Code", codes))

    assert reading.chips[0].codes == expected
    assert reading.complete


def test_codes_and_texts_go_on_in_lines_without_a_key() -> None:
    text = (
        pair("Health Status", "Alarm")
        + pair("Error Code", "80E18402")
        + pair("", "80E18401")
        + pair("Error Information", "one, with a comma")
        + pair("", "two: with a colon")
    )

    assert npusmi.parse_health(text).chips == (
        ChipHealth(Address(), "Alarm", "Alarm", ("80E18402", "80E18401"), ("one, with a comma", "two: with a colon")),
    )


def test_a_code_that_is_none_is_left_out_and_told() -> None:
    reading = npusmi.parse_health(pair("Health Status", "Alarm") + pair("Error Code", "80E18402,HBM,123456789"))

    assert reading.chips[0].codes == ("80E18402",)
    assert [(problem.line_number, problem.reason) for problem in reading.problems] == [
        (2, "'HBM' is no fault code"),
        (2, "'123456789' is no fault code"),
    ]


@pytest.mark.parametrize("word", ["Healthy", "Fault", "正常", "NULL"])
def test_an_unfamiliar_word_is_unknown_and_told(word: str) -> None:
    reading = npusmi.parse_health(pair("Health", word))

    assert reading.chips[0].health == "Unknown"
    assert [problem.line_number for problem in reading.problems] == [1]


def test_a_text_without_health_is_no_healthy_chip() -> None:
    reading = npusmi.parse_health(pair("NPU ID", "0") + pair("Error Code", "NA") + pair("Error Information", "NA"))

    assert reading.chips == ()
    assert [problem.reason for problem in reading.problems] == ["a chip without a word on its health"]


def test_a_key_that_stands_there_twice_counts_once_and_is_told() -> None:
    reading = npusmi.parse_health(pair("Health", "OK") + pair("Health", "Alarm"))

    assert [chip.health for chip in reading.chips] == ["OK"]
    assert [problem.reason for problem in reading.problems] == ["Health stands here a second time"]


def test_a_line_in_which_the_text_ends_is_not_believed() -> None:
    whole = text_of("t_temp_910b_server")
    cut = whole[: whole.index("39") + 1]

    reading = npusmi.parse_temperature(cut)

    assert reading.chips == ()
    assert [problem.reason for problem in reading.problems] == ["the text ends within this line"]


def test_a_lost_card_is_told_apart_from_a_sick_one() -> None:
    reading = npusmi.parse_health(text_of("err_card_lost_invalid_id"))

    assert reading.chips == ()
    assert reading.error is not None
    assert reading.error.kind == ToolErrorKind.CARD_LOST


# --- events ---------------------------------------------------------------------------------------------------------------------


def test_an_event_has_a_code_and_a_severity() -> None:
    events = npusmi.parse_fault_events(text_of("t_current_fault_event_950"))

    assert events.events == (FaultEvent("81AF8000", 2, "node type ex=215, node id=0, sub node type ex=0, sub node id=0"),)


def test_no_event_is_an_answer() -> None:
    events = npusmi.parse_fault_events(pair("Fault Event Count", "0") + pair("Fault Event Information", "NA"))

    assert (events.count, events.events, events.complete) == (0, (), True)


def test_events_that_are_counted_and_not_listed_are_told() -> None:
    events = npusmi.parse_fault_events(text_of("t_current_fault_event_950").replace(": 1", ": 3", 1))

    assert [problem.reason for problem in events.problems] == ["it counts 3 events and lists 1"]


# --- numbers --------------------------------------------------------------------------------------------------------------------


def test_chip_ids_that_close_their_blocks_give_each_chip_its_own_values() -> None:
    chips = [pair("HBM Usage Rate(%)", str(rate)) + pair("Chip ID", str(chip)) for chip, rate in ((0, 91), (1, 4))]
    text = pair("NPU ID", "5") + pair("Chip Count", "2") + "\n" + "\n".join(chips)

    assert [(chip.at, chip.hbm_rate) for chip in npusmi.parse_usages(text).chips] == [(Address(5, 0), 91), (Address(5, 1), 4)]


def test_what_is_not_printed_is_absent_and_not_zero() -> None:
    usage = npusmi.parse_usages(text_of("t_usages_910a")).chips[0]
    newer = npusmi.parse_usages(text_of("t_usages_950")).chips[0]

    assert (usage.aivector, usage.aicube, usage.npu, usage.aicore) == (None, None, None, 0)
    assert (newer.aivector, newer.aicube, newer.npu, newer.ctrlcpu) == (0, 0, 0, 40)


def test_the_second_temperature_of_common_is_the_boards() -> None:
    reading = npusmi.parse_common(text_of("t_common_910b_light"))

    assert [(chip.temperature, chip.power, chip.hbm_rate) for chip in reading.chips] == [(46, 130.4, 91)]
    assert reading.mcu_temperature == 40


def test_temperatures_of_cards_and_servers_differ_in_their_name_only() -> None:
    server = npusmi.parse_temperature(text_of("t_temp_910b_server"))
    card = npusmi.parse_temperature(pair("NPU ID", "0") + pair("Temperature (C)", "86"))

    assert ([chip.value for chip in server.chips], server.board) == ([39], (("LM75A_TE (C)", 36), ("LM75B_TE (C)", 36)))
    assert [chip.value for chip in card.chips] == [86]


def test_power_that_is_not_measured_is_absent() -> None:
    reading = npusmi.parse_power(pair("NPU ID", "0") + pair("NPU Real-time Power(W)", "NA") + pair("Chip ID", "1"))

    assert [(chip.at, chip.value) for chip in reading.chips] == [(Address(0, 1), None)]
    assert reading.complete


def test_memory_has_its_own_temperature() -> None:
    chip = npusmi.parse_memory(text_of("t_memory_950")).chips[0]

    assert (chip.hbm_capacity, chip.hbm_temperature, chip.hbm_clock, chip.manufacturer) == (131072, 63, 3200, "0x5A")


@pytest.mark.parametrize(
    "parse",
    [npusmi.parse_usages, npusmi.parse_common, npusmi.parse_temperature, npusmi.parse_power, npusmi.parse_memory, npusmi.parse_ecc],
)
def test_an_answer_to_another_question_is_told(parse: object) -> None:
    reading = parse(pair("NPU ID", "0") + pair("Colour", "blue"))  # type: ignore[operator]

    assert (reading.chips, reading.complete) == ((), False)


# --- counters -------------------------------------------------------------------------------------------------------------------


def test_errors_of_hbm_and_ddr_are_counted_apart() -> None:
    text = text_of("t_ecc_910a").replace("HBM Double Bit Error Count               : 0", "HBM Double Bit Error Count               : 3")
    chip = npusmi.parse_ecc(text).chips[0]

    assert chip.hbm is not None
    assert chip.ddr is not None
    assert (chip.hbm.double, chip.ddr.double, chip.hbm.double_next) == (3, 0, None)
    assert chip.at == Address(1, 0)


def test_pages_that_wait_for_a_reset_are_counted_on_950() -> None:
    chip = npusmi.parse_ecc(
        text_of("t_ecc_950").replace("Double Bit Next-Isolated Pages Count : 0", "Double Bit Next-Isolated Pages Count : 64")
    ).chips[0]

    assert chip.ddr is None
    assert chip.hbm is not None
    assert chip.hbm.double_next == 64


def test_a_counter_that_was_not_read_is_absent() -> None:
    text = text_of("t_ecc_910a").replace(
        "HBM Double Bit Error Count               : 0", f"HBM Double Bit Error Count               : {2**32 - 1}"
    )
    reading = npusmi.parse_ecc(text)

    assert reading.chips[0].hbm is not None
    assert reading.chips[0].hbm.double is None
    assert [problem.line_number for problem in reading.problems] == [11]


def test_error_counts_are_those_of_the_link() -> None:
    text = pair("NPU ID", "0") + pair("TX Error Count", "0") + pair("RX Error Count", "7") + pair("Chip ID", "0")
    reading = npusmi.parse_error_counts(text)

    assert [(chip.at, chip.counts) for chip in reading.chips] == [(Address(0, 0), (("TX Error Count", 0), ("RX Error Count", 7)))]


def test_processes_of_all_chips_of_a_card_keep_their_chip() -> None:
    row = "\tProcess id:{:<7} Process name:{:<17} Process memory(MB):{}\n"
    text = (
        pair("NPU ID", "2")
        + pair("Chip Count", "2")
        + "\n"
        + row.format(4711, "a name", 12)
        + row.format(4712, "", 13)
        + pair("Chip ID", "0")
        + "\n\tNo process in device.\n"
        + pair("Chip ID", "1")
    )
    reading = npusmi.parse_process_memory(text)

    assert reading.processes == (MemoryProcess(Address(2, 0), 4711, "a name", 12), MemoryProcess(Address(2, 0), 4712, "", 13))
    assert reading.none_on == (Address(2, 1),)
    assert reading.complete


def test_a_process_that_ended_between_two_looks_is_a_process() -> None:
    reading = npusmi.parse_process_memory(
        "\tGet pid name failed.\n\tProcess id:77      Process name:                  Process memory(MB):1\n"
    )

    assert [row.pid for row in reading.processes] == [77]
    assert reading.complete


@pytest.mark.parametrize("text", ["\tProcess id:x Process name:a Process memory(MB):1\n", "\tNo process in dev", "\tKein Prozess.\n"])
def test_processes_that_cannot_be_read_are_not_no_processes(text: str) -> None:
    reading = npusmi.parse_process_memory(text)

    assert (reading.processes, reading.none_on, reading.complete) == ((), (), False)


def test_a_board_tells_driver_firmware_and_bus() -> None:
    card, chip = npusmi.parse_board(text_of("t_board_910a_card")), npusmi.parse_board(text_of("t_board_910a_chip"))

    assert (card.driver, card.firmware, card.bus, card.pci_device, card.chip_count) == (
        "23.0.5",
        "7.1.0.7.220",
        "0000:61:00.0",
        "0xD801",
        1,
    )
    assert (chip.at, chip.chip_name, chip.driver) == (Address(0, 0), "910A", None)
    assert dict(card.fields)["Compatibility"] == "OK"


def test_a_number_of_the_board_that_is_none_is_told() -> None:
    board = npusmi.parse_board(pair("NPU ID", "zero"))

    assert board.at == Address(None, None)
    assert [problem.reason for problem in board.problems] == ["NPU ID is no whole number: 'zero'"]


@pytest.mark.parametrize(("word", "enabled"), [("True", True), ("False", False), ("Enable", None)])
def test_device_sharing_is_true_false_or_unknown(word: str, enabled: bool | None) -> None:
    reading = npusmi.parse_device_share(pair("NPU ID", "0") + pair("Device-share Status", word) + pair("Chip ID", "0"))

    assert reading.chips == ((Address(0, 0), enabled),)
    assert reading.complete == (enabled is not None)


def test_a_remapped_physical_id_is_read_where_one_line_names_one() -> None:
    assert npusmi.parse_phyid_remap(pair("Chip Phy-ID", "5")).physical == 5
    assert npusmi.parse_phyid_remap(pair("Phy-ID", "5") + pair("Old Phy-ID", "4")).physical is None
