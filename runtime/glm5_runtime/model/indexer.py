"""The lightning indexer: which tokens of the context a query attends to.

Attention layers with a full indexer call it; layers that share reuse the choice. Selection carries no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from glm5_runtime.model.layers import LayerNorm, Linear, Module

if TYPE_CHECKING:
    from glm5_runtime.config import ModelConfig
    from glm5_runtime.model.batch import Batch
    from glm5_runtime.ops.interface import OperatorSet, Rotary
    from glm5_runtime.ops.paging import LayerCache, Queries, Selection

Choice = list["Selection | None"]
"""One entry a group. None: the context is short and every visible token counts."""


class Selector(Protocol):
    """Chooses tokens from scores. The operator set's own is used unless a caller (a parity test, a sparsity study) brings another."""

    def __call__(self, layer: int, queries: Queries, scores: Tensor, k: int) -> Tensor:
        """Scores [B, Q, T] fp32 with -inf where invisible → positions [B, Q, k] int64."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """What every layer of a step needs: the batch, the rotary angles of its tokens, who selects (None: the operators)."""

    batch: Batch
    rotary: Rotary
    select: Selector | None


class Indexer(Module):
    """Scores every visible token with a few small heads: queries from the query latent, one key a token."""

    def __init__(self, config: ModelConfig, layer: int, ops: OperatorSet) -> None:
        super().__init__()
        self.layer, self.ops = layer, ops
        self.heads, self.size, self.rope = config.index_n_heads, config.index_head_dim, config.qk_rope_head_dim
        self.topk = config.index_topk
        self.wq_b = Linear(config.q_lora_rank, self.heads * self.size)
        self.wk = Linear(config.hidden_size, self.size)
        self.k_norm = LayerNorm(self.size, 1e-6, ops)
        self.weights_proj = Linear(config.hidden_size, self.heads, dtype=torch.float32)

    def forward(self, x: Tensor, query_latent: Tensor, context: StepContext, cache: LayerCache) -> Choice:
        """Write this layer's index keys, then choose for every group: x [N, hidden], query_latent [N, q_lora_rank] after its norm."""
        groups, rotary = context.batch.groups, context.rotary
        if x.requires_grad:  # else autograd would follow, and keep, what ends in a choice
            x, query_latent = x.detach(), query_latent.detach()
        key = self.k_norm(self.wk(x))
        self.ops.rotate(key[:, : self.rope].unsqueeze(1), rotary)  # the first dims carry the position, the rest don't
        self.ops.remember_index(key, context.batch.slots, cache)
        if all(queries.context <= self.topk for queries in groups):
            return [None] * len(groups)
        query = self.wq_b(query_latent).view(-1, self.heads, self.size)
        self.ops.rotate(query[..., : self.rope], rotary)
        weights = self.weights_proj(x.float())
        return [self._choose(query, weights, cache, queries, context.select) for queries in groups]

    def _choose(self, query: Tensor, weights: Tensor, cache: LayerCache, queries: Queries, select: Selector | None) -> Selection | None:
        if queries.context <= self.topk:
            return None
        own = None if select is None else partial(select, self.layer, queries)
        return self.ops.choose(query, weights, cache, queries, k=self.topk, select=own)
