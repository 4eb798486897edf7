"""POST /v1/chat/completions: conversation → prompt → choices → messages, whole or streamed.

Reads top-down: `chat` is the endpoint, `understand` makes body and prompt of the JSON, `_plan` makes engine requests of them, `_ChatRun`
turns pieces into replies.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from glm5_runtime.engine.request import FinishReason
from glm5_runtime.server.account import Account
from glm5_runtime.server.choice import Choice
from glm5_runtime.server.errors import bad_request
from glm5_runtime.server.forms import chat_form
from glm5_runtime.server.generation import Planned
from glm5_runtime.server.params import check_message_count, check_prompt_length, sampling_params, seed_of_choice
from glm5_runtime.server.parsers import ChatParser, Delta
from glm5_runtime.server.protocol import REFUSED_IN_CHAT, ChatRequest
from glm5_runtime.server.replies import chat_logprobs, join_logprobs, usage
from glm5_runtime.server.service import public_id
from glm5_runtime.server.sse import EventStream, JsonReply, event, while_connected
from glm5_runtime.text.errors import ConversationError
from glm5_runtime.text.messages import fewest_characters, normalise
from glm5_runtime.text.template import opens_thinking
from glm5_runtime.text.tokens import StopStrings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from glm5_runtime.engine.constraint import ConstraintFactory
    from glm5_runtime.server.choice import Piece
    from glm5_runtime.server.service import Loaded, Service

logger = logging.getLogger(__name__)


async def chat(request: Request, translate: Callable[[dict[str, Any]], dict[str, Any]] = dict) -> Response:
    """The endpoint. `translate` makes a body of ours from one in another language."""
    service: Service = request.app.state.service
    body, prompt = await service.read(request, lambda raw: understand(service, translate(raw)))
    plan = await _plan(service.model, body, prompt, await chat_form(service.grammars, body, prompt))
    run = _ChatRun(service, body, plan, Account.of(request.scope))
    if body.stream:
        return EventStream(run.events(), run.close, {"x-request-id": run.id})
    return JsonReply(await while_connected(request.receive, run.whole()), headers={"x-request-id": run.id})


def understand(service: Service, raw: dict[str, Any]) -> tuple[ChatRequest, str]:
    """The checked body and its prompt; in a thread when the body is large. The cheap refusals come first."""
    model = service.model
    messages = raw.get("messages")
    if isinstance(messages, list):
        check_message_count(len(messages), model.limits)
    body = service.validate(raw, ChatRequest, REFUSED_IN_CHAT)
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_request("top_logprobs needs logprobs: true", "top_logprobs")
    prompt = _prompt(model, body, raw["tools"] if _offers_tools(body) else [])
    check_prompt_length(model.tokenizer.fewest_tokens(len(prompt)) or 1, model.limits, at_least=True, field="messages")
    return body, prompt


def _offers_tools(body: ChatRequest) -> bool:
    return bool(body.tools) and body.tool_choice != "none"


@dataclass(frozen=True)
class _Plan:
    prompt_tokens: int
    choices: list[Planned]
    thinking: bool  # the answer begins inside a thinking block
    tools: dict[str, dict[str, Any]] | None


async def _plan(model: Loaded, body: ChatRequest, prompt: str, form: ConstraintFactory | None) -> _Plan:
    ids = await model.tokenizer.encode(prompt, add_special_tokens=body.add_special_tokens)
    wins = body.max_completion_tokens is not None  # OpenAI's newer name wins over max_tokens when both are set
    wanted = body.max_completion_tokens if wins else body.max_tokens
    params = sampling_params(
        body,
        prompt_tokens=len(ids),
        prompt_field="messages",
        max_tokens=wanted,
        max_tokens_field="max_completion_tokens" if wins else "max_tokens",
        limits=model.limits,
        defaults=model.defaults,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    hidden = model.tokenizer.special_ids - model.tokenizer.marker_ids if body.skip_special_tokens else frozenset[int]()
    choices = [
        Planned(
            ids,
            replace(params, seed=seed_of_choice(params.seed, index)),
            Choice(
                model.tokenizer,
                params.stop_token_ids,
                StopStrings(tuple(body.stop), body.include_stop_str_in_output),
                hidden,
                params.min_tokens,
            ),
            body.cache_salt or "",
            form,
            body.priority,
            model.limits.tier_for(body, len(ids), wanted),
            body.user,
        )
        for index in range(body.n)
    ]
    tools = {tool.function.name: tool.function.parameters or {} for tool in body.tools} if _offers_tools(body) else None
    return _Plan(len(ids), choices, opens_thinking(prompt), tools)


def _prompt(model: Loaded, body: ChatRequest, tools: list[dict[str, Any]]) -> str:
    try:
        return _rendered(model, body, tools)
    except ConversationError as error:
        raise bad_request(error.message, error.field) from error


def _rendered(model: Loaded, body: ChatRequest, tools: list[dict[str, Any]]) -> str:
    messages = normalise(body.messages)
    least = model.tokenizer.fewest_tokens(fewest_characters(messages)) or 1
    check_prompt_length(least, model.limits, at_least=True, field="messages")
    last_is_answer = messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
    if body.continue_final_message and not last_is_answer:
        raise bad_request("continue_final_message needs an assistant message without tool calls at the end", "continue_final_message")
    # A trailing answer is continued (prefill) unless the client asks for a new turn in so many words.
    return model.template.render(
        messages,
        tools=tools,
        options=_template_options(body),
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_last=last_is_answer and body.continue_final_message is not False and body.add_generation_prompt is not True,
    )


def _template_options(body: ChatRequest) -> dict[str, Any]:
    """The template's switches, from whichever of their names the client used; a field of its own wins over chat_template_kwargs."""
    options = dict(body.chat_template_kwargs)
    for name in ("enable_thinking", "clear_thinking"):
        if options.get(name) is None:
            options.pop(name, None)
        elif not isinstance(options[name], bool):
            raise bad_request(f"chat_template_kwargs.{name} must be true or false", f"chat_template_kwargs.{name}")
    if body.thinking is not None:
        options["enable_thinking"] = body.thinking.type == "enabled"
        if body.thinking.clear_thinking is not None:
            options["clear_thinking"] = body.thinking.clear_thinking
    if body.reasoning_effort == "none":
        options["enable_thinking"] = False
    elif body.reasoning_effort is not None:
        options["reasoning_effort"] = body.reasoning_effort
    if body.enable_thinking is not None:
        options["enable_thinking"] = body.enable_thinking
    if body.clear_thinking is not None:
        options["clear_thinking"] = body.clear_thinking
    return options


