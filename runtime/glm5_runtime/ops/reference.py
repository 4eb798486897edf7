"""Plain torch operators: the truth that every faster set is measured against, and what a CPU runs.

Called through `ops.interface` by the model. Knows no device; everything is differentiable except the selection.
Sources: GLM-5 technical report (arXiv 2602.15763), DeepSeek-V3.2 sparse attention. Legend: see `ops.interface`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from glm5_runtime.ops.paging import Selection

if TYPE_CHECKING:
    from collections.abc import Callable

    from glm5_runtime.ops.packing import Weights
    from glm5_runtime.ops.paging import LayerCache, Queries, Rows

    Extra = Callable[[int, Tensor, Tensor, Tensor, Callable[[Tensor, Tensor], Tensor]], None]  # see `run_experts`

INDEX_BYTES = 8 << 20
"""Products of queries with all index keys held at a time: larger ones leave the processor's cache and cost twice as much."""
PACKED_ROWS = 4096
"""Packed index keys unpacked at a time, for the same reason: all of 128K at once take four times as long."""
GATHER_BEYOND = 16
"""A prompt's queries read all latents under a mask while the context is at most so many times the selection: one product of all
queries with all keys is faster than small ones with each query's own keys until those are this much fewer (measured, H 8, L 128)."""


_NOTHING = float("-inf")


@dataclass(frozen=True, slots=True)
class Routing:
    """How the router chooses: `k` experts out of the best `kept_groups` of `groups`, weights summing to `scale`."""

    k: int
    groups: int
    kept_groups: int
    normalise: bool
    scale: float


@lru_cache
def _constant(value: float, device: torch.device) -> Tensor:
    """A number as a tensor, made once: torch makes one of every Python number that it adds, which takes as long as the sum."""
    with torch.inference_mode(mode=False):  # else training could not use it later
        return torch.tensor(value, device=device)


@lru_cache
def _frequencies(theta: float, size: int, device: torch.device) -> Tensor:
    """Angle a position of each pair, [size / 2] fp32."""
    with torch.inference_mode(mode=False):
        return 1.0 / theta ** (torch.arange(0, size, 2, device=device, dtype=torch.float32) / size)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm, x [..., n], weight [n] → x's dtype. The weight multiplies after rounding, as the model was trained.

    Written with the vector norm: torch's own has no kernel of one piece on CPUs and takes twice as long.
    """
    wide = x.float()
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    root = torch.addcmul(_constant(eps, x.device), length, length, value=1.0 / x.shape[-1]).rsqrt_()
    return (wide * root).to(x.dtype).mul_(weight)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Layer norm, x [..., n], weight and bias [n] → x's dtype."""
    return functional.layer_norm(x.float(), weight.shape, weight.float(), bias.float(), eps).to(x.dtype)


def rotary(positions: Tensor, theta: float, size: int) -> Tensor:
    """Unit complex numbers [N, 1, size / 2] of positions [N] int64.

    Worked out each step rather than looked up: a table for a million positions costs more memory than it saves time. fp32, because a
    sine off by 1e-3 moves logits by percents at long contexts.
    """
    angles = positions.float().view(-1, 1, 1) * _frequencies(theta, size, positions.device)
    return torch.complex(angles.cos(), angles.sin())


def rotate(x: Tensor, rotary: Tensor) -> None:
    """Turn each pair (even, odd) of x [N, heads, R] by its angle, in place: a product of complex numbers."""
    pairs = x.view(*x.shape[:-1], -1, 2)
    if x.dtype == torch.float32 and x.storage_offset() % 2 == 0 and all(stride % 2 == 0 for stride in x.stride()[:-1]):
        torch.view_as_complex(pairs).mul_(rotary)
    else:
        x.copy_(torch.view_as_real(torch.view_as_complex(pairs.float().contiguous()) * rotary).flatten(-2))


