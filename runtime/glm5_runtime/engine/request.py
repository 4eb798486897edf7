"""What goes into the engine and what comes out: requests, sampling parameters, outputs.

The server builds requests from validated HTTP bodies and reads outputs; the engine does the rest. No torch here, so that
whoever only speaks to the engine (tests, the server's parsers) starts fast.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glm5_runtime.engine.constraint import ConstraintFactory


class FinishReason(StrEnum):
    """Why a request ended. The server maps these to the words of the protocol it speaks."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens for one request. `temperature` 0 is greedy, `top_k` 0 and `top_p` 1 are off.

    `logprobs`: None = none, 0 = the chosen token's only, k = the k best tokens' too; `prompt_logprobs` the same for
    each prompt token. `max_tokens` 0 produces no token (echo with prompt_logprobs). With `scaled_logprobs` logprobs (not the prompt's) are
    those of the logits divided by the temperature, for training. A `seed` makes a request reproducible whatever runs beside it; without
    one the engine draws one.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    seed: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    scaled_logprobs: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to continue. `id` is unique among the requests alive in the engine.

    Requests share cached prefixes with those of the same `cache_salt` only. The lower `priority` comes first. Requests of one `client` wait
    for each other before they make others wait. `tier` names a context tier; None is the smallest in which prompt and `max_tokens` fit.
    `adapter` names a loaded adapter, "" is the model itself.
    """

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    cache_salt: str = ""
    constraint: ConstraintFactory | None = None  # what restricts its tokens, made anew for each request
    priority: int = 0
    client: str = ""
    tier: str | None = None
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one token under the model's own distribution (before temperature and filters).

    `rank` is 1 for the most likely token; `top` holds (token, logprob) of the k most likely, best first.
    """

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """One message per produced token; the last one of a request carries `finish_reason`, and nothing follows it.

    A stop token is reported as the last output's `token` with reason STOP. `token` is None when the request ends
    without one (abort, error, max_tokens 0). `error` says what went wrong and what to change, with reason ERROR.
    `out_of_memory` tells an error that may pass from one that won't; `own_fault`: the request brought it with it.
    `prompt_logprobs` comes with the first output when asked for: one
    entry per prompt token, None for the first. `scheduled` is `time.monotonic()` of the request's first step, None before it; `cached`:
    tokens of the prompt that weren't computed for it, because the prefix cache held them.
    """

    request_id: str
    token: int | None
    logprob: TokenLogprob | None
    finish_reason: FinishReason | None
    error: str | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    out_of_memory: bool = False
    own_fault: bool = False
    scheduled: float | None = None
    cached: int = 0
