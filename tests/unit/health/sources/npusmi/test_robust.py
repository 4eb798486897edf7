"""Whatever text comes: no parser raises, and none makes up a value that isn't there.

Texts are the real outputs, cut, garbled, mixed with standard error, and with each other; and any text at all.
"""

from dataclasses import fields, is_dataclass
from enum import Enum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glm5_operator.health.sources.hccn import parse_hccn_conf
from glm5_operator.health.sources.npusmi import parse_health, parse_info, parse_list, parse_map, parse_reset, parse_topology, parse_watch
from glm5_operator.health.sources.npusmi.readings import ResetOutcome
from glm5_operator.health.sources.npusmi.text import MOST_LINES, split
from glm5_operator.health.sources.reading import Reading
from tests.unit.health.sources.npusmi.files import FILES, PARSERS, Parser, parser_of

TEXTS = [path.read_text() for path in FILES]
TABLES = [path.read_text() for path in FILES if parser_of(path) is parse_info]
NOISE = (
    "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\n",
    "npu-smi: /usr/local/Ascend/driver/lib64/libdrvdsmi_host.so: no version information available\n",
    "[ERROR] DRV(90210,npu-smi): drvMngOpenFd failed\n",
    "错误: 设备不存在\n",
    "\x1b[31m\x00\x07\n",
)

# What isn't read but counted: problems' lines, and the questions that a reset asked.
NO_VALUES = ("problems", "error", "asked")

parsers = st.sampled_from(PARSERS)
texts = st.sampled_from(TEXTS)


@st.composite
def garbled(draw: st.DrawFn) -> str:
    """A real output with up to six things done to it."""
    text = draw(texts)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(text)))
        end = min(len(text), at + draw(st.integers(0, 40)))
        match draw(st.sampled_from(["cut", "drop", "insert", "noise", "repeat", "mix"])):
            case "cut":
                text = text[:at]
            case "drop":
                text = text[:at] + text[end:]
            case "insert":
                text = text[:at] + draw(st.text(max_size=8)) + text[at:]
            case "noise":
                text = text[:at] + draw(st.sampled_from(NOISE)) + text[at:]
            case "repeat":
                text = text[:end] + text[at:]
            case "mix":
                other = draw(texts)
                text = text[:at] + other[: draw(st.integers(0, len(other)))] + text[at:]
    return text


def numbers(value: object) -> list[float]:
    """All numbers that were read."""
    if isinstance(value, bool | Enum | str) or value is None:
        return []
    if isinstance(value, int | float):
        return [value]
    if isinstance(value, tuple | frozenset):
        return [number for item in value for number in numbers(item)]
    if is_dataclass(value):
        names = [field.name for field in fields(value) if field.name not in NO_VALUES]
        return [number for name in names for number in numbers(getattr(value, name))]
    return []


def check(reading: Reading) -> None:
    assert isinstance(reading, Reading)
    assert len(reading.problems) <= 64
    assert all(len(problem.line) <= 200 and problem.reason and str(problem) for problem in reading.problems)


@given(parsers, garbled())
@settings(max_examples=400, deadline=None)
def test_no_parser_raises_whatever_happens_to_an_output(parser: Parser, text: str) -> None:
    check(parser(text))


@given(parsers, st.text(max_size=400))
@settings(max_examples=200, deadline=None)
def test_no_parser_raises_whatever_the_text(parser: Parser, text: str) -> None:
    check(parser(text))


@given(
    parsers,
    st.lists(
        st.sampled_from(["|", "+---+", ":", "NPU ID", "Chip ID", " 7 ", "\n", "OK", "=", "X", "NPU0", "(", "[0]", "-", "\t"]), max_size=60
    ),
)
@settings(max_examples=200, deadline=None)
def test_no_parser_raises_whatever_the_tools_own_words_in_any_order(parser: Parser, words: list[str]) -> None:
    check(parser("".join(words)))


@given(st.sampled_from(range(len(FILES))), st.data())
@settings(max_examples=250, deadline=None)
def test_no_number_is_made_up(index: int, data: st.DataObject) -> None:
    text = TEXTS[index]
    cut = text[: data.draw(st.integers(0, len(text)))]
    parser = parser_of(FILES[index])

    assert set(numbers(parser(cut))) <= set(numbers(parser(text)))


@given(st.sampled_from(TABLES), st.data())
@settings(max_examples=250, deadline=None)
def test_a_table_that_is_cut_has_the_same_chips_only_fewer_and_never_a_free_card_that_is_not(text: str, data: st.DataObject) -> None:
    whole = parse_info(text)
    cut = parse_info(text[: data.draw(st.integers(0, len(text)))])

    assert cut.chips == whole.chips[: len(cut.chips)]
    assert not cut.whole or cut.chips == whole.chips
    for chip in cut.chips:
        assert cut.pids(chip.npu, chip.chip) in (None, whole.pids(chip.npu, chip.chip))


@given(st.sampled_from(TABLES), st.data())
@settings(max_examples=250, deadline=None)
def test_standard_error_in_the_middle_of_a_table_never_changes_a_chip(text: str, data: st.DataObject) -> None:
    whole = {(row.npu, row.chip): row for row in parse_info(text).chips}
    at = data.draw(st.integers(0, len(text)))
    mixed = parse_info(text[:at] + data.draw(st.sampled_from(NOISE)) + text[at:])

    assert all(whole.get((row.npu, row.chip)) == row for row in mixed.chips)
    assert mixed.problems or set(whole) == {(row.npu, row.chip) for row in mixed.chips}
    assert not mixed.whole or set(whole) == {(row.npu, row.chip) for row in mixed.chips}


@given(st.sampled_from([text for text in TABLES if "| OK" in text]), st.text(min_size=1, max_size=12))
@settings(max_examples=150, deadline=None)
def test_a_word_for_health_in_any_language_is_never_ok_unless_it_is(text: str, word: str) -> None:
    found = parse_info(text.replace("| OK ", f"| {word} ", 1))
    sick = [row for row in found.chips if row.health == "OK"]

    assert len(sick) < len(parse_info(text).chips) or word.strip() == "OK"


@given(st.sampled_from(["OK", "Warning", "Alarm", "Critical"]), st.text(max_size=200), st.text(max_size=200))
@settings(max_examples=150, deadline=None)
def test_health_is_found_in_no_line_but_its_own(word: str, before: str, after: str) -> None:
    line = f"\tHealth Status                  : {word}\n"
    reading = parse_health(f"{before.replace(':', '')}\n{line}{after.replace(':', '')}\n")

    assert [chip.health for chip in reading.chips] in ([word], [])
    assert reading.chips or reading.error


@given(garbled())
@settings(max_examples=200, deadline=None)
def test_a_text_without_the_sentence_is_never_a_reset_that_succeeded(text: str) -> None:
    outcome = parse_reset(text.replace("successfully", "")).outcome

    assert outcome is not ResetOutcome.SUCCEEDED


@pytest.mark.parametrize(
    "parser", [parse_info, parse_list, parse_map, parse_health, parse_topology, parse_watch, parse_hccn_conf, parse_reset]
)
def test_a_long_text_takes_time_in_proportion(parser: Parser) -> None:
    # The texts on which a pattern with two ways to match would take for ever: the test's limit would end it.
    for piece in ("| 0 ", "a: ", " ", "0/", "[y/n]", "Message : ", "NPU0 ", "=", "Status "):
        check(parser(piece * (50_000 // len(piece))))
        check(parser((piece * 20 + "\n") * 500))


def test_of_more_lines_than_a_tool_prints_the_first_are_read_and_are_never_the_whole() -> None:
    """A megabyte of empty lines is a hundred megabytes of lines, and seconds in which the agent answers nobody."""
    table = parse_info(TABLES[0])
    assert table.whole
    endless = parse_info(TABLES[0] + "\n" * MOST_LINES)
    assert endless.chips == table.chips
    assert any("left out" in problem.reason for problem in endless.problems)
    behind = parse_info("\n" * MOST_LINES + TABLES[0])
    assert (behind.chips, behind.whole) == ((), False)
    assert len(split("a\n" * (2 * MOST_LINES))) == MOST_LINES + 1
