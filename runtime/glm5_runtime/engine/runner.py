"""One step on the device: scheduled chunks in, chosen tokens and logprobs out. Owns the decoder and the cache tensors.

Called by the engine thread only. Knows sequences, not queues.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING

from glm5_runtime.engine.sampler import sample, token_logprobs
from glm5_runtime.model.batch import Chunk, build_batch

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    import torch
    from torch import Tensor

    from glm5_runtime.engine.request import TokenLogprob
    from glm5_runtime.engine.scheduler import Step
    from glm5_runtime.engine.sequence import Sequence
    from glm5_runtime.model.cache import KVCache
    from glm5_runtime.model.decoder import Decoder

LOGIT_ROWS = 256
"""Prompt rows whose logits are held at a time: 256 rows of GLM-5's vocabulary are 158 MB."""
_NOT_FINITE = "the model's output is not finite (NaN or infinity); check the weights, the numbers in config.json and the device"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The next token of a sequence. `broken` says why there is none."""

    sequence: Sequence
    token: int
    logprob: TokenLogprob | None = None
    broken: str | None = None


class Runner:
    """The model with its cache."""

    def __init__(self, decoder: Decoder, cache: KVCache, device: torch.device) -> None:
        self._decoder, self._cache, self._device = decoder, cache, device

    def run(self, plan: Rows[Step]) -> list[Chosen]:
        """Compute the plan's tokens, advance its sequences, choose a token for those that are complete."""
        chunks = [_chunk(step) for step in plan]
        batch = build_batch(chunks, self._decoder.config, self._cache.page_size, self._device)
        hidden = self._decoder(batch, self._cache)
        ends = [0]
        for step in plan:
            ends.append(ends[-1] + step.count)
        for step, (start, end) in zip(plan, pairwise(ends), strict=True):
            if step.sequence.wants_prompt_logprobs:
                self._score_prompt(step, hidden[start:end])
        complete = [(step.sequence, end - 1) for step, end in zip(plan, ends[1:], strict=True) if step.completes]
        for step in plan:
            step.sequence.computed += step.count
        wanted = [(sequence, row) for sequence, row in complete if sequence.params.max_tokens > 0]
        if not wanted:
            return []
        rows = [row for _, row in wanted]
        return self._choose([sequence for sequence, _ in wanted], hidden if len(rows) == len(hidden) else hidden[rows])

    def _choose(self, sequences: list[Sequence], hidden: Tensor) -> list[Chosen]:
        logits = self._decoder.logits(hidden)
        sums = logits.sum(dim=-1).tolist()  # finite only where all are; looking at each takes ten times as long
        finite = [isfinite(total) for total in sums]
        good = [row for row, is_finite in enumerate(finite) if is_finite]
        chosen = {row: Chosen(sequence, 0, broken=_NOT_FINITE) for row, sequence in enumerate(sequences) if not finite[row]}
        tokens = sample(logits if all(finite) else logits[good], [sequences[row] for row in good]) if good else []
        for row, token in zip(good, tokens, strict=True):
            top = sequences[row].params.logprobs
            logprob = None if top is None else token_logprobs(logits[row : row + 1], [token], top)[0]
            chosen[row] = Chosen(sequences[row], token, logprob)
        return [chosen[row] for row in range(len(sequences))]

    def _score_prompt(self, step: Step, hidden: Tensor) -> None:
        """Logprobs of prompt tokens: row i judges token i + 1; the first token has nobody to judge it."""
        sequence = step.sequence
        top = sequence.params.prompt_logprobs
        assert top is not None, "asked for by wants_prompt_logprobs"
        scores = sequence.prompt_logprobs
        if not scores:
            scores.append(None)
        first = len(scores) - 1 - sequence.computed  # rows before were judged before a preemption
        last = min(step.count, sequence.prompt_length - 1 - sequence.computed)
        for start in range(max(first, 0), last, LOGIT_ROWS):
            end = min(start + LOGIT_ROWS, last)
            following = sequence.tokens[sequence.computed + start + 1 : sequence.computed + end + 1]
            scores.extend(token_logprobs(self._decoder.logits(hidden[start:end]), following, top))


def _chunk(step: Step) -> Chunk:
    sequence = step.sequence
    end = sequence.computed + step.count
    return Chunk(sequence.tokens[sequence.computed : end], sequence.computed, sequence.pages)
