"""Whether a request can be served at all. Asked before a request meets tensors; nothing after this point may fail because of what it holds.

The server asks through `Engine.refusal` to answer 400 early; the engine asks again for callers that didn't.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glm5_runtime.engine.request import Request, SamplingParams

MAX_COUNT = 2**31 - 1
MAX_LOGPROBS = 1024
"""More best tokens than anyone reads would make one request's answer larger than all others' together."""


def refusal(request: Request, vocab_size: int, max_model_len: int, tiers: Mapping[str, int] | None = None) -> str | None:
    """What is wrong with the request and what to change, or None. `tiers`: length of each context tier by its name."""
    prompt, params = request.prompt, request.params
    if not prompt:
        return "the prompt has no tokens; send at least one"
    if bad := [token for token in prompt if not 0 <= token < vocab_size]:
        return f"the prompt holds token id {bad[0]}, the vocabulary ends at {vocab_size - 1}"
    if params.max_tokens < 0:
        return f"max_tokens is {params.max_tokens}; use 0 or more"
    if len(prompt) + params.max_tokens > max_model_len:
        room = max(0, max_model_len - len(prompt))
        return (
            f"the prompt has {len(prompt)} tokens and max_tokens is {params.max_tokens}, together {len(prompt) + params.max_tokens};"
            f" this model serves at most {max_model_len}: shorten the prompt or ask for at most {room} tokens"
        )
    if request.tier is not None and len(prompt) > (length := (tiers or {}).get(request.tier, -1)):
        if length < 0:
            return f"context_tier is {request.tier[:40]!r}; this server has {', '.join(tiers or {}) or 'none'}"
        return f"the prompt has {len(prompt)} tokens, context_tier {request.tier} takes {length}: shorten the prompt or take a larger tier"
    return _senseless(params) or _unknown_ids(params, vocab_size)


def _senseless(params: SamplingParams) -> str | None:
    """The first parameter outside its range. The ranges are wide; they keep fp32 arithmetic finite, and NaN is outside of each."""
    ranges = (
        ("temperature", params.temperature, 0, 1e6),
        ("top_p", params.top_p, 0, 1),
        ("min_p", params.min_p, 0, 1),
        ("top_k", params.top_k, 0, MAX_COUNT),
        ("min_tokens", params.min_tokens, 0, MAX_COUNT),
        ("repetition_penalty", params.repetition_penalty, 1e-3, 1e3),
        ("frequency_penalty", params.frequency_penalty, -1e3, 1e3),
        ("presence_penalty", params.presence_penalty, -1e3, 1e3),
        ("logprobs", params.logprobs or 0, 0, MAX_LOGPROBS),
        ("prompt_logprobs", params.prompt_logprobs or 0, 0, MAX_LOGPROBS),
        *((f"logit_bias of token {token}", bias, -1e3, 1e3) for token, bias in params.logit_bias.items()),
    )
    for name, value, low, high in ranges:
        if not low <= value <= high:
            return f"{name} is {value}; use a number from {low:g} to {high:g}"
    return None


def _unknown_ids(params: SamplingParams, vocab_size: int) -> str | None:
    for name, ids in (("logit_bias", params.logit_bias.keys()), ("stop_token_ids", params.stop_token_ids)):
        if unknown := sorted(token for token in ids if not 0 <= token < vocab_size):
            return f"{name} names token ids outside the vocabulary (0 to {vocab_size - 1}): {unknown[:5]}"
    return None
