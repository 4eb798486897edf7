"""NPU operators: torch_npu's kernels where they take a call, plain torch where they don't, counted in `kernels.fallbacks`.

Importing this brings the device `npu`. What a kernel takes is known from its documentation (layouts, sizes, types) and checked before the
call, since a refusal on the device is an error of the whole process. No operator here waits for the device.

Rotated vectors are stored as all evens, then all odds, as the kernels do; the plain versions here do the same, so that queries and cached
keys agree whichever of them ran. Chosen positions are int32 and stand first in their row, -1 fills it up. Legend: see `ops.interface`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
import torch_npu  # noqa: F401 - registers the device and its kernels
from torch.nn import functional

from glm5_runtime.ops import reference
from glm5_runtime.ops.kernels import KERNELS, count_fallback
from glm5_runtime.ops.paging import Selection

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from glm5_runtime.ops.packing import Weights
    from glm5_runtime.ops.paging import LayerCache, Queries, Rows
    from glm5_runtime.ops.reference import Extra, Routing

P = ParamSpec("P")
R = TypeVar("R")

_HALF = (torch.bfloat16, torch.float16)
_LATENT, _ROPE, _INDEX = 512, 64, 128  # the only sizes that the attention kernels are built for: GLM-5's
_PAGE_UNIT, _PAGE_MOST = 16, 1024
_kernels: Any = torch.ops.npu
missing = {operator: name for operator, names in KERNELS.items() for name in names if not hasattr(_kernels, name)}
"""Operators whose kernel is not to be had: torch_npu doesn't know it, or CANN turned out not to have it."""


class Unfit(Exception):  # noqa: N818 - not an error: the call goes another way
    """The kernel doesn't take this call, and why."""


