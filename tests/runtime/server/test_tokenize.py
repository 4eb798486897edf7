"""/tokenize, /detokenize and /load, in vLLM's shapes."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from glm5_runtime.engine.engine import Engine
from glm5_runtime.text.tokens import TextTokenizer
from tests.support import serving
from tests.support.serving import CONTEXT, MODEL, ask, error_of, until

TEXT = "Größe 你好 <|user|> x"


async def test_a_text_and_its_ids_go_both_ways(client: httpx.AsyncClient, tokenizer: TextTokenizer) -> None:
    reply = (await client.post("/tokenize", json={"model": MODEL, "prompt": TEXT, "return_token_strs": True})).json()
    back = (await client.post("/detokenize", json={"model": MODEL, "tokens": reply["tokens"]})).json()

    assert reply["tokens"] == tokenizer.raw.encode(TEXT).ids
    assert (reply["count"], reply["max_model_len"]) == (len(reply["tokens"]), CONTEXT)
    assert reply["token_strs"] == tokenizer.raw.encode(TEXT).tokens
    assert back == {"prompt": TEXT}


async def test_a_conversation_has_the_ids_that_its_answer_is_computed_from(client: httpx.AsyncClient) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    for fields in ({}, {"tools": [tool]}, {"enable_thinking": True}):
        request = ask("Hi", max_tokens=1) | fields
        counted = (await client.post("/tokenize", json=request)).json()
        answered = (await client.post("/v1/chat/completions", json=request)).json()
        assert counted["count"] == len(counted["tokens"]) == answered["usage"]["prompt_tokens"]
        assert counted["token_strs"] is None


async def test_more_tokens_than_the_context_has_are_counted_unless_the_length_alone_says_so(client: httpx.AsyncClient) -> None:
    counted = (await client.post("/tokenize", json={"prompt": "word " * CONTEXT * 2})).json()
    refused = await client.post("/tokenize", json={"prompt": "word " * CONTEXT * 40})

    assert counted["count"] > CONTEXT
    assert error_of(refused)["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "return_token_strs": "yes?"}, "return_token_strs"),
        ("/tokenize", {"messages": [], "model": MODEL}, "messages"),
        ("/tokenize", ask("Hi", return_token_strs=1), "return_token_strs"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "12"}, "tokens"),
        ("/detokenize", {"tokens": [1.5]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [2048]}, "tokens"),
        ("/detokenize", {"tokens": [10**30]}, "tokens"),
        ("/detokenize", {"tokens": [1] * (CONTEXT + 1)}, "tokens"),
    ],
)
async def test_what_cannot_be_tokenized_is_refused_by_name(client: httpx.AsyncClient, path: str, body: dict[str, Any], param: str) -> None:
    reply = await client.post(path, json=body)

    assert reply.status_code in {400, 404}
    assert error_of(reply)["param"] == param


async def test_no_text_has_no_ids_and_no_ids_have_no_text(client: httpx.AsyncClient) -> None:
    assert (await client.post("/tokenize", json={"prompt": ""})).json()["tokens"] == []
    assert (await client.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}


async def test_load_counts_the_other_requests_under_way(engine: Engine) -> None:
    service = serving.make_service(engine)
    async with serving.asgi_client(service) as client:
        running = [asyncio.create_task(client.post("/v1/chat/completions", json=ask("Count to ten."))) for _ in range(2)]
        await until(lambda: service.active == 2)

        assert (await client.get("/load")).json() == {"server_load": 2}
        await asyncio.gather(*running)
        assert (await client.get("/load")).json() == {"server_load": 0}
