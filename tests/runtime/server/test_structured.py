"""Answers that must have a form: JSON, regex, choice, grammar; with thinking, tools, streams, several choices; and what a form may cost."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from glm5_runtime.server import grammar_compiler, grammar_trial
from glm5_runtime.server.errors import ApiError
from glm5_runtime.server.grammar import Grammar
from glm5_runtime.server.grammar_compiler import GrammarConstraint, Grammars, _Trial
from glm5_runtime.server.params import Limits
from glm5_runtime.text.tokens import TextTokenizer
from tests.support import serving
from tests.support.serving import EXPECTED, MODEL, PING, ask, error_of, events_of, joined

CHAT = "/v1/chat/completions"
TOOLS = next(row["tools"] for row in EXPECTED if row["kind"] == "tool")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        "of": {"$ref": "#/$defs/pair"},
    },
    "required": ["name", "age", "tags", "of"],
    "additionalProperties": False,
    "$defs": {
        "pair": {"type": "object", "properties": {"x": {"type": ["number", "null"]}}, "required": ["x"], "additionalProperties": False}
    },
}


def as_schema(schema: object, *, strict: bool = True) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "form", "schema": schema, "strict": strict}}}


async def content(client: httpx.AsyncClient, question: str = "Who are you?", **fields: object) -> str:
    reply = await client.post(CHAT, json=ask(question, **fields))
    assert reply.status_code == 200, reply.text
    choice = reply.json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    text: str = choice["message"]["content"]
    return text


@pytest.mark.parametrize("seed", range(4))
async def test_an_answer_keeps_to_the_schema_however_it_is_drawn(client: httpx.AsyncClient, seed: int) -> None:
    text = await content(client, **as_schema(SCHEMA), temperature=0.5 * seed, seed=seed)

    jsonschema.validate(json.loads(text), SCHEMA)


async def test_any_json_object_will_do_when_no_schema_is_given(client: httpx.AsyncClient) -> None:
    assert isinstance(json.loads(await content(client, response_format={"type": "json_object"})), dict)
    assert isinstance(json.loads(await content(client, structured_outputs={"json_object": True})), dict)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_regex": r"[0-9]{3}-[a-z]+\."}, r"[0-9]{3}-[a-z]+\."),
        ({"structured_outputs": {"regex": "[0-9]{3}"}}, "[0-9]{3}"),
        ({"guided_choice": ["yes", "no/never", 'say "表"']}, 'yes|no/never|say "表"'),
        ({"structured_outputs": {"choice": ["only"]}}, "only"),
        ({"guided_grammar": 'start: "a" /[bc]{1,3}/ "!"'}, "a[bc]{1,3}!"),
        ({"guided_grammar": 'root ::= "x" [0-9] "y"'}, "x[0-9]y"),
        ({"structured_outputs": {"grammar": 'start: "a" "b"?'}}, "ab?"),
        ({"guided_json": {"type": "integer", "minimum": 10, "maximum": 20}}, "1[0-9]|20"),
        ({"guided_json": '{"const": "it"}'}, '"it"'),
        ({"structured_outputs": {"json": {"type": "boolean"}}}, "true|false"),
    ],
)
async def test_each_way_to_ask_for_a_form_gives_it(client: httpx.AsyncClient, fields: dict[str, object], pattern: str) -> None:
    assert re.fullmatch(pattern, await content(client, **fields))


async def test_raw_completions_have_forms_too(client: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "prompt": "def ", "temperature": 0, "max_tokens": 30, "guided_regex": "[0-9]{4}"}

    completion = (await client.post("/v1/completions", json=body)).json()["choices"][0]

    assert re.fullmatch("[0-9]{4}", completion["text"])
    assert completion["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "def ", "max_new_tokens": 30, "guided_regex": "[0-9]{4}"},
        {"inputs": "def ", "parameters": {"max_new_tokens": 30, "grammar": {"type": "regex", "value": "[0-9]{4}"}}},
        {"inputs": "def ", "parameters": {"max_new_tokens": 30, "grammar": {"type": "json", "value": {"enum": [1234, 5678]}}}},
        {"text": "def ", "sampling_params": {"max_new_tokens": 30, "regex": "[0-9]{4}"}},
        {"text": "def ", "sampling_params": {"max_new_tokens": 30, "json_schema": '{"enum": [1234, 5678]}'}},
        {"text": "def ", "sampling_params": {"max_new_tokens": 30, "ebnf": 'root ::= [0-9] "234"'}},
    ],
)
async def test_each_dialect_of_generate_has_its_own_word_for_a_form(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    assert re.fullmatch("[0-9]{4}", (await client.post("/generate", json=body)).json()["generated_text"])


@pytest.mark.parametrize("grammar", ["[0-9]", {"type": "poem", "value": "x"}, {"value": "x"}, ["regex"]])
async def test_a_grammar_of_an_unknown_kind_is_refused_by_name(client: httpx.AsyncClient, grammar: object) -> None:
    reply = await client.post("/generate", json={"inputs": "def ", "parameters": {"grammar": grammar}})

    assert (reply.status_code, error_of(reply)["param"]) == (400, "grammar")


async def test_the_form_begins_behind_the_thinking_and_the_stream_is_the_same(client: httpx.AsyncClient) -> None:
    request = ask("Who are you?", enable_thinking=True, **as_schema(SCHEMA))

    message = (await client.post(CHAT, json=request)).json()["choices"][0]["message"]
    stream = events_of((await client.post(CHAT, json=request | {"stream": True})).text)

    assert message["reasoning"] == "The question is about the model."
    jsonschema.validate(json.loads(message["content"]), SCHEMA)
    assert (joined(stream, "reasoning"), joined(stream)) == (message["reasoning"], message["content"])


async def test_an_answer_with_a_form_does_not_end_while_the_model_thinks(client: httpx.AsyncClient) -> None:
    request = ask("Who are you?", enable_thinking=True, thinking_token_budget=4, guided_choice=["me"], logit_bias={"7": 100})  # the end

    message = (await client.post(CHAT, json=request)).json()["choices"][0]["message"]

    assert (message["content"], bool(message["reasoning"])) == ("me", True)


async def test_choices_have_a_form_each_with_log_probabilities_of_the_model(client: httpx.AsyncClient) -> None:
    request = ask("Hi", n=3, seed=1, temperature=1.5, guided_regex="[a-z]{3,9}", logprobs=True, top_logprobs=1)

    choices = (await client.post(CHAT, json=request)).json()["choices"]

    assert all(re.fullmatch("[a-z]{3,9}", choice["message"]["content"]) for choice in choices)
    assert len({choice["message"]["content"] for choice in choices}) > 1
    entries = [entry for choice in choices for entry in choice["logprobs"]["content"]]
    assert any(entry["top_logprobs"][0]["logprob"] > entry["logprob"] for entry in entries)  # it would have said something else


async def test_min_tokens_lengthens_what_may_be_longer_and_ends_what_is_complete(client: httpx.AsyncClient) -> None:
    assert len(await content(client, guided_regex="[0-9]{1,30}", min_tokens=8, max_tokens=40)) >= 8

    complete = (await client.post(CHAT, json=ask("Hi", guided_choice=["one"], min_tokens=30, max_tokens=40))).json()
    assert complete["choices"][0]["message"]["content"] == "one"
    assert complete["usage"]["completion_tokens"] <= 4


async def test_an_answer_cut_by_length_says_so(client: httpx.AsyncClient) -> None:
    choice = (await client.post(CHAT, json=ask("Hi", guided_regex="[a-z]{60}", max_tokens=3))).json()["choices"][0]

    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"response_format": {"type": "json_object"}}, r"\{(.|\n)*\}"),
        ({"guided_regex": "[0-9]{3}"}, "[0-9]{3}"),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"guided_grammar": 'root ::= "x" [0-9]'}, "x[0-9]"),
    ],
)
async def test_tools_may_be_called_instead_of_an_answer_in_its_form(client: httpx.AsyncClient, form: dict[str, Any], pattern: str) -> None:
    asked = ask("What is the weather in Paris?", tools=TOOLS, **form)
    answered = ask("Who are you?", tools=TOOLS, logit_bias={"12": -100}, **form)  # no call

    call = (await client.post(CHAT, json=asked)).json()["choices"][0]
    answer = (await client.post(CHAT, json=answered)).json()["choices"][0]

    assert json.loads(call["message"]["tool_calls"][0]["function"]["arguments"]) == {"city": "Paris"}
    assert re.fullmatch(pattern, answer["message"]["content"])


async def test_what_a_schema_without_strict_asks_beyond_the_grammar_is_left_to_the_model(client: httpx.AsyncClient) -> None:
    beyond = SCHEMA | {"not": {"required": ["nobody"]}}

    jsonschema.validate(json.loads(await content(client, **as_schema(beyond, strict=False))), SCHEMA)
    refused = await client.post(CHAT, json=ask("Hi", **as_schema(beyond)))
    assert (refused.status_code, error_of(refused)["param"]) == (400, "response_format.json_schema.schema")


async def test_a_preempted_answer_keeps_its_form() -> None:
    engine = serving.tiny_engine(cache_tokens=320, max_model_len=256, max_sequences=4)
    try:
        async with serving.asgi_client(serving.make_service(engine)) as client:
            request = ask("Tell a story.", guided_regex="([a-z]{2} ){60}", max_tokens=180)
            replies = await asyncio.gather(*(client.post(CHAT, json=request | {"seed": seed, "temperature": 1}) for seed in range(4)))
        assert engine.stats().preemptions > 0
        assert all(re.fullmatch("([a-z]{2} ){60}", reply.json()["choices"][0]["message"]["content"]) for reply in replies)
    finally:
        engine.stop()


@pytest.mark.parametrize("method", ["mtp", "ngram"])
async def test_guesses_ahead_change_no_answer_that_has_a_form(client: httpx.AsyncClient, method: str) -> None:
    requests = [
        ask("Who are you?", enable_thinking=True, **as_schema(SCHEMA), temperature=0.8, seed=5),
        ask("Hi", guided_regex="(one two three four ){3}", min_tokens=20),
        ask("What is the weather in Paris?", tools=TOOLS, tool_choice="required", parallel_tool_calls=False),
    ]
    engine = serving.tiny_engine(speculative_tokens=2, speculative_method=method)
    try:
        async with serving.asgi_client(serving.make_service(engine)) as guessing:
            for request in requests:
                plain, guessed = [(await each.post(CHAT, json=request)).json()["choices"][0] for each in (client, guessing)]
                for choice in (plain, guessed):
                    for call in choice["message"].get("tool_calls", []):
                        del call["id"]
                assert guessed == plain
        assert sum(engine.stats().accepted_drafts) > 0
    finally:
        engine.stop()


# What a form may cost


async def test_a_grammar_that_takes_too_long_is_refused_by_name_and_others_are_served_meanwhile(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile, begun, over = ask("Hi", guided_json={"type": "integer", "multipleOf": 9999991}), threading.Event(), threading.Event()
    await content(client, guided_choice=["warm"])
    try_out = _Trial.of

    def watched(trial: _Trial, grammar: str) -> tuple[str, str]:
        begun.set()
        found = try_out(trial, grammar)
        return found if over.wait(60) else ("others were held up", "")

    monkeypatch.setattr(grammar_compiler, "_SECONDS", 0.5)
    monkeypatch.setattr(_Trial, "of", watched)
    refusing = asyncio.create_task(client.post(CHAT, json=hostile))
    await serving.until(begun.is_set)
    known = await content(client, guided_choice=["warm"])
    pinged = await client.post(CHAT, json=PING)
    still = not refusing.done()
    over.set()
    reply = await refusing

    assert (known, pinged.status_code, still) == ("warm", 200, True)
    assert (reply.status_code, error_of(reply)["param"]) == (400, "guided_json")
    assert "more than 5 s" in error_of(reply)["message"]
    monkeypatch.setattr(_Trial, "of", None)  # what was refused is not tried again at once
    assert (await client.post(CHAT, json=hostile)).json() == reply.json()
    monkeypatch.undo()
    assert await content(client, guided_choice=["after"]) == "after"  # by a new process


async def test_a_grammar_that_takes_too_much_memory_is_refused_by_name(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_compiler, "_SECONDS", 60.0)
    monkeypatch.setattr(grammar_trial, "MEMORY", 8 * 1024 * 1024)

    reply = await client.post(CHAT, json=ask("Hi", guided_json={"type": "integer", "multipleOf": 99_991}))

    assert (reply.status_code, error_of(reply)["param"]) == (400, "guided_json")
    assert await content(client, guided_choice=["after"]) == "after"  # by a new process


async def test_a_grammar_whose_notation_takes_for_ever_to_read_holds_nobody_up(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await content(client, guided_choice=["warm"])
    monkeypatch.setattr(grammar_compiler, "_SECONDS", 0.5)
    started = time.monotonic()

    reply = await client.post(CHAT, json=ask("Hi", guided_grammar='root ::= "a"' + "\n" * 200_000))

    assert (reply.status_code, error_of(reply)["param"]) == (400, "guided_grammar")
    assert time.monotonic() - started < 30  # read to its end it would take minutes


WIDE = {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(600)}, "additionalProperties": False}


async def test_a_grammar_with_too_many_ways_to_go_on_is_refused_before_it_begins(client: httpx.AsyncClient) -> None:
    reply = await client.post(CHAT, json=ask("Hi", guided_json=WIDE))

    assert (reply.status_code, error_of(reply)["param"]) == (400, "guided_json")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_grammar_that_outgrows_its_limits_on_the_way_fails_its_request_only(client: httpx.AsyncClient, stream: bool) -> None:
    late = {"type": "object", "properties": {"a": {"const": "x" * 16}, "b": WIDE}, "required": ["a", "b"], "additionalProperties": False}

    reply, other = await asyncio.gather(
        client.post(CHAT, json=ask("Hi", guided_json=late, stream=stream)), client.post(CHAT, json=ask("Hi", guided_regex="[a-z]{16}"))
    )

    error = events_of(reply.text)[-1]["error"] if stream else error_of(reply)
    assert error["message"].startswith("guided_json outgrew its limits")
    assert error["type"] == "invalid_request_error"
    assert stream or reply.status_code == 400
    assert re.fullmatch("[a-z]{16}", other.json()["choices"][0]["message"]["content"])


LIMITS = Limits(2048, 2048, 12, eos_token_ids=frozenset({0, 7, 9}))


def grammars(tokenizer: TextTokenizer) -> Grammars:
    return Grammars(tokenizer, LIMITS)


async def test_the_same_grammar_is_prepared_once_and_the_oldest_are_forgotten(
    tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_compiler, "_KEPT", 2)
    known = grammars(tokenizer)
    texts = [json.dumps({"grammars": [{"lark_grammar": f'start: "{letter}"'}]}) for letter in "abc"]

    for text in [*texts, texts[2]]:
        await known.constraint(Grammar(text, "field"))

    assert list(known._kept) == texts[1:]


async def test_a_grammar_that_could_not_be_tried_out_is_no_bad_grammar(tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    known = grammars(tokenizer)
    grammar = Grammar(json.dumps({"grammars": [{"lark_grammar": 'start: "a"'}]}), "field")
    monkeypatch.setattr(grammar_compiler, "_START_SECONDS", 0.0)
    with pytest.raises(ApiError) as refused:
        await known.constraint(grammar)
    assert refused.value.status == 503
    monkeypatch.undo()
    assert await known.constraint(grammar)


async def test_a_grammar_without_an_answer_in_time_may_be_tried_again_but_not_at_once(
    tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    known = Grammars(tokenizer, LIMITS, clock=lambda: now[0])
    grammar = Grammar(json.dumps({"grammars": [{"lark_grammar": 'start: "a"'}]}), "field")
    await known.constraint(Grammar(json.dumps({"grammars": [{"lark_grammar": 'start: "warm"'}]}), "field"))
    assert known._trial is not None
    assert known._trial._child is not None
    os.kill(known._trial._child.pid, signal.SIGSTOP)  # as on a machine that is too busy for the child to get on
    monkeypatch.setattr(grammar_compiler, "_SECONDS", 0.05)

    with pytest.raises(ApiError, match="make it simpler, or send it again after 30 s") as refused:
        await known.constraint(grammar)
    assert refused.value.status == 400
    monkeypatch.undo()

    now[0] += 29
    with pytest.raises(ApiError, match="send it again"):  # nobody keeps the processor busy by asking again and again
        await known.constraint(grammar)
    now[0] += 1
    assert await known.constraint(grammar)


async def test_grammars_are_tried_out_with_the_packages_that_the_server_has(
    tokenizer: TextTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llguidance.py").write_text("raise SystemExit('found by PYTHONPATH, as in pods that mount their packages')")
    known, grammar = Grammars(tokenizer, LIMITS), Grammar(json.dumps({"grammars": [{"lark_grammar": 'start: "a"'}]}), "field")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ApiError, match="can't prepare grammars"):
        await known.constraint(grammar)
    monkeypatch.undo()

    assert await known.constraint(grammar)


async def test_a_grammar_that_is_wrong_stays_so(tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    known = Grammars(tokenizer, LIMITS, clock=lambda: now[0])
    grammar = Grammar(json.dumps({"grammars": [{"lark_grammar": "start: nowhere"}]}), "field")
    with pytest.raises(ApiError, match="nowhere"):
        await known.constraint(grammar)
    monkeypatch.setattr(known, "_prepared", None)  # not looked at a second time

    now[0] += 1e6
    with pytest.raises(ApiError, match="nowhere"):
        await known.constraint(grammar)


async def test_a_constraint_rolled_back_allows_what_it_allowed_before(tokenizer: TextTokenizer) -> None:
    import numpy as np

    make = await grammars(tokenizer).constraint(Grammar(json.dumps({"grammars": [{"lark_grammar": 'start: "ab" /[0-9]+/ "c"'}]}), "field"))
    constraint, fresh = make(), make()
    assert isinstance(constraint, GrammarConstraint)

    def mask(of: Any) -> bytes:  # noqa: ANN401 - any constraint
        words = np.full(64, -1, np.int32)
        assert of.fill(words)
        return words.tobytes()

    start = mask(constraint)
    for token in tokenizer.raw.encode("ab12").ids:
        constraint.accept(token)
    assert mask(constraint) != start
    constraint.rollback(len(tokenizer.raw.encode("ab12").ids))
    assert mask(constraint) == mask(fresh) == start


# Budget of thinking


@pytest.mark.parametrize("budget", [0, 3])
async def test_thinking_ends_where_its_budget_ends(client: httpx.AsyncClient, budget: int) -> None:
    reply = (await client.post(CHAT, json=ask("Who are you?", enable_thinking=True, thinking_token_budget=budget))).json()

    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == budget + 1  # and </think>
    assert reply["choices"][0]["message"]["content"]


async def test_a_budget_that_is_not_reached_changes_nothing(client: httpx.AsyncClient) -> None:
    request = ask("Who are you?", enable_thinking=True)

    free = (await client.post(CHAT, json=request)).json()["choices"]
    assert (await client.post(CHAT, json=request | {"thinking_token_budget": 500})).json()["choices"] == free


async def test_a_budget_and_a_form_go_together(client: httpx.AsyncClient) -> None:
    request = ask("Who are you?", enable_thinking=True, thinking_token_budget=2, guided_choice=["me"])

    message = (await client.post(CHAT, json=request)).json()["choices"][0]["message"]

    assert (message["content"], len(message["reasoning"]) > 0) == ("me", True)
