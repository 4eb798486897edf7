"""`--sparse-kv`: beyond a length, the indexer sees a window whole and of what lies before it a sample. A set of operators over another one.

What is left out is neither scored nor attended, so a decode step's indexer costs a quarter at long contexts, and recall of the middle
falls as far: a fact that stands in one token there is found with the sample's probability. The cache keeps every token, since prefixes
are shared and the window moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import torch
from torch.nn.utils.rnn import pad_sequence

from glm5_runtime.ops import reference
from glm5_runtime.ops.paging import Selection

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from glm5_runtime.ops.interface import OperatorSet
    from glm5_runtime.ops.paging import LayerCache, Queries

_STEP = 1 << 16
"""Samples are worked out for so many positions more at a time."""


@dataclass(frozen=True, slots=True)
class SparseKV:
    """A query with more than `begin` tokens before it sees the last `window` and `ratio` of the others."""

    ratio: float = 0.25
    begin: int = 8192
    window: int = 4096

    def sampled(self, positions: Tensor) -> Tensor:
        """Which positions are in the sample: the same ones for every query and step, evenly spread and without a period."""
        return (positions * 2654435769) % (1 << 32) < self.ratio * (1 << 32)  # multiples of the golden ratio


def thinned(ops: OperatorSet, sparse: SparseKV) -> OperatorSet:
    """The set with a `choose` that looks at fewer tokens; the rest is as it was."""

    def choose(
        query: Tensor, weights: Tensor, cache: LayerCache, queries: Queries, *, k: int, select: Callable[[Tensor, int], Tensor] | None
    ) -> Selection:
        if queries.context <= sparse.begin:
            return ops.choose(query, weights, cache, queries, k=k, select=select)
        return _choose(query, weights, cache, queries, k=k, select=select, sparse=sparse)

    return cast("OperatorSet", SimpleNamespace(**{**vars(ops), "choose": choose}))


def _choose(
    query: Tensor,
    weights: Tensor,
    cache: LayerCache,
    queries: Queries,
    *,
    k: int,
    select: Callable[[Tensor, int], Tensor] | None,
    sparse: SparseKV,
) -> Selection:
    """As the reference's; at most a window's number of tokens is chosen, since every query is sure to see that many."""
    assert cache.index is not None, "a full layer has an index cache"
    kept = vars(queries)  # where its cached properties are too: layers share them
    if "thinned" not in kept:
        kept["thinned"] = _visible(queries, sparse)
    places, rows, hidden = kept["thinned"]
    keys = cache.index.index_select(0, rows.flatten()).view(*places.shape, -1)
    scores = reference.index_scores(queries.of(query), queries.of(weights), keys).masked_fill_(hidden, float("-inf"))
    chosen = (select or reference.select_tokens)(scores, min(k, sparse.window))
    return Selection(places.unsqueeze(1).expand(-1, chosen.shape[1], -1).gather(-1, chosen))


def _visible(queries: Queries, sparse: SparseKV) -> tuple[Tensor, Tensor, Tensor]:
    """Positions that any query of a sequence sees [B, T'], their cache rows, and what each query doesn't see of them [B, Q, T']."""
    at = queries.positions.unsqueeze(-1)
    device, count = at.device, at.shape[1]
    lists = []
    for end in queries.ends:
        first = end - count - sparse.window + 1 if end - count >= sparse.begin else 0
        lists.append(torch.cat((_sample(sparse, first), torch.arange(first, end))))
    places = pad_sequence(lists, batch_first=True, padding_value=queries.context).to(device)
    rows = queries.slots.gather(1, places.clamp(max=queries.context - 1))
    seen = places.unsqueeze(1)
    hidden = (seen > at) | ((at >= sparse.begin) & (seen <= at - sparse.window) & ~sparse.sampled(seen))
    return places, rows, hidden


def _sample(sparse: SparseKV, end: int) -> Tensor:
    """The sample's positions below `end`, on the CPU."""
    sample = _samples(sparse, -(-end // _STEP))
    return sample[: int(torch.searchsorted(sample, end))]


@lru_cache(maxsize=4)
def _samples(sparse: SparseKV, steps: int) -> Tensor:
    with torch.inference_mode(mode=False):
        positions = torch.arange(steps * _STEP)
        return positions[sparse.sampled(positions)]
