"""From logits to tokens, for a batch of sequences that each want it their way.

Called by the runner, one row a sequence. A row's result depends only on its logits, its parameters and its seed: the random
draw of a token is a function of (seed, position), so batching, preemption and restarts change nothing. Every operation is on the whole
batch, or on all rows that need it at once; a batch of greedy rows is one argmax.

Order per row: penalties, bias, stop tokens held back until min_tokens, constraint, then greedy, or temperature, min-p, top-k, top-p, draw.
Reported logprobs are the model's own, before all of that (`scaled_logprobs`: divided by the temperature).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from glm5_runtime.engine.constraint import WORD_BITS, clear
from glm5_runtime.engine.request import TokenLogprob

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Sequence as Rows

    from torch import Tensor

    from glm5_runtime.engine.sequence import Sequence

_NOTHING = float("-inf")


def sample(logits: Tensor, sequences: Rows[Sequence]) -> list[int]:
    """One token per row: logits [B, V] fp32, finite."""
    if all([sequence.sampling.plain for sequence in sequences]):  # noqa: C419 - a list is twice as fast, and this is every step's way
        return _best(logits)
    adjusted = _adjusted(logits, sequences)
    drawn = [row for row, sequence in enumerate(sequences) if sequence.sampling.draws]
    if len(drawn) == len(sequences):
        return _draw(adjusted, sequences)
    tokens = _best(adjusted)
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


def wanted_logprobs(logits: Tensor, tokens: Mapping[int, int], sequences: Rows[Sequence]) -> dict[int, TokenLogprob]:
    """Those of the rows whose sequences ask for it: logits [B, V] fp32, `tokens` by row."""
    tops = {row: top for row in tokens if (top := sequences[row].params.logprobs) is not None}
    if not tops:
        return {}
    rows = list(tops)
    picked = logits if len(rows) == len(logits) else logits[rows]
    if any(sequences[row].params.scaled_logprobs for row in rows):
        scales = [params.temperature if params.scaled_logprobs else 1.0 for params in (sequences[row].params for row in rows)]
        picked = picked / torch.tensor(scales, device=logits.device).unsqueeze(1)
    entries = token_logprobs(picked, [tokens[row] for row in rows], max(tops.values()))
    return {row: replace(entry, top=entry.top[: tops[row]]) for row, entry in zip(rows, entries, strict=True)}


def _best(logits: Tensor) -> list[int]:
    """Of equal ones the first."""
    on_cpu = logits.device.type == "cpu"
    best = logits.numpy().argmax(-1) if on_cpu else logits.argmax(dim=-1)  # numpy's takes a sixteenth of the time of torch's on a CPU
    tokens: list[int] = best.tolist()
    return tokens


def _adjusted(logits: Tensor, sequences: Rows[Sequence]) -> Tensor:
    """The logits themselves when no row changes them, else a changed copy."""
    penalised = [(row, sequence) for row, sequence in enumerate(sequences) if sequence.sampling.penalised]
    biased = [(row, sequence) for row, sequence in enumerate(sequences) if sequence.params.logit_bias]
    early = [(row, sequence) for row, sequence in enumerate(sequences) if sequence.produced < sequence.params.min_tokens]
    constrained = [(row, sequence) for row, sequence in enumerate(sequences) if sequence.request.constraint is not None]
    if not (penalised or biased or early or constrained):
        return logits
    logits = logits.clone()
    if penalised:
        _penalise(logits, penalised)
    if biased:
        places = _places(logits, [(row, sequence.sampling.bias[0]) for row, sequence in biased])
        logits[places] += torch.from_numpy(np.concatenate([sequence.sampling.bias[1] for _, sequence in biased])).to(logits.device)
    if held := [(row, _stops(sequence)) for row, sequence in early if sequence.request.constraint is None]:
        logits[_places(logits, held)] = _NOTHING
    if constrained:
        _constrain(logits, constrained)
    return logits


def _penalise(logits: Tensor, rows: list[tuple[int, Sequence]]) -> None:
    """In place. Repetition looks at prompt and answer, frequency and presence at the answer only."""
    counts = [sequence.sampling.counts(sequence.tokens) for _, sequence in rows]
    places = _places(logits, [(row, count.ids) for (row, _), count in zip(rows, counts, strict=True)])
    sizes = [len(count.ids) for count in counts]

    def spread(values: list[float]) -> Tensor:
        return torch.from_numpy(np.repeat(np.array(values, np.float32), sizes)).to(logits.device)

    params = [sequence.params for _, sequence in rows]
    repetition = spread([p.repetition_penalty for p in params])
    often = torch.from_numpy(np.concatenate([count.answer_counts for count in counts])).to(logits.device)
    values = logits[places]
    values = torch.where(values > 0, values / repetition, values * repetition)
    logits[places] = (
        values - spread([p.frequency_penalty for p in params]) * often - spread([p.presence_penalty for p in params]) * (often > 0)
    )


def _constrain(logits: Tensor, rows: list[tuple[int, Sequence]]) -> None:
    """In place: what a row's constraint forbids. Before min_tokens its end is forbidden too, if anything else is left."""
    size = logits.shape[1]
    masks = np.full((len(rows), -(-size // WORD_BITS)), -1, np.int32)
    masks[:, size // WORD_BITS :] = (1 << size % WORD_BITS) - 1  # no bit beyond the vocabulary
    for mask, (_, sequence) in zip(masks, rows, strict=True):
        constraint = sequence.sampling.constraint(sequence.tokens)
        untouched = mask.copy()
        if constraint is None or not constraint.fill(mask):
            mask[:] = untouched
        if sequence.produced < sequence.params.min_tokens:
            allowed = mask.copy()
            clear(mask, _stops(sequence))
            if not mask.any():
                mask[:] = allowed
    bits = np.unpackbits(masks.view(np.uint8), axis=-1, bitorder="little", count=size)
    forbidden = torch.from_numpy(bits == 0).to(logits.device)
    places = torch.tensor([row for row, _ in rows], device=logits.device)
    logits[places] = logits[places].masked_fill(forbidden, _NOTHING)


def _stops(sequence: Sequence) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(sorted(sequence.stop_ids), dtype=np.int64)


def _places(logits: Tensor, rows: list[tuple[int, np.ndarray[tuple[int], np.dtype[np.int64]]]]) -> tuple[Tensor, Tensor]:
    """Row and column of each (row, token ids), flat. No place twice, so writing through it is deterministic."""
    lines = np.repeat(np.array([row for row, _ in rows], np.int64), [len(ids) for _, ids in rows])
    columns = np.concatenate([ids for _, ids in rows])
    return torch.from_numpy(lines).to(logits.device), torch.from_numpy(columns).to(logits.device)


def _draw(logits: Tensor, sequences: Rows[Sequence]) -> list[int]:
    """Sample each row by the inverse of its distribution function, in order of the vocabulary: logits [B, V]."""

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, device=logits.device, dtype=torch.float32).unsqueeze(1)

    params = [sequence.params for sequence in sequences]
    shifted = logits - logits.amax(dim=-1, keepdim=True)  # so that a tiny temperature gives -inf, never inf or NaN
    probabilities = (shifted / column([p.temperature for p in params])).softmax(dim=-1)
    if any(p.min_p for p in params):
        floor = probabilities.amax(dim=-1, keepdim=True) * column([p.min_p for p in params])
        probabilities = probabilities.masked_fill(probabilities < floor, 0.0)
    cut = [row for row, p in enumerate(params) if p.top_k or p.top_p < 1.0]
    if cut:
        size = logits.shape[1]
        some = probabilities if len(cut) == len(params) else probabilities[cut]
        some = _cut(some, column([params[row].top_k or size for row in cut]), column([params[row].top_p for row in cut]))
        if some.shape == probabilities.shape:
            probabilities = some
        else:
            probabilities[cut] = some
    cumulative = probabilities.cumsum(dim=-1)
    aim = column([sequence.sampling.uniform(sequence.produced) for sequence in sequences]) * cumulative[:, -1:]
    tokens: list[int] = (cumulative <= aim).sum(dim=-1).tolist()
    return tokens


def _cut(probabilities: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """0 for all but the k best that together have p of the k best's sum, at least one: probabilities [B, V]; top_k, top_p [B, 1].

    Only values are sorted, a fraction of the time of a stable sort with places; of equal values at the border the first ones stay.
    """
    best = _descending(probabilities)
    kept = best.masked_fill(torch.arange(best.shape[1], device=best.device) >= top_k, 0.0)
    cumulative = kept.cumsum(dim=-1)
    stays = (cumulative - kept < top_p * cumulative[:, -1:]) & (kept > 0)
    count = stays.sum(dim=-1, keepdim=True).clamp(min=1)
    border = best.gather(1, count - 1)
    inside = probabilities >= border
    if bool((inside.sum(dim=-1, keepdim=True) != count).any()):
        ties = probabilities == border
        inside &= ~ties | (ties.cumsum(dim=-1) <= count - (best > border).sum(dim=-1, keepdim=True))
    return probabilities * inside


def _descending(values: Tensor) -> Tensor:
    """Values of each row, largest first."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.numpy(), axis=-1)).flip(-1)  # 25 times as fast as torch's
    return values.sort(dim=-1, descending=True).values
