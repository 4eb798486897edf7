"""Checks of `on_npu` at the limits of the kernels: the last size that each takes, and the first that goes the plain way and is counted.

Run and reported by `on_npu`, in its process; numbers are those of the documented formulas.
"""

from __future__ import annotations

import torch

from glm5_runtime.model.batch import Chunk
from glm5_runtime.ops import kernels, npu, reference
from glm5_runtime.ops.paging import LayerCache
from tests.runtime.ops.parts import BF16, INDEX, LATENT, PAGE, ROPE, check, close, expect, fallbacks, queries_of, randn


def choose_counts(context: int, k: int, heads: int = 2, page: int = PAGE) -> dict[str, int]:
    """Fallbacks of one choice by the last token of a context; what is chosen is what the reference chooses."""
    pages = -(-context // page)
    cache = LayerCache(*(randn((pages + 1) * page, width, seed=width) for width in (LATENT, ROPE, INDEX)))
    queries, _ = queries_of([Chunk([0], context - 1, list(range(1, pages + 1)))], page)
    query, weights = randn(1, heads, INDEX, seed=3), randn(1, heads, seed=4).float()
    before = dict(kernels.fallbacks)
    mine = npu.choose(query, weights, cache, queries, k=k, select=None).positions
    counted = fallbacks(before)
    theirs = reference.choose(query, weights, cache, queries, k=k, select=None).positions
    expect({int(p) for p in mine.flatten() if p >= 0}, {int(p) for p in theirs.flatten() if p < context}, f"chosen, k {k}, {heads} heads")
    return counted


@check
def the_indexer_takes_2048_selected_tokens_and_then_whole_thousands_only() -> None:
    for k, taken in ((2048, True), (2049, False), (3071, False), (3072, True), (8192, True), (8193, False), (9216, False)):
        expect(choose_counts(9232, k), {} if taken else {"choose": 1}, f"k {k}")


@check
def the_indexer_takes_up_to_64_heads() -> None:
    expect([choose_counts(80, 32, heads) for heads in (64, 65)], [{}, {"choose": 1}], "64 and 65 heads")


@check
def pages_are_multiples_of_16_rows_up_to_1024() -> None:
    for page, taken in ((8, False), (16, True), (24, False), (1024, True), (1040, False)):
        expect(choose_counts(80, 32, page=page), {} if taken else {"choose": 1}, f"choice in pages of {page}")
        pages = -(-80 // page)
        cache = LayerCache(*(randn((pages + 1) * page, width, seed=width) for width in (LATENT, ROPE, INDEX)))
        queries, _ = queries_of([Chunk([0], 79, list(range(1, pages + 1)))], page)
        latent, rope = randn(1, 4, LATENT, seed=5) * 0.3, randn(1, 4, ROPE, seed=6) * 0.3
        before = dict(kernels.fallbacks)
        got = npu.attend(latent, rope, cache, queries, None, scale=0.1)
        expect(fallbacks(before), {} if taken else {"attend": 1}, f"attention in pages of {page}")
        close(got, reference.attend(latent, rope, cache, queries, None, scale=0.1), f"attention in pages of {page}")


@check
def quantised_matrices_are_up_to_65535_wide_either_way() -> None:
    for rows, width in ((65535, 32), (65536, 32), (32, 65535), (32, 65536)):
        x, x_scale = reference.quantise(randn(2, width))
        weight, scale = torch.randint(-127, 128, (rows, width), dtype=torch.int8), torch.full((rows,), 0.01)
        before = dict(kernels.fallbacks)
        got = npu.quantised_linear(x, x_scale, weight, scale, BF16)
        expect(fallbacks(before), {} if max(rows, width) == 65535 else {"quantised_linear": 1}, f"a matrix of {rows} × {width}")
        close(got, reference.quantised_linear(x, x_scale, weight, scale, BF16), f"a matrix of {rows} × {width}")