@dataclass(frozen=True, slots=True)
class Angles:
    """cos and sin of the step's tokens, [N, 1, R / 2] fp32, and `wide`: the pair as the kernels take it, by type."""

    cos: Tensor
    sin: Tensor
    wide: dict[torch.dtype, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def of(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """[N, 1, 1, R] of one type, made once a step."""
        if dtype not in self.wide:
            pair = (torch.cat((half, half), dim=-1).unsqueeze(2).to(dtype) for half in (self.cos, self.sin))
            self.wide[dtype] = (next(pair), next(pair))
        return self.wide[dtype]


def _or(plain: Callable[P, R]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The decorated function calls a kernel; `plain` does the same in torch where that is missing or doesn't fit."""

    def decorate(native: Callable[P, R]) -> Callable[P, R]:
        name = native.__name__

        @functools.wraps(native)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            if name not in missing:
                try:
                    return native(*args, **kwargs)
                except Unfit as unfit:
                    count_fallback(name, str(unfit))
                    return plain(*args, **kwargs)
                except RuntimeError as error:
                    if "libopapi" not in str(error):  # torch_npu's words for a kernel that CANN's library lacks
                        raise
                    missing[name] = str(error).splitlines()[0]
            count_fallback(name, f"kernel missing: {missing[name]}")
            return plain(*args, **kwargs)

        return run

    return decorate


def _need(fits: bool, why: str) -> None:
    if not fits:
        raise Unfit(why)


# --- norms, rotation, activation ---------------------------------------------------------------------------------------------


@_or(reference.rms_norm)
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As the reference, except that the weight multiplies before rounding."""
    _need(x.dtype == weight.dtype, "x and weight differ in type")
    normed: Tensor = _kernels.npu_rms_norm(x, weight, eps)[0]
    return normed


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """As the reference, in one call: the device computes in fp32 inside."""
    return functional.layer_norm(x, weight.shape, weight, bias, eps)


def rotary(positions: Tensor, theta: float, size: int) -> Angles:
    """Angles of positions [N] int64 in fp32; the kernels get them rounded to the model's type, as transformers does."""
    exponents = torch.arange(0, size, 2, device=positions.device, dtype=torch.float32) / size
    angles = (positions.float().unsqueeze(-1) * (1.0 / theta**exponents)).unsqueeze(1)
    return Angles(angles.cos(), angles.sin())


def _rotate_plainly(x: Tensor, rotary: Angles) -> None:
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    x.copy_(torch.cat((even * rotary.cos - odd * rotary.sin, odd * rotary.cos + even * rotary.sin), dim=-1))


@_or(_rotate_plainly)
def rotate(x: Tensor, rotary: Angles) -> None:
    """In place, x [N, heads, R]; pairs (even, odd) leave as all evens, then all odds."""
    _need(x.shape[-1] == _ROPE, f"rotary size {x.shape[-1]}, not {_ROPE}")
    _need(x.dtype in _HALF, f"type {x.dtype}")
    x.copy_(_kernels.npu_interleave_rope(x.unsqueeze(2).contiguous(), *rotary.of(x.dtype)).squeeze(2))


@_or(reference.swiglu)
def swiglu(gate_up: Tensor) -> Tensor:
    """As the reference."""
    out: Tensor = _kernels.npu_swiglu(gate_up, dim=-1)
    return out


# --- cache -------------------------------------------------------------------------------------------------------------------


def _paged(cache: Rows, page_size: int) -> Tensor:
    """Cache rows [S, W] as the kernels see them, [pages, page size, 1, W]: a view."""
    if not isinstance(cache, torch.Tensor):
        raise Unfit("a cache in fewer bits")
    _need(page_size % _PAGE_UNIT == 0 and page_size <= _PAGE_MOST, f"page size {page_size}, no multiple of {_PAGE_UNIT} up to {_PAGE_MOST}")
    return cache.view(-1, page_size, 1, cache.shape[1])


def _remember_plainly(kv: Tensor, weight: Tensor, eps: float, rotary: Angles, *, slots: Tensor, cache: LayerCache) -> None:
    size = weight.shape[0]
    _store(cache.latent, slots, rms_norm(kv[:, :size], weight, eps))
    rotate(kv[:, size:].unsqueeze(1), rotary)
    _store(cache.rope, slots, kv[:, size:])


def _store(cache: Rows, slots: Tensor, rows: Tensor) -> None:
    cache.index_copy_(0, slots, rows.to(cache.dtype) if isinstance(cache, torch.Tensor) else rows)


@_or(_remember_plainly)
def remember(kv: Tensor, weight: Tensor, eps: float, rotary: Angles, *, slots: Tensor, cache: LayerCache) -> None:
    """Norm, rotation and both writes in one kernel. kv [N, L + R] stays as it is."""
    rows, size = cache.latent.shape
    _need((size, cache.rope.shape[1]) == (_LATENT, _ROPE), f"latent {size} and rotary key {cache.rope.shape[1]}, not {_LATENT} and {_ROPE}")
    _need(kv.dtype in _HALF and kv.dtype == weight.dtype == cache.latent.dtype, f"type {kv.dtype}")
    _need(rows % _PAGE_UNIT == 0, f"cache of {rows} rows")
    # Slots count rows of the whole cache, so any page size names the same rows; this operator isn't told which it is.
    rope, latent = _paged(cache.rope, _PAGE_UNIT), _paged(cache.latent, _PAGE_UNIT)
    tokens = kv.contiguous().view(-1, 1, 1, _LATENT + _ROPE)
    _kernels.npu_kv_rmsnorm_rope_cache(tokens, weight, *rotary.of(kv.dtype), slots, rope, latent, epsilon=eps, cache_mode="PA")


@_or(reference.remember_index)
def remember_index(key: Tensor, slots: Tensor, cache: LayerCache) -> None:
    """As the reference."""
    assert cache.index is not None, "a full layer has an index cache"
    _need(key.dtype in _HALF and key.dtype == cache.index.dtype, f"type {key.dtype}, cached as {cache.index.dtype}")
    _kernels.npu_scatter_nd_update_(cache.index, slots.unsqueeze(1), key)


# --- attention ---------------------------------------------------------------------------------------------------------------


def _addresses(queries: Queries) -> tuple[Tensor, Tensor]:
    """Block table [B, P] and context lengths [B], int32, made once a step."""
    kept = vars(queries)  # where its cached properties are too
    if "npu_addresses" not in kept:
        ends = queries.positions[:, -1] + 1  # worked out on the device: no copy to it
        kept["npu_addresses"] = queries.pages.to(torch.int32), ends.to(torch.int32)
    addresses: tuple[Tensor, Tensor] = kept["npu_addresses"]
    return addresses


@_or(reference.choose)
def choose(
    query: Tensor, weights: Tensor, cache: LayerCache, queries: Queries, *, k: int, select: Callable[[Tensor, int], Tensor] | None
) -> Selection:
    """The lightning indexer over the paged keys: positions [B, Q, k] int32, the best first, -1 where fewer are visible.

    The scale of the scores is left out: it is the same for all of them. Equal scores come in the kernel's order.
    """
    assert cache.index is not None, "a full layer has an index cache"
    heads, size = query.shape[1:]
    _need(select is None, "selection by the caller")
    _need(size == _INDEX and heads <= 64, f"{heads} index heads of {size}, not up to 64 of {_INDEX}")
    _need(k <= 2048 or (k <= 8192 and k % 1024 == 0), f"{k} selected tokens, neither up to 2048 nor 3072, 4096 … 8192")
    _need(query.dtype in _HALF and query.dtype == cache.index.dtype, f"type {query.dtype}")
    table, ends = _addresses(queries)
    indices, _ = _kernels.npu_lightning_indexer(
        queries.of(query).contiguous(),
        _paged(cache.index, queries.page_size),
        queries.of(weights).to(query.dtype).contiguous(),
        actual_seq_lengths_key=ends,
        block_table=table,
        layout_query="BSND",
        layout_key="PA_BSND",
        sparse_count=k,
        sparse_mode=3,  # a query sees its sequence up to itself
    )
    return Selection(indices.squeeze(2), _Forms(indices))


@dataclass(slots=True)
class _Forms:
    """A selection as the kernel takes it, [B, Q, 1, K] int32, and as the reference does. Layers that share it share both."""

    indices: Tensor | None = None
    plain: Selection | None = None


def _forms(selection: Selection) -> _Forms:
    if selection.form is None:
        selection.form = _Forms()
    forms: _Forms = selection.form
    return forms


def _attend_plainly(
    latent: Tensor, rope: Tensor, cache: LayerCache, queries: Queries, selection: Selection | None, *, scale: float
) -> Tensor:
    if selection is None:
        return reference.attend(latent, rope, cache, queries, None, scale=scale)
    forms = _forms(selection)
    if forms.plain is None:
        beyond = queries.context - 1  # a row that is filled up doesn't see the last token
        positions = selection.positions.to(torch.int64)
        forms.plain = Selection(positions.masked_fill(positions < 0, beyond))
    return reference.attend(latent, rope, cache, queries, forms.plain, scale=scale)


@_or(_attend_plainly)
def attend(latent: Tensor, rope: Tensor, cache: LayerCache, queries: Queries, selection: Selection | None, *, scale: float) -> Tensor:
    """Sparse flash attention over the paged latents and rotary keys; all visible tokens where nothing was selected."""
    heads, size = latent.shape[1:]
    _need((size, rope.shape[2]) == (_LATENT, _ROPE), f"latent {size} and rotary key {rope.shape[2]}, not {_LATENT} and {_ROPE}")
    _need(heads <= 128 and heads.bit_count() == 1, f"{heads} heads, no power of two up to 128")
    _need(latent.dtype in _HALF and latent.dtype == rope.dtype == cache.latent.dtype, f"type {latent.dtype}")
    keys = _paged(cache.latent, queries.page_size)
    table, ends = _addresses(queries)
    mixed: Tensor = _kernels.npu_sparse_flash_attention(
        queries.of(latent).contiguous(),
        keys,
        keys,
        _indices(queries, selection),
        scale,
        block_table=table,
        actual_seq_lengths_kv=ends,
        query_rope=queries.of(rope).contiguous(),
        key_rope=_paged(cache.rope, queries.page_size),
        sparse_block_size=1,
        layout_query="BSND",
        layout_kv="PA_BSND",
        sparse_mode=3,
        attention_mode=2,  # absorbed: key and value are one
    )[0]
    return mixed.flatten(0, 1)


def _indices(queries: Queries, selection: Selection | None) -> Tensor:
    """Positions to attend to as the kernel takes them: [B, Q, 1, K] int32, valid ones first, then -1."""
    if selection is None:
        kept = vars(queries)
        if "npu_everything" not in kept:
            every = torch.arange(queries.pages.shape[1] * queries.page_size, dtype=torch.int32, device=queries.pages.device)
            kept["npu_everything"] = _valid_first(every.expand(*queries.positions.shape, -1), queries)
        everything: Tensor = kept["npu_everything"]
        return everything
    forms = _forms(selection)
    if forms.indices is None:  # chosen by the reference, which leaves padding anywhere
        # fp32, exact up to 16 million: integers are sorted on the device's slow processor.
        ordered = selection.positions.float().sort(dim=-1).values
        forms.indices = _valid_first(ordered.to(torch.int32), queries)
    return forms.indices


def _valid_first(ascending: Tensor, queries: Queries) -> Tensor:
    seen = ascending <= queries.positions.unsqueeze(-1)
    return torch.where(seen, ascending, -1).unsqueeze(2)


# --- experts -----------------------------------------------------------------------------------------------------------------


@_or(reference.route)
def route(logits: Tensor, bias: Tensor, choice: Routing) -> tuple[Tensor, Tensor]:
    """As the reference, except that experts are int32, which the next kernel takes."""
    _need(choice.normalise, "weights that are not normalised")
    _need(logits.shape[1] <= 2048, f"{logits.shape[1]} experts, more than 2048")
    weights, experts, _ = _kernels.npu_moe_gating_top_k(
        logits,
        choice.k,
        bias=bias,
        k_group=choice.kept_groups,
        group_count=choice.groups,
        group_select_mode=1,  # a group counts as much as its two best
        renorm=0,
        norm_type=1,  # sigmoid
        routed_scaling_factor=choice.scale,
        eps=1e-20,
    )
    return experts, weights


@_or(reference.run_experts)
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
    """Rows grouped by expert, two grouped products, and back, weighted in x's type."""
    _need(extra is None, "adapters on experts")
    _need(x.dtype == gate_up.dtype == down.dtype, "x and the experts differ in type")
    rows, origin, counts, _ = _group_rows(x, chosen, gate_up.shape[0], first, quant_mode=-1)
    inner = _kernels.npu_swiglu(_grouped(rows, gate_up, counts), dim=-1)
    return _ungroup(_grouped(inner, down, counts), origin, chosen, weights, experts=gate_up.shape[0], first=first)


def _group_rows(x: Tensor, chosen: Tensor, experts: int, first: int | None, *, quant_mode: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows of x by expert, where each came from, rows of each expert [E] int64, scales of the rows [M] (quant_mode 1: they are int8)."""
    start = first or 0
    _need(experts <= 1024, f"{experts} experts, more than 1024")
    rows, origin, counts, scale = _kernels.npu_moe_init_routing_v2(
        x,
        chosen.to(torch.int32),
        active_num=chosen.numel(),
        expert_num=start + experts,
        drop_pad_mode=0,
        expert_tokens_num_type=1,  # how many rows each expert got
        expert_tokens_num_flag=True,
        quant_mode=quant_mode,
        active_expert_range=[start, start + experts],
        row_idx_type=0,  # origin[token · k + i] is the row
    )
    return rows, origin, counts, scale


def _grouped(rows: Tensor, weight: Tensor, counts: Tensor, **how: Any) -> Tensor:  # noqa: ANN401 - the kernel's own arguments
    """Each expert's rows times its matrix: rows [M, in], weight [E, out, in], counts [E] int64 → [M, out]."""
    how |= {"split_item": 2, "group_type": 0, "group_list_type": 1}
    product: Tensor = _kernels.npu_grouped_matmul([rows], [weight.transpose(1, 2)], group_list=counts, **how)[0]
    return product


def _ungroup(rows: Tensor, origin: Tensor, chosen: Tensor, weights: Tensor, *, experts: int, first: int | None) -> Tensor:
    """Each token's weighted sum. The place of an expert that is elsewhere is -1: it reads another row of its token and counts nothing."""
    weights = weights.to(rows.dtype)
    if first is not None:
        here = (chosen >= first) & (chosen < first + experts)
        places = origin.view_as(chosen)
        origin = torch.where(here, places, places.amax(dim=1, keepdim=True)).clamp_min(0).flatten()
        weights = weights.masked_fill(~here, 0)
    whole: Tensor = _kernels.npu_moe_token_unpermute(rows, origin, probs=weights)
    return whole if first is None else whole.masked_fill(~here.any(dim=1, keepdim=True), 0)  # without any, what it read is anybody's


# --- quantised weights -------------------------------------------------------------------------------------------------------


@_or(reference.quantise)
def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """As the reference."""
    _need(x.dtype in _HALF, f"type {x.dtype}")
    integers, scale = _kernels.npu_dynamic_quant(x)
    return integers, scale


@_or(reference.quantised_linear)
def quantised_linear(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """As the reference."""
    _need(dtype in _HALF, f"type {dtype}")
    _need(max(weight.shape) <= 65535, f"a matrix of {tuple(weight.shape)}, wider than 65535")
    product: Tensor = _kernels.npu_quant_matmul(x, weight.t(), weight_scale, pertoken_scale=x_scale, output_dtype=dtype)
    return product


@_or(reference.run_quantised_experts)
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
    """As `run_experts`; activations become int8 on their way to each product. In bf16 the kernel takes scales of weights in bf16 only."""
    _need(extra is None, "adapters on experts")
    _need(x.dtype in _HALF, f"type {x.dtype}")
    _need(all(part.values.shape[1] == part.scale.shape[1] for part in (gate_up, down)), "4-bit weights")
    scale_dtype = torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float32
    experts = gate_up.scale.shape[0]
    rows, origin, counts, row_scale = _group_rows(x, chosen, experts, first, quant_mode=1)
    for part in (gate_up, down):
        how = {"scale": [part.scale.to(scale_dtype)], "per_token_scale": [row_scale], "output_dtype": x.dtype}
        rows = _grouped(rows, part.values, counts, **how)
        if part is gate_up:
            rows, row_scale = _kernels.npu_dynamic_quant(_kernels.npu_swiglu(rows, dim=-1))
    return _ungroup(rows, origin, chosen, weights, experts=experts, first=first)
