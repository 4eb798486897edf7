"""POST /tokenize and /detokenize, as vLLM has them: a text or a conversation → token ids, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glm5_runtime.server.chat import understand as understand_chat
from glm5_runtime.server.errors import bad_request
from glm5_runtime.server.params import check_prompt_length
from glm5_runtime.server.protocol import DetokenizeRequest, TokenizeRequest
from glm5_runtime.server.sse import JsonReply, while_connected

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from glm5_runtime.server.service import Service


@dataclass(frozen=True)
class _Text:
    text: str
    add_special_tokens: bool
    return_token_strs: bool


async def tokenize(request: Request) -> Response:
    """The ids of a text, or of a conversation with the template around it; more than the context holds are counted, too."""
    service: Service = request.app.state.service
    asked = await service.read(request, lambda raw: _understand(service, raw))
    tokenizer = service.model.tokenizer
    ids = await while_connected(request.receive, tokenizer.encode(asked.text, add_special_tokens=asked.add_special_tokens))
    texts = [tokenizer.raw.id_to_token(token) for token in ids] if asked.return_token_strs else None
    return JsonReply({"count": len(ids), "max_model_len": service.model.limits.max_model_len, "tokens": ids, "token_strs": texts})


async def detokenize(request: Request) -> Response:
    """The text of token ids, special tokens included."""
    service: Service = request.app.state.service
    return JsonReply({"prompt": await service.read(request, lambda raw: _decoded(service, raw))})


def _understand(service: Service, raw: dict[str, Any]) -> _Text:
    if "messages" in raw:
        wants_texts = raw.get("return_token_strs", False)
        if not isinstance(wants_texts, bool):
            raise bad_request("return_token_strs must be true or false", "return_token_strs")
        chat, text = understand_chat(service, raw)
        return _Text(text, chat.add_special_tokens, wants_texts)
    body = service.validate(raw, TokenizeRequest, {})
    limits, tokenizer = service.model.limits, service.model.tokenizer
    check_prompt_length(tokenizer.fewest_tokens(len(body.prompt)) or 1, limits, at_least=True)  # what can't fit needs no count
    return _Text(body.prompt, body.add_special_tokens, body.return_token_strs)


def _decoded(service: Service, raw: dict[str, Any]) -> str:
    body, limits = service.validate(raw, DetokenizeRequest, {}), service.model.limits
    if len(body.tokens) > limits.max_model_len:
        raise bad_request(f"tokens has {len(body.tokens)} ids; at most {limits.max_model_len} (the context) are taken", "tokens")
    if any(not 0 <= token < limits.vocab_size for token in body.tokens):
        raise bad_request(f"tokens has ids outside the vocabulary (0 to {limits.vocab_size - 1})", "tokens")
    return service.model.tokenizer.decode(body.tokens)
