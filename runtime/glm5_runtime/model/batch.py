"""One step's work as tensors: which tokens at which positions, where their cache rows are, which are computed in one call.

Built by the engine's runner from chunks of sequences, read by attention and indexer. Holds no weights and no policy.

A chunk is some next tokens of one sequence. Chunks of few tokens (decodes with what was guessed to follow) are computed side by side in
groups of B rows, as many tokens each; a longer chunk (prefill) is cut into blocks of queries, so that no tensor grows with the square of
the context.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import torch

from glm5_runtime.ops import reference
from glm5_runtime.ops.paging import Queries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from glm5_runtime.config import ModelConfig

WORKSPACE_BYTES = 128 << 20
"""Aim for all temporaries of one attention call together. Small enough to stay beside the weights, large enough for full matrix products.

One query of a very long context needs more and gets it: GLM-5's index keys alone are 0.8 GB at a million tokens."""
_TOGETHER = 1 << 15
"""Context rows that decodes read in one call. Beyond, copies of many contexts side by side cost more than calls for each."""
_SHORT = 17
"""Chunks of at most so many tokens are computed side by side with others of their length: a token and the most that is guessed ahead."""
_MOST_QUERIES = 512
"""Of a prompt in one call. Its last one decides how much context all of them are multiplied with: fewer see less that they may not."""
_GATHERED = 6
"""Bytes of a cached number in use: itself in bf16 and its copy in fp32. An fp32 cache is used as it is, with 4."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """`tokens` of one sequence from position `start` on; `pages` hold all its tokens up to the last of these."""

    tokens: Sequence[int]
    start: int
    pages: Sequence[int]
    adapter: int = 0  # number of its adapter, 0: none
    replica: int = 0  # the data rank that has the pages

    @property
    def end(self) -> int:
        """Tokens of the context after it."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class RowAdapters:
    """The number of each row's adapter, and which ones there are; 0 is the base model."""

    numbers: list[int]
    used: frozenset[int]


@dataclass(frozen=True, slots=True)
class Batch:
    """tokens, positions, slots: [N] int64, chunk after chunk; groups cover the N rows in order; adapters: None when no row has one.

    `everyones_adapters`: those of all data ranks' rows, rank after rank.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    groups: tuple[Queries, ...]
    adapters: RowAdapters | None = None
    everyones_adapters: RowAdapters | None = None


def build_batch(
    chunks: Sequence[Chunk],
    config: ModelConfig,
    page_size: int,
    device: torch.device,
    workspace: int = WORKSPACE_BYTES,
    *,
    everyone: Sequence[Chunk] | None = None,
) -> Batch:
    """Tensors for the chunks, in their order. Put decodes next to each other: each run of them is one group, or a few.

    `everyone`: the chunks of all data ranks, these among them; None: there is one.
    """
    positions: list[int] = []
    slots: list[int] = []
    blocks = []
    for block in _blocks(chunks, config, workspace):
        start = len(positions)
        for chunk in block:
            span = range(chunk.start, chunk.end)
            positions += span
            slots += [chunk.pages[position // page_size] * page_size + position % page_size for position in span]
        blocks.append((block, slice(start, len(positions))))
    tokens = torch.tensor([token for chunk in chunks for token in chunk.tokens], device=device)
    at = torch.tensor(positions, device=device)
    groups = [
        Queries(rows, at[rows].view(len(block), -1), [chunk.end for chunk in block], [chunk.pages for chunk in block], page_size)
        for block, rows in blocks
    ]
    adapters = _row_adapters(chunks)
    others = adapters if everyone is None else _row_adapters(everyone)
    return Batch(tokens, at, torch.tensor(slots, device=device), tuple(groups), adapters, others)


def _row_adapters(chunks: Sequence[Chunk]) -> RowAdapters | None:
    used = frozenset(chunk.adapter for chunk in chunks)
    if used == {0}:
        return None
    return RowAdapters([chunk.adapter for chunk in chunks for _ in chunk.tokens], used)


def _blocks(chunks: Sequence[Chunk], config: ModelConfig, workspace: int) -> Iterator[list[Chunk]]:
    """Chunks that one call attends: several short ones of a length, or a piece of a longer one; as many queries as the workspace takes."""
    for count, run in groupby(chunks, key=lambda chunk: min(len(chunk.tokens), _SHORT + 1)):
        same = list(run)
        if count <= _SHORT and workspace_bytes(same[0].end, 1, count, config) <= workspace:
            longest = max(chunk.end for chunk in same)
            step = max(1, min(_TOGETHER // longest, workspace // workspace_bytes(longest, 1, count, config)))
            yield from (same[at : at + step] for at in range(0, len(same), step))
            continue
        for chunk in same:
            step = _most_queries(chunk, config, workspace)
            for at in range(0, len(chunk.tokens), step):
                yield [Chunk(chunk.tokens[at : at + step], chunk.start + at, chunk.pages)]


def _most_queries(chunk: Chunk, config: ModelConfig, workspace: int) -> int:
    """How many of a chunk's queries fit in one call, at least one. What a call needs grows with their count."""
    counts = range(1, min(len(chunk.tokens), _MOST_QUERIES) + 1)
    return max(1, bisect_right(counts, workspace, key=lambda queries: workspace_bytes(chunk.end, 1, queries, config)))


def workspace_bytes(context: int, sequences: int, queries: int, config: ModelConfig) -> int:
    """An upper bound of what one attention call allocates at once, for `queries` of `sequences` with a context of so many tokens.

    Two phases follow each other, so the larger one counts. Indexer: the gathered keys; products of some queries with every key, and
    before they are weighed; scores, who is hidden, who is chosen. Attention: gathered latents and rotary keys, of a sequence under a mask
    or of each query; a query's logits with their softmax; its own copies and its output.
    """
    cached = config.kv_lora_rank + config.qk_rope_head_dim
    own = 12 * config.num_attention_heads * cached
    each = min(context, config.index_topk) * (8 * config.num_attention_heads + 2 * _GATHERED * cached + 24) + own
    masked = sequences * context * 2 * _GATHERED * cached + queries * (7 * context + own)
    attending = masked if queries > sequences and context <= reference.GATHER_BEYOND * config.index_topk else queries * each
    if context <= config.index_topk:
        return attending
    heads = config.index_n_heads
    products = max(4 * sequences * context * heads, min(4 * queries * context * heads, reference.INDEX_BYTES))
    indexing = sequences * context * _GATHERED * config.index_head_dim + products + queries * (context * 14 + 12 * config.index_topk)
    return max(indexing, attending + 8 * queries * config.index_topk)
