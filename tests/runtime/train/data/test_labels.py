"""Labels by GLM-5's rule, and tokens that are the server's own for the same conversation."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from glm5_runtime.config import ConfigError, ModelConfig
from glm5_runtime.text.template import BUILT_IN, ChatTemplate, built_in
from glm5_runtime.text.tokens import TextTokenizer
from glm5_runtime.train.data.example import Example
from glm5_runtime.train.data.formats import Conversation, Document, Format, Preference, RowError, recognise, understand
from glm5_runtime.train.data.labels import Renderer
from tests.runtime.train.data.conftest import TINY
from tests.support import serving

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


def user(text: object = "q") -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str | None = "a", **fields: object) -> dict[str, Any]:
    return {"role": "assistant", "content": text} | fields


def call(arguments: str = '{"city": "Paris"}', **fields: object) -> dict[str, Any]:
    return answer(None, tool_calls=[{"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}], **fields)


def result(text: str = "sunny") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "c", "content": text}


def renderer_of(version: str, tokenizer: TextTokenizer) -> Renderer:
    return Renderer(built_in(version), tokenizer, ModelConfig.from_dir(TINY).eos_token_ids)


def examples(renderer: Renderer, row: dict[str, Any]) -> list[Example]:
    record = understand(row, recognise(row))
    match record:
        case Conversation():
            rendered = renderer.conversation(record)
        case Preference():
            rendered = [*renderer.conversation(record.chosen), *renderer.conversation(record.rejected)]
        case Document():
            rendered = renderer.document(record)
    found = renderer.examples(rendered, [1] * len(rendered))
    assert all(isinstance(each, Example) for each in found)
    return [each for each in found if isinstance(each, Example)]


def shown(tokenizer: TextTokenizer, example: Example) -> str:
    """The text with what is learned in brackets."""
    text, learned = "", False
    for token, trained in zip(example.tokens, example.trained, strict=True):
        text += ("⟦" if trained and not learned else "⟧" if learned and not trained else "") + tokenizer.token_bytes(token).decode(
            errors="replace"
        )
        learned = trained
    return text + "⟧" * learned


def chats(renderer: Renderer, *messages: dict[str, Any], **fields: object) -> list[str]:
    return [shown(renderer.tokenizer, each) for each in examples(renderer, {"messages": list(messages)} | fields)]


# --- the rule ---------------------------------------------------------------------------------------------------------------


def test_every_answer_and_the_token_that_ends_it_are_learned_and_nothing_else(renderer: Renderer) -> None:
    assert chats(renderer, {"role": "system", "content": "s"}, user("q"), answer("a"), user("r"), answer("b")) == [
        "[gMASK]<sop><|system|>s<|user|>q<|assistant|>⟦</think>a<|user|>⟧r<|assistant|>⟦</think>b<|user|>⟧"
    ]


def test_reasoning_is_learned_and_the_think_that_the_prompt_supplies_is_not(renderer: Renderer) -> None:
    wanted = ["[gMASK]<sop><|user|>q<|assistant|><think>⟦why</think>a<|user|>⟧"]

    assert chats(renderer, user(), answer("a", reasoning_content="why")) == wanted
    assert chats(renderer, user(), answer("<think>why</think>a")) == wanted


def test_a_call_is_learned_and_its_result_is_not(renderer: Renderer) -> None:
    call_text = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>"

    assert chats(renderer, user(), call(), result(), answer("It is.")) == [
        f"[gMASK]<sop><|user|>q<|assistant|>⟦</think>{call_text}<|observation|>⟧"
        "<tool_response>sunny</tool_response><|assistant|>⟦</think>It is.<|user|>⟧"
    ]


def test_a_conversation_that_ends_with_a_call_ends_with_the_token_of_its_result(renderer: Renderer) -> None:
    (text,) = chats(renderer, user(), call())

    assert text.endswith("</tool_call><|observation|>⟧")


def test_reasoning_that_past_turns_lose_is_learned_where_it_was_made(renderer: Renderer) -> None:
    assert chats(renderer, user("q"), answer("a", reasoning_content="why"), user("r"), answer("b", reasoning_content="how")) == [
        "[gMASK]<sop><|user|>q<|assistant|><think>⟦why</think>a<|user|>⟧",
        "[gMASK]<sop><|user|>q<|assistant|></think>a<|user|>r<|assistant|><think>⟦how</think>b<|user|>⟧",
    ]


def test_all_answers_around_the_calls_of_a_round_are_learned_in_their_own_context(renderer: Renderer) -> None:
    found = chats(renderer, user("q"), call("{}", reasoning_content="why"), result(), answer("a"), user("r"), answer("b"))

    assert found == [
        "[gMASK]<sop><|user|>q<|assistant|><think>⟦why</think><tool_call>get_weather</tool_call><|observation|>⟧"
        "<tool_response>sunny</tool_response><|assistant|>⟦</think>a<|user|>⟧",
        "[gMASK]<sop><|user|>q<|assistant|></think><tool_call>get_weather</tool_call><|observation|><tool_response>sunny</tool_response>"
        "<|assistant|></think>a<|user|>r<|assistant|>⟦</think>b<|user|>⟧",
    ]


def test_answers_before_the_first_reasoning_of_a_round_belong_to_its_example(renderer: Renderer) -> None:
    messages = [user("q"), call("{}"), result(), answer("a", reasoning_content="why"), user("r"), answer("b")]

    first, second = chats(renderer, *messages)

    assert first.count("⟦") == 2
    assert first.endswith("<think>⟦why</think>a<|user|>⟧")
    assert second.count("⟦") == 1


def test_a_conversation_of_very_many_contexts_is_refused_in_time(renderer: Renderer) -> None:
    turns = [user("q"), answer("a", reasoning_content="t")] * 130

    with pytest.raises(RowError, match="more than 128 answers") as caught:
        renderer.conversation(Conversation(turns, frozenset(range(1, 260, 2))))

    assert caught.value.reason == "too-long"


def test_a_template_that_keeps_old_reasoning_needs_one_example(tokenizer: TextTokenizer) -> None:
    messages = [user("q"), answer("a", reasoning_content="why"), user("r"), answer("b")]

    assert len(chats(renderer_of("5.3", tokenizer), *messages)) == 1
    assert len(chats(renderer_of("5", tokenizer), *messages, chat_template_kwargs={"clear_thinking": False})) == 1


def test_an_answer_behind_which_no_user_speaks_learns_to_stop_in_an_example_of_its_own(renderer: Renderer) -> None:
    whole = "[gMASK]<sop><|user|>q<|assistant|></think>a<|assistant|>⟦</think>b<|user|>⟧"

    assert chats(renderer, user("q"), answer("a"), answer("b")) == ["[gMASK]<sop><|user|>q<|assistant|>⟦</think>a<|user|>⟧", whole]
    assert chats(renderer, user("q"), answer("a"), {"role": "system", "content": "s"}, answer("b"))[0].endswith("a<|user|>⟧")


@pytest.mark.parametrize("version", BUILT_IN)
def test_each_answer_learns_exactly_one_token_that_stops_generation(version: str, tokenizer: TextTokenizer) -> None:
    stops = ModelConfig.from_dir(TINY).eos_token_ids
    messages = [
        answer("w"),
        user(),
        call(reasoning_content="t"),
        result(),
        call("{}"),
        result(),
        answer("b"),
        answer("c"),
        user(),
        answer(),
    ]

    found = examples(renderer_of(version, tokenizer), {"messages": messages, "tools": [TOOL]})

    learned = [token for each in found for token, trained in zip(each.tokens, each.trained, strict=True) if trained]
    assert sum(token in stops for token in learned) == sum(message["role"] == "assistant" for message in messages)
    assert not tokenizer.control_ids.difference(stops) & set(learned)
    assert all(each.tokens.count(tokenizer.raw.token_to_id("<sop>")) == 1 for each in found)


def test_weight_0_leaves_an_answer_in_the_prompt(renderer: Renderer) -> None:
    assert chats(renderer, user("q"), answer("a", weight=0), user("r"), answer("b", weight=1)) == [
        "[gMASK]<sop><|user|>q<|assistant|></think>a<|user|>r<|assistant|>⟦</think>b<|user|>⟧"
    ]


def test_of_a_pair_only_the_answers_are_learned(renderer: Renderer) -> None:
    row = {"prompt": [user("q"), answer("a"), user("r")], "chosen": "good", "rejected": "bad"}

    assert [shown(renderer.tokenizer, each) for each in examples(renderer, row)] == [
        f"[gMASK]<sop><|user|>q<|assistant|></think>a<|user|>r<|assistant|>⟦</think>{text}<|user|>⟧" for text in ("good", "bad")
    ]


def test_of_a_text_all_is_learned_and_its_end(renderer: Renderer) -> None:
    assert [shown(renderer.tokenizer, each) for each in examples(renderer, {"text": "Once <think> upon"})] == [
        "⟦Once <think> upon<|endoftext|>⟧"
    ]


@pytest.mark.parametrize("token", ["<|user|>", "<|assistant|>", "<|endoftext|>", "[gMASK]", "<sop>"])
@pytest.mark.parametrize("where", ["user", "assistant", "tools", "options", "text"])
def test_a_token_that_rules_turns_is_refused_in_a_row_s_own_text(renderer: Renderer, token: str, where: str) -> None:
    text = f"a {token} b"
    row: dict[str, Any] = {"messages": [user(text if where == "user" else "q"), answer(text if where == "assistant" else "a")]}
    if where == "options":
        row["chat_template_kwargs"] = {"note": text}
    if where == "tools":
        row["tools"] = [{"type": "function", "function": {"name": "f", "description": text}}]
    if where == "text":
        row = {"text": text}

    with pytest.raises(RowError) as caught:
        examples(renderer, row)

    assert caught.value.reason == "control-token"


def test_a_template_that_writes_other_turns_than_there_are_answers_is_refused(tokenizer: TextTokenizer) -> None:
    silent = Renderer(ChatTemplate.compile("no turns", "test"), tokenizer, ModelConfig.from_dir(TINY).eos_token_ids)
    refusing = Renderer(ChatTemplate.compile("{{ raise_exception('never') }}", "test"), tokenizer, frozenset({0, 7, 9}))
    record = Conversation([user(), answer()], frozenset({1}))

    (fault,) = silent.examples(silent.conversation(record), [1])
    assert isinstance(fault, RowError)
    assert fault.reason == "template"
    with pytest.raises(RowError, match="never"):
        refusing.conversation(record)


def test_a_model_that_would_not_stop_at_the_token_it_learns_is_refused(tokenizer: TextTokenizer) -> None:
    with pytest.raises(ConfigError, match=r"<\|observation\|> end"):
        Renderer(built_in("5"), tokenizer, frozenset({0, 7}))


# --- the same tokens as the server's ----------------------------------------------------------------------------------------

CONVERSATIONS: list[dict[str, Any]] = [
    {"messages": [user("Größe 你好 😊"), answer(" padded \n")]},
    {"messages": [{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}, user(), answer("<think>t</think>a")]},
    {"messages": [user([{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]), answer()]},
    {"messages": [user(), call(), result(), answer("It is sunny.")], "tools": [TOOL]},
    {"messages": [user(), call('{"n": 1, "é": ["中"]}', reasoning="t"), result(), call("{}"), result()], "tools": [TOOL]},
    {"messages": [answer("Welcome!"), user("a"), user("b"), answer("c")]},
    {"messages": [user(), answer(None, reasoning_content="only thought")]},
    {"messages": [user(), answer("a")], "chat_template_kwargs": {"enable_thinking": False}},
]


class _NoEngine:
    """The edge: rendering and tokenising need no engine."""


@pytest.fixture(params=BUILT_IN)
async def server(request: pytest.FixtureRequest, tokenizer: TextTokenizer) -> AsyncIterator[tuple[str, httpx.AsyncClient]]:
    service = serving.make_service(_NoEngine())  # type: ignore[arg-type]
    assert service.loaded is not None
    service.loaded = dataclasses.replace(service.loaded, template=built_in(request.param))
    async with serving.asgi_client(service) as client:
        yield request.param, client


async def test_tokens_are_those_that_the_server_makes_of_the_conversation(
    server: tuple[str, httpx.AsyncClient], tokenizer: TextTokenizer
) -> None:
    version, client = server
    for row in CONVERSATIONS:
        whole = examples(renderer_of(version, tokenizer), row)[-1]
        last = max(index for index, message in enumerate(row["messages"]) if message["role"] == "assistant")
        asked = row | {"model": serving.MODEL, "messages": row["messages"][: last + 1], "add_generation_prompt": False}
        reply = await client.post("/tokenize", json=asked | {"continue_final_message": False})
        assert reply.status_code == 200, reply.text
        assert list(whole.tokens[:-1]) == reply.json()["tokens"], row


async def test_what_is_not_learned_is_the_prompt_that_the_server_supplies(
    server: tuple[str, httpx.AsyncClient], tokenizer: TextTokenizer
) -> None:
    version, client = server
    messages = [user("Größe"), answer("a", reasoning_content="why")]
    (example,) = examples(renderer_of(version, tokenizer), {"messages": messages, "tools": [TOOL]})

    reply = await client.post("/tokenize", json={"model": serving.MODEL, "messages": messages[:1], "tools": [TOOL]})

    prompt = reply.json()["tokens"]
    assert list(example.tokens[: len(prompt)]) == prompt
    assert list(example.trained) == [False] * len(prompt) + [True] * (len(example.tokens) - len(prompt))


def test_all_formats_of_one_conversation_give_the_same_tokens(renderer: Renderer) -> None:
    spellings: dict[Format, list[dict[str, Any]]] = {
        "openai": [
            {"messages": [{"role": "system", "content": "s"}, user(), answer("a"), user("r"), answer("b")]},
            {"messages": [user(), answer("a"), user("r"), answer("b")], "system": "s"},
            {"messages": [{"from": "human", "value": "q"}, answer("a"), user("r"), {"from": "gpt", "value": "b"}], "system": "s"},
        ],
        "sharegpt": [
            {
                "conversations": [
                    {"from": "system", "value": "s"},
                    {"from": "human", "value": "q"},
                    {"from": "gpt", "value": "a"},
                    {"from": "user", "value": "r"},
                    {"from": "assistant", "value": "b"},
                ]
            },
            {"conversation": [user(), answer("a"), user("r"), answer("b")], "system": "s"},
        ],
        "alpaca": [{"instruction": "r", "input": "", "output": "b", "history": [["q", "a"]], "system": "s"}],
    }
    rows = [(form, row) for form, rows in spellings.items() for row in rows]

    assert [recognise(row) for _, row in rows] == [form for form, _ in rows]
    first, *others = [examples(renderer, row) for _, row in rows]
    assert all(other == first for other in others)
