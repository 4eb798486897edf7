"""/generate and /generate_stream: each dialect gets the answer that its clients read. TGI's client is the real one, of huggingface_hub."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import httpx
import pytest
from huggingface_hub import InferenceClient

from glm5_runtime.engine.engine import Engine
from glm5_runtime.text.tokens import TextTokenizer
from tests.support import serving
from tests.support.serving import EXPECTED, error_of, events_of

TEXT = next(row for row in EXPECTED if row["kind"] == "text")
PROMPT: str = TEXT["prompt"]
ANSWER: str = TEXT["text"].removesuffix("<|endoftext|>")
LONG = {"max_new_tokens": 200, "temperature": 0}


@pytest.mark.parametrize(
    "body", [{"prompt": PROMPT} | LONG, {"text": PROMPT, "sampling_params": LONG}, {"prompt": PROMPT, "parameters": LONG}]
)
async def test_our_own_dialect_and_sglangs_get_the_text_under_every_name(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    whole = (await client.post("/generate", json=body)).json()
    stream = events_of((await client.post("/generate", json=body | {"stream": True})).text)

    assert whole["generated_text"] == whole["text"] == ANSWER
    assert (whole["finish_reason"], whole["meta_info"]["finish_reason"]) == ("stop", {"type": "stop"})
    assert whole["meta_info"]["completion_tokens"] == whole["usage"]["completion_tokens"] == len(TEXT["tokens"])
    assert "".join(event["token"]["text"] for event in stream) == stream[-1]["text"] == ANSWER
    assert [event["meta_info"]["finish_reason"] for event in stream[:-1]] == [None] * (len(stream) - 1)
    assert stream[-1]["finish_reason"] == "stop"


async def test_vllms_dialect_gets_lists_of_texts_that_begin_with_the_prompt_and_streams_of_lines(client: httpx.AsyncClient) -> None:
    body = {"prompt": PROMPT, "max_tokens": 200, "temperature": 0}

    whole = (await client.post("/generate", json=body)).json()
    several = (await client.post("/generate", json=body | {"n": 2, "max_tokens": 3})).json()
    reply = await client.post("/generate", json=body | {"stream": True})
    lines = [json.loads(line)["text"] for line in reply.text.splitlines()]

    assert whole == {"text": [PROMPT + ANSWER]}
    assert len(several["text"]) == 2
    assert lines[-1] == whole["text"]
    assert all(later[0].startswith(earlier[0]) for earlier, later in pairwise(lines))
    assert reply.headers["content-type"] == "application/x-ndjson"


async def test_tgis_dialect_streams_one_event_a_token_and_no_done(client: httpx.AsyncClient, tokenizer: TextTokenizer) -> None:
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 200}}  # greedy, since nothing asks for sampling

    whole = (await client.post("/generate", json=body)).json()
    reply = await client.post("/generate_stream", json=body)
    events = [json.loads(block.removeprefix("data: ")) for block in reply.text.split("\n\n") if block]

    assert whole == {"generated_text": ANSWER}
    assert [event["token"]["id"] for event in events] == TEXT["tokens"]
    assert [event["index"] for event in events] == list(range(1, len(events) + 1))
    assert "".join(event["token"]["text"] for event in events) == events[-1]["generated_text"] == ANSWER
    assert events[-1]["details"] == {
        "finish_reason": "eos_token",
        "generated_tokens": len(TEXT["tokens"]),
        "input_length": len(tokenizer.raw.encode(PROMPT).ids),
        "seed": None,
    }
    assert all(event["details"] is None and event["generated_text"] is None for event in events[:-1])
    assert [event["token"]["special"] for event in events] == [False] * (len(events) - 1) + [True]


@pytest.mark.parametrize(
    ("parameters", "reason"), [({"max_new_tokens": 3}, "length"), ({"stop": [ANSWER[2:4]]}, "stop_sequence"), ({}, "eos_token")]
)
async def test_tgis_details_say_in_its_words_why_the_answer_ended(
    client: httpx.AsyncClient, parameters: dict[str, Any], reason: str
) -> None:
    reply = await client.post("/generate", json={"inputs": PROMPT, "parameters": parameters | {"details": True}})

    details = reply.json()["details"]
    assert details["finish_reason"] == reason
    assert len(details["tokens"]) == details["generated_tokens"]
    assert set(details["tokens"][0]) == {"id", "text", "logprob", "special"}


async def test_max_new_tokens_0_ends_a_tgi_stream_with_an_event_without_a_token(client: httpx.AsyncClient) -> None:
    reply = await client.post("/generate_stream", json={"inputs": PROMPT, "parameters": {"max_new_tokens": 0}})

    event = json.loads(reply.text.removeprefix("data: "))
    assert (event["token"]["id"], event["generated_text"], event["details"]["finish_reason"]) == (None, "", "length")


async def test_the_client_of_hugging_face_reads_our_answers(engine: Engine) -> None:
    async with serving.on_a_socket(serving.make_service(engine)) as http:

        def ask() -> tuple[Any, ...]:
            client = InferenceClient(model=f"{http.base_url}/generate")
            text = client.text_generation(PROMPT, max_new_tokens=200)
            details = client.text_generation(PROMPT, max_new_tokens=200, details=True, return_full_text=True)
            pieces = list(client.text_generation(PROMPT, max_new_tokens=200, stream=True))
            events = list(client.text_generation(PROMPT, max_new_tokens=200, stream=True, details=True))
            return text, details, pieces, events

        text, details, pieces, events = await asyncio.to_thread(ask)

    assert text == "".join(pieces) == events[-1].generated_text == ANSWER
    assert details.generated_text == PROMPT + ANSWER
    assert details.details.finish_reason == events[-1].details.finish_reason == "eos_token"
    assert [token.id for token in details.details.tokens] == TEXT["tokens"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_new_tokens": 4}, "prompt"),
        ({"prompt": "a", "inputs": "b"}, "inputs"),
        ({"inputs": "a", "parameters": 3}, "parameters"),
        ({"prompt": "a", "parameters": "max_new_tokens"}, "parameters"),
        ({"prompt": "a", "parameters": 5}, "parameters"),
        ({"prompt": "a", "max_new_tokens": 4, "sampling_params": {"max_new_tokens": 5}}, "max_new_tokens"),
        ({"prompt": "a", "max_new_tokens": -1}, "max_tokens"),
        ({"inputs": "a", "parameters": {"watermark": True}}, "watermark"),
        ({"inputs": "a", "parameters": {"do_sample": "false"}}, "do_sample"),
        ({"inputs": "a", "parameters": {"return_full_text": 1}}, "return_full_text"),
        ({"inputs": "a", "parameters": {"decoder_input_details": True}}, "decoder_input_details"),
        ({"prompt": "a", "details": True}, "details"),
        ({"text": "a", "sampling_params": {"n": 2}}, "n"),
        ({"inputs": "a", "parameters": {"n": 2}}, "n"),
        ({"text": ["a", "b"]}, "prompt"),
    ],
)
async def test_what_generate_cannot_do_is_refused_by_name(client: httpx.AsyncClient, body: dict[str, Any], param: str) -> None:
    reply = await client.post("/generate", json=body)

    assert reply.status_code == 400
    assert error_of(reply)["param"].startswith(param)
