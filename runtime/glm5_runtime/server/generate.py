"""POST /generate and /generate_stream: the endpoints of clients older than OpenAI's; each is answered in the dialect it spoke.

`dialects` reads the body. What comes back:
- TGI: `{"generated_text", "details"?}`; streams of `{"token", "generated_text", "details"}` without [DONE], which TGI's clients can't read;
- vLLM and MindIE: `{"text": [prompt + answer, …]}`; streams of the same, growing, one JSON object a line;
- ours and SGLang's: one object with all names of the text; streams of it, growing, ended by [DONE].
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from glm5_runtime.engine.request import FinishReason
from glm5_runtime.server.account import Account
from glm5_runtime.server.completions import plan_choices, read_prompt
from glm5_runtime.server.dialects import Asked, Dialect, understand
from glm5_runtime.server.forms import answer_form
from glm5_runtime.server.service import public_id
from glm5_runtime.server.sse import EventStream, JsonReply, LineStream, PlainEventStream, event, json_line, while_connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.responses import Response

    from glm5_runtime.engine.constraint import ConstraintFactory
    from glm5_runtime.engine.request import TokenLogprob
    from glm5_runtime.server.choice import Piece
    from glm5_runtime.server.completions import Prompt
    from glm5_runtime.server.service import Service

_DEFAULT_MAX_TOKENS = 128


async def generate(request: Request, *, always_stream: bool = False) -> Response:
    """The endpoint."""
    service: Service = request.app.state.service
    asked = await service.read(request, partial(understand, service, always_stream=always_stream))
    prompt = await read_prompt(service.model, asked.body.prompt[0], asked.body.add_special_tokens)
    form = await answer_form(service.grammars, asked.body)
    run = _GenerateRun(service, asked, prompt, form, Account.of(request.scope))
    headers = {"x-request-id": run.id}
    if not asked.body.stream:
        return JsonReply(await while_connected(request.receive, run.whole()), headers=headers)
    match asked.dialect:
        case Dialect.VLLM:
            return LineStream(run.lines(), run.close, headers)
        case Dialect.TGI:
            return PlainEventStream(run.tgi_events(), run.close, headers)
        case Dialect.OWN:
            return EventStream(run.own_events(), run.close, headers)


async def generate_stream(request: Request) -> Response:
    """TGI's name for a streamed /generate."""
    return await generate(request, always_stream=True)


class _GenerateRun:
    """One request from its submission to its reply."""

    def __init__(self, service: Service, asked: Asked, prompt: Prompt, form: ConstraintFactory | None, account: Account) -> None:
        self.id = public_id("gen", asked.body.request_id)
        self._service, self._asked, self._prompt = service, asked, prompt
        wants_tokens = asked.dialect is Dialect.TGI and (asked.details or asked.body.stream)
        self._planned = plan_choices(
            service.model, asked.body, prompt, default_max_tokens=_DEFAULT_MAX_TOKENS, logprobs=0 if wants_tokens else None, form=form
        )
        self._texts = [prompt.text if asked.full_text else ""] * asked.body.n
        self._generation = service.generation(self.id, account, asked.body)

    def close(self) -> None:
        """Stop what still runs."""
        self._generation.close()

    async def whole(self) -> dict[str, Any]:
        """The reply of a request without streaming."""
        tokens: list[dict[str, Any]] = []
        last: Piece | None = None
        async for piece in self._pieces():
            tokens += [self._token(entry, piece.text) for entry in piece.logprobs]
            last = piece
        match self._asked.dialect:
            case Dialect.VLLM:
                return {"text": self._texts}
            case Dialect.TGI:
                details = {"details": self._details(last) | {"prefill": [], "tokens": tokens}} if self._asked.details else {}
                return {"generated_text": self._texts[0]} | details
            case Dialect.OWN:
                return self._own(last)

    async def lines(self) -> AsyncIterator[bytes]:
        """Stream of vLLM: all texts so far, again and again."""
        async for piece in self._pieces():
            if piece.text or piece.finish is not None:
                yield json_line({"text": self._texts})

    async def own_events(self) -> AsyncIterator[bytes]:
        """One event for each piece of text, with all text so far; the last one says how it ended."""
        async for piece in self._pieces():
            if piece.text or piece.finish is not None:
                yield event({"token": {"text": piece.text}} | self._own(piece))

    async def tgi_events(self) -> AsyncIterator[bytes]:
        """TGI's stream: one event for each token; the last one has the whole text and the details."""
        index = 0
        async for piece in self._pieces():
            index += piece.tokens
            entry = piece.logprobs[0] if piece.logprobs else None
            is_last = piece.finish is not None
            yield event(
                {
                    "index": index,
                    "token": self._token(entry, piece.text),
                    "generated_text": self._texts[0] if is_last else None,
                    "details": self._details(piece) if is_last else None,
                }
            )

    async def _pieces(self) -> AsyncIterator[Piece]:
        try:
            self._generation.start(self._planned)
            async for index, piece in self._generation.pieces():
                self._texts[index] += piece.text
                yield piece
        finally:
            self._generation.close()

    def _token(self, entry: TokenLogprob | None, text: str) -> dict[str, Any]:
        """TGI's token. One that ends the answer leaves no text; `max_new_tokens: 0` has none at all."""
        if entry is None:
            return {"id": None, "text": text, "logprob": None, "special": False}
        special = entry.token in self._service.model.tokenizer.special_ids
        return {"id": entry.token, "text": text, "logprob": entry.logprob, "special": special}

    def _details(self, last: Piece | None) -> dict[str, Any]:
        reason = None if last is None or last.finish is None else last.finish.value
        if last is not None and last.finish is FinishReason.STOP:
            reason = "stop_sequence" if isinstance(last.stop_reason, str) else "eos_token"
        return {
            "finish_reason": reason,
            "generated_tokens": self._generation.completion_tokens,
            "input_length": len(self._prompt.ids),
            "seed": self._asked.body.seed,
        }

    def _own(self, last: Piece | None) -> dict[str, Any]:
        finish = None if last is None or last.finish is None else last.finish.value
        prompt, tokens = len(self._prompt.ids), self._generation.completion_tokens
        return {
            "generated_text": self._texts[0],
            "text": self._texts[0],
            "finish_reason": finish,
            "usage": {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens},
            "meta_info": {
                "id": self.id,
                "finish_reason": None if finish is None else {"type": finish},
                "prompt_tokens": prompt,
                "completion_tokens": tokens,
                "cached_tokens": self._generation.cached_tokens(),
            },
        }
