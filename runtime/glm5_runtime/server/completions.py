"""POST /v1/completions: raw text in, text out; several prompts, n choices each, echo, log-probabilities.

`completions` is the endpoint, `_plan` turns the body into engine requests, `_CompletionRun` turns pieces into replies.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from glm5_runtime.server.account import Account
from glm5_runtime.server.choice import Choice
from glm5_runtime.server.errors import bad_request
from glm5_runtime.server.forms import answer_form
from glm5_runtime.server.generation import Planned
from glm5_runtime.server.params import check_prompt_length, sampling_params, seed_of_choice
from glm5_runtime.server.protocol import REFUSED_IN_COMPLETIONS, CompletionRequest
from glm5_runtime.server.replies import CompletionLogprobs, join_logprobs, usage
from glm5_runtime.server.service import public_id
from glm5_runtime.server.sse import EventStream, JsonReply, event, while_connected
from glm5_runtime.text.tokens import StopStrings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.responses import Response

    from glm5_runtime.engine.constraint import ConstraintFactory
    from glm5_runtime.server.choice import Piece
    from glm5_runtime.server.protocol import SamplingFields
    from glm5_runtime.server.service import Loaded, Service

_DEFAULT_MAX_TOKENS = 16  # OpenAI's default of this endpoint


async def completions(request: Request) -> Response:
    """The endpoint."""
    service: Service = request.app.state.service
    body = await service.read(request, lambda raw: service.validate(raw, CompletionRequest, REFUSED_IN_COMPLETIONS))
    most = service.model.limits.max_choices
    if len(body.prompt) > 1 and len(body.prompt) * body.n > most:
        why = f"{len(body.prompt)} prompts with n={body.n} are more than the {most} choices of one request (running and queued together)"
        raise bad_request(why, "prompt")
    prompts = [await read_prompt(service.model, prompt, body.add_special_tokens) for prompt in body.prompt]
    form = await answer_form(service.grammars, body)
    run = _CompletionRun(service, body, prompts, form, Account.of(request.scope))
    if body.stream:
        return EventStream(run.events(), run.close, {"x-request-id": run.id})
    return JsonReply(await while_connected(request.receive, run.whole()), headers={"x-request-id": run.id})


@dataclass(frozen=True)
class Prompt:
    """A prompt as the client sent it and as the engine takes it."""

    text: str
    ids: tuple[int, ...]


async def read_prompt(model: Loaded, prompt: str | list[int], add_special_tokens: bool) -> Prompt:
    """Encode a prompt; raises ApiError 400 when it is empty, too long or has ids outside the vocabulary."""
    if isinstance(prompt, str):
        check_prompt_length(max(model.tokenizer.fewest_tokens(len(prompt)), min(len(prompt), 1)), model.limits, at_least=True)
        ids = await model.tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
        check_prompt_length(len(ids), model.limits)
        return Prompt(prompt, ids)
    check_prompt_length(len(prompt), model.limits)
    if any(not 0 <= token < model.limits.vocab_size for token in prompt):
        raise bad_request(f"prompt has token ids outside the vocabulary (0 to {model.limits.vocab_size - 1})", "prompt")
    return Prompt(model.tokenizer.decode(prompt), tuple(prompt))


def plan_choices(
    model: Loaded,
    body: SamplingFields,
    prompt: Prompt,
    *,
    default_max_tokens: int,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    form: ConstraintFactory | None = None,
) -> list[Planned]:
    """The n engine requests of one raw prompt."""
    params = sampling_params(
        body,
        prompt_tokens=len(prompt.ids),
        max_tokens=body.max_tokens,
        default_max_tokens=default_max_tokens,
        limits=model.limits,
        defaults=model.defaults,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )
    hidden = _hidden(model, body)
    return [
        Planned(
            prompt.ids,
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
            body.context_tier,
            body.user,
        )
        for index in range(body.n)
    ]


def _hidden(model: Loaded, body: SamplingFields) -> frozenset[int]:
    """Tokens of an answer that leave no text."""
    return model.tokenizer.special_ids if body.skip_special_tokens else frozenset()


@dataclass
class _Text:
    """A whole choice, as its pieces add up."""

    text: str = ""
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None
    stop_reason: int | str | None = None


class _CompletionRun:
    """One request from its submission to its reply."""

    def __init__(
        self, service: Service, body: CompletionRequest, prompts: list[Prompt], form: ConstraintFactory | None, account: Account
    ) -> None:
        self.id = public_id("cmpl", body.request_id)
        self._service, self._body = service, body
        echo_logprobs = body.logprobs if body.echo else None
        self._prompts = prompts
        self._planned = [
            plan
            for prompt in prompts
            for plan in plan_choices(
                service.model,
                body,
                prompt,
                default_max_tokens=_DEFAULT_MAX_TOKENS,
                logprobs=body.logprobs,
                prompt_logprobs=echo_logprobs,
                form=form,
            )
        ]
        self._logprobs = [CompletionLogprobs(service.model.tokenizer, _hidden(service.model, body)) for _ in self._planned]
        self._generation = service.generation(self.id, account, body)
        self._created = int(time.time())

    def close(self) -> None:
        """Stop what still runs."""
        self._generation.close()

    async def whole(self) -> dict[str, Any]:
        """The reply of a request without streaming."""
        texts = [_Text() for _ in self._planned]
        async for index, text, logprobs, piece in self._parts():
            whole = texts[index]
            whole.text += text
            if logprobs is not None:
                whole.logprobs.append(logprobs)
            if piece.finish is not None:
                whole.finish, whole.stop_reason = piece.finish.value, piece.stop_reason
        return self._envelope() | {
            "choices": [
                {
                    "index": index,
                    "text": whole.text,
                    "logprobs": join_logprobs(whole.logprobs) or None,
                    "finish_reason": whole.finish,
                    "stop_reason": whole.stop_reason,
                }
                for index, whole in enumerate(texts)
            ],
            "usage": self._usage(),
        }

    async def events(self) -> AsyncIterator[bytes]:
        """The events of a streamed reply, without the closing [DONE]."""
        options = self._body.stream_options
        async for index, text, logprobs, piece in self._parts():
            if not text and logprobs is None and piece.finish is None:
                continue
            finish = None if piece.finish is None else piece.finish.value
            choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish, "stop_reason": piece.stop_reason}
            chunk = self._envelope() | {"choices": [choice]}
            if options and options.continuous_usage_stats:
                chunk["usage"] = self._usage()
            yield event(chunk)
        if options and options.include_usage:
            yield event(self._envelope() | {"choices": [], "usage": self._usage()})

    async def _parts(self) -> AsyncIterator[tuple[int, str, dict[str, Any] | None, Piece]]:
        """(choice, new text, its log-probabilities, piece); the first part of a choice carries the echo."""
        echoed: set[int] = set()
        try:
            self._generation.start(self._planned)
            async for index, piece in self._generation.pieces():
                lead, parts = "", []
                if self._body.echo and index not in echoed:
                    echoed.add(index)
                    prompt = self._prompts[index // self._body.n]
                    lead = prompt.text
                    if piece.prompt_logprobs is not None:
                        parts.append(self._logprobs[index].prompt(piece.prompt_logprobs, prompt.ids, prompt.text))
                if piece.logprobs:
                    parts.append(self._logprobs[index].add(piece.logprobs, [entry.token for entry in piece.logprobs]))
                yield index, lead + piece.text, join_logprobs(parts) or None, piece
        finally:
            self._generation.close()

    def _usage(self) -> dict[str, Any]:
        prompt_tokens = sum(len(prompt.ids) for prompt in self._prompts)
        return usage(prompt_tokens, self._generation.completion_tokens, self._generation.cached_tokens(self._body.n))

    def _envelope(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self._created, "model": self._generation.model}
