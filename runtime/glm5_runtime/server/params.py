"""From a validated body to the engine's SamplingParams: defaults, vocabulary checks, room in the context.

Pure. Called by the three generating endpoints. Policy on length, the same with and without streaming: a prompt that leaves no room
for an explicit max_tokens is refused; an absent one means the endpoint's default, clipped to the room there is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from pydantic import ValidationError

from glm5_runtime.config import ConfigError, read_object
from glm5_runtime.engine.request import SamplingParams
from glm5_runtime.server.errors import ApiError, bad_request
from glm5_runtime.server.protocol import SamplingFields

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_SHOWN_IDS = 5


@dataclass(frozen=True)
class SamplingDefaults:
    """What a request without a value gets: the checkpoint's generation_config.json, else neutral."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0

    @classmethod
    def from_dir(cls, model_dir: Path) -> SamplingDefaults:
        """Read generation_config.json if the checkpoint has one; fields it lacks stay neutral. Raises ConfigError.

        The limits are those of requests: a default outside of them would fail every request that relies on it, and blame the client.
        """
        path = model_dir / "generation_config.json"
        stored = read_object(path) if path.is_file() else {}
        given = {field.name: stored[field.name] for field in fields(cls) if stored.get(field.name) is not None}
        try:
            SamplingFields.model_validate(given, strict=True)
        except ValidationError as error:
            faults = [f"{fault['loc'][0]}: {fault['msg']}, is {str(fault['input'])[:40]}" for fault in error.errors()]
            raise ConfigError(f"{path}: {'; '.join(faults)}; correct or remove the field: it is the default of all requests") from error
        return cls(**given)


@dataclass(frozen=True)
class Limits:
    """What the loaded model can take."""

    max_model_len: int
    vocab_size: int
    max_choices: int
    eos_token_ids: frozenset[int] = frozenset()
    tiers: Mapping[str, int] = field(default_factory=dict)  # length of each context tier by its name, the shortest first
    context: str = "the model's context"  # what is max_model_len tokens long

    def within(self, tier: str | None) -> Limits:
        """The limits of a request that chose a context tier; raises ApiError 400 when there is none of this name."""
        if tier is None:
            return self
        if tier not in self.tiers:
            has = f"this server has {', '.join(self.tiers)}" if self.tiers else "this server has none (--context-tiers)"
            raise bad_request(f"context_tier is {tier!r}; {has}", "context_tier")
        return replace(self, max_model_len=self.tiers[tier], context=f"the context tier {tier}")

    def tier_for(self, body: SamplingFields, prompt_tokens: int, max_tokens: int | None) -> str | None:
        """The tier that the client chose; without a choice and a max_tokens the one of its prompt; else None: the engine finds it."""
        if body.context_tier is not None or max_tokens is not None:
            return body.context_tier
        return next((name for name, length in self.tiers.items() if prompt_tokens < length), None)


def sampling_params(
    body: SamplingFields,
    *,
    prompt_tokens: int,
    max_tokens: int | None,
    limits: Limits,
    defaults: SamplingDefaults,
    max_tokens_field: str = "max_tokens",
    default_max_tokens: int | None = None,
    prompt_field: str = "prompt",
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """Check `body` against the model and build what the engine takes; raises ApiError 400 naming the field."""
    limits = limits.within(body.context_tier)
    check_prompt_length(prompt_tokens, limits, field=prompt_field)
    if body.n > limits.max_choices:
        raise bad_request(f"n is {body.n}, this server takes at most {limits.max_choices} (running and queued requests together)", "n")
    room = limits.max_model_len - prompt_tokens
    if max_tokens is None:
        max_tokens = room if default_max_tokens is None else min(default_max_tokens, room)
    elif max_tokens > room:
        raise _too_long(
            f"{limits.context} is {limits.max_model_len} tokens; the prompt has {prompt_tokens} and {max_tokens_field} asks for "
            f"{max_tokens} more ({prompt_tokens + max_tokens} in all). Shorten the prompt or lower {max_tokens_field}.",
            max_tokens_field,
        )
    if body.min_tokens > max_tokens:
        raise bad_request(f"min_tokens is {body.min_tokens}, more than the {max_tokens} tokens that can be produced", "min_tokens")
    top_k = defaults.top_k if body.top_k is None else body.top_k
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        temperature=defaults.temperature if body.temperature is None else body.temperature,
        top_p=defaults.top_p if body.top_p is None else body.top_p,
        top_k=max(top_k, 0),  # -1 is vLLM's word for off
        min_p=body.min_p,
        repetition_penalty=defaults.repetition_penalty if body.repetition_penalty is None else body.repetition_penalty,
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        logit_bias=_logit_bias(body.logit_bias, limits.vocab_size),
        seed=body.seed,
        stop_token_ids=_stop_token_ids(body.stop_token_ids, limits.vocab_size),
        ignore_eos=body.ignore_eos,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def check_prompt_length(prompt_tokens: int, limits: Limits, *, at_least: bool = False, field: str = "prompt") -> None:
    """Refuse an empty prompt and one longer than the context. `at_least`: the count is a lower bound."""
    if prompt_tokens == 0:
        raise bad_request("the prompt is empty; at least one token is needed", field)
    if prompt_tokens > limits.max_model_len:
        size = f"at least {prompt_tokens}" if at_least else str(prompt_tokens)
        raise _too_long(
            f"{limits.context} is {limits.max_model_len} tokens, the prompt has {size}. Shorten the prompt.",
            field,
        )


def check_message_count(messages: int, limits: Limits) -> None:
    """Refuse more messages than the context has tokens: each takes at least one. Asked before anything looks into them."""
    if messages > limits.max_model_len:
        raise _too_long(
            f"the model's context is {limits.max_model_len} tokens, the conversation has {messages} messages of at least one token each."
            " Leave out the oldest.",
            "messages",
        )


def seed_of_choice(seed: int | None, index: int) -> int | None:
    """Each of n choices draws its own numbers, reproducibly; wraps inside 64 bits."""
    return None if seed is None else (seed + index + 2**63) % 2**64 - 2**63


def _too_long(message: str, param: str) -> ApiError:
    return ApiError(400, message, param=param, code="context_length_exceeded")


def _logit_bias(raw: dict[str, float], vocab_size: int) -> dict[int, float]:
    biased: dict[int, float] = {}
    bad: list[str] = []
    for key, value in raw.items():
        token = int(key) if key.isascii() and key.removeprefix("-").isdigit() and len(key) <= 20 else -1
        if 0 <= token < vocab_size:
            biased[token] = value
        else:
            bad.append(key[:20])
    if bad:
        names = ", ".join(repr(key) for key in bad[:_SHOWN_IDS])
        raise bad_request(f"logit_bias has keys that are no token ids of this model (0 to {vocab_size - 1}): {names}", "logit_bias")
    return biased


def _stop_token_ids(ids: list[int], vocab_size: int) -> frozenset[int]:
    bad = [str(token)[:20] for token in ids if not 0 <= token < vocab_size]
    if bad:
        names = ", ".join(bad[:_SHOWN_IDS])
        raise bad_request(f"stop_token_ids are not in the vocabulary (0 to {vocab_size - 1}): {names}", "stop_token_ids")
    return frozenset(ids)
