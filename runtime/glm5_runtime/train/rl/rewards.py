"""What an answer is worth: by a rule, by a service, by another checkpoint. One number an answer, finite, or RewardError.

Called by the step once for all answers of a batch. Nothing here waits for ever: a service has a time for each request and a number of
tries.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
from typing import TYPE_CHECKING, Any, Protocol

import httpx2
import torch

from glm5_runtime.config import ConfigError, ModelConfig
from glm5_runtime.model.weights import load_decoder
from glm5_runtime.ops.interface import operators
from glm5_runtime.train.rl.config import HttpReward, ModelReward
from glm5_runtime.train.rl.head import choose
from glm5_runtime.train.rl.packing import packs_of
from glm5_runtime.train.rl.policy import PolicyModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from glm5_runtime.text.tokens import TextTokenizer
    from glm5_runtime.train.config import TrainConfig
    from glm5_runtime.train.rl.config import RlConfig, RuleReward
    from glm5_runtime.train.rl.rollout import Answer

log = logging.getLogger(__name__)

_MOST_REPLY = 1 << 24
"""Bytes of a service's reply."""
_LONGEST_PAUSE = 8.0
"""Seconds between two tries."""
_MODEL_TOKENS = 1 << 14
"""Tokens that a reward model computes at a time."""
_THOUGHT = "</think>"


class RewardError(Exception):
    """There are no scores; the message says why, and what to change."""


class Scorer(Protocol):
    """Says what answers are worth."""

    def __call__(self, answers: Sequence[Answer]) -> list[float]:
        """One number each. Raises RewardError."""


def scorer(config: TrainConfig, tokenizer: TextTokenizer, device: torch.device) -> Scorer:
    """As the section `rl.reward` says; raises ConfigError, WeightsError."""
    assert config.rl is not None, "the method has the section"
    reward = config.rl.reward
    if isinstance(reward, HttpReward):
        return ByService(reward, tokenizer)
    if isinstance(reward, ModelReward):
        return ByModel(reward, ModelConfig.from_dir(config.model), device)
    return ByRule(reward, tokenizer)


def scores_of(answers: Sequence[Answer], score: Scorer, config: RlConfig) -> list[float]:
    """The scores less the penalty of length; raises RewardError for numbers that can't be learned from."""
    scores = score(answers)
    if wrong := [value for value in scores if not math.isfinite(value)]:
        raise RewardError(f"rl.reward: a score is {wrong[0]}; scores must be finite numbers")
    return [value - config.length_penalty * len(answer.tokens) for value, answer in zip(scores, answers, strict=True)]


def final_text(text: str) -> str:
    """An answer without its reasoning, trimmed."""
    return text.rpartition(_THOUGHT)[2].strip()


class ByRule:
    """Compares texts."""

    def __init__(self, config: RuleReward, tokenizer: TextTokenizer) -> None:
        self._rule, self._pattern, self._tokenizer = config.rule, config.pattern, tokenizer
        self._regex = re.compile(config.pattern or "")

    def __call__(self, answers: Sequence[Answer]) -> list[float]:
        """1 or 0."""
        return [float(self._passes(answer)) for answer in answers]

    def _passes(self, answer: Answer) -> bool:
        said = final_text(self._tokenizer.decode(answer.text_tokens))
        own = final_text(self._tokenizer.decode(answer.prompt.reference))
        if self._rule == "regex":
            found = self._regex.search(said)
            return found is not None and (not self._regex.groups or (found[1] or "").strip() == own)
        wanted = own if self._pattern is None else self._pattern
        return {"exact": said == wanted, "contains": wanted in said, "starts-with": said.startswith(wanted)}[self._rule]