@dataclass
class _Message:
    """A whole answer, as its deltas add up."""

    reasoning: str = ""
    content: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None
    stop_reason: int | str | None = None

    def add(self, delta: Delta) -> None:
        self.reasoning = "" if delta.no_thinking else self.reasoning + delta.reasoning
        self.content += delta.content
        for piece in delta.calls:
            if piece.id is not None:
                self.calls.append({"id": piece.id, "type": "function", "function": {"name": piece.name, "arguments": ""}})
            self.calls[piece.index]["function"]["arguments"] += piece.arguments

    def body(self, *, include_reasoning: bool) -> dict[str, Any]:
        reasoning = self.reasoning if include_reasoning and self.reasoning else None
        body: dict[str, Any] = {"role": "assistant", "content": self.content if self.content or not self.calls else None}
        if reasoning is not None:
            body |= {"reasoning": reasoning, "reasoning_content": reasoning}
        if self.calls:
            body["tool_calls"] = self.calls
        return body


class _ChatRun:
    """One request from its submission to its reply."""

    def __init__(self, service: Service, body: ChatRequest, plan: _Plan, account: Account) -> None:
        self.id = public_id("chatcmpl", body.request_id)
        self._service, self._body, self._plan = service, body, plan
        self._generation = service.generation(self.id, account, body)
        self._parsers = [ChatParser(thinking=plan.thinking, tools=plan.tools, several_calls=body.parallel_tool_calls) for _ in plan.choices]
        self._reasoning_tokens = 0
        self._created = int(time.time())

    def close(self) -> None:
        """Stop what still runs."""
        self._generation.close()

    async def whole(self) -> dict[str, Any]:
        """The reply of a request without streaming."""
        messages = [_Message() for _ in self._plan.choices]
        async for index, delta, piece in self._deltas():
            message = messages[index]
            message.add(delta)
            if piece.logprobs:
                message.logprobs.append(chat_logprobs(self._service.model.tokenizer, piece.logprobs))
            if piece.finish is not None:
                message.finish, message.stop_reason = self._finish(index, piece.finish), piece.stop_reason
        return self._envelope("chat.completion") | {
            "choices": [
                {
                    "index": index,
                    "message": message.body(include_reasoning=self._body.include_reasoning),
                    "logprobs": join_logprobs(message.logprobs) or None,
                    "finish_reason": message.finish,
                    "stop_reason": message.stop_reason,
                }
                for index, message in enumerate(messages)
            ],
            "usage": self._usage(),
        }

    async def events(self) -> AsyncIterator[bytes]:
        """The events of a streamed reply, without the closing [DONE]."""
        opened: set[int] = set()
        options = self._body.stream_options
        always = bool(options and options.continuous_usage_stats)
        async for index, delta, piece in self._deltas():
            if index not in opened:
                opened.add(index)
                yield self._chunk(index, {"role": "assistant", "content": ""}, with_usage=always)
            fields = self._delta_fields(delta)
            if fields or piece.logprobs or piece.finish is not None:
                yield self._chunk(index, fields, piece, with_usage=always)
        if options and options.include_usage:
            yield event(self._envelope("chat.completion.chunk") | {"choices": [], "usage": self._usage()})

    async def _deltas(self) -> AsyncIterator[tuple[int, Delta, Piece]]:
        try:
            self._generation.start(self._plan.choices)
            async for index, piece in self._generation.pieces():
                parser = self._parsers[index]
                if parser.reasoning:
                    self._reasoning_tokens += piece.tokens
                delta = parser.push(piece.text)
                if piece.finish is not None:
                    own_end = piece.finish is FinishReason.STOP and not isinstance(piece.stop_reason, str)
                    delta.extend(parser.finish(by_itself=own_end))
                yield index, delta, piece
        finally:
            self._generation.close()

    def _chunk(self, index: int, delta: dict[str, Any], piece: Piece | None = None, *, with_usage: bool) -> bytes:
        choice: dict[str, Any] = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        if piece is not None and piece.logprobs:
            choice["logprobs"] = chat_logprobs(self._service.model.tokenizer, piece.logprobs)
        if piece is not None and piece.finish is not None:
            choice |= {"finish_reason": self._finish(index, piece.finish), "stop_reason": piece.stop_reason}
        chunk = self._envelope("chat.completion.chunk") | {"choices": [choice]}
        if with_usage:
            chunk["usage"] = self._usage()
        return event(chunk)

    def _delta_fields(self, delta: Delta) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if delta.reasoning and self._body.include_reasoning:
            fields |= {"reasoning": delta.reasoning, "reasoning_content": delta.reasoning}
        if delta.content:
            fields["content"] = delta.content
        if delta.calls:
            fields["tool_calls"] = [
                {"index": call.index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                if call.id is not None
                else {"index": call.index, "function": {"arguments": call.arguments}}
                for call in delta.calls
            ]
        return fields

    def _finish(self, index: int, reason: FinishReason) -> str:
        return "tool_calls" if reason is FinishReason.STOP and self._parsers[index].called_tools else reason.value

    def _usage(self) -> dict[str, Any]:
        cached = self._generation.cached_tokens(self._body.n)
        return usage(self._plan.prompt_tokens, self._generation.completion_tokens, cached, self._reasoning_tokens)

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._generation.model}
