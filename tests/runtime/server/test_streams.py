"""Streams: the same text as without streaming, whole characters, no leaked stop string, usage only when asked (A02, A04, A07)."""

from __future__ import annotations

import httpx
import pytest

from glm5_runtime.engine.request import FinishReason
from glm5_runtime.text.tokens import TextTokenizer
from tests.support import serving
from tests.support.scripted_engine import ScriptedEngine
from tests.support.serving import MODEL, ask, error_of, events_of, joined

COUNT = "one, two, three, four, five, six, seven, eight, nine, ten"


STOPS: list[tuple[object, str]] = [
    (["six, sev"], "one, two, three, four, five, "),  # straddles tokens
    ([", three, four, five, six, sever", "four"], "one, two, three, "),  # the longer one begins and comes to nothing
    ("one", ""),
    (["en, ei", "seven"], "one, two, three, four, five, six, "),  # overlapping: the one that is complete first in the text wins
    (["never said"], COUNT),
    (["ten, eleven"], COUNT),  # held back to the end, then given out
]


@pytest.mark.parametrize(("stop", "text"), STOPS)
async def test_stop_strings_end_the_text_and_no_part_of_them_gets_out(client: httpx.AsyncClient, stop: object, text: str) -> None:
    request = ask("Count to ten.", stop=stop)

    whole = (await client.post("/v1/chat/completions", json=request)).json()["choices"][0]
    stream = events_of((await client.post("/v1/chat/completions", json=request | {"stream": True})).text)

    assert whole["message"]["content"] == joined(stream) == text
    assert whole["finish_reason"] == stream[-1]["choices"][0]["finish_reason"] == "stop"
    assert (whole["stop_reason"] is None) == (text == COUNT)


@pytest.mark.parametrize("method", ["mtp", "ngram"])
async def test_guesses_ahead_change_neither_stop_strings_nor_log_probabilities(client: httpx.AsyncClient, method: str) -> None:
    engine = serving.tiny_engine(speculative_tokens=3, speculative_method=method)
    try:
        async with serving.asgi_client(serving.make_service(engine)) as guessing:
            for stop, text in STOPS:
                request = ask("Count to ten.", stop=stop, logprobs=True, top_logprobs=2, temperature=1e-6)
                replies = [(await each.post("/v1/chat/completions", json=request)).json() for each in (client, guessing)]
                (plain, *_), (guessed, *_) = (reply["choices"] for reply in replies)
                stream = events_of((await guessing.post("/v1/chat/completions", json=request | {"stream": True})).text)

                assert guessed["message"]["content"] == joined(stream) == text
                assert replies[0]["usage"] == replies[1]["usage"]
                for one, other in zip(plain["logprobs"]["content"], guessed["logprobs"]["content"], strict=True):
                    assert one["token"] == other["token"]
                    assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-3)
                    assert len(other["top_logprobs"]) == 2
        assert sum(engine.stats().accepted_drafts) > 0 or method == "ngram"  # nothing repeats in an answer this short
    finally:
        engine.stop()


async def test_a_stop_string_can_stay_in_the_text(client: httpx.AsyncClient) -> None:
    reply = await client.post("/v1/chat/completions", json=ask("Count to ten.", stop=["three"], include_stop_str_in_output=True))

    assert reply.json()["choices"][0]["message"]["content"] == "one, two, three"
    assert reply.json()["choices"][0]["stop_reason"] == "three"


async def test_a_stop_token_id_ends_the_text_and_is_named(client: httpx.AsyncClient, tokenizer: TextTokenizer) -> None:
    (comma, *_) = tokenizer.raw.encode(", ", add_special_tokens=False).ids

    choice = (await client.post("/v1/chat/completions", json=ask("Count to ten.", stop_token_ids=[comma]))).json()["choices"][0]

    assert (choice["message"]["content"], choice["stop_reason"], choice["finish_reason"]) == ("one", comma, "stop")


@pytest.mark.parametrize("question", ["谢谢", "你好", "你是谁？", "什么是昇腾？"])
async def test_characters_of_several_tokens_arrive_whole(client: httpx.AsyncClient, question: str) -> None:
    request = ask(question)

    whole = (await client.post("/v1/chat/completions", json=request)).json()["choices"][0]["message"]["content"]
    reply = await client.post("/v1/chat/completions", json=request | {"stream": True})

    assert reply.content.decode("utf-8", errors="strict")
    assert joined(events_of(reply.text)) == whole
    assert "\ufffd" not in reply.text
    assert not whole.isascii()


