"""What /v1/chat/completions answers, against the reference runs of the tiny model."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from glm5_runtime.engine.engine import Engine
from glm5_runtime.text.template import built_in
from tests.support import serving
from tests.support.serving import EXPECTED, ask, error_of, events_of, joined

CHATS = [row for row in EXPECTED if row["kind"] == "chat"]
TOOLS = [row for row in EXPECTED if row["kind"] == "tool"]
THINKING = [row for row in EXPECTED if row["kind"] == "think"]


async def test_known_questions_get_their_answers_word_for_word_side_by_side(client: httpx.AsyncClient) -> None:
    rows = CHATS[::12]

    replies = await asyncio.gather(*(client.post("/v1/chat/completions", json=ask(row["question"])) for row in rows))

    assert [reply.json()["choices"][0]["message"]["content"] for reply in replies] == [row["answer"] for row in rows]
    assert all(reply.json()["choices"][0]["finish_reason"] == "stop" for reply in replies)
    assert [reply.json()["usage"]["completion_tokens"] for reply in replies] == [len(row["tokens"]) for row in rows]


@pytest.mark.parametrize("row", THINKING, ids=lambda row: row["question"])
async def test_thinking_is_told_apart_from_the_answer(client: httpx.AsyncClient, row: dict[str, Any]) -> None:
    thought, _, answer = row["text"].removesuffix("<|user|>").partition("</think>")
    request = ask(row["question"], enable_thinking=True)

    whole = (await client.post("/v1/chat/completions", json=request)).json()
    stream = events_of((await client.post("/v1/chat/completions", json=request | {"stream": True})).text)

    message = whole["choices"][0]["message"]
    assert (message["reasoning"], message["reasoning_content"], message["content"]) == (thought, thought, answer)
    assert (joined(stream, "reasoning"), joined(stream, "content")) == (thought, answer)
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == row["tokens"].index(11) + 1  # 11 is </think>


async def test_the_templates_switches_mean_the_same_under_chat_template_kwargs(client: httpx.AsyncClient) -> None:
    question, seen = THINKING[0]["question"], []
    for fields in ({"enable_thinking": True}, {"enable_thinking": False}):
        for request in (ask(question) | fields, ask(question, enable_thinking=None, chat_template_kwargs=fields)):
            reply = (await client.post("/v1/chat/completions", json=request)).json()
            ids = (await client.post("/tokenize", json=request)).json()["tokens"]
            seen.append((ids, reply["choices"][0]["message"], reply["usage"]["completion_tokens"]))

    assert seen[0] == seen[1]
    assert seen[2] == seen[3]
    assert seen[0] != seen[2]


@pytest.mark.parametrize(("version", "efforts"), [("5", 1), ("5.2", 2), ("5.3", 3)])
async def test_reasoning_effort_changes_the_prompt_where_the_template_knows_it(engine: Engine, version: str, efforts: int) -> None:
    service = serving.make_service(engine)
    assert service.loaded is not None
    service.attach(replace(service.loaded, template=built_in(version)))
    async with serving.asgi_client(service) as client:
        prompts = set()
        for effort in ("low", "high", "max"):
            request = ask("Hi", enable_thinking=True, reasoning_effort=effort)
            prompts.add(tuple((await client.post("/tokenize", json=request)).json()["tokens"]))

    assert len(prompts) == efforts


@pytest.mark.parametrize("row", TOOLS, ids=lambda row: row["question"])
async def test_tools_are_called_with_typed_arguments(client: httpx.AsyncClient, row: dict[str, Any]) -> None:
    request = ask(row["question"], tools=row["tools"])

    choice = (await client.post("/v1/chat/completions", json=request)).json()["choices"][0]
    stream = events_of((await client.post("/v1/chat/completions", json=request | {"stream": True})).text)

    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert call["function"]["name"] == row["call"]["name"]
    assert json.loads(call["function"]["arguments"]) == row["call"]["arguments"]
    pieces = [piece for event in stream for piece in event["choices"][0]["delta"].get("tool_calls", [])]
    assert pieces[0]["id"].startswith("call_")
    assert pieces[0]["function"]["name"] == row["call"]["name"]
    assert "".join(piece["function"]["arguments"] for piece in pieces) == call["function"]["arguments"]
    assert stream[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_tool_result_leads_to_the_final_answer(client: httpx.AsyncClient) -> None:
    row = TOOLS[0]
    first = (await client.post("/v1/chat/completions", json=ask(row["question"], tools=row["tools"]))).json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": '{"sky": "sunny", "degrees": 21}'}
    request = ask(row["question"], tools=row["tools"])
    request["messages"] += [first, result]

    answer = (await client.post("/v1/chat/completions", json=request)).json()["choices"][0]["message"]["content"]

    assert answer.startswith("It is sunny in ")  # which city, the two million parameters don't keep in mind
    assert answer.endswith(", 21 degrees.")


async def test_tool_choice_none_keeps_tools_out_of_the_prompt(client: httpx.AsyncClient) -> None:
    row = TOOLS[0]

    bare = (await client.post("/v1/chat/completions", json=ask(row["question"], max_tokens=1))).json()
    none = (
        await client.post("/v1/chat/completions", json=ask(row["question"], max_tokens=1, tools=row["tools"], tool_choice="none"))
    ).json()

    assert none["usage"]["prompt_tokens"] == bare["usage"]["prompt_tokens"]


async def test_choices_of_one_request_are_reproducible_by_seed_and_differ_from_each_other(client: httpx.AsyncClient) -> None:
    request = ask("Tell a story.", temperature=1.5, seed=7, n=3, max_tokens=24)

    first, second = [(await client.post("/v1/chat/completions", json=request)).json()["choices"] for _ in range(2)]

    assert [choice["index"] for choice in first] == [0, 1, 2]
    assert first == second
    assert len({choice["message"]["content"] for choice in first}) == 3


async def test_log_probabilities_name_the_tokens_of_the_answer(client: httpx.AsyncClient) -> None:
    request = ask("谢谢", logprobs=True, top_logprobs=2)

    choice = (await client.post("/v1/chat/completions", json=request)).json()["choices"][0]
    stream = events_of((await client.post("/v1/chat/completions", json=request | {"stream": True})).text)

    entries = choice["logprobs"]["content"]
    spoken = bytes(byte for entry in entries for byte in entry["bytes"]).decode()
    assert spoken.removesuffix("<|user|>") == choice["message"]["content"] == "不客气！😊"
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    assert all(entry["top_logprobs"][0]["logprob"] == entry["logprob"] <= 0 for entry in entries)  # greedy takes the best
    assert [entry for event in stream for entry in (event["choices"][0]["logprobs"] or {"content": []})["content"]] == entries


async def test_logit_bias_changes_the_first_token(client: httpx.AsyncClient) -> None:
    plain = (await client.post("/v1/chat/completions", json=ask("Who are you?", max_tokens=1))).json()
    token = EXPECTED[0]["tokens"][0]
    biased = (await client.post("/v1/chat/completions", json=ask("Who are you?", max_tokens=1, logit_bias={str(token): -100}))).json()

    assert plain["choices"][0]["message"]["content"] == "I"
    assert biased["choices"][0]["message"]["content"] != "I"


async def test_the_client_finds_its_own_id_in_the_reply(client: httpx.AsyncClient) -> None:
    reply = await client.post("/v1/chat/completions", json=ask("Hi", request_id="trace-1"))

    assert reply.json()["id"] == reply.headers["x-request-id"] == "chatcmpl-trace-1"


async def test_same_request_id_twice_at_once_is_served_twice(client: httpx.AsyncClient) -> None:
    replies = await asyncio.gather(*(client.post("/v1/chat/completions", json=ask("Hi", request_id="same")) for _ in range(2)))

    assert [reply.status_code for reply in replies] == [200, 200]


async def test_one_request_over_the_queue_limit_gets_429_with_retry_after(engine: Engine) -> None:
    service = serving.make_service(engine)
    async with serving.asgi_client(service) as client:
        long = ask("Tell a story.", max_tokens=48, ignore_eos=True)
        replies = await asyncio.gather(*(client.post("/v1/chat/completions", json=long) for _ in range(13)))  # 4 run, 8 wait

    assert sorted(reply.status_code for reply in replies) == [200] * 12 + [429]
    (refused,) = [reply for reply in replies if reply.status_code == 429]
    assert int(refused.headers["retry-after"]) >= 1
    assert error_of(refused)["type"] == "rate_limit_error"
    assert b'vllm:admission_rejections_total{model_name="glm-5",reason="max_num_queued_reqs"} 1.0' in service.metrics.render()
