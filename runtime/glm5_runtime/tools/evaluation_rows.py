"""A file of held-out rows → what `evaluate` asks a server: token ids with their labels, and the last answer's conversation.

Rows are read as training reads them, so that a loss means the same here and there. Loads no model and no torch.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pydantic_core

from glm5_runtime.train.data import reading
from glm5_runtime.train.data.formats import Conversation, recognise, understand
from glm5_runtime.train.data.rows import Row, read_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from glm5_runtime.train.data.example import Example
    from glm5_runtime.train.data.labels import Renderer

_SLACK = 64
"""Tokens that an answer may have beside twice the expected ones: enough to end, or to be seen to be another."""


@dataclass(frozen=True)
class Question:
    """A conversation without its last answer, and that answer. `body`: its part of a chat request."""

    body: dict[str, Any]
    content: str
    calls: list[tuple[str, Any]]
    """Names and arguments of its tool calls."""

    def is_answered_by(self, choice: Mapping[str, Any]) -> bool:
        """Whether a choice of a chat reply is this answer: text but for blanks around it, and calls. Reasoning isn't looked at."""
        message = choice["message"]
        calls = [(call["function"]["name"], _parsed(call["function"]["arguments"])) for call in message.get("tool_calls") or ()]
        return choice["finish_reason"] != "length" and (message["content"] or "").strip() == self.content and calls == self.calls


@dataclass(frozen=True)
class HeldOut:
    """One row. `examples`: what its loss is taken over; `question`: None for plain text and where the last answer isn't learned."""

    examples: list[Example]
    question: Question | None


class RowsError(Exception):
    """No row can be evaluated; the message says why."""


@dataclass(frozen=True)
class Rows:
    """The rows to ask for, and how many were left out because they don't fit the context."""

    rows: list[HeldOut]
    too_long: int


def read_held_out(file: Path, renderer: Renderer, context: int, most: int) -> Rows:
    """The first `most` rows that fit `context` tokens; raises DataError when the file could not be trained on, and RowsError."""
    data, _ = reading.load([file], renderer, reading.ReadingConfig(max_length=sys.maxsize))
    examples: dict[int, list[Example]] = {}
    for example in data:
        examples.setdefault(example.line, []).append(example)
    rows: list[HeldOut] = []
    too_long = 0
    for line, conversation in _conversations(file):
        if len(rows) == most:
            break
        if max(len(example.tokens) for example in examples[line]) > context:
            too_long += 1
            continue
        question = None if conversation is None else _question(conversation, renderer, context)
        rows.append(HeldOut(examples[line], question))
    if not rows:
        raise RowsError(f"{file}: all {too_long} rows are longer than the {context} tokens of the server's context")
    return Rows(rows, too_long)


def _conversations(file: Path) -> Iterator[tuple[int, Conversation | None]]:
    """Line and conversation of each row, None for plain text. The rows are known to be good."""
    for row in read_rows(file):
        if isinstance(row, Row):
            record = understand(row.value, recognise(row.value))
            yield row.line, record if isinstance(record, Conversation) else None


def _question(conversation: Conversation, renderer: Renderer, context: int) -> Question | None:
    """None where the last answer is not learned, or there is no room for one."""
    *before, last = conversation.messages
    if len(before) not in conversation.answers:
        return None
    whole = renderer.conversation(conversation)[-1].text
    options, prompt = _prompt(conversation, before, whole, renderer)
    asked, expected = (len(ids) for ids in renderer.tokenizer.encode_all([prompt, whole[len(prompt) :]], add_special_tokens=False))
    room = min(2 * expected + _SLACK, context - asked)
    if room <= 0:
        return None
    body: dict[str, Any] = {"messages": before, "chat_template_kwargs": options, "add_generation_prompt": True, "max_tokens": room}
    if conversation.tools:
        body["tools"] = conversation.tools
    calls = [(call["function"]["name"], _parsed(call["function"]["arguments"])) for call in last.get("tool_calls") or ()]
    return Question(body, str(last["content"]).rpartition("</think>")[2].strip(), calls)


def _prompt(conversation: Conversation, before: list[dict[str, Any]], whole: str, renderer: Renderer) -> tuple[dict[str, Any], str]:
    """Template options and the prompt that they give, so that it is the beginning of what was learned.

    Templates differ in what stands in front of an answer without reasoning: some close a block of thinking that the prompt opens.
    """
    options = conversation.options
    tries = [options] if "enable_thinking" in options else [options | {"enable_thinking": thinking} for thinking in (False, True)]
    prompts = [
        (each, renderer.template.render(before, tools=conversation.tools, options=each, add_generation_prompt=True)) for each in tries
    ]
    return next((found for found in prompts if whole.startswith(found[1])), prompts[0])


def _parsed(arguments: object) -> object:
    try:
        return pydantic_core.from_json(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments
