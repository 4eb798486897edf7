"""/v1/completions: raw text, echo, scoring, several prompts."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from glm5_runtime.engine.request import TokenLogprob
from glm5_runtime.server.replies import CompletionLogprobs
from glm5_runtime.text.tokens import TextTokenizer
from tests.support.serving import EXPECTED, MODEL, error_of, events_of, joined

TEXT = next(row for row in EXPECTED if row["kind"] == "text")
ANSWER: str = TEXT["text"].removesuffix("<|endoftext|>")


def complete(prompt: object, **fields: object) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 200} | fields


async def test_a_raw_prompt_is_continued_as_the_reference_does(client: httpx.AsyncClient) -> None:
    whole = (await client.post("/v1/completions", json=complete(TEXT["prompt"]))).json()
    stream = events_of((await client.post("/v1/completions", json=complete(TEXT["prompt"], stream=True))).text)

    assert whole["object"] == "text_completion"
    assert whole["choices"][0]["text"] == joined(stream) == ANSWER
    assert whole["choices"][0]["finish_reason"] == "stop"


async def test_token_ids_are_a_prompt_too(client: httpx.AsyncClient, tokenizer: TextTokenizer) -> None:
    ids = tokenizer.raw.encode(TEXT["prompt"]).ids

    reply = (await client.post("/v1/completions", json=complete(ids))).json()

    assert reply["choices"][0]["text"] == ANSWER
    assert reply["usage"]["prompt_tokens"] == len(ids)


async def test_several_prompts_keep_their_order_and_their_choices(client: httpx.AsyncClient) -> None:
    prompts = [TEXT["prompt"], "The function is called with "]
    one_by_one = [
        (await client.post("/v1/completions", json=complete(prompt, max_tokens=8))).json()["choices"][0]["text"] for prompt in prompts
    ]

    reply = (await client.post("/v1/completions", json=complete(prompts, max_tokens=8, n=2))).json()

    assert [choice["text"] for choice in reply["choices"]] == [one_by_one[0]] * 2 + [one_by_one[1]] * 2
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]


async def test_echo_puts_the_prompt_in_front_with_its_probabilities(client: httpx.AsyncClient) -> None:
    request = complete("Return a new ", echo=True, logprobs=1, max_tokens=4)

    whole = (await client.post("/v1/completions", json=request)).json()["choices"][0]
    stream = events_of((await client.post("/v1/completions", json=request | {"stream": True})).text)

    assert whole["text"].startswith("Return a new ")
    assert joined(stream) == whole["text"]
    logprobs = whole["logprobs"]
    assert logprobs["token_logprobs"][0] is None
    assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
    assert "".join(logprobs["tokens"]) == whole["text"]
    assert logprobs["text_offset"] == [len("".join(logprobs["tokens"][:index])) for index in range(len(logprobs["tokens"]))]
    parts = [event["choices"][0]["logprobs"] for event in stream]
    assert [token for part in parts if part for token in part["tokens"]] == logprobs["tokens"]


@pytest.mark.parametrize("echo", [False, True])
async def test_text_offsets_count_the_characters_of_the_text(tokenizer: TextTokenizer, echo: bool) -> None:
    ids = tokenizer.raw.encode("😊a客b", add_special_tokens=False).ids
    names = [tokenizer.token_text(token) for token in ids]
    logprobs = CompletionLogprobs(tokenizer, tokenizer.special_ids)
    entries = [TokenLogprob(token, -1.0, 1) for token in ids]
    start = 0
    if echo:
        assert max(logprobs.prompt(entries, ids, "\N{SMILING FACE WITH SMILING EYES}a\N{CJK UNIFIED IDEOGRAPH-5BA2}b")["text_offset"]) == 3
        start = 4

    offsets = [logprobs.add([entry], [entry.token])["text_offset"][0] - start for entry in entries]

    assert any(name.startswith("bytes:") for name in names)
    assert [offsets[names.index(letter)] for letter in "ab"] == [1, 3]
    assert set(offsets) == {0, 1, 2, 3}
    assert offsets == sorted(offsets)


async def test_scoring_a_prompt_with_max_tokens_0_produces_nothing(client: httpx.AsyncClient) -> None:
    reply = (await client.post("/v1/completions", json=complete("Answer: Yes", max_tokens=0, echo=True, logprobs=1))).json()

    assert reply["choices"][0]["text"] == "Answer: Yes"
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 0
    assert len(reply["choices"][0]["logprobs"]["tokens"]) == reply["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "best_of": 3}, "best_of"),
        ({"prompt": "x", "response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"prompt": "x", "guided_regex": "(a"}, "guided_regex"),
        ({"prompt": "x", "thinking_token_budget": 3}, "thinking_token_budget"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [1, 2048]}, "prompt"),
        ({"prompt": ["a"] * 100, "n": 2}, "prompt"),
        ({"prompt": ["a"] * 13}, "prompt"),  # the test server runs and queues 12 at most
        ({"prompt": "a", "n": 13}, "n"),
        ({"prompt": {"text": "x"}}, "prompt"),
        ({}, "prompt"),
    ],
)
async def test_what_cannot_be_completed_is_refused_by_name(client: httpx.AsyncClient, body: dict[str, Any], param: str) -> None:
    reply = await client.post("/v1/completions", json=body)

    assert (reply.status_code, error_of(reply)["param"]) == (400, param)


async def test_stop_strings_wait_for_min_tokens(client: httpx.AsyncClient, tokenizer: TextTokenizer) -> None:
    stop = ANSWER[2]
    at = tokenizer.raw.encode(ANSWER, add_special_tokens=False).ids

    early = (await client.post("/v1/completions", json=complete(TEXT["prompt"], stop=stop))).json()["choices"][0]
    late = (await client.post("/v1/completions", json=complete(TEXT["prompt"], stop=stop, min_tokens=len(at) - 1))).json()["choices"][0]

    assert early["text"] == ANSWER[:2]
    assert len(late["text"]) > len(early["text"]) + 2
    assert ANSWER.startswith(late["text"])
