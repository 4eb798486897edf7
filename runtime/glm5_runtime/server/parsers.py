"""Splits a chat answer's text into reasoning, content and tool calls while it arrives.

Used by the chat endpoint, one parser per choice, for streams and whole answers alike: a whole answer is the sum of its deltas, so both
can't differ. GLM's form: `reasoning</think>content<tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value>…</tool_call>`, where the
prompt has already opened the thinking block.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pydantic_core

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

THINK, END_THINK = "<think>", "</think>"
CALL, END_CALL = "<tool_call>", "</tool_call>"
KEY, END_KEY = "<arg_key>", "</arg_key>"
VALUE, END_VALUE = "<arg_value>", "</arg_value>"
_DEEPEST = 8  # references within references; a schema may lead to itself
_KIND_OF = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array", dict: "object"}


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of one tool call. The first piece of a call carries id and name."""

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None


@dataclass(slots=True)
class Delta:
    """What one piece of text adds to the message."""

    reasoning: str = ""
    content: str = ""
    calls: list[CallDelta] = field(default_factory=list)
    no_thinking: bool = False  # all reasoning given out so far was the answer; it is in `content` now

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.calls)

    def extend(self, other: Delta) -> None:
        """Add what came later."""
        self.reasoning += other.reasoning
        self.content += other.content
        self.calls += other.calls
        self.no_thinking |= other.no_thinking


class _State(Enum):
    START = auto()  # nothing seen: the answer may open a thinking block itself
    REASONING = auto()
    CONTENT = auto()
    CALL_NAME = auto()
    CALL_ARGUMENTS = auto()
    CALL_STRING = auto()  # within a string argument, which is given out as it comes


def _new_call_id() -> str:
    return f"call_{uuid4().hex[:24]}"


class ChatParser:
    """State of one answer.

    `thinking`: the prompt opened a thinking block, the answer begins inside it. `tools`: JSON schemas of the parameters by function
    name; None means tool calls are plain text. `several_calls` false drops all calls after the first (parallel_tool_calls).
    """

    def __init__(
        self,
        *,
        thinking: bool,
        tools: Mapping[str, Mapping[str, Any]] | None,
        several_calls: bool = True,
        new_call_id: Callable[[], str] = _new_call_id,
    ) -> None:
        self._state = _State.REASONING if thinking else _State.START
        self._tools = tools
        self._several_calls = several_calls
        self._new_call_id = new_call_id
        self._held = ""  # text that may be the start of a marker
        self._unclosed = "" if thinking else None  # reasoning so far while its block is open
        self._calls = 0
        self._name = ""
        self._arguments = 0  # of the call being read

    @property
    def reasoning(self) -> bool:
        """Whether the text goes to reasoning now."""
        return self._state is _State.REASONING

    @property
    def called_tools(self) -> bool:
        """Whether a tool call was given out."""
        return self._calls > 0

    def push(self, text: str) -> Delta:
        """Take the next piece of the answer."""
        self._held += text
        delta = Delta()
        while self._advance(delta):
            pass
        return delta

    def finish(self, *, by_itself: bool) -> Delta:
        """The answer has ended; `by_itself`: on a stop token, not cut by length or a stop string.

        An answer that ended by itself inside the thinking block was no thinking: the model skipped the block, and its text is the
        content. In a stream that content repeats what has gone out as reasoning: nothing sent can be taken back, and clients retry an
        empty content for ever.
        """
        delta = Delta()
        held, self._held = self._held, ""
        if self._state is _State.REASONING:
            if by_itself and self._unclosed is not None:
                delta.content, delta.no_thinking = self._unclosed + held, True
            else:
                delta.reasoning = held
        elif self._state in {_State.START, _State.CONTENT}:
            delta.content = held
        elif self._state is _State.CALL_NAME:
            self._open_call(held, delta)
            self._close_call(delta)
        elif self._state is _State.CALL_STRING:
            self._give_string(held, delta)
            if by_itself:
                self._close_string(delta)
                self._close_call(delta)
        elif by_itself:  # a call cut by length stays unclosed, so that nobody runs half of it
            self._close_call(delta)
        return delta

    def _advance(self, delta: Delta) -> bool:
        """One step of the machine; False when more text is needed."""
        match self._state:
            case _State.START:
                return self._start()
            case _State.REASONING:
                return self._read_reasoning(delta)
            case _State.CONTENT:
                return self._read_content(delta)
            case _State.CALL_NAME:
                return self._read_name(delta)
            case _State.CALL_ARGUMENTS:
                return self._read_argument(delta)
            case _State.CALL_STRING:
                return self._read_string(delta)

    def _start(self) -> bool:
        if not self._held or (THINK.startswith(self._held) and self._held != THINK):
            return False
        if self._held.startswith(THINK):
            self._held = self._held.removeprefix(THINK)
            self._state, self._unclosed = _State.REASONING, ""
        else:
            self._state = _State.CONTENT
        return True

    def _read_reasoning(self, delta: Delta) -> bool:
        text, found = self._until(END_THINK)
        delta.reasoning += text
        if self._unclosed is not None:
            self._unclosed += text
        if found:
            self._state, self._unclosed = _State.CONTENT, None
        return found

    def _read_content(self, delta: Delta) -> bool:
        if self._tools is None:
            delta.content += self._held
            self._held = ""
            return False
        text, found = self._until(CALL)
        delta.content += text
        if found:
            self._state = _State.CALL_NAME
        return found

    def _read_name(self, delta: Delta) -> bool:
        ends = [at for marker in (KEY, END_CALL) if (at := self._held.find(marker)) >= 0]
        if not ends:
            return False
        name, self._held = self._held[: min(ends)], self._held[min(ends) :]
        self._open_call(name, delta)
        return True

    def _read_argument(self, delta: Delta) -> bool:
        end = self._held.find(END_CALL)
        close = self._held.find(END_VALUE)
        opened = self._held.find(VALUE)
        if opened >= 0 and (end < 0 or opened < end):
            end = -1  # inside a value, which may talk about </tool_call>
            key = self._held[:opened].partition(END_KEY)[0].rpartition(KEY)[2].strip()
            if kinds(self._schema_of(key), self._schema()) == {"string"}:
                self._held = self._held[opened + len(VALUE) :]
                self._give_pair(key, '"', delta)
                self._state = _State.CALL_STRING
                return True
        if close >= 0 and (end < 0 or close < end):
            raw, self._held = self._held[:close], self._held[close + len(END_VALUE) :]
            key, _, value = raw.partition(END_KEY)
            self._argument(key.rpartition(KEY)[2].strip(), value.partition(VALUE)[2], delta)
            return True
        if end >= 0:
            self._held = self._held[end + len(END_CALL) :]
            self._close_call(delta)
            self._state = _State.CONTENT
            return True
        return False

    def _open_call(self, name: str, delta: Delta) -> None:
        self._name, self._arguments, self._state = name.strip(), 0, _State.CALL_ARGUMENTS
        self._calls += 1
        self._give(CallDelta(self._calls - 1, "", self._new_call_id(), self._name), delta)

    def _read_string(self, delta: Delta) -> bool:
        text, found = self._until(END_VALUE)
        self._give_string(text, delta)
        if found:
            self._close_string(delta)
        return found

    def _give_string(self, text: str, delta: Delta) -> None:
        if text:
            self._give(CallDelta(self._calls - 1, json.dumps(text, ensure_ascii=False)[1:-1]), delta)

    def _close_string(self, delta: Delta) -> None:
        self._give(CallDelta(self._calls - 1, '"'), delta)
        self._state = _State.CALL_ARGUMENTS

    def _schema(self) -> Mapping[str, Any]:
        """Of the parameters of the call being read."""
        return (self._tools or {}).get(self._name, {})

    def _schema_of(self, key: str) -> object:
        properties = self._schema().get("properties")
        return properties.get(key) if isinstance(properties, dict) else None

    def _argument(self, key: str, raw: str, delta: Delta) -> None:
        value = typed_value(raw, self._schema_of(key), self._schema())
        self._give_pair(key, json.dumps(value, ensure_ascii=False), delta)

    def _give_pair(self, key: str, value: str, delta: Delta) -> None:
        lead = "{" if self._arguments == 0 else ", "
        self._arguments += 1
        self._give(CallDelta(self._calls - 1, f"{lead}{json.dumps(key, ensure_ascii=False)}: {value}"), delta)

    def _close_call(self, delta: Delta) -> None:
        self._give(CallDelta(self._calls - 1, "}" if self._arguments else "{}"), delta)

    def _give(self, piece: CallDelta, delta: Delta) -> None:
        if piece.index == 0 or self._several_calls:
            delta.calls.append(piece)

    def _until(self, marker: str) -> tuple[str, bool]:
        """(text before `marker` that is safe to give out, whether the marker was there and has been taken off)."""
        at = self._held.find(marker)
        if at >= 0:
            text, self._held = self._held[:at], self._held[at + len(marker) :]
            return text, True
        keep = next((n for n in range(min(len(marker) - 1, len(self._held)), 0, -1) if self._held.endswith(marker[:n])), 0)
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return text, False


