"""Numbers in few bits: what is packed comes back, roundings stay within half a step, and what isn't finite is never hidden."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from glm5_runtime.config import ModelConfig
from glm5_runtime.model.cache import INT4, KVCache, bytes_per_token
from glm5_runtime.ops import reference
from glm5_runtime.ops.packing import PackedRows, Weights, pack, unpack
from glm5_runtime.ops.paging import LayerCache, Queries, Selection
from tests.runtime.config.releases import GLM_5, GLM_5_2, write_release

CPU = torch.device("cpu")


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_two_rows_share_a_byte_the_even_one_in_its_low_half() -> None:
    packed = pack(torch.tensor([[1, -8], [-1, 7]], dtype=torch.int8))
    assert [byte & 0xFF for byte in packed.flatten().tolist()] == [0xF1, 0x78]
    assert unpack(packed).tolist() == [[1, -8], [-1, 7]]


def test_every_pair_of_4_bit_values_survives_packing() -> None:
    every = torch.cartesian_prod(torch.arange(-8, 8), torch.arange(-8, 8)).to(torch.int8).view(2, 64, 4)
    assert torch.equal(unpack(pack(every)), every)


@pytest.mark.parametrize(("bits", "steps"), [(8, 254), (4, 15)])
@pytest.mark.parametrize("width", [1, 16, 17, 512])
def test_cache_rows_are_read_to_within_half_a_step_of_what_was_written(bits: int, steps: int, width: int) -> None:
    rows, slots = _random(3, width) * 5 + 1, torch.tensor([7, 2, 4])
    cache = PackedRows.allocate(9, width, bits, CPU)
    cache.index_copy_(0, slots, rows)
    spread = 2 * rows.abs().amax(dim=-1, keepdim=True) if bits == 8 else rows.amax(-1, keepdim=True) - rows.amin(-1, keepdim=True)
    assert ((cache.index_select(0, slots) - rows).abs() <= 0.51 * spread / steps + 2e-3 * rows.abs().amax()).all()
    assert torch.equal(cache[2:3], cache.index_select(0, torch.tensor([2])))
    assert not cache[0:2].any()  # nobody's rows stay zero
    assert tuple(cache.shape) == (9, width)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("row", [[0.0, 0.0, 0.0], [1e-30, -1e-30, 0.0], [2.5, 2.5, 2.5]])
def test_rows_without_a_spread_keep_their_value(bits: int, row: list[float]) -> None:
    cache = PackedRows.allocate(1, 3, bits, CPU)
    cache.index_copy_(0, torch.tensor([0]), torch.tensor([row]))
    assert cache[0:1].flatten().tolist() == pytest.approx(row, abs=2e-3)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e9])
def test_a_row_that_is_not_finite_is_read_as_nan_and_its_neighbours_are_not(bits: int, bad: float) -> None:
    """1e9 is beyond what a scale in fp16 can hold: better a failed request than a wrong token."""
    rows = _random(2, 6)
    rows[1, 2] = bad
    cache = PackedRows.allocate(2, 6, bits, CPU)
    cache.index_copy_(0, torch.tensor([0, 1]), rows)
    assert cache[0:1].isfinite().all()
    assert not cache[1:2].isfinite().any()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("pages", [[2, 3, 4], [4, 2, 3]], ids=["side by side", "paged"])
@pytest.mark.parametrize("selected", [False, True])
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("unpacked", [1, 4, 4096])
def test_attention_and_indexer_read_packed_rows_as_they_would_the_same_rows_in_fp32(
    bits: int, pages: list[int], count: int, *, selected: bool, unpacked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = LayerCache(*(PackedRows.allocate(24, width, size, CPU) for width, size in ((8, bits), (4, bits), (6, 8))))
    slots = torch.arange(8, 20)
    for rows, seed in ((packed.latent, 1), (packed.rope, 2), (packed.index, 3)):
        assert rows is not None
        rows.index_copy_(0, slots, _random(12, rows.shape[1], seed=seed))
    assert packed.index is not None
    plain = LayerCache(packed.latent[0:24], packed.rope[0:24], packed.index[0:24])
    queries = Queries(slice(0, count), torch.arange(9 - count, 9).view(1, count), [9], [pages], 4)
    selection = Selection(torch.stack([torch.arange(4)] * count).unsqueeze(0)) if selected else None
    asked = _random(count, 3, 8, seed=4), _random(count, 3, 4, seed=5)
    results = [reference.attend(*asked, cache, queries, selection, scale=0.3) for cache in (packed, plain)]
    assert torch.allclose(*results, atol=1e-6)
    monkeypatch.setattr(reference, "PACKED_ROWS", unpacked)
    chosen = [
        reference.choose(_random(count, 2, 6), _random(count, 2), cache, queries, k=3, select=None).positions for cache in (packed, plain)
    ]
    assert torch.equal(*chosen)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cache_of_another_float_type_takes_rows_of_the_models(dtype: torch.dtype, tiny_dir: Path) -> None:
    cache = KVCache.allocate(ModelConfig.from_dir(tiny_dir), 1, 16, CPU, dtype).layers[0]
    angles = reference.rotary(torch.tensor([3]), 1e6, 16)
    reference.remember(_random(1, 80), torch.ones(64), 1e-6, angles, slots=torch.tensor([16]), cache=cache)
    reference.remember_index(_random(1, 32), torch.tensor([16]), cache)
    assert all(rows is not None and bool(rows[16:17].any()) for rows in (cache.latent, cache.rope, cache.index))


@pytest.mark.parametrize(
    ("release", "bytes_in_bf16"), [(GLM_5, 109_824), (GLM_5_2, 95_232), (None, 832)], ids=["GLM-5", "GLM-5.2", "tiny-glm5"]
)
def test_int8_and_int4_hold_at_least_1_8_and_2_8_times_the_tokens_of_bf16(
    release: dict[str, object] | None, bytes_in_bf16: int, tiny_dir: Path, tmp_path: Path
) -> None:
    config = ModelConfig.from_dir(tiny_dir if release is None else write_release(tmp_path, release))
    usual = bytes_per_token(config, torch.bfloat16)
    assert usual == bytes_in_bf16
    assert usual / bytes_per_token(config, torch.int8) >= 1.8
    assert usual / bytes_per_token(config, INT4) >= 2.8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, INT4])
def test_the_bytes_of_a_token_are_those_that_the_cache_takes(dtype: torch.dtype, tiny_dir: Path) -> None:
    config = ModelConfig.from_dir(tiny_dir)
    cache = KVCache.allocate(config, 9, 16, CPU, dtype)
    assert sum(tensor.nbytes for tensor in cache.tensors()) == 160 * bytes_per_token(config, dtype)
    index = cache.layers[0].index
    assert index is not None
    assert index.dtype in {torch.int8, dtype}  # never less than 8 bits: it chooses


def _rounded(x: Tensor, bits: int = 8) -> Tensor:
    most = 2 ** (bits - 1) - 1
    scale = x.abs().amax(-1, keepdim=True) / most
    return (x / scale).round() * scale


def test_a_quantised_layer_is_the_product_of_the_rounded_activations_and_weights() -> None:
    x, weight = _random(5, 64) * 3, _random(24, 64, seed=1)
    scale = weight.abs().amax(-1) / 127
    integers = (weight / scale.unsqueeze(1)).round().to(torch.int8)
    out = reference.quantised_linear(*reference.quantise(x), integers, scale, torch.float32)
    assert torch.allclose(out, _rounded(x) @ _rounded(weight).T, atol=1e-3)
    assert out.dtype == torch.float32
    assert reference.quantised_linear(*reference.quantise(x), integers, scale, torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("exact", [True, False])
def test_integer_products_are_exact_at_their_largest_and_in_plain_floats(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "_has_exact_products", lambda: exact)
    most = torch.full((3, 512), 127, dtype=torch.int8)
    assert torch.equal(reference._integer_product(most, -most), torch.full((3, 3), -512.0 * 127**2))


def test_a_token_that_is_not_finite_stays_so_and_its_neighbours_are_untouched() -> None:
    x = _random(3, 16)
    x[1, 4] = math.nan
    integers, scale = reference.quantise(x)
    out = reference.quantised_linear(integers, scale, torch.ones(4, 16, dtype=torch.int8), torch.ones(4), torch.float32)
    assert out.isfinite().all(dim=1).tolist() == [True, False, True]


@pytest.mark.parametrize("small", [0.0, 1e-44])
def test_a_token_of_zeros_or_next_to_nothing_gives_zeros(small: float) -> None:
    x = _random(3, 16)
    x[1] = small
    out = reference.quantised_linear(*reference.quantise(x), torch.ones(4, 16, dtype=torch.int8), torch.ones(4), torch.float32)
    assert out[1].tolist() == [0.0] * 4
    assert out[0].all()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("first", [None, 0, 2])
def test_quantised_experts_are_experts_with_rounded_weights_and_activations(bits: int, first: int | None) -> None:
    held = 5 if first is None else 3
    most = 2 ** (bits - 1) - 1
    made, plain = [], []
    for shape, seed in (((held, 8, 6), 1), ((held, 6, 4), 2)):
        weight = _random(*shape, seed=seed)
        scale = weight.abs().amax(-1) / most
        integers = (weight / scale.unsqueeze(-1)).round().to(torch.int8)
        made.append(Weights(pack(integers) if bits == 4 else integers, scale))
        plain.append(integers * scale.unsqueeze(-1))
    x, weights = _random(7, 6), torch.rand(7, 2, generator=torch.Generator().manual_seed(3))
    chosen = torch.tensor([[0, 1], [1, 4], [4, 0], [1, 0], [0, 4], [4, 1], [1, 4]])
    out = reference.run_quantised_experts(x, *made, chosen, weights, first=first)
    begin = first or 0
    for token in range(7):
        expected = torch.zeros(6)
        for slot, expert in enumerate(chosen[token].tolist()):
            if begin <= expert < begin + held:
                inner = reference.swiglu(_rounded(x[token]) @ plain[0][expert - begin].T)
                expected += weights[token, slot] * (_rounded(inner) @ plain[1][expert - begin].T)
        assert torch.allclose(out[token], expected, atol=1e-4)
