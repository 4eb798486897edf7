"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API as another language of the chat endpoint.

A body is translated into that of /v1/chat/completions, whose checks and answers are the only ones; its reply or its chunks are translated
back. Without `thinking` there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pydantic_core

from glm5_runtime.server.chat import chat, understand
from glm5_runtime.server.errors import bad_request, unsupported
from glm5_runtime.server.sse import EventStream, JsonReply, PlainEventStream, while_connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from glm5_runtime.server.service import Service

_SAME = ("model", "messages", "max_tokens", "temperature", "top_p", "top_k", "stream")
_ROLE_OF = {"tool_use": "assistant", "thinking": "assistant", "tool_result": "user"}
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 413: "request_too_large"}
_LATER_ERRORS = {429: "rate_limit_error", 503: "overloaded_error"}
_REFUSED = {"container": "there is no code execution", "mcp_servers": "tools are run by the client"}


def error_body(status: int, message: str) -> dict[str, Any]:
    """An error as Anthropic's clients read it."""
    kind = (_ERRORS | _LATER_ERRORS).get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


async def messages(request: Request) -> Response:
    """The endpoint."""
    reply = await chat(request, translate)
    headers = {"x-request-id": reply.headers["x-request-id"]}
    if isinstance(reply, EventStream):
        return _Stream(_events(reply.events), reply.close, headers)
    return JsonReply(_message(pydantic_core.from_json(bytes(reply.body))), headers=headers)


async def count_tokens(request: Request) -> Response:
    """How many tokens a request's prompt has."""
    service: Service = request.app.state.service
    body, text = await service.read(request, lambda raw: understand(service, translate({"max_tokens": 1} | raw)))
    ids = await while_connected(request.receive, service.model.tokenizer.encode(text, add_special_tokens=body.add_special_tokens))
    return JsonReply({"input_tokens": len(ids)})


def translate(raw: dict[str, Any]) -> dict[str, Any]:
    """The body of the chat endpoint that means the same; raises ApiError 400 for what has no meaning there."""
    for name, why in _REFUSED.items():
        if raw.get(name):
            raise unsupported(name, why)
    if "max_tokens" not in raw:
        raise bad_request("max_tokens is missing", "max_tokens")
    body = {name: raw[name] for name in _SAME if name in raw}
    if isinstance(body.get("messages"), list):
        said = [part for index, message in enumerate(body["messages"]) for part in _said(message, f"messages[{index}]")]
        system = [{"role": "system", "content": raw["system"]}] if raw.get("system") else []
        body["messages"] = system + said
    if raw.get("stream"):
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    if "stop_sequences" in raw:
        body["stop"] = raw["stop_sequences"]
    if "tools" in raw:
        tools = raw["tools"]
        body["tools"] = [_tool(tool, index) for index, tool in enumerate(tools)] if isinstance(tools, list) else tools
    return body | _tool_choice(_object(raw, "tool_choice")) | _thinking(_object(raw, "thinking")) | _form(raw)


def _object(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = raw.get(name, {})
    if not isinstance(value, dict):
        raise bad_request(f"{name} must be an object", name)
    return value


def _tool(tool: object, index: int) -> dict[str, Any]:
    if not isinstance(tool, dict) or "input_schema" not in tool:
        raise bad_request(f"tools[{index}] must be an object with name and input_schema; tools that a server runs are not here", "tools")
    known = {"name": "name", "description": "description", "input_schema": "parameters", "strict": "strict"}
    function = {theirs: tool.get(ours) for ours, theirs in known.items()}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def _tool_choice(choice: dict[str, Any]) -> dict[str, Any]:
    if not choice:
        return {}
    words = {"auto": "auto", "none": "none", "any": "required", "tool": {"type": "function", "function": {"name": choice.get("name")}}}
    kind = choice.get("type")
    if not isinstance(kind, str) or kind not in words:
        raise bad_request(f"tool_choice.type must be one of {', '.join(words)}", "tool_choice.type")
    return {"tool_choice": words[kind], "parallel_tool_calls": not choice.get("disable_parallel_tool_use", False)}


def _thinking(thinking: dict[str, Any]) -> dict[str, Any]:
    is_on = thinking.get("type", "disabled") != "disabled"
    budget = thinking.get("budget_tokens")
    return {"enable_thinking": is_on} | ({"thinking_token_budget": budget} if is_on and budget is not None else {})


def _form(raw: dict[str, Any]) -> dict[str, Any]:
    """`output_config.format`, or `output_format` as it was called before."""
    form = _object(_object(raw, "output_config"), "format") or _object(raw, "output_format")
    if not form:
        return {}
    return {"response_format": {"type": form.get("type"), "json_schema": {"name": "answer", "schema": form.get("schema")}}}


def _said(message: object, where: str) -> list[dict[str, Any]]:
    """The chat messages that one message means: results of tools are messages of their own there, and come first."""
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
        raise bad_request(f"{where} must be an object with the role user or assistant", where)
    content = message.get("content")
    if not isinstance(content, list):
        return [{"role": message["role"], "content": content}]
    texts: list[dict[str, Any]] = []
    thoughts, calls, results = "", [], []
    for index, block in enumerate(content):
        place = f"{where}.content[{index}]"
        kind = str(block.get("type")) if isinstance(block, dict) else None
        if kind in _ROLE_OF and message["role"] != _ROLE_OF[kind]:
            raise bad_request(f"{place} has the type {kind}, which belongs to a message of the {_ROLE_OF[kind]}", place)
        if kind == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input", {})}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": block.get("content") or ""})
        elif kind == "thinking":
            thoughts += _text(block.get("thinking"), f"{place}.thinking")
        elif kind != "redacted_thinking":
            texts.append(block)  # the chat endpoint takes text and refuses the rest by its place
    said: dict[str, Any] = {"role": message["role"], "content": texts}
    if message["role"] == "assistant":
        said |= ({"tool_calls": calls} if calls else {}) | ({"reasoning_content": thoughts} if thoughts else {})
    return [*results, *([said] if texts or not results else [])]


