"""/v1/messages with Anthropic's own Python client on a real socket, beside what the chat endpoint answers to the same."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import AsyncAnthropic

from glm5_runtime.engine.engine import Engine
from glm5_runtime.engine.request import FinishReason
from glm5_runtime.server.anthropic import translate
from glm5_runtime.server.service import Service
from glm5_runtime.text.tokens import TextTokenizer
from tests.support import serving
from tests.support.scripted_engine import ScriptedEngine
from tests.support.serving import EXPECTED, MODEL, ask

ROWS: dict[str, dict[str, Any]] = {row["kind"]: row for row in reversed(EXPECTED)}
GREEDY: dict[str, Any] = {"model": MODEL, "max_tokens": 400, "extra_body": {"temperature": 0}}


@asynccontextmanager
async def connected(service: Service, key: str = "none") -> AsyncIterator[AsyncAnthropic]:
    async with (
        serving.on_a_socket(service) as http,
        AsyncAnthropic(base_url=str(http.base_url), api_key=key, max_retries=0, _strict_response_validation=True) as client,
    ):
        yield client


@pytest.fixture
async def claude(engine: Engine) -> AsyncIterator[AsyncAnthropic]:
    async with connected(serving.make_service(engine)) as client:
        yield client


def user(content: object) -> list[Any]:
    return [{"role": "user", "content": content}]


def tools_of(row: dict[str, Any]) -> list[Any]:
    functions = [tool["function"] for tool in row["tools"]]
    return [{"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in functions]


async def test_an_answer_is_the_chat_endpoints_and_its_stream_adds_up_to_it(claude: AsyncAnthropic) -> None:
    row = ROWS["chat"]

    whole = await claude.messages.create(messages=user(row["question"]), **GREEDY)
    async with claude.messages.stream(messages=user([{"type": "text", "text": row["question"]}]), **GREEDY) as stream:
        texts = [text async for text in stream.text_stream]
        streamed = await stream.get_final_message()

    assert [block.to_dict() for block in whole.content] == [{"type": "text", "text": row["answer"]}]
    assert "".join(texts) == row["answer"]
    assert len(texts) > 1
    assert (whole.stop_reason, streamed.stop_reason) == ("end_turn", "end_turn")
    assert streamed.content[0].text == row["answer"]  # type: ignore[union-attr]  # its type is above
    assert whole.usage.output_tokens == streamed.usage.output_tokens == len(row["tokens"])
    assert whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0) > 0


async def test_thinking_is_a_block_of_its_own_before_the_text(claude: AsyncAnthropic) -> None:
    row = ROWS["think"]
    thought, _, answer = row["text"].removesuffix("<|user|>").partition("</think>")
    request: dict[str, Any] = GREEDY | {"messages": user(row["question"]), "thinking": {"type": "enabled", "budget_tokens": 1024}}

    whole = await claude.messages.create(**request)
    async with claude.messages.stream(**request) as stream:
        streamed = await stream.get_final_message()

    for message in (whole, streamed):
        assert [block.type for block in message.content] == ["thinking", "text"]
        assert [message.content[0].thinking, message.content[1].text] == [thought, answer]  # type: ignore[union-attr]  # types are above


async def test_tools_are_used_and_their_results_lead_to_the_answer(claude: AsyncAnthropic) -> None:
    row = ROWS["tool"]
    request: dict[str, Any] = GREEDY | {"messages": user(row["question"]), "tools": tools_of(row)}

    whole = await claude.messages.create(**request)
    async with claude.messages.stream(**request) as stream:
        streamed = await stream.get_final_message()

    for message in (whole, streamed):
        (call,) = message.content
        assert message.stop_reason == "tool_use"
        assert call.type == "tool_use"
        assert (call.name, call.input) == (row["call"]["name"], row["call"]["arguments"])
    result = {"type": "tool_result", "tool_use_id": whole.content[0].id, "content": '{"sky": "sunny", "degrees": 21}'}  # type: ignore[union-attr]
    conversation = [*request["messages"], {"role": "assistant", "content": [whole.content[0].to_dict()]}, *user([result])]
    answer = await claude.messages.create(**(request | {"messages": conversation}))
    assert answer.content[-1].text.endswith(", 21 degrees.")  # type: ignore[union-attr]


async def test_a_tool_that_must_be_used_is_used(claude: AsyncAnthropic) -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": ROWS["tool"]["call"]["name"]}):
        forced: dict[str, Any] = GREEDY | {"messages": user("Hi"), "tools": tools_of(ROWS["tool"]), "tool_choice": choice}

        message = await claude.messages.create(**forced)

        assert message.stop_reason == "tool_use"
        assert [block.type for block in message.content] == ["tool_use"]


async def test_thinking_ends_where_its_budget_ends(client: httpx.AsyncClient) -> None:
    body = {"max_tokens": 100, "temperature": 0, "messages": user(ROWS["think"]["question"])}

    free, bound = [
        (await client.post("/v1/messages", json=body | {"thinking": {"type": "enabled"} | budget})).json()["content"][0]["thinking"]
        for budget in ({}, {"budget_tokens": 3})
    ]

    assert len(bound) < len(free)
    assert free.startswith(bound)


@pytest.mark.parametrize("field", ["output_format", "output_config"])
async def test_an_answer_keeps_to_its_schema(client: httpx.AsyncClient, field: str) -> None:
    form = {"type": "json_schema", "schema": {"enum": ["left", "right"]}}
    body = {"max_tokens": 20, "messages": user("Where?"), field: form if field == "output_format" else {"format": form}}

    answer = (await client.post("/v1/messages", json=body)).json()["content"][0]["text"]

    assert json.loads(answer) in {"left", "right"}


async def test_stop_sequences_and_the_limit_are_told_apart(claude: AsyncAnthropic) -> None:
    row = ROWS["chat"]
    stop = row["answer"][5:8]

    by_text = await claude.messages.create(messages=user(row["question"]), stop_sequences=[stop], **GREEDY)
    by_limit = await claude.messages.create(messages=user(row["question"]), **(GREEDY | {"max_tokens": 2}))

    assert (by_text.stop_reason, by_text.stop_sequence) == ("stop_sequence", stop)
    assert (by_limit.stop_reason, by_limit.stop_sequence) == ("max_tokens", None)


async def test_counted_tokens_are_those_that_an_answer_costs(claude: AsyncAnthropic) -> None:
    request: dict[str, Any] = {"model": MODEL, "system": "Be brief.", "messages": user("Hi")}

    counted = await claude.messages.count_tokens(**request)
    usage = (await claude.messages.create(**request, max_tokens=1)).usage

    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"model": "other"}, anthropic.NotFoundError),
        ({"extra_body": {"temperature": 3}}, anthropic.BadRequestError),
        ({"messages": []}, anthropic.BadRequestError),
        ({"messages": user([{"type": "image", "source": {}}])}, anthropic.BadRequestError),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, anthropic.BadRequestError),
    ],
)
async def test_refusals_are_the_clients_own_errors(claude: AsyncAnthropic, fields: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        await claude.messages.create(**(GREEDY | {"messages": user("Hi")} | fields))


async def test_both_headers_bring_the_key(engine: Engine) -> None:
    service = serving.make_service(engine, api_key="right")
    async with connected(service, "wrong") as client:
        with pytest.raises(anthropic.AuthenticationError) as refused:
            await client.messages.count_tokens(model=MODEL, messages=user("Hi"))
        assert (await client.with_options(api_key="right").messages.count_tokens(model=MODEL, messages=user("Hi"))).input_tokens > 0
    async with serving.asgi_client(service) as plain:
        by_bearer = await plain.post("/v1/messages/count_tokens", json={"messages": user("Hi")}, headers={"authorization": "Bearer right"})
        elsewhere = await plain.get("/v1/models", headers={"x-api-key": "right"})

    assert refused.value.body == {
        "type": "error",
        "error": {"type": "authentication_error", "message": refused.value.body["error"]["message"]},
    }  # type: ignore[index]
    assert (by_bearer.status_code, elsewhere.status_code) == (200, 401)


async def test_an_error_in_the_middle_of_a_stream_is_an_error_event(tokenizer: TextTokenizer) -> None:
    tokens = tokenizer.raw.encode("Half", add_special_tokens=False).ids
    async with connected(serving.make_service(ScriptedEngine(tokens, FinishReason.ERROR))) as client:
        with pytest.raises(anthropic.APIStatusError, match="engine failed"):
            async with client.messages.stream(messages=user("Hi"), **GREEDY) as stream:
                await stream.get_final_message()


async def test_events_come_in_their_order_and_blocks_are_closed(client: httpx.AsyncClient) -> None:
    body = {
        "max_tokens": 400,
        "temperature": 0,
        "messages": user(ROWS["think"]["question"]),
        "thinking": {"type": "enabled"},
        "stream": True,
    }

    blocks = (await client.post("/v1/messages", json=body)).text.split("\n\n")[:-1]

    names = [block.split("\n")[0].removeprefix("event: ") for block in blocks]
    assert [json.loads(block.split("data: ", 1)[1])["type"] for block in blocks] == names
    order = [name for name, before in zip(names, ["", *names], strict=False) if name != before or name != "content_block_delta"]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert order == ["message_start", *block, *block, "message_delta", "message_stop"]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [3]},
        {"messages": [{"role": "system", "content": "x"}]},
        {"messages": [{"role": [], "content": "x"}]},
        {"messages": user([{"type": "thinking"}])},
        {"messages": user([3])},
        {"messages": user([{"type": []}])},
        {"messages": user([{"type": "tool_use", "name": "f"}])},
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]},
        {"messages": [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "a"}]}]},
        {"messages": user("x"), "system": {"a": 1}},
        {"messages": user("x"), "thinking": "on"},
        {"messages": user("x"), "thinking": {"type": [1]}, "tool_choice": {"type": {}}},
        {"messages": user("x"), "tool_choice": {"type": "tool"}},
        {"messages": user("x"), "tools": "all"},
        {"messages": user("x"), "tools": [1]},
        {"messages": user("x"), "tools": [{"name": 4, "input_schema": []}]},
        {"messages": user("x"), "stop_sequences": 4},
        {"messages": user("x"), "max_tokens": None},
        {"messages": user("x"), "container": "c"},
        {"messages": user("x"), "output_config": {"format": 4}},
        {"messages": user("x"), "output_format": {"type": "json_schema"}},
        {"messages": user("x"), "thinking": {"type": "enabled", "budget_tokens": "many"}},
        {"messages": "x"},
        {},
    ],
    ids=str,
)
async def test_a_body_that_cannot_be_meant_is_refused(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    reply = await client.post("/v1/messages", json={"max_tokens": 4} | body)

    assert (reply.status_code, reply.json()["type"], reply.json()["error"]["type"]) == (400, "error", "invalid_request_error")
    assert (await client.post("/v1/chat/completions", json=ask("Hi", max_tokens=1))).status_code == 200


def test_what_a_message_holds_becomes_messages_in_order() -> None:
    content = [{"type": "tool_result", "tool_use_id": "a", "content": "1"}, {"type": "text", "text": "and?"}]
    said = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "well"},
        {"type": "tool_use", "id": "a", "name": "f", "input": {}},
    ]

    body = translate({"max_tokens": 1, "system": "s", "messages": [{"role": "assistant", "content": said}, *user(content)]})

    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {}}}
    assert body["messages"] == [
        {"role": "system", "content": "s"},
        {"role": "assistant", "content": [{"type": "text", "text": "well"}], "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "user", "content": [{"type": "text", "text": "and?"}]},
    ]
    assert body["enable_thinking"] is False
