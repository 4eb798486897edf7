"""One step's work as tensors: which tokens at which positions, where their cache rows are, which share an attention call.

Built by the engine's runner from chunks of sequences, read by attention and indexer. Holds no weights and no policy.

A chunk is some next tokens of one sequence. Chunks of one token (decodes) are computed side by side in one group of B rows;
a longer chunk (prefill) is cut into blocks of queries, so that no tensor grows with the square of the context.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from glm5_runtime.config import ModelConfig

WORKSPACE_BYTES = 384 << 20
"""Aim for all temporaries of one attention call together. Small enough to stay beside the weights, large enough for full matrix products.

One query of a very long context needs more and gets it: GLM-5's index keys alone are 0.8 GB at a million tokens."""
_GATHERED = 6
"""Bytes of a cached number in use: itself in bf16 and its copy in fp32. An fp32 cache is used as it is, with 4."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """`tokens` of one sequence from position `start` on; `pages` hold all its tokens up to the last of these."""

    tokens: Sequence[int]
    start: int
    pages: Sequence[int]


@dataclass(frozen=True, slots=True)
class Group:
    """Queries attended in one call: `rows` of the flat token axis seen as [B, Q].

    slots [B, T] int64: cache rows of each sequence's context, 0 past its end; visible [B, Q, T] bool: what a query may see.
    """

    rows: slice
    slots: Tensor
    visible: Tensor
    positions: Tensor  # [B, Q] int64

    @property
    def context(self) -> int:
        """T: tokens of the longest context."""
        return self.slots.shape[1]

    def of(self, x: Tensor) -> Tensor:
        """This group's part of a per-token tensor: [N, ...] → [B, Q, ...]."""
        return x[self.rows].view(*self.positions.shape, *x.shape[1:])


@dataclass(frozen=True, slots=True)
class Batch:
    """tokens, positions, slots: [N] int64, chunk after chunk; groups cover the N rows in order."""

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    groups: tuple[Group, ...]


def build_batch(
    chunks: Sequence[Chunk], config: ModelConfig, page_size: int, device: torch.device, workspace: int = WORKSPACE_BYTES
) -> Batch:
    """Tensors for the chunks, in their order. Put decodes next to each other: each run of them is one group."""
    tokens = torch.tensor([token for chunk in chunks for token in chunk.tokens])
    positions = torch.cat([torch.arange(chunk.start, chunk.start + len(chunk.tokens)) for chunk in chunks])
    slots, groups, row = [], [], 0
    for block in _blocks(chunks, config, workspace):
        context = _context_slots(block, page_size)
        queries = len(block[0].tokens)
        count = len(block) * queries
        at = positions[row : row + count].view(len(block), queries)
        visible = torch.arange(context.shape[1]) <= at.unsqueeze(-1)
        slots.append(context.gather(1, at).flatten())
        groups.append(Group(slice(row, row + count), context.to(device), visible.to(device), at.to(device)))
        row += count
    return Batch(tokens.to(device), positions.to(device), torch.cat(slots).to(device), tuple(groups))


def _blocks(chunks: Sequence[Chunk], config: ModelConfig, workspace: int) -> Iterator[list[Chunk]]:
    """Chunks that one call attends: several of one token, or a piece of a longer one; as many queries as the workspace takes."""
    for is_decode, run in groupby(chunks, key=lambda chunk: len(chunk.tokens) == 1):
        same = list(run)
        if is_decode:
            longest = max(chunk.start + 1 for chunk in same)
            step = max(1, workspace // workspace_bytes(longest, 1, 1, config))
            yield from (same[at : at + step] for at in range(0, len(same), step))
            continue
        for chunk in same:
            step = _most_queries(chunk, config, workspace)
            for at in range(0, len(chunk.tokens), step):
                piece = chunk.tokens[at : at + step]
                start = chunk.start + at
                yield [Chunk(piece, start, chunk.pages)]


def _most_queries(chunk: Chunk, config: ModelConfig, workspace: int) -> int:
    """How many of a chunk's queries fit in one call, at least one. What a call needs grows with their count, at one of two rates."""
    end = chunk.start + len(chunk.tokens)
    counts = range(1, len(chunk.tokens) + 1)
    return max(1, bisect_right(counts, workspace, key=lambda queries: workspace_bytes(end, 1, queries, config)))


def workspace_bytes(context: int, sequences: int, queries: int, config: ModelConfig) -> int:
    """An upper bound of what one attention call allocates at once, for `queries` of `sequences` with a context of so many tokens.

    Two phases follow each other, so the larger one counts. Indexer: a sequence's gathered keys; a query's products with every key, twice
    while they are scaled, or the scores with their sorted copy and order. Attention: gathered latents and rotary keys, of a sequence when
    every token is read, else of each query; a query's logits, three times while they are added up; its own fp32 copies and its output.
    """
    heads, cached = config.num_attention_heads, config.kv_lora_rank + config.qk_rope_head_dim
    read = min(context, config.index_topk)
    query = 3 * 4 * heads * read + 8 * heads * cached
    keys = read * (_GATHERED * cached + 16)  # and two numbers that say where they are
    if context <= config.index_topk:
        return sequences * keys + queries * query
    products = context * max(2 * 4 * config.index_n_heads, 24) + 8 * config.index_n_heads * config.index_head_dim
    indexing = sequences * context * _GATHERED * config.index_head_dim + queries * products
    return max(indexing, queries * (keys + query))


def _context_slots(block: list[Chunk], page_size: int) -> Tensor:
    """[B, T] cache rows of each chunk's context, T the longest; 0 where a context is shorter."""
    ends = [chunk.start + len(chunk.tokens) for chunk in block]
    width = -(-max(ends) // page_size)
    pages = torch.zeros(len(block), width, dtype=torch.int64)
    for row, (chunk, end) in enumerate(zip(block, ends, strict=True)):
        used = -(-end // page_size)
        pages[row, :used] = torch.tensor(chunk.pages[:used])
    slots = pages.unsqueeze(-1) * page_size + torch.arange(page_size)
    return slots.flatten(1)[:, : max(ends)]