def typed_value(raw: str, schema: object, root: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
    """An argument's value: strings come raw, all else as JSON, and only the tool's schema (`root`, where references lead) tells which.

    A value that is no valid JSON stays a string: the tool's own validation says more about it than we could.
    """
    possible = kinds(schema, root)
    if "string" in possible and not ("null" in possible and raw == "null"):
        return raw
    try:
        return pydantic_core.from_json(raw, allow_inf_nan=False)
    except ValueError:
        return raw


def kinds(schema: object, root: Mapping[str, Any]) -> set[str]:
    """JSON types that a schema names or implies; empty when it says nothing. Looks at each part once, however they refer to each other."""
    found: set[str] = set()
    todo, seen = [schema], set[int]()
    while todo:
        part = resolved(todo.pop(), root)
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        options = [option for branch in ("anyOf", "oneOf") if isinstance(part.get(branch), list) for option in part[branch]]
        todo += options
        kind = part.get("type")
        own = {kind} if isinstance(kind, str) else {item for item in kind if isinstance(item, str)} if isinstance(kind, list) else set()
        if not own and not options:
            values = part["enum"] if isinstance(part.get("enum"), list) else [part["const"]] if "const" in part else []
            own = {_KIND_OF[type(value)] for value in values} or ({"object"} if "properties" in part else set())
        found |= own
    return found


def resolved(schema: object, root: Mapping[str, Any]) -> object:
    """What a reference into `root` leads to; pydantic writes one for each enum and model, some alone in an allOf."""
    for _ in range(_DEEPEST):
        if not isinstance(schema, dict):
            break
        alone = schema.get("allOf")
        if isinstance(alone, list) and len(alone) == 1 and "type" not in schema:
            schema = alone[0]
        elif isinstance(schema.get("$ref"), str) and schema["$ref"].startswith("#/"):
            found: object = root
            for step in schema["$ref"].removeprefix("#/").split("/"):
                found = found.get(step) if isinstance(found, dict) else None
            schema = found
        else:
            break
    return schema
