"""OpenAI's own Python client against a real socket.

Its strict validation checks each reply against its types. It is off for legacy completions, whose types deny the nulls that OpenAI itself
sends (the finish reason before the end of a stream, the log-probability of an echoed prompt's first token).
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field

from glm5_runtime.engine.engine import Engine
from glm5_runtime.engine.request import FinishReason
from glm5_runtime.server.service import Service
from glm5_runtime.text.tokens import TextTokenizer
from tests.support import serving
from tests.support.scripted_engine import ScriptedEngine
from tests.support.serving import CONTEXT, EXPECTED, MODEL, until

ROWS: dict[str, dict[str, Any]] = {row["kind"]: row for row in reversed(EXPECTED)}
PLAIN: dict[str, Any] = {"model": MODEL, "temperature": 0, "extra_body": {"enable_thinking": False}}


@asynccontextmanager
async def connected(service: Service, *, strict: bool = True) -> AsyncIterator[AsyncOpenAI]:
    async with (
        serving.on_a_socket(service) as http,
        AsyncOpenAI(base_url=f"{http.base_url}/v1", api_key="none", max_retries=0, _strict_response_validation=strict) as client,
    ):
        yield client


@pytest.fixture
async def openai_client(engine: Engine) -> AsyncIterator[AsyncOpenAI]:
    async with connected(serving.make_service(engine)) as client:
        yield client


@pytest.fixture
async def lenient(engine: Engine) -> AsyncIterator[AsyncOpenAI]:
    async with connected(serving.make_service(engine), strict=False) as client:
        yield client


def user(question: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": question}]


async def test_a_chat_and_its_stream_give_the_same_answer_and_usage(openai_client: AsyncOpenAI) -> None:
    row = ROWS["chat"]

    whole = await openai_client.chat.completions.create(messages=user(row["question"]), **PLAIN)
    stream = await openai_client.chat.completions.create(
        messages=user(row["question"]), stream=True, stream_options={"include_usage": True}, **PLAIN
    )
    chunks = [chunk async for chunk in stream]

    assert whole.choices[0].message.content == row["answer"]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == row["answer"]
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None and whole.usage is not None  # noqa: PT018 - for the type checker
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == len(row["tokens"])
    assert whole.usage.prompt_tokens_details is not None
    assert whole.usage.prompt_tokens_details.cached_tokens is not None
    assert whole._request_id == whole.id


async def test_reasoning_is_a_field_of_its_own(openai_client: AsyncOpenAI) -> None:
    thought = ROWS["think"]["text"].partition("</think>")[0]

    whole = await openai_client.chat.completions.create(messages=user(ROWS["think"]["question"]), model=MODEL, temperature=0)

    assert whole.choices[0].message.model_extra is not None
    assert whole.choices[0].message.model_extra["reasoning_content"] == thought


async def test_tools_are_called_whole_and_by_the_streaming_helper(openai_client: AsyncOpenAI) -> None:
    row = ROWS["tool"]
    request: dict[str, Any] = PLAIN | {"messages": user(row["question"]), "tools": row["tools"]}

    whole = (await openai_client.chat.completions.create(**request)).choices[0]
    async with openai_client.chat.completions.stream(**request) as stream:
        streamed = (await stream.get_final_completion()).choices[0]

    for choice in (whole, streamed):
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls or []
        assert call.type == "function"
        assert call.function.name == row["call"]["name"]
        assert json.loads(call.function.arguments) == row["call"]["arguments"]


async def test_a_conversation_with_a_tools_result_goes_on(openai_client: AsyncOpenAI) -> None:
    row = ROWS["tool"]
    first = (await openai_client.chat.completions.create(messages=user(row["question"]), tools=row["tools"], **PLAIN)).choices[0].message
    assert first.tool_calls
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": '{"sky": "sunny", "degrees": 21}'}

    second = await openai_client.chat.completions.create(
        messages=[*user(row["question"]), first.to_dict(), result],  # type: ignore[list-item]  # a reply is a message, as its guide has it
        tools=row["tools"],
        **PLAIN,
    )

    assert (second.choices[0].message.content or "").endswith(", 21 degrees.")


async def test_log_probabilities_of_both_endpoints(lenient: AsyncOpenAI) -> None:
    chat = (await lenient.chat.completions.create(messages=user("Hi"), logprobs=True, top_logprobs=2, **PLAIN)).choices[0]
    text = (await lenient.completions.create(model=MODEL, prompt="Return a ", echo=True, logprobs=2, max_tokens=3, temperature=0)).choices[
        0
    ]

    assert chat.logprobs is not None
    assert chat.logprobs.content
    assert [len(entry.top_logprobs) for entry in chat.logprobs.content] == [2] * len(chat.logprobs.content)
    assert b"".join(bytes(entry.bytes or ()) for entry in chat.logprobs.content).decode().startswith(chat.message.content or "")
    assert text.logprobs is not None
    assert text.logprobs.tokens
    assert "".join(text.logprobs.tokens) == text.text


async def test_completions_take_texts_ids_and_lists_of_both(lenient: AsyncOpenAI, tokenizer: TextTokenizer) -> None:
    row = ROWS["text"]
    ids = tokenizer.raw.encode(row["prompt"]).ids
    prompts: list[Any] = [row["prompt"], ids, [row["prompt"]] * 2, [ids, ids]]

    for prompt in prompts:
        reply = await lenient.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=200)
        assert {choice.text for choice in reply.choices} == {row["text"].removesuffix("<|endoftext|>")}
    stream = await lenient.completions.create(model=MODEL, prompt=ids, temperature=0, max_tokens=200, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == row["text"].removesuffix("<|endoftext|>")


async def test_models_are_listed_and_told(openai_client: AsyncOpenAI) -> None:
    assert [model.id async for model in openai_client.models.list()] == [MODEL]
    assert (await openai_client.models.retrieve(MODEL)).owned_by == "glm5"
    with pytest.raises(openai.NotFoundError):
        await openai_client.models.retrieve("other")


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"model": "other"}, openai.NotFoundError, "model"),
        ({"temperature": 3}, openai.BadRequestError, "temperature"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"messages": user("word " * CONTEXT)}, openai.BadRequestError, "messages"),
        ({"extra_body": {"functions": [{"name": "f"}]}}, openai.BadRequestError, "functions"),
    ],
)
async def test_refusals_are_the_clients_own_errors_with_the_field(
    openai_client: AsyncOpenAI, fields: dict[str, Any], kind: type[openai.APIStatusError], param: str
) -> None:
    with pytest.raises(kind) as refused:
        await openai_client.chat.completions.create(**({"messages": user("Hi")} | PLAIN | fields))

    assert refused.value.param == param
    assert "'error'" not in refused.value.message.split(" - ")[0]


async def test_a_wrong_key_is_an_authentication_error(engine: Engine) -> None:
    async with connected(serving.make_service(engine, api_key="right")) as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
        assert [model.id async for model in client.with_options(api_key="right").models.list()] == [MODEL]


async def test_a_full_queue_is_a_rate_limit_error_and_the_client_comes_back_by_itself(engine: Engine) -> None:
    long: dict[str, Any] = {"model": MODEL, "prompt": "Tell", "max_tokens": 24, "extra_body": {"ignore_eos": True}}
    async with connected(serving.make_service(engine)) as client:
        patient = client.with_options(max_retries=5)
        replies = await asyncio.gather(*(client.completions.create(**long) for _ in range(16)), return_exceptions=True)
        later = await asyncio.gather(*(patient.completions.create(**long) for _ in range(13)))

    refused = [reply for reply in replies if isinstance(reply, openai.RateLimitError)]
    assert (len(refused), len(replies) - len(refused)) == (4, 12)
    assert all(reply.usage is not None and reply.usage.completion_tokens == 24 for reply in later)


async def test_a_draining_server_is_an_internal_server_error_and_none_at_all_a_connection_error(engine: Engine) -> None:
    service = serving.make_service(engine)
    async with connected(service) as client:
        service.draining = True
        with pytest.raises(openai.InternalServerError) as draining:
            await client.models.list()
    assert (draining.value.status_code, draining.value.code) == (503, "draining")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = AsyncOpenAI(base_url=f"http://127.0.0.1:{closed.getsockname()[1]}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.APIConnectionError):
            await nobody.models.list()
        await nobody.close()


async def test_an_error_in_the_middle_of_a_stream_is_raised_by_the_client(tokenizer: TextTokenizer) -> None:
    tokens = tokenizer.raw.encode("</think>Half an answer", add_special_tokens=False).ids
    async with connected(serving.make_service(ScriptedEngine(tokens, FinishReason.ERROR))) as client:
        stream = await client.chat.completions.create(messages=user("Hi"), stream=True, model=MODEL)
        texts: list[str] = []

        async def read() -> None:
            async for chunk in stream:
                texts.append(chunk.choices[0].delta.content or "")

        with pytest.raises(openai.APIError) as failed:
            await read()

    assert "".join(texts) == "Half an answer"
    assert failed.value.code == "engine_error"


async def test_leaving_a_stream_frees_its_place(engine: Engine, lenient: AsyncOpenAI) -> None:
    stream = await lenient.completions.create(model=MODEL, prompt="Tell", max_tokens=1_500, stream=True, extra_body={"ignore_eos": True})
    async for _ in stream:
        break
    produced = engine.stats().generation_tokens
    await stream.close()

    await until(lambda: engine.stats().running == 0)
    assert engine.stats().generation_tokens - produced < 1_000  # it was not made to its end


class Person(BaseModel):
    """What an answer is read into."""

    name: Literal["Tim", "Tom"]
    age: int = Field(ge=0, le=120)


class get_weather(BaseModel):  # noqa: N801 - the function's name
    """Weather of a city."""

    city: Literal["Rome", "Oslo"]


async def test_answers_and_calls_are_parsed_into_the_clients_own_types(openai_client: AsyncOpenAI) -> None:
    who: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Who are you?"}]

    answer = await openai_client.chat.completions.parse(messages=who, response_format=Person, **PLAIN)
    call = await openai_client.chat.completions.parse(
        messages=who, tools=[openai.pydantic_function_tool(get_weather)], tool_choice="required", parallel_tool_calls=False, **PLAIN
    )

    assert isinstance(answer.choices[0].message.parsed, Person)
    (made,) = call.choices[0].message.tool_calls or []
    assert isinstance(made.function.parsed_arguments, get_weather)
