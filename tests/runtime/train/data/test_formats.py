"""Rows as people write them: what each format holds, and what is refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from glm5_runtime.train.data.formats import Conversation, Preference, RowError, recognise, understand

Q = {"role": "user", "content": "q"}
A = {"role": "assistant", "content": "a"}
WEATHER = {"name": "weather", "arguments": {"city": "Paris"}}


def read(row: dict[str, Any]) -> Any:  # noqa: ANN401 - tests say what they expect
    return understand(row, recognise(row))


def texts(row: dict[str, Any]) -> list[tuple[str, str]]:
    record = read(row)
    assert isinstance(record, Conversation)
    return [(message["role"], message["content"]) for message in record.messages]


def refusal(row: dict[str, Any]) -> RowError:
    with pytest.raises(RowError) as caught:
        read(row)
    return caught.value


def test_null_equals_absent_and_unknown_fields_are_ignored() -> None:
    plain = read({"messages": [Q, A]})

    assert read({"messages": [Q, A], "system": None, "tools": None, "text": None, "source": {"a": [None]}, "id": 3}) == plain
    assert read({"messages": [Q | {"name": None, "extra": 1}, A | {"tool_calls": None}]}) == plain
    assert read({"messages": None, "instruction": "q", "input": None, "output": "a"}) == plain


def test_instruction_and_input_are_one_question() -> None:
    assert texts({"instruction": "Translate.", "input": "Hund", "output": "dog"}) == [
        ("user", "Translate.\nHund"),
        ("assistant", "dog"),
    ]
    assert texts({"instruction": "", "input": "Hund", "output": "dog"})[0] == ("user", "Hund")


def test_answers_of_the_history_are_trained_too() -> None:
    record = read({"instruction": "r", "output": "b", "history": [["q", "a"]], "system": "s"})

    assert [message["content"] for message in record.messages] == ["s", "q", "a", "r", "b"]
    assert record.answers == {2, 4}


def test_a_function_call_of_sharegpt_becomes_a_call_and_an_observation_its_result() -> None:
    row = {
        "conversations": [
            {"from": "human", "value": "q"},
            {"from": "function_call", "value": json.dumps(WEATHER)},
            {"from": "observation", "value": "sunny"},
            {"from": "gpt", "value": "It is sunny."},
        ],
        "tools": json.dumps([{"name": "weather", "description": "d"}]),
    }
    record = read(row)

    assert [message["role"] for message in record.messages] == ["user", "assistant", "tool", "assistant"]
    assert record.messages[1]["tool_calls"][0]["function"] == WEATHER
    assert record.tools == [{"type": "function", "function": {"name": "weather", "description": "d"}}]
    assert record.answers == {1, 3}


def test_several_calls_may_stand_in_one_message() -> None:
    record = read({"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": json.dumps([WEATHER, WEATHER])}]})

    assert len(record.messages[1]["tool_calls"]) == 2


def test_what_stands_behind_the_last_answer_is_left_out_and_counted() -> None:
    record = read({"messages": [Q, A, {"role": "user", "content": "?"}, {"role": "user", "content": "!"}]})

    assert (len(record.messages), record.unanswered) == (2, 2)


@pytest.mark.parametrize(
    ("row", "reason", "named"),
    [
        ({"question": "q", "answer": "a"}, "format", "messages"),
        ({}, "format", "messages"),
        ({"messages": []}, "no-messages", "no messages"),
        ({"messages": "[]"}, "type", "messages must be a list"),
        ({"messages": {"role": "user"}}, "type", "list"),
        ({"messages": ["q", "a"]}, "message", "messages[0]"),
        ({"messages": [{"role": "system", "content": "s"}]}, "no-answer", "nothing to learn"),
        ({"messages": [Q, {"role": "bot", "content": "a"}]}, "role", "'bot'"),
        ({"messages": [Q, {"content": "a"}]}, "role", "messages[1].role"),
        ({"conversations": [{"from": "bot", "value": "a"}]}, "role", "'bot'"),
        ({"messages": [{"role": "user", "content": None}, A]}, "message", "messages[0].content is missing"),
        ({"messages": [Q, {"role": "assistant", "content": None}]}, "message", "messages[1].content is missing"),
        ({"messages": [Q, {"role": "assistant", "content": " \n"}]}, "no-answer", "messages[1]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}, A]}, "message", "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": {"a": 1}}, A]}, "message", "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}, A]}, "message", "messages[0].content"),
        ({"messages": [Q, A | {"tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]}, "message", "arguments"),
        ({"messages": [Q, A | {"weight": 0}]}, "no-answer", "weight 0"),
        ({"messages": [Q, A], "tools": "[{"}, "tools", "JSON"),
        ({"messages": [Q, A], "tools": [{"type": "function"}]}, "tools", "tools[0]"),
        ({"messages": [Q, A], "tools": {"name": "f"}}, "tools", "list"),
        ({"messages": [Q, A], "system": 3}, "type", "system"),
        ({"messages": [Q, A], "chat_template_kwargs": []}, "type", "chat_template_kwargs"),
        ({"conversations": [Q, {"from": "function_call", "value": "weather()"}]}, "message", "messages[1]"),
        ({"instruction": "q"}, "no-answer", "output"),
        ({"instruction": "q", "output": ""}, "no-answer", "output"),
        ({"instruction": " ", "output": "a"}, "no-question", "empty"),
        ({"instruction": ["q"], "output": "a"}, "type", "instruction"),
        ({"instruction": "q", "output": "a", "history": ["q", "a"]}, "type", "history"),
        ({"text": " "}, "no-text", "text"),
        ({"text": ["a"]}, "type", "text"),
    ],
)
def test_a_row_that_cannot_be_used_is_refused_with_a_reason_that_names_the_place(row: dict[str, Any], reason: str, named: str) -> None:
    error = refusal(row)

    assert error.reason == reason
    assert named in error.message


def test_both_spellings_of_a_message_are_treated_alike() -> None:
    rows = [[("user", "a"), ("user", "b"), ("assistant", "c")], [("assistant", "w"), ("user", "a"), ("assistant", "c")]]
    for turns in rows:
        role_content = [{"role": role, "content": text} for role, text in turns]
        from_value = [{"from": {"user": "human", "assistant": "gpt"}[role], "value": text} for role, text in turns]
        same = [read({key: spelled}) for key in ("messages", "conversations") for spelled in (role_content, from_value)]
        assert all(record == same[0] for record in same)


# --- preferences ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q", "chosen": "a", "rejected": "b"},
        {"prompt": [Q], "chosen": [A], "rejected": [A | {"content": "b"}]},
        {"chosen": [Q, A], "rejected": [Q, A | {"content": "b"}]},
        {
            "conversations": [{"from": "human", "value": "q"}],
            "chosen": {"from": "gpt", "value": "a"},
            "rejected": {"from": "gpt", "value": "b"},
        },
        {"instruction": "q", "chosen": "a", "rejected": "b"},
    ],
)
def test_a_pair_is_one_prompt_with_two_answers(row: dict[str, Any]) -> None:
    record = read(row | {"system": "s"})

    assert isinstance(record, Preference)
    assert [[message["content"] for message in each.messages] for each in (record.chosen, record.rejected)] == [
        ["s", "q", "a"],
        ["s", "q", "b"],
    ]
    assert record.chosen.answers == record.rejected.answers == {2}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"chosen": "a", "rejected": "b"}, "pair"),
        ({"prompt": "q", "chosen": "a", "rejected": "a"}, "pair"),
        ({"chosen": [Q, A], "rejected": [Q, A]}, "pair"),
        ({"chosen": [Q, A], "rejected": [{"role": "user", "content": "other"}, A]}, "pair"),
        ({"prompt": "q", "chosen": 1, "rejected": "b"}, "type"),
        ({"prompt": "q", "chosen": "", "rejected": "b"}, "no-answer"),
        ({"prompt": "q", "chosen": [Q], "rejected": "b"}, "no-answer"),
    ],
)
def test_a_pair_without_a_prompt_or_a_difference_is_refused(row: dict[str, Any], reason: str) -> None:
    assert refusal(row).reason == reason