@pytest.mark.parametrize("text", ["重启服务🧪👩‍👩‍👧‍👦𠮷龘", "🧪", "a👩‍👩‍👧‍👦"])
async def test_emoji_joined_of_several_and_rare_characters_are_given_out_as_they_are_said(tokenizer: TextTokenizer, text: str) -> None:
    """A04's own request; the tiny model can't repeat what it is told, so that the answer is written down."""
    tokens = tokenizer.raw.encode(text, add_special_tokens=False).ids
    request = ask(f"原样重复：{text}", max_tokens=64)

    async with serving.asgi_client(serving.make_service(ScriptedEngine(tokens, FinishReason.STOP, stop_token=7))) as client:
        whole = (await client.post("/v1/chat/completions", json=request)).json()["choices"][0]["message"]["content"]
        reply = await client.post("/v1/chat/completions", json=request | {"stream": True})
        echoed = (await client.post("/tokenize", json=request)).json()["tokens"]

    assert joined(events_of(reply.content.decode("utf-8", errors="strict"))) == whole == text
    assert "\ufffd" not in reply.text
    assert len(tokens) > len(text)  # characters of several tokens
    assert text in tokenizer.raw.decode(echoed)


async def test_a_character_cut_by_max_tokens_shows_as_one_replacement_at_the_very_end(client: httpx.AsyncClient) -> None:
    for count in (1, 2, 4, 13, 14, 15, 16):
        request = ask("谢谢", max_tokens=count)
        whole = (await client.post("/v1/chat/completions", json=request)).json()["choices"][0]["message"]["content"]
        stream = events_of((await client.post("/v1/chat/completions", json=request | {"stream": True})).text)

        assert joined(stream) == whole
        assert whole.count("\ufffd") <= 1
        assert "\ufffd" not in whole[:-1]
        assert "不客气！😊".startswith(whole.rstrip("\ufffd"))


@pytest.mark.parametrize("options", [None, {"include_usage": False}, {}])
async def test_usage_stays_out_of_streams_that_did_not_ask(client: httpx.AsyncClient, options: object) -> None:
    events = events_of((await client.post("/v1/chat/completions", json=ask("Hi", stream=True, stream_options=options))).text)

    assert all(event["choices"] for event in events)
    assert all(event.get("usage") is None for event in events)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_usage_asked_for_is_one_last_chunk_without_choices(client: httpx.AsyncClient, path: str) -> None:
    request = ask("Hi") if "chat" in path else {"model": MODEL, "prompt": "Return a new ", "temperature": 0, "max_tokens": 8}

    uncached = {"prompt_tokens_details": None}  # the second request finds more in the cache

    whole = (await client.post(path, json=request)).json()
    events = events_of((await client.post(path, json=request | {"stream": True, "stream_options": {"include_usage": True}})).text)

    assert events[-1]["choices"] == []
    assert events[-1]["usage"] | uncached == whole["usage"] | uncached
    assert all(event["choices"] and event.get("usage") is None for event in events[:-1])


async def test_continuous_usage_grows_with_each_chunk(client: httpx.AsyncClient) -> None:
    events = events_of(
        (await client.post("/v1/chat/completions", json=ask("Hi", stream=True, stream_options={"continuous_usage_stats": True}))).text
    )

    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] > counts[0] > 0


async def test_stream_options_without_stream_is_refused(client: httpx.AsyncClient) -> None:
    reply = await client.post("/v1/chat/completions", json=ask("Hi", stream_options={"include_usage": True}))

    assert (reply.status_code, error_of(reply)["param"]) == (400, "stream_options")


async def test_choices_of_one_stream_are_told_apart_by_index(client: httpx.AsyncClient) -> None:
    request = ask("Tell a story.", n=3, seed=3, temperature=1.2, max_tokens=16)

    whole = (await client.post("/v1/chat/completions", json=request)).json()["choices"]
    events = events_of((await client.post("/v1/chat/completions", json=request | {"stream": True})).text)

    assert [joined(events, index=index) for index in range(3)] == [choice["message"]["content"] for choice in whole]
    finished = [choice["index"] for event in events for choice in event["choices"] if choice["finish_reason"]]
    assert sorted(finished) == [0, 1, 2]
