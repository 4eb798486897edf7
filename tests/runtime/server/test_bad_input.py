"""Hostile and mistaken requests (A01 A06 A08 A10 A12 A18 A19 A20): the right status, the field named, and the next request is served."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from glm5_runtime.engine.engine import Engine
from tests.support import serving
from tests.support.serving import CONTEXT, MODEL, PING, ask, error_of, events_of

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HTTP = Path(__file__).parents[2] / "fixtures" / "http"
HI = [{"role": "user", "content": "hi"}]
TOOL = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
UNHOLDABLE = {"type": "object", "properties": {"a": {"type": "object", "not": {}}}}
STRICT = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": UNHOLDABLE}}]


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    """A client whose server must still answer at the end of each test."""
    async with serving.asgi_client(serving.make_service(engine)) as client:
        yield client
        assert (await client.post(CHAT, json=PING)).status_code == 200


def chat(**fields: object) -> dict[str, Any]:
    return {"model": MODEL, "messages": HI, "max_tokens": 4} | fields


# A01


async def test_null_equals_absent_for_every_field(client: httpx.AsyncClient) -> None:
    nulls = dict.fromkeys(
        [
            *("max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "n", "stop", "seed", "stream", "logit_bias"),
            *("stream_options", "logprobs", "top_logprobs", "tools", "tool_choice", "response_format", "user", "frequency_penalty"),
            *("presence_penalty", "reasoning_effort", "chat_template_kwargs", "parallel_tool_calls", "stop_token_ids", "functions"),
        ]
    )

    assert (await client.post(CHAT, json={"model": MODEL, "messages": HI, "stop": ["e"]} | nulls | {"max_tokens": 4})).status_code == 200
    reply = await client.post(COMPLETIONS, json={"model": MODEL, "prompt": "test", "temperature": 0, "max_tokens": None})
    assert reply.status_code == 200
    assert 0 < reply.json()["usage"]["completion_tokens"] <= 16


@pytest.mark.parametrize("stream", [False, True])
async def test_max_tokens_0_produces_no_token(client: httpx.AsyncClient, stream: bool) -> None:
    reply = await client.post(CHAT, json=chat(max_tokens=0, stream=stream, stream_options={"include_usage": True} if stream else None))

    assert reply.status_code == 200
    body = events_of(reply.text)[-1] if stream else reply.json()
    assert body["usage"]["completion_tokens"] == 0
    finish = events_of(reply.text)[-2]["choices"][0]["finish_reason"] if stream else body["choices"][0]["finish_reason"]
    assert finish == "length"


async def test_max_completion_tokens_wins_over_max_tokens(client: httpx.AsyncClient) -> None:
    reply = await client.post(CHAT, json=ask("Who are you?", max_completion_tokens=3, max_tokens=50))

    assert reply.json()["usage"]["completion_tokens"] == 3


# A06


async def test_text_parts_are_joined_and_none_is_lost(client: httpx.AsyncClient) -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "GLM-5?"}]

    by_parts = (await client.post(CHAT, json=ask("", messages=[{"role": "user", "content": parts}]))).json()
    by_text = (await client.post(CHAT, json=ask("What is GLM-5?"))).json()

    assert by_parts["usage"]["total_tokens"] == by_text["usage"]["total_tokens"]
    assert by_parts["choices"][0]["message"] == by_text["choices"][0]["message"]


# A12


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_over_the_context_is_a_real_400_naming_limit_and_size(client: httpx.AsyncClient, stream: bool) -> None:
    reply = await client.post(COMPLETIONS, json={"model": MODEL, "prompt": [60] * (CONTEXT + 1), "stream": stream})

    error = error_of(reply)
    assert (reply.status_code, error["type"], error["param"]) == (400, "invalid_request_error", "prompt")
    assert str(CONTEXT) in error["message"]
    assert str(CONTEXT + 1) in error["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_max_tokens_that_do_not_fit_behind_the_prompt_are_refused(client: httpx.AsyncClient, stream: bool) -> None:
    reply = await client.post(COMPLETIONS, json={"model": MODEL, "prompt": [60] * 100, "max_tokens": CONTEXT - 99, "stream": stream})

    assert (reply.status_code, error_of(reply)["param"]) == (400, "max_tokens")
    assert str(CONTEXT + 1) in error_of(reply)["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("prompt", "max_tokens", "produced"), [(CONTEXT - 4, 4, 4), (CONTEXT, None, 0), (CONTEXT - 2, None, 2)])
async def test_an_exact_fit_is_served(client: httpx.AsyncClient, stream: bool, prompt: int, max_tokens: int | None, produced: int) -> None:
    body = {"model": MODEL, "prompt": [60] * prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": stream}

    reply = await client.post(COMPLETIONS, json=body | ({"stream_options": {"include_usage": True}} if stream else {}))

    assert reply.status_code == 200
    usage = events_of(reply.text)[-1]["usage"] if stream else reply.json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompt, produced)


async def test_a_huge_text_is_refused_without_being_encoded(client: httpx.AsyncClient) -> None:
    started = time.process_time()

    reply = await client.post(COMPLETIONS, json={"model": MODEL, "prompt": "word " * 190_000})

    assert reply.status_code == 400
    assert "at least" in error_of(reply)["message"]
    assert time.process_time() - started < 1


# A08 A10 A18 and the rest of the fields


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"max_tokens": "many"}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": 2**40}, "max_tokens"),
    ({"min_tokens": 5}, "min_tokens"),
    ({"n": 100_000}, "n"),
    ({"n": 13}, "n"),
    ({"n": 0}, "n"),
    ({"stop": ["x"] * 500}, "stop"),
    ({"stop": [""]}, "stop[0]"),
    ({"stop": "x" * 1000}, "stop[0]"),
    ({"stop": [3]}, "stop[0]"),
    ({"temperature": 1e6}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"top_p": -0.5}, "top_p"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 2**31}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"seed": 99999999999999999999}, "seed"),
    ({"seed": "one"}, "seed"),
    ({"logprobs": True, "top_logprobs": 100_000}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"frequency_penalty": 5}, "frequency_penalty"),
    ({"presence_penalty": -5}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": 1e-4}, "repetition_penalty"),
    ({"logit_bias": {"99999999": 5, "-1": 5, "abc": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 500}}, "logit_bias.1"),
    ({"logit_bias": {"²": 1}}, "logit_bias"),
    ({"stop_token_ids": [2048]}, "stop_token_ids"),
    ({"stop_token_ids": list(range(500))}, "stop_token_ids"),
    ({"priority": 1 << 31}, "priority"),
    ({"request_id": "a b\n"}, "request_id"),
    ({"reasoning_effort": "extreme"}, "reasoning_effort"),
    ({"response_format": {"type": "json_schema", "schema": {"type": "object"}}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "structural_tag", "structures": []}}, "response_format"),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"n": "not-a-schema"}}},
            }
        },
        "response_format.json_schema.schema",
    ),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": "text"}, "response_format"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": ["a"], "disable_any_whitespace": True}}, "structured_outputs.disable_any_whitespace"),
    ({"structured_outputs": {"choice": ["a"]}, "response_format": {"type": "json_object"}}, "response_format"),
    ({"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs.regex"),
    ({"guided_json": {}, "guided_regex": "a"}, "guided_regex"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": "[]"}, "guided_json"),
    ({"guided_json": {"$ref": "#"}}, "guided_json"),
    ({"guided_json": {"type": "object", "not": {}}}, "guided_json"),
    ({"guided_json": {"enum": ["x" * 300_000]}}, "guided_json"),
    ({"guided_regex": "(a"}, "guided_regex"),
    ({"guided_choice": ["a", ""]}, "guided_choice[1]"),
    ({"guided_grammar": "start: nobody"}, "guided_grammar"),
    ({"guided_grammar": "root ::= nobody"}, "guided_grammar"),
    ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
    ({"thinking_token_budget": -1}, "thinking_token_budget"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"tools": TOOL, "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice.function.name"),
    ({"tools": TOOL, "tool_choice": {"type": "function", "function": "f"}}, "tool_choice"),
    ({"tools": TOOL, "tool_choice": {"type": "custom", "function": {"name": "f"}}}, "tool_choice"),
    ({"tools": STRICT, "tool_choice": "required"}, "tools"),
    ({"tools": STRICT}, "tools"),
    ({"prompt_logprobs": 0}, "prompt_logprobs"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"cache_salt": 1}, "cache_salt"),
    ({"cache_salt": "x" * 257}, "cache_salt"),
    ({"chat_template": "{{ 1 }}"}, "chat_template"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "retrieval", "function": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {"name": "f g"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "strict": "very"}}]}, "tools[0].function.strict"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"namespace": 1}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"enable_thinking": "false"}}, "chat_template_kwargs.enable_thinking"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"stream_options": {"include_usage": "maybe"}, "stream": True}, "stream_options.include_usage"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=lambda value: str(value)[:40])
async def test_a_value_outside_the_limits_is_refused_by_name_within_a_second(
    client: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    started = time.process_time()

    reply = await client.post(CHAT, json=chat(**fields))

    assert (reply.status_code, error_of(reply)["param"]) == (400, param)
    assert error_of(reply)["type"] == "invalid_request_error"
    assert time.process_time() - started < 1


async def test_refused_logit_bias_names_the_bad_ids(client: httpx.AsyncClient) -> None:
    message = error_of(await client.post(CHAT, json=chat(logit_bias={"99999999": 5, "-1": 5, "abc": 1, "5": 1})))["message"]

    assert all(bad in message for bad in ("99999999", "-1", "abc"))
    assert "'5'" not in message


ACCEPTED: list[dict[str, Any]] = [
    {"seed": -1},
    {"seed": 2**63 - 1, "n": 2, "temperature": 1},
    {"top_k": -1},
    {"temperature": 2},
    {"response_format": {"type": "text"}},
    {"tools": []},
    {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
    {"best_of": 1},
    {"user": "someone", "metadata": {"a": 1}, "store": False},
    {"made_up_by_a_client": {"x": 1}},
    {"cache_salt": ""},
    {"cache_salt": "tenant-b"},
    {"use_beam_search": False, "bad_words": [], "prompt_logprobs": False},
    {"top_k": 2**31 - 1, "repetition_penalty": 1e-3},
    {"reasoning_effort": "high"},
    {"thinking": {"type": "disabled"}},
    {"stop": []},
]


@pytest.mark.parametrize("fields", ACCEPTED, ids=str)
async def test_values_within_the_limits_and_unknown_fields_are_served(client: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    assert (await client.post(CHAT, json=chat(**fields))).status_code == 200


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"temperature": 1.3, "seed": -1}])
async def test_temperature_0_or_a_seed_gives_the_same_text_twice(client: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    request = chat(**(fields | {"max_tokens": 20, "messages": [{"role": "user", "content": "Tell a story."}]}))

    first, second = [(await client.post(CHAT, json=request)).json()["choices"] for _ in range(2)]

    assert first == second


# A19


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ((HTTP / "broken_json.json").read_bytes(), 400),
        ((HTTP / "binary_body.bin").read_bytes(), 400),
        (b"", 400),
        (b"[" * 100_000, 400),
        (b'{"messages":' + b'{"a":' * 100_000, 400),
        (b'{"model":"glm-5","messages":[{"role":"user","content":"hi"}],"temperature":NaN}', 400),
        (b'{"model":"glm-5","messages":[{"role":"user","content":"hi"}],"nobody_knows":[{"a":-1e400}]}', 400),
        (b'{"model":"glm-5","messages":[{"role":"user","content":"\\ud800"}]}', 400),
        (b"[]", 400),
        (b'"hi"', 400),
        (b"null", 400),
        (b"x" * 1_000_001, 413),
        (b'{"messages":[]}', 400),
        (b'{"messages":"hi"}', 400),
        (b'{"messages":["hi"]}', 400),
        (b'{"model":"glm-5"}', 400),
        (b'{"model":"gpt-4","messages":[{"role":"user","content":"hi"}]}', 404),
        (b'{"model":7,"messages":[{"role":"user","content":"hi"}]}', 400),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_a_malformed_body_is_a_json_error_and_leaves_nothing_of_itself_in_the_log(
    client: httpx.AsyncClient, body: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="glm5_runtime")

    reply = await client.post(CHAT, content=body, headers={"content-type": "application/json"})

    assert reply.status_code == status
    assert len(error_of(reply)["message"]) < 300
    assert all(len(record.getMessage()) < 200 for record in caplog.records)
    assert not any("oops" in record.getMessage() or "(\udcfe" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(("levels", "status"), [(200, 200), (201, 400)])
async def test_json_is_read_down_to_two_hundred_levels(client: httpx.AsyncClient, levels: int, status: int) -> None:
    nested: dict[str, Any] = {"type": "object"}
    for _ in range(levels - 5):  # body, tools, tool and function are four levels, the innermost object one
        nested = {"x": nested}

    reply = await client.post(CHAT, json=chat(tools=[{"type": "function", "function": {"name": "f", "parameters": nested}}]))

    assert reply.status_code == status


async def test_an_unknown_path_and_a_wrong_method_are_json_errors(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/nothing")).status_code == 404
    assert error_of(await client.get("/v1/nothing"))["type"] == "not_found_error"
    wrong = await client.get(CHAT)
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")


# A20


async def test_a_conversation_of_one_system_message_is_served(client: httpx.AsyncClient) -> None:
    reply = await client.post(CHAT, json=chat(messages=[{"role": "system", "content": "Answer only in French."}]))

    assert reply.status_code == 200


async def test_a_developer_message_is_a_system_message_in_its_place(client: httpx.AsyncClient) -> None:
    def conversation(second: str) -> list[dict[str, str]]:
        return [
            {"role": "system", "content": "A."},
            {"role": second, "content": "Always end with ZZZ."},
            {"role": "user", "content": "2+2?"},
        ]

    developer, system = [
        (await client.post(CHAT, json=ask("", messages=conversation(role), max_tokens=8))).json() for role in ("developer", "system")
    ]
    without = (await client.post(CHAT, json=ask("", messages=[conversation("system")[0], conversation("system")[2]], max_tokens=8))).json()

    assert developer["usage"]["total_tokens"] == system["usage"]["total_tokens"]
    assert developer["choices"][0]["message"] == system["choices"][0]["message"]
    assert developer["usage"]["prompt_tokens"] > without["usage"]["prompt_tokens"] + 5


@pytest.mark.parametrize("content", ["one, two,", [{"type": "text", "text": "one, "}, {"type": "text", "text": "two,"}]])
async def test_a_trailing_answer_is_continued_whether_text_or_parts(client: httpx.AsyncClient, content: object) -> None:
    messages = [{"role": "user", "content": "Count to ten."}, {"role": "assistant", "content": content}]

    reply = (await client.post(CHAT, json=ask("", messages=messages))).json()

    assert reply["choices"][0]["message"]["content"] == " three, four, five, six, seven, eight, nine, ten"


async def test_a_trailing_answer_is_followed_by_a_new_turn_when_asked_for(client: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": "Count to ten."}, {"role": "assistant", "content": "one, two,"}]

    continued = (await client.post(CHAT, json=ask("", messages=messages, max_tokens=1))).json()
    new_turn = (await client.post(CHAT, json=ask("", messages=messages, max_tokens=1, add_generation_prompt=True))).json()

    assert new_turn["usage"]["prompt_tokens"] == continued["usage"]["prompt_tokens"] + 2  # <|assistant|></think>


MESSAGES: list[tuple[Any, str]] = [
    ({"role": "wizard", "content": "hi"}, "messages[0].role"),
    ({"content": "hi"}, "messages[0].role"),
    ({"role": ["user"], "content": "hi"}, "messages[0].role"),
    ({"role": "user"}, "messages[0].content"),
    ({"role": "user", "content": None}, "messages[0].content"),
    ({"role": "user", "content": 7}, "messages[0].content"),
    ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "messages[0].content[0].type"),
    ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio"}]}, "messages[0].content[1].type"),
    ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
    ({"role": "user", "content": [7]}, "messages[0].content[0]"),
    ({"role": "assistant", "content": "a", "reasoning": 7}, "messages[0].reasoning_content"),
    ({"role": "assistant", "tool_calls": "f"}, "messages[0].tool_calls"),
    ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[0].tool_calls[0].function"),
    (
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
    (
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
]


@pytest.mark.parametrize(("message", "param"), MESSAGES, ids=lambda value: str(value)[:60])
async def test_a_message_that_cannot_be_read_is_refused_by_name(client: httpx.AsyncClient, message: object, param: str) -> None:
    reply = await client.post(CHAT, json=chat(messages=[message]))

    assert (reply.status_code, error_of(reply)["param"]) == (400, param)


async def test_an_unsupported_part_is_named_by_its_type(client: httpx.AsyncClient) -> None:
    reply = await client.post(CHAT, json=chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]))

    assert "image_url" in error_of(reply)["message"]
