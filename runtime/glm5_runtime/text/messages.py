"""Chat messages as clients send them → the plain form that chat templates read.

Called by the chat endpoint and by training. Decides roles, content parts and tool arguments; every refusal names the message. Policies:
- `developer` becomes `system` and stays where it is;
- text parts are joined without a separator, as GLM's own template does; any other part type is refused;
- content null is the empty text on an assistant message that carries tool calls or reasoning, else it is refused;
- `reasoning` and `reasoning_content` are the same field.
"""

from __future__ import annotations

from typing import Any

import pydantic_core

from glm5_runtime.text.errors import ConversationError

ROLES = ("system", "developer", "user", "assistant", "tool")


def normalise(messages: list[Any]) -> list[dict[str, Any]]:
    """Check and simplify all messages; raises ConversationError for the first one at fault."""
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def fewest_characters(messages: list[dict[str, Any]]) -> int:
    """Characters of a normalised conversation that every template writes: not blanks around answers, nor thoughts of past ones."""
    return sum(
        len(message["content"].rpartition("</think>")[2].strip() if message["role"] == "assistant" else message["content"])
        for message in messages
    )


def _message(message: object, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise ConversationError(f"{where} must be an object with role and content", where)
    role = message.get("role")
    if role not in ROLES:
        shown = repr(role)[:40] if isinstance(role, str) else "missing or not a text"
        raise ConversationError(f"{where}.role is {shown}; known roles are {', '.join(ROLES)}", f"{where}.role")
    plain: dict[str, Any] = {"role": "system" if role == "developer" else role}
    if role == "assistant":
        plain |= _assistant_fields(message, where)
    optional = role == "assistant" and len(plain) > 1
    plain["content"] = _content(message.get("content"), where, optional=optional)
    for key in ("tool_call_id", "name"):
        if isinstance(message.get(key), str):
            plain[key] = message[key]
    return plain


def _content(content: object, where: str, *, optional: bool) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        if optional:
            return ""
        why = "only an assistant message with tool calls or reasoning may leave it out"
        raise ConversationError(f"{where}.content is missing; {why}", f"{where}.content")
    if not isinstance(content, list):
        raise ConversationError(f"{where}.content must be a text or a list of parts", f"{where}.content")
    return "".join(_part(part, f"{where}.content[{index}]") for index, part in enumerate(content))


def _part(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise ConversationError(f"{where} must be an object with a type", where)
    if kind != "text":
        raise ConversationError(f"{where} has the type {kind[:40]!r}; this model reads only parts of type 'text'", f"{where}.type")
    text = part.get("text")
    if not isinstance(text, str):
        raise ConversationError(f"{where}.text must be a text", f"{where}.text")
    return text


def _assistant_fields(message: dict[str, Any], where: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    reasoning = message.get("reasoning_content", message.get("reasoning"))
    if reasoning is not None:
        if not isinstance(reasoning, str):
            raise ConversationError(f"{where}.reasoning_content must be a text", f"{where}.reasoning_content")
        fields["reasoning_content"] = reasoning
    calls = message.get("tool_calls")
    if calls:
        if not isinstance(calls, list):
            raise ConversationError(f"{where}.tool_calls must be a list", f"{where}.tool_calls")
        fields["tool_calls"] = [_tool_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)]
    return fields


def _tool_call(call: object, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ConversationError(f"{where} must have a function with a name", f"{where}.function")
    return {
        "id": call.get("id") if isinstance(call.get("id"), str) else None,
        "type": "function",
        "function": {"name": function["name"], "arguments": _arguments(function.get("arguments"), f"{where}.function.arguments")},
    }


def _arguments(arguments: object, where: str) -> dict[str, Any]:
    """Templates walk over arguments as a mapping; clients send OpenAI's form, a JSON text."""
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            arguments = pydantic_core.from_json(arguments, allow_inf_nan=False)
        except ValueError as error:
            raise ConversationError(f"{where} is not valid JSON: {error}", where) from None
    if not isinstance(arguments, dict):
        raise ConversationError(f"{where} must be a JSON object", where)
    return arguments