def remember(kv: Tensor, weight: Tensor, eps: float, rotary: Tensor, *, slots: Tensor, cache: LayerCache) -> None:
    """Write the step's tokens: kv [N, L + R] as projected, weight [L] of the latent's norm, slots [N] int64. Changes kv."""
    size = weight.shape[0]
    _store(cache.latent, slots, rms_norm(kv[:, :size], weight, eps))
    key = kv[:, size:]
    if key.requires_grad:  # a change in place would spoil the columns beside it, which the norm has kept for its gradient
        key = key.clone()
    rotate(key.unsqueeze(1), rotary)
    _store(cache.rope, slots, key)


def remember_index(key: Tensor, slots: Tensor, cache: LayerCache) -> None:
    """Write the step's index keys [N, D] after norm and rotation."""
    assert cache.index is not None, "a full layer has an index cache"
    _store(cache.index, slots, key)


def _store(cache: Rows, slots: Tensor, rows: Tensor) -> None:
    """Rows in the cache's own type."""
    if rows.dtype != cache.dtype and isinstance(cache, Tensor):
        rows = rows.to(cache.dtype)
    cache.index_copy_(0, slots, rows)


def choose(
    query: Tensor, weights: Tensor, cache: LayerCache, queries: Queries, *, k: int, select: Callable[[Tensor, int], Tensor] | None
) -> Selection:
    """The k best context tokens of a group's queries: query [N, I, D], weights [N, I] fp32 of the whole step.

    `select` chooses from the scores in place of `select_tokens`. Invisible tokens score -inf and are chosen only where fewer than k
    are visible.
    """
    assert cache.index is not None, "a full layer has an index cache"
    asked = queries.of(query), queries.of(weights)
    if isinstance(cache.index, Tensor):
        scores = index_scores(*asked, queries.read(cache.index))
    else:
        scores = torch.cat([index_scores(*asked, keys) for keys in queries.read_in_parts(cache.index, PACKED_ROWS)], dim=-1)
    if queries.hidden is not None:
        scores.masked_fill_(queries.hidden, float("-inf"))
    return Selection((select or select_tokens)(scores, k))


