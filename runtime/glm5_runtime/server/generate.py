"""POST /generate: the endpoint of clients older than OpenAI's, in three dialects.

`{"prompt", "max_new_tokens", "temperature"}` (ours, vLLM's and MindIE's), `{"inputs", "parameters"}` (TGI) and `{"text"|"input_ids",
"sampling_params"}` (SGLang) are flattened into one body; the reply carries every dialect's name for the text. A parameter that we know and
can't honour is refused, one that nobody knows is ignored, as on the other endpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glm5_runtime.server.completions import plan_choices, read_prompt
from glm5_runtime.server.errors import bad_request
from glm5_runtime.server.protocol import REFUSED_ALWAYS, GenerateRequest
from glm5_runtime.server.service import public_id
from glm5_runtime.server.sse import EventStream, JsonReply, event, while_connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.responses import Response

    from glm5_runtime.server.choice import Piece
    from glm5_runtime.server.service import Service

_DEFAULT_MAX_TOKENS = 128
_PROMPTS = ("prompt", "inputs", "text", "input_ids")
_NESTED = ("parameters", "sampling_params")
_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "stop_sequences": "stop", "random_seed": "seed"}
REFUSED = REFUSED_ALWAYS | {
    "n": "this endpoint gives one answer; use /v1/completions",
    "best_of": "this endpoint gives one answer; use /v1/completions",
    "details": "use /v1/completions with logprobs",
    "decoder_input_details": "use /v1/completions with echo and logprobs",
    "top_n_tokens": "use /v1/completions with logprobs",
    "return_logprob": "use /v1/completions with logprobs",
    "watermark": "answers are not marked",
    "typical_p": "use top_p or min_p",
    "truncate": "a prompt is never cut silently; send one that fits",
    "grammar": "structured output is not available in this version",
    "json_schema": "structured output is not available in this version",
    "regex": "structured output is not available in this version",
    "ebnf": "structured output is not available in this version",
    "adapter_id": "there are no adapters in this version",
    "lora_path": "there are no adapters in this version",
    "batch_size": "send one request for each prompt",
    "timeout": "close the connection to stop a request",
}


async def generate(request: Request) -> Response:
    """The endpoint."""
    service: Service = request.app.state.service
    body, full_text = await service.read(request, lambda raw: _understand(service, raw))
    if body.n != 1:
        raise bad_request(f"n is not supported: {REFUSED['n']}", "n")
    if len(body.prompt) != 1:
        raise bad_request("this endpoint takes one prompt; use /v1/completions for several", "prompt")
    prompt = await read_prompt(service.model, body.prompt[0], body.add_special_tokens)
    planned = plan_choices(service.model, body, prompt, default_max_tokens=_DEFAULT_MAX_TOKENS)
    run = _GenerateRun(service, public_id("gen", body.request_id), len(prompt.ids), prompt.text if full_text else "")
    if body.stream:
        return EventStream(run.events(planned), run.close, {"x-request-id": run.id})
    return JsonReply(await while_connected(request.receive, run.whole(planned)), headers={"x-request-id": run.id})


def _understand(service: Service, raw: dict[str, Any]) -> tuple[GenerateRequest, bool]:
    """The checked body, and whether the prompt shall stand in front of the answer."""
    body = service.validate(flatten(raw), GenerateRequest, {name: why for name, why in REFUSED.items() if name != "n"})
    return body, bool(_merged(raw).get("return_full_text"))


def flatten(raw: dict[str, Any]) -> dict[str, Any]:
    """One flat body with OpenAI's names from whichever dialect was sent; raises ApiError 400 when it is ambiguous."""
    given = [name for name in _PROMPTS if name in raw]
    if len(given) != 1:
        raise bad_request(f"give exactly one of {', '.join(_PROMPTS)}; got {', '.join(given) or 'none'}", given[1] if given else "prompt")
    flat = _merged(raw)
    flat["prompt"] = raw[given[0]]
    for name in ("do_sample", "return_full_text"):
        if name in flat and not isinstance(flat[name], bool):
            raise bad_request(f"{name} must be true or false", name)
    if flat.pop("do_sample", None) is False:
        flat["temperature"] = 0.0
    flat.pop("return_full_text", None)
    return flat


def _merged(raw: dict[str, Any]) -> dict[str, Any]:
    """Top-level and nested parameters under one set of names; the same name twice is an error, not a silent choice."""
    flat: dict[str, Any] = {}
    layers: list[dict[str, Any]] = [{key: value for key, value in raw.items() if key not in {*_PROMPTS, *_NESTED}}]
    for name in _NESTED:
        nested = raw.get(name)
        if nested is None:
            continue
        if not isinstance(nested, dict):
            raise bad_request(f"{name} must be an object", name)
        layers.append(nested)
    for layer in layers:
        for key, value in layer.items():
            name = _NAMES.get(key, key)
            if value is None:
                continue
            if name in flat:
                raise bad_request(f"{key} is given twice", key)
            flat[name] = value
    return flat


class _GenerateRun:
    """One request from its submission to its reply."""

    def __init__(self, service: Service, request_id: str, prompt_tokens: int, lead: str) -> None:
        self.id = request_id
        self._lead = lead  # TGI's return_full_text puts the prompt in front
        self._prompt_tokens = prompt_tokens
        self._generation = service.generation(request_id)

    def close(self) -> None:
        """Stop what still runs."""
        self._generation.close()

    async def whole(self, planned: list[Any]) -> dict[str, Any]:
        """The reply of a request without streaming."""
        text, finish = self._lead, None
        async for piece in self._pieces(planned):
            text += piece.text
            finish = piece.finish
        return self._reply(text, None if finish is None else finish.value)

    async def events(self, planned: list[Any]) -> AsyncIterator[bytes]:
        """One event for each piece of text; the last one has the whole reply."""
        text = self._lead
        async for piece in self._pieces(planned):
            text += piece.text
            if piece.finish is not None:
                yield event({"token": {"text": piece.text}} | self._reply(text, piece.finish.value))
            elif piece.text:
                yield event({"token": {"text": piece.text}, "text": text, "generated_text": None})

    async def _pieces(self, planned: list[Any]) -> AsyncIterator[Piece]:
        try:
            self._generation.start(planned)
            async for _, piece in self._generation.pieces():
                yield piece
        finally:
            self._generation.close()

    def _reply(self, text: str, finish: str | None) -> dict[str, Any]:
        tokens = self._generation.completion_tokens
        return {
            "generated_text": text,
            "text": text,
            "finish_reason": finish,
            "usage": {"prompt_tokens": self._prompt_tokens, "completion_tokens": tokens, "total_tokens": self._prompt_tokens + tokens},
            "meta_info": {
                "id": self.id,
                "finish_reason": {"type": finish},
                "prompt_tokens": self._prompt_tokens,
                "completion_tokens": tokens,
            },
        }
