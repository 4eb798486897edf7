"""Bodies made to be slow leave /health and other requests alone (A19): whatever a client sends, somebody else's answer comes in time.

The bounds are about being alive, not about speed: the runner shares its cores. Each of these bodies once held the loop for longer.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable

import httpx
import pytest

from glm5_runtime.engine.engine import Engine
from glm5_runtime.server.aside import INLINE_BYTES
from glm5_runtime.text.errors import ConversationError
from glm5_runtime.text.messages import fewest_characters, normalise
from glm5_runtime.text.template import BUILT_IN, ChatTemplate, built_in
from glm5_runtime.text.tokens import TextTokenizer
from tests.support import serving
from tests.support.serving import CONTEXT, MODEL, ask, error_of

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LIMIT = 16 * 1024 * 1024  # the server's default
ALIVE = 4.0  # seconds between two answers of /health; a probe's usual patience is more


@pytest.fixture
def client(engine: Engine) -> httpx.AsyncClient:
    return serving.asgi_client(serving.make_service(engine, max_request_bytes=LIMIT))


async def longest_silence(client: httpx.AsyncClient, work: Awaitable[object]) -> float:
    """The longest time without an answer of /health while `work` runs, seconds."""
    task, longest, last = asyncio.ensure_future(work), 0.0, time.monotonic()
    while not task.done():
        assert (await client.get("/health")).status_code == 200
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
        await asyncio.sleep(0.01)
    await task
    return max(longest, time.monotonic() - last)


def body(head: str, entry: str, count: int, tail: str) -> bytes:
    return (head + ",".join([entry] * count) + tail).encode()


def chat_of(entry: str, count: int) -> bytes:
    return body(f'{{"model":"{MODEL}","messages":[', entry, count, "]}")


USER = '{"role":"user","content":"a"}'
RESULT = '{"role":"tool","content":"a"}'
HEAD = f'{{"model":"{MODEL}","messages":[{USER}],'
HOSTILE = {
    "many blocks of results": (CHAT, chat_of(f"{RESULT},{USER}", CONTEXT // 2), "messages"),
    "one long block of results": (CHAT, chat_of('{"role":"tool","content":"aaaaaaaa"}', CONTEXT), "messages"),
    "more messages than tokens": (CHAT, chat_of(USER, 450_000), "messages"),
    "messages that are lists": (CHAT, chat_of("[]", 5_000_000), "messages"),
    "a message of many parts": (CHAT, chat_of(body('{"role":"user","content":[', '"a"', 3_000_000, "]}").decode(), 1), "messages"),
    "stop strings that are numbers": (CHAT, body(HEAD + '"stop":[', "1", 7_000_000, "]}"), "stop"),
    "tools without anything": (CHAT, body(HEAD + '"tools":[', "{}", 4_000_000, "]}"), "tools"),
    "many fields": (CHAT, (HEAD + ",".join(f'"{index}":1' for index in range(1_300_000)) + "}").encode(), None),
    "a prompt of one-letter ids": (COMPLETIONS, body('{"prompt":[', "1", 8_000_000, "]}"), "prompt"),
    "prompts without number": (COMPLETIONS, body('{"prompt":[', '"a"', 4_000_000, "]}"), "prompt"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_health_answers_beside_a_body_made_to_be_slow(client: httpx.AsyncClient, name: str) -> None:
    path, content, param = HOSTILE[name]
    assert len(content) <= LIMIT

    async def send() -> None:
        reply = await client.post(path, content=content)
        assert reply.status_code == 400
        if param is not None:
            assert error_of(reply)["param"].startswith(param)

    assert await longest_silence(client, send()) < ALIVE


async def test_a_good_request_is_answered_while_bad_ones_are_looked_at(client: httpx.AsyncClient) -> None:
    names = ("more messages than tokens", "a message of many parts", "stop strings that are numbers", "tools without anything")
    bad = [asyncio.create_task(client.post(CHAT, content=HOSTILE[name][1])) for name in names]
    started = time.monotonic()

    good = await client.post(CHAT, json=ask("Count to ten."))

    assert good.json()["choices"][0]["finish_reason"] == "stop"
    assert time.monotonic() - started < 2 * ALIVE
    assert {reply.status_code for reply in await asyncio.gather(*bad)} == {400}


async def test_more_messages_than_the_context_has_tokens_are_refused_with_both_numbers(client: httpx.AsyncClient) -> None:
    error = error_of(await client.post(CHAT, content=chat_of(USER, CONTEXT + 1)))

    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert str(CONTEXT) in error["message"]
    assert str(CONTEXT + 1) in error["message"]


async def test_contents_over_the_context_are_refused_before_the_template_sees_them(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChatTemplate, "render", lambda *_, **__: pytest.fail("rendered"))
    async with serving.asgi_client(serving.make_service(engine)) as client:
        reply = await client.post(CHAT, json=ask("word " * 20_000 * 5))

    assert error_of(reply)["code"] == "context_length_exceeded"
    assert "at least" in error_of(reply)["message"]


def test_blanks_and_old_thoughts_that_templates_drop_are_not_counted_against_the_context() -> None:
    conversation = [
        {"role": "user", "content": "q" * 10},
        {"role": "assistant", "content": "<think>" + "t" * 100 + "</think>" + " " * 50 + "a" * 5 + "\n" * 50},
        {"role": "user", "content": "r"},
    ]

    assert fewest_characters(normalise(conversation)) == 16
    assert all(len(built_in(version).render(normalise(conversation))) > 16 for version in BUILT_IN)


QUADRATIC = "{% for a in messages %}{% for b in messages %}{% if b.role == 'none' %}x{% endif %}{% endfor %}{% endfor %}"


def test_a_template_that_takes_for_ever_is_stopped_with_a_refusal() -> None:
    template = ChatTemplate.compile(QUADRATIC, "a checkpoint's")
    messages = [{"role": "user", "content": "a"}] * 20_000
    started = time.process_time()

    with pytest.raises(ConversationError, match=r"more than 0.2 s for these 20000 messages") as refused:
        template.render(messages, seconds=0.2)

    assert refused.value.field == "messages"
    assert time.process_time() - started < ALIVE


@pytest.mark.parametrize("version", BUILT_IN)
def test_built_in_templates_take_time_in_proportion_to_the_conversation(version: str) -> None:
    calls = [{"id": str(index), "function": {"name": "f", "arguments": "{}"}} for index in range(4_000)]
    results = [{"role": "tool", "tool_call_id": str(index), "content": str(index)} for index in reversed(range(4_000))]
    block = normalise([{"role": "assistant", "content": "", "tool_calls": calls}, *results])
    pairs = normalise([json.loads(message) for message in (RESULT, USER)] * 4_000)

    prompts = [built_in(version).render(messages, seconds=ALIVE) for messages in (block, pairs)]

    assert [prompt.count("<|observation|>") for prompt in prompts] == [1, 4_000]


async def test_a_body_on_either_side_of_the_threads_door_gets_the_same_answer(client: httpx.AsyncClient) -> None:
    small = ask("Count to ten.")
    large = small | {"metadata": "x" * INLINE_BYTES}

    replies = [(await client.post(CHAT, json=request)).json() for request in (small, large)]

    assert replies[0]["choices"] == replies[1]["choices"]
    assert replies[0]["usage"]["total_tokens"] == replies[1]["usage"]["total_tokens"]


@pytest.mark.parametrize("text", ["word " * 100_000, "a" * 400_000, "客" * 200_000], ids=["words", "letters", "characters"])
async def test_encoding_a_long_text_leaves_the_loop_alone_and_gives_the_same_ids(tokenizer: TextTokenizer, text: str) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.005)
            ticks += 1

    ticking = asyncio.create_task(tick())
    ids = await tokenizer.encode(text, add_special_tokens=True)
    ticking.cancel()

    assert ticks >= 5, "the interpreter was held while the text was encoded"
    assert ids == tuple(tokenizer.raw.encode(text, add_special_tokens=True).ids)