def index_scores(query: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """Sum over heads of weight · relu(query · key): query [B, Q, I, D], weights [B, Q, I] fp32, keys [B, T, D] → [B, Q, T] fp32.

    Without the factor (I · D)^-1/2 of the papers: it changes no order.
    """
    count, heads, query, keys = query.shape[1], query.shape[2], query.float(), keys.float().mT
    step = max(1, INDEX_BYTES // (4 * query.shape[0] * heads * keys.shape[-1]))
    if step >= count:
        return _weigh(query, weights, keys)
    return torch.cat([_weigh(*part, keys) for part in zip(torch.split(query, step, 1), torch.split(weights, step, 1), strict=True)], dim=1)


def _weigh(query: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """One part of the queries; keys [B, D, T] fp32."""
    batch, count, heads, _ = query.shape
    hits = torch.bmm(query.flatten(1, 2), keys).relu_().view(batch * count, heads, -1)
    return torch.bmm(weights.reshape(batch * count, 1, heads), hits).view(batch, count, -1)


def select_tokens(scores: Tensor, k: int) -> Tensor:
    """The k best of scores [..., T], ties for the last place to the lower index → [..., min(k, T)] int64.

    A plain topk breaks ties by memory layout. The indexer's ReLU makes exact zeros common, and cached and uncached runs would then
    attend to different tokens (measured: logits apart by 0.33). So: topk, and where the last place is contested, a stable sort.
    """
    if k >= scores.shape[-1]:
        return torch.arange(scores.shape[-1], device=scores.device).expand(scores.shape)
    best = scores.topk(k + 1, dim=-1)
    last, behind = best.values[..., k - 1], best.values[..., k]
    contested = (last == behind) & (behind > _NOTHING)
    if contested.any():
        best.indices[contested] = torch.sort(scores[contested], dim=-1, descending=True, stable=True).indices[..., : k + 1]
    return best.indices[..., :k]


def attend(latent: Tensor, rope: Tensor, cache: LayerCache, queries: Queries, selection: Selection | None, *, scale: float) -> Tensor:
    """Attention in latent space, logits and softmax in fp32; the cached latent is key and value at once.

    latent [N, H, L] is the step's queries multiplied by W_UK, rope [N, H, R] rotated; the group's part of them is attended → its
    [B·Q, H, L].
    """
    query_latent, query_rope = latent[queries.rows], rope[queries.rows]
    if queries.positions.shape[1] == 1:
        return _attend_each(query_latent, query_rope, cache, queries, selection, scale=scale)
    if selection is not None and queries.context > GATHER_BEYOND * selection.positions.shape[-1]:
        return _attend_each(query_latent, query_rope, cache, queries, selection, scale=scale)
    return _attend_masked(query_latent, query_rope, cache, queries, selection, scale=scale)


def _attend_each(latent: Tensor, rope: Tensor, cache: LayerCache, queries: Queries, selection: Selection | None, *, scale: float) -> Tensor:
    """Each query with keys of its own, [B·Q, K]: those selected, or its sequence's."""
    if selection is None:
        keys, key_rope, hidden = queries.read(cache.latent), queries.read(cache.rope), queries.hidden
    else:
        if selection.form is None:
            selection.form = _chosen_rows(queries, selection.positions)
        rows, hidden = selection.form
        keys = cache.latent.index_select(0, rows).view(latent.shape[0], -1, latent.shape[2])
        key_rope = cache.rope.index_select(0, rows).view(latent.shape[0], -1, rope.shape[2])
    keys = keys.float()
    # In fp32 from the start: the two products would otherwise be rounded apart before they are added.
    logits = torch.bmm(rope.float(), key_rope.float().mT)
    logits = torch.baddbmm(logits, latent.float(), keys.mT, beta=scale, alpha=scale)
    if hidden is not None:
        logits.masked_fill_(hidden.view(latent.shape[0], 1, -1), float("-inf"))
    return torch.bmm(logits.softmax(dim=-1), keys).to(latent.dtype)


def _chosen_rows(queries: Queries, positions: Tensor) -> tuple[Tensor, Tensor | None]:
    """Cache rows of chosen positions, flat, and which of them are padding (None: none of them)."""
    if queries.first is not None:
        rows = positions + queries.first
    else:
        rows = queries.slots.unsqueeze(1).expand(-1, positions.shape[1], -1).gather(-1, positions)
    full = positions.shape[1] == 1 and min(queries.ends) >= positions.shape[-1]
    return rows.flatten(), None if full else positions > queries.positions.unsqueeze(-1)


def _attend_masked(
    latent: Tensor, rope: Tensor, cache: LayerCache, queries: Queries, selection: Selection | None, *, scale: float
) -> Tensor:
    """All queries of a sequence with all its keys, others hidden: torch's fused attention holds no matrix of logits."""
    batch, count = queries.positions.shape
    if selection is None:
        visible = None if queries.hidden is None else ~queries.hidden
    else:
        if selection.form is None:
            chosen = torch.zeros(batch, count, queries.context, dtype=torch.bool, device=latent.device)
            selection.form = chosen.scatter_(-1, selection.positions, value=True)
            if queries.hidden is not None:
                selection.form &= ~queries.hidden
        visible = selection.form
    keys = torch.cat((queries.read(cache.latent), queries.read(cache.rope)), dim=-1).float().unsqueeze(1)
    keys = keys.expand(-1, latent.shape[1], -1, -1)
    query = torch.cat((latent, rope), dim=-1).float().view(batch, count, latent.shape[1], -1).transpose(1, 2)
    mask = None if visible is None else visible.unsqueeze(1)
    mixed = functional.scaled_dot_product_attention(query, keys, keys, attn_mask=mask, scale=scale)
    return mixed[..., : latent.shape[2]].transpose(1, 2).flatten(0, 1).to(latent.dtype)


def route(logits: Tensor, bias: Tensor, choice: Routing) -> tuple[Tensor, Tensor]:
    """Router logits [N, E] fp32, bias [E] fp32 → experts [N, k] int64 and their weights [N, k] fp32.

    The bias balances load and takes part in the choice only; weights come from the plain sigmoid.
    """
    scores = logits.sigmoid()
    ranked = scores + bias
    if choice.groups > 1:
        grouped = ranked.view(-1, choice.groups, ranked.shape[-1] // choice.groups)
        best = _best(grouped.topk(2, dim=-1).values.sum(-1), choice.kept_groups)
        dropped = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(1, best, value=False)
        ranked = grouped.masked_fill(dropped.unsqueeze(-1), float("-inf")).flatten(1)
    chosen = _best(ranked, choice.k)
    weights = scores.gather(-1, chosen)
    if choice.normalise:
        return chosen, weights / torch.add(_constant(1e-20, logits.device), weights.sum(-1, keepdim=True), alpha=1.0 / choice.scale)
    return chosen, weights * choice.scale


def _best(scores: Tensor, k: int) -> Tensor:
    """Indices of the k best of a few, best first, ties to the lower index."""
    return torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :k]


def run_experts(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    chosen: Tensor,
    weights: Tensor,
    *,
    first: int | None = None,
    extra: Extra | None = None,
) -> Tensor:
    """Each token through its experts: x [N, h], gate_up [E, 2i, h], down [E, h, i], chosen and weights [N, k] → [N, h].

    Tokens are grouped by expert so that every expert's matrices are read once a step. With `first` the E experts are those from this
    number on, and a token's others add nothing.

    `extra` adds to the outputs of the two products (`model.adapters`). It gets which of them it is, its rows sorted by expert, its output,
    each row's token, and the product of sorted rows with matrices [E, out, in].
    """
    if first is not None:
        own = chosen - first
        here = (own >= 0) & (own < gate_up.shape[0])
        tokens, places = here.nonzero(as_tuple=True)
        result = torch.zeros_like(x)
        if len(tokens):
            own, weights = own[tokens, places].unsqueeze(1), weights[tokens, places].unsqueeze(1)
            added = None if extra is None else _of_tokens(extra, tokens)
            result.index_add_(0, tokens, run_experts(x[tokens], gate_up, down, own, weights, extra=added))
        return result
    if len(chosen) == 1 and extra is None:  # nothing to sort
        experts = chosen[0].tolist()
        inner = swiglu(torch.cat([torch.mm(x, gate_up[expert].t()) for expert in experts]))
        outputs = torch.cat([torch.mm(inner[row : row + 1], down[expert].t()) for row, expert in enumerate(experts)])
        return torch.mm(weights, outputs.float()).to(x.dtype)
    return _run_sorted(x, gate_up, down, chosen, weights, extra=extra)


def _of_tokens(extra: Extra, tokens: Tensor) -> Extra:
    """The same for rows that are some of the step's tokens [M]."""
    return lambda place, x, output, rows, product: extra(place, x, output, tokens.index_select(0, rows), product)


def _run_sorted(x: Tensor, gate_up: Tensor, down: Tensor, chosen: Tensor, weights: Tensor, *, extra: Extra | None) -> Tensor:
    """The same for any number of tokens."""
    k = chosen.shape[1]
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    ends = torch.bincount(flat, minlength=gate_up.shape[0]).cumsum(0, dtype=torch.int32)
    rows, product = order // k, partial(_grouped, ends=ends)
    sorted_x = x.index_select(0, rows)
    inner = product(sorted_x, gate_up)
    if extra is not None:
        extra(0, sorted_x, inner, rows, product)
    inner = swiglu(inner)
    outputs = product(inner, down)
    if extra is not None:
        extra(1, inner, outputs, rows, product)
    outputs = outputs.float()
    outputs = torch.empty_like(outputs).index_copy_(0, order, outputs).view(len(x), k, -1)
    return torch.bmm(weights.unsqueeze(1), outputs).squeeze(1).to(x.dtype)


def _grouped(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Rows of x [M, in], sorted by expert, each times its expert's matrix of weights [E, out, in]; ends [E] int32 → [M, out]."""
    if all(size * x.element_size() % 16 == 0 for size in weights.shape[1:]):  # else torch's own refuses
        return functional.grouped_mm(x, weights.mT, offs=ends)
    counts = ends.diff(prepend=ends.new_zeros(1)).tolist()
    return torch.cat([functional.linear(part, weight) for part, weight in zip(torch.split(x, counts), weights, strict=True)])


def swiglu(gate_up: Tensor) -> Tensor:
    """SiLU of the first half times the second half: [..., 2i] → [..., i]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """Each token of x [N, n] by a scale of its own → int8 [N, n], scale [N] fp32.

    A row of zeros or of anything that isn't finite gets some integers; times its scale they are zero, or not finite.
    """
    wide = x.float()
    scale = torch.linalg.vector_norm(wide, ord=float("inf"), dim=-1, keepdim=True).mul_(1 / 127)
    return (wide / scale).round_().to(torch.int8), scale.squeeze(-1)


def quantised_linear(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Integer product, then both scales: x int8 [N, in], x_scale [N], weight int8 [out, in], weight_scale [out] fp32 → [N, out] dtype."""
    return torch.mul(_integer_product(x, weight), weight_scale).mul_(x_scale.unsqueeze(-1)).to(dtype)


def run_quantised_experts(
    x: Tensor,
    gate_up: Weights,
    down: Weights,
    chosen: Tensor,
    weights: Tensor,
    *,
    first: int | None = None,
    extra: Extra | None = None,
) -> Tensor:
    """As `run_experts` with integer products: activations are rounded to int8 by token before each of the two, but not for `extra`.

    Tokens are grouped by expert, so 4-bit weights are unpacked once a step, and only those of experts that are chosen.
    """
    count, k = chosen.shape
    ordered, order = chosen.flatten().sort(stable=True)
    begin, held = first or 0, gate_up.scale.shape[0]
    bounds = torch.searchsorted(ordered, torch.arange(begin, begin + held + 1, device=x.device)).tolist()
    own = order[bounds[0] : bounds[-1]]  # those that are here
    outputs = torch.zeros(count * k, x.shape[1], device=x.device)
    if len(own):
        sizes = [(expert, after - before) for expert, (before, after) in enumerate(pairwise(bounds)) if after > before]
        integers, scale = quantise(x)
        rows = own // k
        inner = _by_expert(integers.index_select(0, rows), scale.index_select(0, rows), gate_up, sizes)
        if extra is None:
            outputs.index_copy_(0, own, _by_expert(*quantise(swiglu(inner)), down, sizes))
        else:
            ends = torch.tensor([end - bounds[0] for end in bounds[1:]], device=x.device, dtype=torch.int32)
            product = partial(_grouped, ends=ends)
            extra(0, x.index_select(0, rows), inner, rows, product)
            inner = swiglu(inner)
            each = _by_expert(*quantise(inner), down, sizes)
            extra(1, inner.to(x.dtype), each, rows, product)
            outputs.index_copy_(0, own, each)
    return torch.bmm(weights.unsqueeze(1), outputs.view(count, k, -1)).squeeze(1).to(x.dtype)


def _by_expert(x: Tensor, x_scale: Tensor, weights: Weights, sizes: list[tuple[int, int]]) -> Tensor:
    """Rows of x int8 [M, in], sorted by expert, each times its expert's matrix; sizes: experts and their rows → fp32 [M, out]."""
    parts, start = [], 0
    for expert, size in sizes:
        own, start = slice(start, start + size), start + size
        parts.append(quantised_linear(x[own], x_scale[own], weights.of(expert), weights.scale[expert], torch.float32))
    return torch.cat(parts)


def _integer_product(x: Tensor, weight: Tensor) -> Tensor:
    """int8 [M, in] times int8 [out, in] transposed → int32 or fp32 [M, out]."""
    if x.device.type == "cpu" and _has_exact_products():
        return torch._int_mm(x, weight.t())
    return functional.linear(x.float(), weight.float())


@lru_cache
def _has_exact_products() -> bool:
    """Whether this processor's int8 products are: those without VNNI may add pairs in 16 bits, and saturate."""
    most = torch.full((32, 64), 127, dtype=torch.int8)
    return all(bool((torch._int_mm(most, (sign * most).t()) == sign * 64 * 127**2).all()) for sign in (1, -1))