class ByService:
    """Asks a service over HTTP; one request for all answers of a step."""

    def __init__(self, config: HttpReward, tokenizer: TextTokenizer, pause: float = 0.5) -> None:
        """`pause`: seconds before the second try, twice as long before each one after it."""
        self._config, self._tokenizer, self._pause = config, tokenizer, pause

    def __call__(self, answers: Sequence[Answer]) -> list[float]:
        """Its numbers."""
        decode = self._tokenizer.decode
        told = [
            {"prompt": decode(each.prompt.tokens), "answer": decode(each.text_tokens), "reference": decode(each.prompt.reference)}
            for each in answers
        ]
        return asyncio.run(self._ask(json.dumps(told).encode(), len(told)))

    async def _ask(self, body: bytes, count: int) -> list[float]:
        why = ""
        async with httpx2.AsyncClient(timeout=None) as client:
            for attempt in range(self._config.retries + 1):
                if attempt:
                    log.warning("rl.reward.url: %s; asking again", why)
                    await asyncio.sleep(min(self._pause * 2 ** (attempt - 1), _LONGEST_PAUSE))
                try:
                    async with asyncio.timeout(self._config.timeout):  # httpx's own are for each read: a slow sender has no end
                        status, reply = await self._post(client, body)
                except TimeoutError:
                    why = f"no reply within {self._config.timeout:g} s"
                    continue
                except httpx2.HTTPError as error:
                    why = f"{type(error).__name__}: {error}"
                    continue
                if status == 200:
                    return _numbers(reply, count)
                why = f"status {status}"
                if status != 429 and status < 500:
                    break
        raise RewardError(f"rl.reward.url: the service gave no scores, the last of {attempt + 1} tries ended with {why}")

    async def _post(self, client: httpx2.AsyncClient, body: bytes) -> tuple[int, bytes]:
        async with client.stream("POST", self._config.url, content=body, headers={"content-type": "application/json"}) as reply:
            read = bytearray()
            async for piece in reply.aiter_bytes():
                read += piece
                if len(read) > _MOST_REPLY:
                    raise RewardError(f"rl.reward.url: the reply is longer than {_MOST_REPLY} bytes")
            return reply.status_code, bytes(read)


def _numbers(reply: bytes, count: int) -> list[float]:
    try:
        scores: Any = json.loads(reply)
    except ValueError as error:
        raise RewardError(f"rl.reward.url: the reply is not JSON: {error}") from error
    if not isinstance(scores, list) or len(scores) != count:
        what = f"a list of {len(scores)}" if isinstance(scores, list) else f"a {type(scores).__name__}"
        raise RewardError(f"rl.reward.url: the reply must be a list of {count} numbers, it is {what}")
    if strange := [each for each in scores if isinstance(each, bool) or not isinstance(each, int | float)]:
        raise RewardError(f"rl.reward.url: {str(strange[0])[:80]!r} in the reply is no number")
    return [float(each) for each in scores]


class ByModel:
    """Another checkpoint's mean log-probability of an answer's tokens, the one that ends it included."""

    def __init__(self, config: ModelReward, trained: ModelConfig, device: torch.device) -> None:
        """Loads it beside the policy, in its own type; raises ConfigError, WeightsError."""
        model = ModelConfig.from_dir(config.checkpoint)
        if model.vocab_size != trained.vocab_size:
            raise ConfigError(
                f"rl.reward.checkpoint {config.checkpoint}: it knows {model.vocab_size} tokens, the model {trained.vocab_size}; both must"
                " have the same tokenizer"
            )
        dtype: torch.dtype = torch.float32 if device.type == "cpu" else getattr(torch, model.dtype)
        self._model = PolicyModel(load_decoder(model, config.checkpoint, operators("cpu"), device, dtype)).eval()
        self._device = device

    @torch.no_grad()
    def __call__(self, answers: Sequence[Answer]) -> list[float]:
        """At most 0."""
        lengths = [each.length for each in answers]
        width = max(lengths)
        rows = [[*each.prompt.tokens, *each.tokens] for each in answers]
        tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=self._device)
        found = torch.zeros(tokens.numel(), device=self._device)
        parts = -(-sum(lengths) // _MODEL_TOKENS)
        for part, places in packs_of(tokens, [each.row for each in answers], parts):
            found[places] = choose(self._model.hidden(part), self._model.decoder.lm_head.weight, part.targets).log_probs
        means = found.view_as(tokens).sum(dim=1) / torch.tensor([len(each.tokens) for each in answers], device=self._device)
        scores: list[float] = means.tolist()
        return scores
