"""tool_choice and strict: who must be called, with what, in which number."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema
import pytest

from glm5_runtime.server.errors import ApiError
from glm5_runtime.server.grammar import tool_grammar
from glm5_runtime.server.grammar_trial import make_tokenizer, prepare
from glm5_runtime.server.protocol import FunctionDef
from glm5_runtime.text.tokens import TextTokenizer
from tests.support.serving import EXPECTED, ask, events_of

CHAT = "/v1/chat/completions"
TOOLS = next(row["tools"] for row in EXPECTED if row["kind"] == "tool")
TYPED = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "level": {"$ref": "#/$defs/Level"},
        "count": {"type": "integer", "minimum": 1, "maximum": 99},
        "flag": {"type": "boolean"},
        "where": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]},
        "note": {"type": "string"},
    },
    "required": ["id", "level", "count", "flag", "where"],
    "additionalProperties": False,
    "$defs": {
        "Level": {"enum": ["1", "low", "high"], "type": "string"},
        "Place": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False},
    },
}


def tool(name: str, parameters: object = None, **fields: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters} | fields}


async def calls(client: httpx.AsyncClient, question: str = "Who are you?", **fields: object) -> list[tuple[str, Any]]:
    """Name and arguments of each call; the stream's are the same."""
    request = ask(question, **fields)
    choice = (await client.post(CHAT, json=request)).json()["choices"][0]
    stream = events_of((await client.post(CHAT, json=request | {"stream": True})).text)
    found = [(call["function"]["name"], call["function"]["arguments"]) for call in choice["message"].get("tool_calls", [])]
    streamed: list[list[str]] = []
    for event in stream:
        for piece in event["choices"][0]["delta"].get("tool_calls", []):
            if "id" in piece:
                streamed.append([piece["function"]["name"], ""])
            streamed[piece["index"]][1] += piece["function"]["arguments"]
    assert [tuple(call) for call in streamed] == found
    assert choice["finish_reason"] == stream[-1]["choices"][0]["finish_reason"] == ("tool_calls" if found else "stop")
    return [(name, json.loads(arguments)) for name, arguments in found]


@pytest.mark.parametrize("thinking", [False, True])
async def test_a_required_call_is_made_even_when_nothing_calls_for_it(client: httpx.AsyncClient, thinking: bool) -> None:
    found = await calls(client, tools=TOOLS, tool_choice="required", enable_thinking=thinking)

    assert {name for name, _ in found} <= {"get_weather", "list_pods"}
    assert found


@pytest.mark.parametrize("name", ["get_weather", "list_pods"])
async def test_a_named_function_is_called_once_and_no_other(client: httpx.AsyncClient, name: str) -> None:
    found = await calls(client, tools=TOOLS, tool_choice={"type": "function", "function": {"name": name}})

    assert [called for called, _ in found] == [name]


@pytest.mark.parametrize("seed", range(3))
async def test_forced_arguments_keep_to_the_schema_and_have_its_types(client: httpx.AsyncClient, seed: int) -> None:
    ((_, arguments),) = await calls(
        client, tools=[tool("set", TYPED)], tool_choice="required", parallel_tool_calls=False, temperature=1.0, seed=seed, max_tokens=400
    )

    jsonschema.validate(arguments, TYPED)


async def test_a_function_without_parameters_is_called_without_arguments(client: httpx.AsyncClient) -> None:
    for parameters in (None, {"type": "object", "properties": {}, "additionalProperties": False}):
        found = await calls(client, tools=[tool("now", parameters, strict=True)], tool_choice="required", parallel_tool_calls=False)
        assert found == [("now", {})]


async def test_one_call_at_most_when_parallel_calls_are_off(client: httpx.AsyncClient) -> None:
    several = {"tools": [tool("a", strict=True)], "tool_choice": "required", "logit_bias": {"12": 100}, "max_tokens": 40}

    many = (await client.post(CHAT, json=ask("Hi", **several))).json()["choices"][0]["message"]["tool_calls"]
    assert len(many) > 1
    assert await calls(client, "Hi", **several, parallel_tool_calls=False) == [("a", {})]


async def test_a_strict_function_is_held_to_its_schema_once_the_model_calls_it(client: httpx.AsyncClient) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"], "additionalProperties": False}
    loose = [tool("get_weather", TOOLS[0]["function"]["parameters"]), TOOLS[1]]
    strict = [tool("get_weather", schema, strict=True), TOOLS[1]]

    assert await calls(client, "What is the weather in Paris?", tools=loose) == [("get_weather", {"city": "Paris"})]
    ((_, arguments),) = await calls(client, "What is the weather in Paris?", tools=strict, parallel_tool_calls=False)
    assert arguments["city"] in {"Rome", "Oslo"}


async def test_with_strict_functions_the_model_may_still_just_answer(client: httpx.AsyncClient) -> None:
    request = ask("Who are you?", tools=[tool("f", TYPED, strict=True)], logit_bias={"12": -100}, max_tokens=60)

    message = (await client.post(CHAT, json=request)).json()["choices"][0]["message"]

    assert "tool_calls" not in message
    assert message["content"]


def test_definitions_that_would_multiply_are_refused_before_they_do(tokenizer: TextTokenizer) -> None:
    definitions = {f"d{index}": {"type": "object", "description": "x" * 200} for index in range(3000)}
    schema = {"$defs": definitions, "properties": {name: {"$ref": f"#/$defs/{name}"} for name in definitions}}

    with pytest.raises(ApiError) as refused:
        tool_grammar([FunctionDef(name="f", parameters=schema)], tokenizer.raw.token_to_id, several=True, opened=False)

    assert (refused.value.status, refused.value.param) == (400, "tools")


ONE = "<tool_call>set<arg_key>id</arg_key><arg_value>7</arg_value><arg_key>n</arg_key><arg_value>{}</arg_value></tool_call>"


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        (ONE.format("5"), True),
        (ONE.format("5") + ONE.format("-1"), True),
        (ONE.format("five"), False),
        ("text" + ONE.format("5"), False),
        ("<tool_call>set<arg_key>id</arg_key><arg_value>any text", True),
        ("<tool_call>set<arg_key>n</arg_key>", False),  # id is required
        ("<tool_call>set<arg_key>id</arg_key><arg_value>7</arg_value></tool_call>", True),  # n is not
        ("<tool_call>other", False),
        ("<tool_call>free<arg_key>what</arg_key><arg_value>ever</arg_value></tool_call>", True),
        ("<tool_call>none</tool_call>", True),
        ("<tool_call>none<arg_key>", False),
    ],
)
def test_the_grammar_takes_calls_of_the_offered_functions_only(tokenizer: TextTokenizer, text: str, taken: bool) -> None:
    schema = {"type": "object", "properties": {"id": {"type": "string"}, "n": {"type": "integer"}}, "required": ["id"]}
    functions = [FunctionDef(name="set", parameters=schema), FunctionDef(name="free"), FunctionDef(name="none", strict=True)]
    grammar = tool_grammar(functions, tokenizer.raw.token_to_id, several=True, opened=False)
    matcher = prepare(make_tokenizer(tokenizer.raw.to_str(), 2048, [0, 7, 9]), grammar.text)
    tokens = tokenizer.raw.encode(text).ids

    assert matcher.get_error() == ""
    assert (matcher.validate_tokens(tokens) == len(tokens)) is taken
