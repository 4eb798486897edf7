"""From logits to tokens, for a batch of sequences that each want it their way.

Called by the runner, one row a sequence. A row's result depends only on its logits, its parameters and its seed: the random
draw of a token is a function of (seed, position), so batching, preemption and restarts change nothing.

Order per row: penalties, bias, stop tokens held back until min_tokens, then greedy, or temperature, min-p, top-k, top-p, draw.
Reported logprobs are the model's own, before all of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from glm5_runtime.engine.request import TokenLogprob

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from torch import Tensor

    from glm5_runtime.engine.sequence import Sequence

GREEDY_BELOW = 1e-5
"""Temperatures below are greedy: dividing by them overflows, and the result would be greedy anyway."""


def sample(logits: Tensor, sequences: Rows[Sequence]) -> list[int]:
    """One token per row: logits [B, V] fp32, finite."""
    adjusted = logits
    for row, sequence in enumerate(sequences):
        if _adjusts(sequence):
            adjusted = logits.clone() if adjusted is logits else adjusted
            _adjust(adjusted[row], sequence)
    tokens: list[int] = adjusted.argmax(dim=-1).tolist()
    drawn = [row for row, sequence in enumerate(sequences) if sequence.params.temperature >= GREEDY_BELOW]
    if drawn:
        for row, token in zip(drawn, _draw(adjusted[drawn], [sequences[row] for row in drawn]), strict=True):
            tokens[row] = token
    return tokens


def token_logprobs(logits: Tensor, tokens: Rows[int], top: int) -> list[TokenLogprob]:
    """What the model thought of the tokens, with the `top` most likely ones: logits [N, V] fp32, N tokens."""
    logprobs = logits.log_softmax(dim=-1)
    chosen = logprobs.gather(1, torch.tensor(tokens, device=logits.device).unsqueeze(1))
    ranks = (logprobs > chosen).sum(dim=-1) + 1
    values, indices = logprobs.topk(min(top, logits.shape[1]), dim=-1)
    rows = zip(tokens, chosen.squeeze(1).tolist(), ranks.tolist(), indices.tolist(), values.tolist(), strict=True)
    return [TokenLogprob(token, value, rank, tuple(zip(best, scores, strict=True))) for token, value, rank, best, scores in rows]


def _adjusts(sequence: Sequence) -> bool:
    params = sequence.params
    penalised = params.repetition_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0
    return penalised or bool(params.logit_bias) or sequence.produced < params.min_tokens


def _adjust(row: Tensor, sequence: Sequence) -> None:
    """Change one row [V] in place. Repetition looks at prompt and answer, frequency and presence at the answer only."""
    params = sequence.params
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(sequence.tokens)), device=row.device)
        values = row[seen]
        row[seen] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if sequence.produced and (params.frequency_penalty != 0.0 or params.presence_penalty != 0.0):
        answer = torch.tensor(sequence.tokens[sequence.prompt_length :], device=row.device)
        counts = torch.bincount(answer, minlength=row.shape[0])
        row -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
    if params.logit_bias:
        row[torch.tensor(list(params.logit_bias), device=row.device)] += torch.tensor(list(params.logit_bias.values()), device=row.device)
    if sequence.produced < params.min_tokens:
        row[torch.tensor(sorted(sequence.stop_ids), device=row.device, dtype=torch.int64)] = float("-inf")


def _draw(logits: Tensor, sequences: Rows[Sequence]) -> list[int]:
    """Sample each row by inverse distribution function over its sorted, filtered probabilities: logits [B, V]."""

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, device=logits.device, dtype=torch.float32).unsqueeze(1)

    params = [sequence.params for sequence in sequences]
    shifted = logits - logits.amax(dim=-1, keepdim=True)  # so that a tiny temperature gives -inf, never inf or NaN
    probabilities, order = (shifted / column([p.temperature for p in params])).softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    size = logits.shape[1]
    rank = torch.arange(size, device=logits.device)
    keep = rank < column([p.top_k or size for p in params])
    keep &= probabilities >= probabilities[:, :1] * column([p.min_p for p in params])
    kept = probabilities * keep
    before = kept.cumsum(dim=-1) - kept
    keep &= before < column([p.top_p for p in params]) * kept.sum(dim=-1, keepdim=True)
    keep[:, 0] = True
    kept = probabilities * keep
    cumulative = kept.cumsum(dim=-1)
    aim = column([_uniform(sequence.seed, sequence.produced) for sequence in sequences]) * cumulative[:, -1:]
    # Rounding can put the aim at the very end: the last kept rank is as far as it goes.
    ranks = torch.minimum((cumulative <= aim).sum(dim=-1), keep.sum(dim=-1) - 1)
    tokens: list[int] = order.gather(1, ranks.unsqueeze(1)).squeeze(1).tolist()
    return tokens


def _uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing but seed and position (counter-based generator)."""
    return float(np.random.Generator(np.random.Philox(key=seed % (1 << 64), counter=position)).random())
