"""A row's JSON object → the conversation, the pair or the text that it holds, whatever format it is written in.

Called by `reading` for each row on its own: a file may mix formats. Null equals absent, fields that no format knows are ignored. Messages
become OpenAI's and go through the server's own reading (`text.messages`), so both treat parts, tool calls and missing texts alike.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import pydantic_core

from glm5_runtime.text.errors import ConversationError
from glm5_runtime.text.messages import normalise

if TYPE_CHECKING:
    from collections.abc import Mapping

Format = Literal["alpaca", "sharegpt", "openai", "preference", "text"]
FORMATS: tuple[Format, ...] = get_args(Format)
_ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_call": "assistant",
}
_KEYS = "messages; conversations; instruction, input and output; chosen and rejected; or text"


class RowError(Exception):
    """A row that can't be trained on; `reason` is a short name that is counted."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages as templates read them, cut behind the last answer; `answers`: indices of the assistant messages to train."""

    messages: list[dict[str, Any]]
    answers: frozenset[int]
    tools: list[dict[str, Any]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    """Switches for the template: the row's `chat_template_kwargs`."""
    unanswered: int = 0
    """Messages behind the last answer that were left out."""


@dataclass(frozen=True, slots=True)
class Preference:
    """One prompt with two answers, each as the whole conversation."""

    chosen: Conversation
    rejected: Conversation


@dataclass(frozen=True, slots=True)
class Document:
    """Plain text for pretraining."""

    text: str


Record = Conversation | Preference | Document


def recognise(row: Mapping[str, Any]) -> Format:
    """The format of a row by its keys; raises RowError when it is none."""
    keys = {key for key, value in row.items() if value is not None}
    if {"chosen", "rejected"} <= keys:
        return "preference"
    if "messages" in keys:
        return "openai"
    if keys & {"conversations", "conversation"}:
        return "sharegpt"
    if "instruction" in keys or {"input", "output"} <= keys:
        return "alpaca"
    if "text" in keys:
        return "text"
    raise RowError("format", f"the row is of no known format; expected {_KEYS}")


def understand(row: Mapping[str, Any], form: Format) -> Record:
    """What a row of this format holds; raises RowError."""
    row = {key: value for key, value in row.items() if value is not None}
    try:
        match form:
            case "text":
                return Document(_text(row, "text", needed=True))
            case "preference":
                return _preference(row)
            case "alpaca":
                messages = [*_alpaca_prompt(row), {"role": "assistant", "content": _text(row, "output", needed=True)}]
            case _:
                messages = _listed(row)
        return _conversation(messages, row)
    except ConversationError as error:
        raise RowError("message", error.message) from error


def _conversation(messages: list[Any], row: Mapping[str, Any], first: int = 0) -> Conversation:
    """Check a conversation and say which answers are trained: those from message `first` on whose `weight` isn't 0."""
    if not messages:
        raise RowError("no-messages", "the conversation has no messages")
    system = _text(row, "system")
    head = [{"role": "system", "content": system}] if system and not first else []
    plain = normalise([_message(message, f"messages[{index}]") for index, message in enumerate(messages)])
    weights = [message.get("weight", 1) if isinstance(message, dict) else 1 for message in messages]
    answers = [index for index, message in enumerate(plain) if message["role"] == "assistant"]
    if not answers:
        raise RowError("no-answer", "the conversation has no message of the assistant; there is nothing to learn")
    for index in answers:
        if not _says_something(plain[index]):
            raise RowError("no-answer", f"messages[{index}] is an answer without any text; remove it")
    end = answers[-1] + 1
    trained = frozenset(index + len(head) for index in answers if index >= first and weights[index] != 0)
    if not trained:
        raise RowError("no-answer", "every answer has weight 0; there is nothing to learn")
    return Conversation([*head, *plain[:end]], trained, _tools(row), _options(row), len(plain) - end)


def _says_something(answer: Mapping[str, Any]) -> bool:
    return bool(answer["content"].strip() or answer.get("tool_calls") or answer.get("reasoning_content", "").strip())


# --- messages ---------------------------------------------------------------------------------------------------------------


def _listed(row: Mapping[str, Any]) -> list[Any]:
    name = next(key for key in ("messages", "conversations", "conversation") if key in row)
    messages = row[name]
    if not isinstance(messages, list):
        raise RowError("type", f"{name} must be a list of messages")
    return messages


def _message(message: object, where: str) -> object:
    """OpenAI's spelling of a message; ShareGPT's `from` and `value` may stand for `role` and `content`, whatever the list is called."""
    if not isinstance(message, dict):
        return message
    plain = {key: value for key, value in message.items() if value is not None}
    spoken = plain.pop("from", None)
    said = plain.get("role", spoken)
    if not isinstance(said, str) or said not in _ROLES:
        shown = repr(said)[:40] if isinstance(said, str) else "missing or not a text"
        raise RowError("role", f"{where}.role is {shown}; known roles are {', '.join(_ROLES)}")
    plain["role"] = _ROLES[said]
    plain.setdefault("content", plain.pop("value", None))
    if said == "function_call":
        plain["tool_calls"] = _calls(plain.pop("content"), where)
    return plain


def _calls(content: object, where: str) -> list[dict[str, Any]]:
    """Calls of a ShareGPT `function_call` message: JSON text with name and arguments, or a list of such."""
    try:
        value = pydantic_core.from_json(content) if isinstance(content, str) else content
    except ValueError:
        value = None
    calls: list[Any] = value if isinstance(value, list) else [value]
    if not calls or not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        raise RowError("message", f'{where} is a function_call; its value must be JSON such as {{"name": …, "arguments": {{…}}}}')
    return [{"type": "function", "function": {"name": call["name"], "arguments": call.get("arguments")}} for call in calls]


def _tools(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    tools = row.get("tools") or []
    if isinstance(tools, str):
        try:
            tools = pydantic_core.from_json(tools)
        except ValueError:
            raise RowError("tools", "tools is a text that isn't JSON") from None
    if not isinstance(tools, list):
        raise RowError("tools", "tools must be a list of functions")
    return [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def _tool(tool: object, where: str) -> dict[str, Any]:
    """OpenAI's form; a bare function gets its envelope, since the server would not take it otherwise."""
    found = tool.get("function", tool) if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or not isinstance(found, dict) or not isinstance(found.get("name"), str):
        raise RowError("tools", f"{where} must be a function with a name")
    return tool if "function" in tool else {"type": "function", "function": tool}


def _options(row: Mapping[str, Any]) -> dict[str, Any]:
    options = row.get("chat_template_kwargs", {})
    if not isinstance(options, dict):
        raise RowError("type", "chat_template_kwargs must be an object")
    return {key: value for key, value in options.items() if value is not None}


# --- other formats ----------------------------------------------------------------------------------------------------------


def _alpaca_prompt(row: Mapping[str, Any]) -> list[Any]:
    """History and question: `instruction` and, on lines of its own, `input`."""
    history = row.get("history", [])
    if not isinstance(history, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair) for pair in history
    ):
        raise RowError("type", "history must be a list of pairs [question, answer]")
    question = "\n".join(text for text in (_text(row, "instruction"), _text(row, "input")) if text)
    if not question.strip():
        raise RowError("no-question", "instruction and input are empty")
    past = [{"role": role, "content": text} for pair in history for role, text in zip(("user", "assistant"), pair, strict=True)]
    return [*past, {"role": "user", "content": question}]


def _preference(row: Mapping[str, Any]) -> Preference:
    prompt = _pair_prompt(row)
    chosen, rejected = (_answers(row[name], name) for name in ("chosen", "rejected"))
    if not prompt:  # each answer comes with its whole conversation: the prompt is what they share
        shared = 0
        while shared < min(len(chosen), len(rejected)) and chosen[shared] == rejected[shared]:
            shared += 1
        prompt, chosen, rejected = chosen[:shared], chosen[shared:], rejected[shared:]
    if not prompt:
        raise RowError("pair", "there is no prompt; give it as prompt, messages or instruction, or as the beginning of both lists")
    if not chosen or not rejected or chosen == rejected:
        raise RowError("pair", "chosen and rejected are the same")
    system = _text(row, "system")
    prompt = [{"role": "system", "content": system}, *prompt] if system else prompt
    return Preference(*(_conversation([*prompt, *answers], row, len(prompt)) for answers in (chosen, rejected)))


def _pair_prompt(row: Mapping[str, Any]) -> list[Any]:
    prompt = row.get("prompt", [])
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}] if prompt.strip() else []
    if prompt:
        return _listed({"messages": prompt})
    if row.keys() & {"messages", "conversations", "conversation"}:
        return _listed(row)
    return _alpaca_prompt(row) if "instruction" in row else []


def _answers(value: object, name: str) -> list[Any]:
    if isinstance(value, str):
        return [{"role": "assistant", "content": value}]
    if isinstance(value, dict):
        return [value]
    if not isinstance(value, list):
        raise RowError("type", f"{name} must be a text, a message or a list of messages")
    return value


def _text(row: Mapping[str, Any], name: str, *, needed: bool = False) -> str:
    text = row.get(name, "")
    if not isinstance(text, str):
        raise RowError("type", f"{name} must be a text")
    if needed and not text.strip():
        raise RowError("no-answer" if name == "output" else "no-text", f"{name} is missing or empty")
    return text


def all_text(conversation: Conversation) -> str:
    """Everything that the row itself says, in one text: to look for what must not be in it."""
    return json.dumps([conversation.messages, conversation.tools, conversation.options], ensure_ascii=False)
