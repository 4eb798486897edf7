"""Reasoning and tool calls read from text, in one piece and in every way of cutting it (A17)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm5_runtime.server.parsers import ChatParser, Delta, typed_value

SCHEMAS: dict[str, dict[str, Any]] = {
    "f": {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "flag": {"type": "boolean"},
            "items": {"type": "array"},
            "maybe": {"type": ["string", "null"]},
            "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "word": {"enum": ["a", "b"]},
        },
    }
}


def parse(
    pieces: list[str], *, thinking: bool, by_itself: bool = True, tools: Mapping[str, Any] | None = SCHEMAS, several: bool = True
) -> Delta:
    """All deltas of an answer, added up."""
    parser = ChatParser(thinking=thinking, tools=tools, several_calls=several, new_call_id=lambda: "id")
    whole = Delta()
    for piece in pieces:
        whole.extend(parser.push(piece))
    whole.extend(parser.finish(by_itself=by_itself))
    return whole


def calls_of(delta: Delta) -> list[tuple[str, str]]:
    """(name, arguments) of each call."""
    calls: list[list[str]] = []
    for piece in delta.calls:
        if piece.name is not None:
            calls.append([piece.name, ""])
        calls[piece.index][1] += piece.arguments
    return [(name, arguments) for name, arguments in calls]


@pytest.mark.parametrize(
    ("text", "thinking", "by_itself", "reasoning", "content"),
    [
        ("The answer is 42.", True, True, "", "The answer is 42."),
        ("The answer is 42.", True, False, "The answer is 42.", ""),
        ("X</think>Y", True, True, "X", "Y"),
        ("X</think>Y", True, False, "X", "Y"),
        ("X</think>", True, True, "X", ""),
        ("</think>Y", True, True, "", "Y"),
        ("X</thi", True, False, "X</thi", ""),
        ("The answer is 42.", False, True, "", "The answer is 42."),
        ("X</think>Y", False, True, "", "X</think>Y"),
        ("<think>X</think>Y", False, True, "X", "Y"),
        ("<thin", False, True, "", "<thin"),
        ("a <think>b", False, True, "", "a <think>b"),
        ("", True, True, "", ""),
        ("", False, False, "", ""),
    ],
)
def test_reasoning_and_content(text: str, thinking: bool, by_itself: bool, reasoning: str, content: str) -> None:
    for pieces in ([text], list(text)):
        delta = parse(pieces, thinking=thinking, by_itself=by_itself)
        assert ("" if delta.no_thinking else delta.reasoning, delta.content) == (reasoning, content)


CALL = "<tool_call>f<arg_key>text</arg_key><arg_value>5</arg_value><arg_key>count</arg_key><arg_value>5</arg_value></tool_call>"
ARGUMENTS = '{"text": "5", "count": 5}'


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (CALL, "", [("f", ARGUMENTS)]),
        ("Let me see." + CALL, "Let me see.", [("f", ARGUMENTS)]),
        (CALL + CALL, "", [("f", ARGUMENTS)] * 2),
        (CALL + "\n" + CALL, "\n", [("f", ARGUMENTS)] * 2),
        ("<tool_call>now</tool_call>", "", [("now", "{}")]),
        ("<tool_call>\nf\n<arg_key>text</arg_key>\n<arg_value>a</arg_value>\n</tool_call>", "", [("f", '{"text": "a"}')]),
        (
            "<tool_call>f<arg_key>text</arg_key><arg_value>says </tool_call> and <tool_call></arg_value></tool_call>",
            "",
            [("f", '{"text": "says </tool_call> and <tool_call>"}')],
        ),
        ("a < b and <tool", "a < b and <tool", []),
        ("<tool_call>f", "", [("f", "{}")]),
        ("<tool_call>f<arg_key>count</arg_key><arg_value>5</arg_value>", "", [("f", '{"count": 5}')]),
    ],
)
def test_tool_calls_in_one_piece_and_letter_by_letter(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    for pieces in ([text], list(text)):
        delta = parse(pieces, thinking=False)
        assert (delta.content, calls_of(delta)) == (content, calls)
        for _, arguments in calls_of(delta):
            json.loads(arguments)


@given(st.data())
def test_however_an_answer_is_cut_the_sum_is_the_same(data: st.DataObject) -> None:
    text = data.draw(
        st.sampled_from(["why</think>because" + CALL + "<tool_call>now</tool_call>!", "no end", "</think></think>" + CALL * 2])
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    assert calls_of(parse(pieces, thinking=True)) == calls_of(parse([text], thinking=True))
    one, many = parse([text], thinking=True), parse(pieces, thinking=True)
    assert ("" if many.no_thinking else many.reasoning, many.content) == ("" if one.no_thinking else one.reasoning, one.content)


@given(st.text(alphabet="<>/thinkool_carg keyvu", max_size=80), st.booleans(), st.booleans())
def test_no_text_can_break_the_parser_or_lose_plain_words(text: str, thinking: bool, by_itself: bool) -> None:
    delta = parse(list(text), thinking=thinking, by_itself=by_itself)

    if "<tool_call>" not in text and "think>" not in text:
        assert (delta.content if by_itself or not thinking else delta.reasoning) == text


def test_a_call_cut_by_length_is_left_unclosed_so_that_nobody_runs_half_of_it() -> None:
    delta = parse([CALL[: CALL.index("<arg_key>count")]], thinking=False, by_itself=False)

    ((_, arguments),) = calls_of(delta)
    with pytest.raises(ValueError, match="delimiter"):
        json.loads(arguments)


def test_without_tools_a_call_is_plain_text() -> None:
    assert parse([CALL], thinking=False, tools=None).content == CALL


def test_parallel_calls_can_be_switched_off() -> None:
    assert len(calls_of(parse([CALL * 3], thinking=False, several=False))) == 1


@pytest.mark.parametrize(
    ("raw", "name", "value"),
    [
        ("5", "text", "5"),
        ("true", "text", "true"),
        ("5", "count", 5),
        ("true", "flag", True),
        ('["a", 1]', "items", ["a", 1]),
        ("null", "maybe", None),
        ("5", "maybe", "5"),
        ("null", "either", None),
        ("7", "either", 7),
        ("a", "word", "a"),
        ("five", "count", "five"),
        ("NaN", "count", "NaN"),
        ("5", "undeclared", 5),
        ("plain", "undeclared", "plain"),
    ],
)
def test_values_are_typed_by_the_schema(raw: str, name: str, value: object) -> None:
    assert typed_value(raw, SCHEMAS["f"]["properties"].get(name), SCHEMAS["f"]) == value


@pytest.mark.parametrize("schema", [None, True, 7, {"type": 7}, {"type": [1, "string"]}, {"anyOf": "x"}, {"enum": []}, {"$ref": "#/a"}])
def test_a_schema_that_makes_no_sense_leaves_a_plain_value(schema: object) -> None:
    assert typed_value("plain", schema, {}) == "plain"


def test_a_string_argument_is_given_out_as_it_comes_and_escaped() -> None:
    parser = ChatParser(thinking=False, tools=SCHEMAS, new_call_id=lambda: "id")
    parser.push("<tool_call>f<arg_key>text</arg_key><arg_value>")

    pieces = ["".join(call.arguments for call in parser.push(text).calls) for text in ('say "', "hé\n</arg", " no", "</arg_value>")]

    assert pieces == ['say \\"', "hé\\n", "</arg no", '"']


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_string_argument_without_an_end_is_closed_only_when_the_answer_ended_by_itself(by_itself: bool) -> None:
    delta = parse(["<tool_call>f<arg_key>text</arg_key><arg_value>half", " of it"], thinking=False, by_itself=by_itself)

    assert calls_of(delta) == [("f", '{"text": "half of it"}' if by_itself else '{"text": "half of it')]


REFERRING: dict[str, Any] = {
    "properties": {
        "enum": {"$ref": "#/$defs/Level"},
        "alone": {"allOf": [{"$ref": "#/$defs/Level"}], "description": "older pydantic's way"},
        "model": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]},
        "number": {"const": 7},
        "loop": {"$ref": "#/$defs/Loop"},
        "nowhere": {"$ref": "#/$defs/Nobody/x"},
    },
    "$defs": {
        "Level": {"enum": ["1", "2"]},
        "Place": {"properties": {"x": {"type": "integer"}}},
        "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "string"}]},
    },
}


@pytest.mark.parametrize(
    ("raw", "name", "value"),
    [
        ("1", "enum", "1"),
        ("1", "alone", "1"),
        ('{"x": 1}', "model", {"x": 1}),
        ("null", "model", None),
        ("7", "number", 7),
        ("1", "loop", "1"),
        ("1", "nowhere", 1),
    ],
)
def test_types_are_found_behind_references(raw: str, name: str, value: object) -> None:
    assert typed_value(raw, REFERRING["properties"][name], REFERRING) == value


def test_a_schema_whose_parts_all_refer_to_each_other_is_looked_through_once() -> None:
    tangle = {f"d{index}": {"anyOf": [{"$ref": f"#/$defs/d{other}"} for other in range(30)]} for index in range(30)}
    root = {"$defs": tangle | {"d7": {"type": "integer"}}}

    assert typed_value("7", {"$ref": "#/$defs/d0"}, root) == 7
