"""What torch_npu's documentation says that its kernels compute and take, as plain torch on the CPU, behind the wheel's own schemas.

`register()` makes `torch.ops.npu.*` work on CPU tensors. Each function first refuses what the kernel refuses (sizes, types, layouts,
tensors that aren't contiguous), then computes the documented formula in the simplest way, one token at a time. Source: op-plugin's
pages of torch_npu's API, and CANN's own checks of the two attention kernels. A card has the last word: rounding and the order of equal
scores are its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)
LARGEST = (1 << 63) - 1

_library: torch.library.Library | None = None


def register() -> None:
    """Every formula of this module under its kernel's name."""
    global _library  # noqa: PLW0603 - it must outlive the registration
    _library = torch.library.Library("npu", "IMPL")
    for name, formula in list(globals().items()):
        if name.startswith("npu_"):
            _library.impl(name, formula, "CPU")


def _refuse_strided(**tensors: Tensor | None) -> None:
    strided = [name for name, tensor in tensors.items() if tensor is not None and not tensor.is_contiguous()]
    assert not strided, f"not contiguous: {strided}"


def npu_rms_norm(input: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:  # noqa: A002 - the schema's name
    assert input.dtype == gamma.dtype
    wide = input.float()
    root = (wide.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    return (wide * root * gamma.float()).to(input.dtype), root


def npu_swiglu(input: Tensor, dim: int = -1) -> Tensor:  # noqa: A002 - the schema's name
    gate, up = input.float().chunk(2, dim)
    return (torch.nn.functional.silu(gate) * up).to(input.dtype)


def _interleave(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """reshape [.., 32, 2] → transpose → [.., 64], then x · cos + rotate_half(x) · sin."""
    halves = x.float().unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    first, second = halves.chunk(2, dim=-1)
    return (halves * cos.float() + torch.cat((-second, first), dim=-1) * sin.float()).to(x.dtype)


def npu_interleave_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    _refuse_strided(x=x, cos=cos, sin=sin)
    batch, _, count, size = x.shape
    assert size == cos.shape[3] == 64
    assert x.dtype in HALF
    assert cos.dtype == sin.dtype == x.dtype
    assert cos.shape == sin.shape
    assert cos.shape[:2] == (batch, 1)
    assert cos.shape[2] in {1, count}
    return _interleave(x, cos, sin)


def npu_kv_rmsnorm_rope_cache(  # noqa: PLR0917 - the schema's arguments
    kv: Tensor,
    gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    index: Tensor,
    k_cache: Tensor,
    ckv_cache: Tensor,
    *,
    k_rope_scale: Tensor | None = None,
    c_kv_scale: Tensor | None = None,
    k_rope_offset: Tensor | None = None,
    c_kv_offset: Tensor | None = None,
    v: Tensor | None = None,
    epsilon: float = 1e-5,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    assert cache_mode == "PA"
    assert not is_output_kv
    assert not any(x is not None for x in (k_rope_scale, c_kv_scale, k_rope_offset, c_kv_offset, v))
    _refuse_strided(kv=kv, gamma=gamma, cos=cos, sin=sin, index=index, k_cache=k_cache, ckv_cache=ckv_cache)
    tokens = kv.shape[0]
    assert kv.shape == (tokens, 1, 1, 576)
    assert gamma.shape == (512,)
    assert cos.shape == sin.shape == (tokens, 1, 1, 64)
    assert index.shape == (tokens,)
    assert index.dtype == torch.int64
    assert k_cache.shape[2:] == (1, 64)
    assert ckv_cache.shape[2:] == (1, 512)
    assert {x.dtype for x in (kv, gamma, cos, sin, k_cache, ckv_cache)} in ({torch.bfloat16}, {torch.float16})
    assert len(set(index.tolist())) == tokens, "the same slot twice is undefined"
    normed, _ = npu_rms_norm(kv[..., :512], gamma, epsilon)
    ckv_cache.view(-1, 512)[index] = normed.view(tokens, 512)
    k_cache.view(-1, 64)[index] = _interleave(kv[..., 512:], cos, sin).view(tokens, 64)
    return k_cache, ckv_cache, kv.new_empty(0), kv.new_empty(0)


def npu_scatter_nd_update_(input: Tensor, indices: Tensor, updates: Tensor) -> Tensor:  # noqa: A002 - the schema's name
    assert indices.dim() == 2
    assert indices.shape[1] == 1
    assert indices.dtype in (torch.int32, torch.int64)
    assert updates.shape == (indices.shape[0], *input.shape[1:])
    assert updates.dtype == input.dtype
    input[indices[:, 0].long()] = updates
    return input


def _context(cache: Tensor, table: Tensor, length: int) -> Tensor:
    """The first `length` rows that a block table names, [T, W]."""
    blocks, size, heads, width = cache.shape
    assert heads == 1
    assert size % 16 == 0
    assert 0 < size <= 1024
    assert int(table.max()) < blocks
    return cache[table.long()].reshape(-1, width)[:length].float()


def _check_paged(block_table: Tensor, lengths: Tensor, batch: int, page: int) -> None:
    assert block_table.dtype == lengths.dtype == torch.int32
    assert block_table.dim() == 2
    assert block_table.shape[0] == batch
    assert lengths.shape == (batch,)
    assert block_table.shape[1] * page >= int(lengths.max())


def npu_lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    *,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_key: Tensor | None = None,
    block_table: Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    pre_tokens: int = LARGEST,
    next_tokens: int = LARGEST,
    return_value: bool = False,
) -> tuple[Tensor, Tensor]:
    assert (layout_query, layout_key, sparse_mode, return_value) == ("BSND", "PA_BSND", 3, False)
    assert actual_seq_lengths_query is None
    assert pre_tokens == next_tokens == LARGEST
    assert actual_seq_lengths_key is not None
    assert block_table is not None
    _refuse_strided(query=query, key=key, weights=weights, lengths=actual_seq_lengths_key, table=block_table)
    batch, count, heads, size = query.shape
    assert size == key.shape[3] == 128
    assert heads <= 64
    assert query.dtype == key.dtype == weights.dtype
    assert query.dtype in HALF
    assert weights.shape == (batch, count, heads)
    assert 1 <= sparse_count <= 2048 or sparse_count in range(3072, 8193, 1024)
    _check_paged(block_table, actual_seq_lengths_key, batch, key.shape[1])
    out = torch.full((batch, count, 1, sparse_count), -1, dtype=torch.int32)
    for b in range(batch):
        length = int(actual_seq_lengths_key[b])
        keys = _context(key, block_table[b], length)
        for q in range(count):
            visible = length - count + q + 1
            scores = (torch.relu(query[b, q].float() @ keys[:visible].T) * weights[b, q].float().unsqueeze(1)).sum(0)
            best = scores.sort(descending=True, stable=True).indices[:sparse_count]
            out[b, q, 0, : best.shape[0]] = best.int()
    return out, query.new_empty(0)


def npu_sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    scale_value: float,
    *,
    block_table: Tensor | None = None,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_kv: Tensor | None = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    pre_tokens: int = LARGEST,
    next_tokens: int = LARGEST,
    attention_mode: int = 0,
    return_softmax_lse: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    assert (layout_query, layout_kv, sparse_mode, attention_mode, sparse_block_size) == ("BSND", "PA_BSND", 3, 2, 1)
    assert actual_seq_lengths_query is None
    assert pre_tokens == next_tokens == LARGEST
    assert not return_softmax_lse
    assert query_rope is not None
    assert key_rope is not None
    assert block_table is not None
    assert actual_seq_lengths_kv is not None
    _refuse_strided(query=query, key=key, value=value, indices=sparse_indices, table=block_table, lengths=actual_seq_lengths_kv)
    _refuse_strided(query_rope=query_rope, key_rope=key_rope)
    batch, count, heads, size = query.shape
    assert heads in {1, 2, 4, 8, 16, 32, 64, 128}
    assert size == key.shape[3] == 512
    assert query_rope.shape == (batch, count, heads, 64)
    assert key_rope.shape == (*key.shape[:3], 64)
    assert value.data_ptr() == key.data_ptr()
    assert len({x.dtype for x in (query, key, value, query_rope, key_rope)}) == 1
    assert query.dtype in HALF
    assert sparse_indices.dtype == torch.int32
    assert sparse_indices.shape[:3] == (batch, count, 1)
    _check_paged(block_table, actual_seq_lengths_kv, batch, key.shape[1])
    out = torch.empty_like(query)
    for b in range(batch):
        length = int(actual_seq_lengths_kv[b])
        latents, ropes = _context(key, block_table[b], length), _context(key_rope, block_table[b], length)
        for q in range(count):
            row = sparse_indices[b, q, 0]
            valid = row >= 0
            assert bool(valid[:-1].ge(valid[1:]).all()), "invalid entries stand behind the valid ones"
            chosen = row[valid].long()
            chosen = chosen[chosen <= length - count + q]
            logits = query[b, q].float() @ latents[chosen].T + query_rope[b, q].float() @ ropes[chosen].T
            out[b, q] = ((logits * scale_value).softmax(-1) @ latents[chosen]).to(query.dtype)
    return out, query.new_empty(0), query.new_empty(0)


def npu_moe_gating_top_k(
    x: Tensor,
    k: int,
    *,
    bias: Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> tuple[Tensor, Tensor, Tensor]:
    assert (group_select_mode, renorm, norm_type, out_flag) == (1, 0, 1, False)
    assert bias is not None
    assert bias.dtype == x.dtype
    tokens, experts = x.shape
    assert experts <= 2048
    assert experts % group_count == 0
    scores = x.float().sigmoid()
    ranked = (scores + bias.float()).view(tokens, group_count, -1)
    worth = ranked.topk(2, dim=-1).values.sum(-1)
    groups = worth.sort(dim=-1, descending=True, stable=True).indices[:, :k_group]
    kept = torch.zeros(tokens, group_count, dtype=torch.bool).scatter_(1, groups, value=True)
    ranked = ranked.masked_fill(~kept.unsqueeze(-1), float("-inf")).view(tokens, experts)
    chosen = ranked.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    weights = scores.gather(1, chosen)
    weights = weights / (weights.sum(-1, keepdim=True) + eps) * routed_scaling_factor
    return weights.to(x.dtype), chosen.int(), x.new_empty(0)


def npu_moe_init_routing_v2(
    x: Tensor, expert_idx: Tensor, *, expert_num: int = -1, active_expert_range: list[int] | None = None, **how: object
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    expected = {"expert_tokens_num_type": 1, "expert_tokens_num_flag": True, "active_num": expert_idx.numel()}
    assert {name: how[name] for name in expected} == expected
    assert how.get("row_idx_type", 0) == 0
    assert expert_idx.dtype == torch.int32
    assert active_expert_range is not None
    first, last = active_expert_range
    assert 0 <= first < last <= expert_num
    flat = expert_idx.flatten().long()
    active = ((flat >= first) & (flat < last)).nonzero().squeeze(1)
    order = active[flat[active].argsort(stable=True)]
    origin = torch.full_like(flat, -1)
    origin[order] = torch.arange(order.shape[0])
    counts = torch.bincount(flat[active] - first, minlength=last - first)
    rows = torch.full((flat.shape[0], x.shape[1]), float("nan"), dtype=x.dtype)  # what stands behind the valid ones is undefined
    rows[: order.shape[0]] = x[order // expert_idx.shape[1]]
    quant_mode = how.get("quant_mode", -1)
    if quant_mode == -1:
        return rows, origin.int(), counts, x.new_empty(0)
    assert quant_mode == 1
    integers, scale = npu_dynamic_quant(rows[: order.shape[0]])
    return (
        torch.cat((integers, integers.new_full((flat.shape[0] - order.shape[0], x.shape[1]), 77))),
        origin.int(),
        counts,
        torch.cat((scale, torch.full((flat.shape[0] - order.shape[0],), float("nan")))),
    )


def npu_grouped_matmul(
    x: list[Tensor],
    weight: list[Tensor],
    *,
    group_list: Tensor,
    scale: list[Tensor] | None = None,
    per_token_scale: list[Tensor] | None = None,
    output_dtype: int | None = None,
    **how: object,
) -> list[Tensor]:
    assert (how["split_item"], how["group_type"], how["group_list_type"]) == (2, 0, 1)
    (rows,), (matrices,) = x, weight
    _refuse_strided(x=rows)
    assert matrices.is_contiguous() or matrices.mT.is_contiguous(), "the weight as it is, or transposed"
    assert rows.dtype == matrices.dtype
    assert group_list.dtype == torch.int64
    assert group_list.shape == (matrices.shape[0],)
    assert matrices.shape[0] <= 1024
    used = int(group_list.sum())
    out = torch.full((rows.shape[0], matrices.shape[2]), float("nan"))
    parts = rows[:used].float().split(group_list.tolist())
    products = [part @ matrix.float() for part, matrix in zip(parts, matrices, strict=True)]
    dtype = rows.dtype
    if scale is not None:
        assert per_token_scale is not None
        dtype = {15: torch.bfloat16, 5: torch.float16}[output_dtype or 0]
        assert scale[0].shape == (matrices.shape[0], matrices.shape[2])
        assert scale[0].dtype == (torch.bfloat16 if dtype == torch.bfloat16 else torch.float32)
        assert per_token_scale[0].dtype == torch.float32
        products = [product * wide.float() for product, wide in zip(products, scale[0], strict=True)]
    out[:used] = torch.cat(products)
    if per_token_scale is not None:
        out[:used] *= per_token_scale[0][:used].unsqueeze(1)
    return [out.to(dtype)]


def npu_moe_token_unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> Tensor:
    assert not padded_mode
    assert restore_shape is None
    assert probs is not None
    assert sorted_indices.dtype == torch.int32
    assert probs.dtype == permuted_tokens.dtype
    assert probs.shape[1] <= 512
    picked = permuted_tokens[sorted_indices.long()].float().view(*probs.shape, -1)
    return (picked * probs.float().unsqueeze(-1)).sum(1).to(permuted_tokens.dtype)


def npu_dynamic_quant(input: Tensor, **how: object) -> tuple[Tensor, Tensor]:  # noqa: A002 - the schema's name
    assert not any(how.get(name) is not None for name in ("smooth_scales", "group_index", "dst_type"))
    assert input.dtype in HALF
    assert input.dim() > 1
    scale = input.float().abs().amax(-1) / 127
    return (input.float() / scale.unsqueeze(-1)).round().nan_to_num().to(torch.int8), scale


def npu_quant_matmul(
    x1: Tensor, x2: Tensor, scale: Tensor, *, pertoken_scale: Tensor | None = None, output_dtype: int | None = None, **how: object
) -> Tensor:
    assert not any(value is not None for value in how.values())
    assert x1.dtype == x2.dtype == torch.int8
    assert x1.is_contiguous()
    assert x2.is_contiguous() or x2.mT.is_contiguous()
    assert max(x1.shape[-1], x2.shape[-1]) <= 65535
    assert pertoken_scale is not None
    assert pertoken_scale.shape == x1.shape[:1]
    assert pertoken_scale.dtype == torch.float32
    assert scale.shape == x2.shape[1:]
    dtype = {15: torch.bfloat16, 5: torch.float16}[output_dtype or 0]
    assert scale.dtype == torch.float32 or scale.dtype == dtype == torch.bfloat16
    return ((x1.double() @ x2.double()) * scale.double() * pertoken_scale.double().unsqueeze(1)).to(dtype)