def _text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise bad_request(f"{place} must be a text", place)
    return value


def _usage(usage: dict[str, Any]) -> dict[str, int]:
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    counts = {"input_tokens": usage["prompt_tokens"] - cached, "output_tokens": usage["completion_tokens"]}
    return counts | {"cache_read_input_tokens": cached, "cache_creation_input_tokens": 0}


def _ended(choice: dict[str, Any]) -> dict[str, Any]:
    """Why an answer ended."""
    stop = choice.get("stop_reason")
    by_text = isinstance(stop, str)
    reason = "stop_sequence" if by_text else _STOP_REASONS.get(choice["finish_reason"], choice["finish_reason"])
    return {"stop_reason": reason, "stop_sequence": stop if by_text else None}


def _head(reply: dict[str, Any]) -> dict[str, Any]:
    return {"id": f"msg_{reply['id']}", "type": "message", "role": "assistant", "model": reply["model"], "usage": _usage(reply["usage"])}


def _message(reply: dict[str, Any]) -> dict[str, Any]:
    (choice,) = reply["choices"]
    said = choice["message"]
    content: list[dict[str, Any]] = []
    if said.get("reasoning"):
        content.append({"type": "thinking", "thinking": said["reasoning"], "signature": ""})
    if said["content"]:
        content.append({"type": "text", "text": said["content"]})
    for call in said.get("tool_calls", []):
        function = call["function"]
        content.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": _input(function["arguments"])})
    return _head(reply) | {"content": content} | _ended(choice)


def _input(arguments: str) -> Any:  # noqa: ANN401 - any JSON
    """A call's arguments; of one that max_tokens has cut, what is there."""
    return pydantic_core.from_json(arguments or "{}", allow_partial=True)


def _event(kind: str, **fields: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), pydantic_core.to_json({"type": kind} | fields))


def _error_event(value: Mapping[str, Any]) -> bytes:
    return _event("error", error={"type": "api_error", "message": value["error"]["message"]})


class _Stream(PlainEventStream):
    """Events that have names."""

    frame = staticmethod(_error_event)


async def _events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The chat endpoint's chunks as Anthropic's events: blocks of one kind each, one after the other."""
    block, index, ended, usage, has_begun = "", -1, {}, {}, False
    async for data in chunks:
        chunk = pydantic_core.from_json(data.removeprefix(b"data: "))
        usage = chunk["usage"]
        if not chunk["choices"]:
            continue
        if not has_begun:
            has_begun = True
            empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
            yield _event("message_start", message=_head(chunk) | empty)
        (choice,) = chunk["choices"]
        for name, opening, delta in _parts(choice["delta"]):
            if name != block:
                if block:
                    yield _event("content_block_stop", index=index)
                block, index = name, index + 1
                yield _event("content_block_start", index=index, content_block=opening)
            if delta is not None:
                yield _event("content_block_delta", index=index, delta=delta)
        if choice["finish_reason"] is not None:
            ended = _ended(choice)
    if block:
        yield _event("content_block_stop", index=index)
    yield _event("message_delta", delta=ended, usage=_usage(usage))
    yield _event("message_stop")


def _parts(delta: dict[str, Any]) -> list[tuple[str, dict[str, Any], dict[str, Any] | None]]:
    """(name of its block, how that opens, what is added) for each part of a delta."""
    parts: list[tuple[str, dict[str, Any], dict[str, Any] | None]] = []
    if thought := delta.get("reasoning"):
        opening: dict[str, Any] = {"type": "thinking", "thinking": "", "signature": ""}
        parts.append(("thinking", opening, {"type": "thinking_delta", "thinking": thought}))
    if text := delta.get("content"):
        parts.append(("text", {"type": "text", "text": ""}, {"type": "text_delta", "text": text}))
    for call in delta.get("tool_calls", []):
        function = call["function"]
        opening = {"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": {}}
        added = {"type": "input_json_delta", "partial_json": function["arguments"]} if function["arguments"] else None
        parts.append((f"call {call['index']}", opening, added))
    return parts
