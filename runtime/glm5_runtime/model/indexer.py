"""The lightning indexer: which tokens of the context a query attends to.

Attention layers with a full indexer call it; layers that share reuse the choice. Selection carries no gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from glm5_runtime.model.norm import LayerNorm

if TYPE_CHECKING:
    from glm5_runtime.config import ModelConfig
    from glm5_runtime.model.batch import Batch, Group
    from glm5_runtime.model.cache import LayerCache
    from glm5_runtime.ops.interface import OperatorSet

Selection = Tensor | None
"""Chosen positions of one group's queries [B, Q, K] int64, or None: the context is short and every visible token counts."""


class Selector(Protocol):
    """Chooses tokens from scores. The operator set's own is used unless a caller (a parity test, a sparsity study) brings another."""

    def __call__(self, layer: int, group: Group, scores: Tensor, k: int) -> Tensor:
        """Scores [B, Q, T] fp32 with -inf where invisible → positions [B, Q, k] int64, visible ones first."""


class Indexer(nn.Module):
    """Scores every visible token with a few small heads: queries from the query latent, one key a token."""

    def __init__(self, config: ModelConfig, layer: int, ops: OperatorSet) -> None:
        super().__init__()
        self.layer, self.ops = layer, ops
        self.heads, self.size, self.rope = config.index_n_heads, config.index_head_dim, config.qk_rope_head_dim
        self.topk = config.index_topk
        self.wq_b = nn.Linear(config.q_lora_rank, self.heads * self.size, bias=False)
        self.wk = nn.Linear(config.hidden_size, self.size, bias=False)
        self.k_norm = LayerNorm(self.size, 1e-6, ops)
        self.weights_proj = nn.Linear(config.hidden_size, self.heads, bias=False, dtype=torch.float32)

    def forward(
        self,
        x: Tensor,  # [N, hidden]
        query_latent: Tensor,  # [N, q_lora_rank] after its norm
        rotary: tuple[Tensor, Tensor],
        cache: LayerCache,
        batch: Batch,
        select: Selector | None,
    ) -> list[Selection]:
        """Write this layer's index keys, then choose for every group of the batch."""
        assert cache.index is not None, "a full layer has an index cache"
        keys = self._rotate(self.k_norm(self.wk(x)).unsqueeze(1), rotary).squeeze(1)
        cache.index[batch.slots] = keys
        if all(group.slots.shape[1] <= self.topk for group in batch.groups):
            return [None] * len(batch.groups)
        query = self._rotate(self.wq_b(query_latent).view(-1, self.heads, self.size), rotary)
        weights = self.weights_proj(x.float())
        return [self._choose(query, weights, cache.index, group, select) for group in batch.groups]

    def _choose(self, query: Tensor, weights: Tensor, keys: Tensor, group: Group, select: Selector | None) -> Selection:
        if group.slots.shape[1] <= self.topk:
            return None
        shape = group.positions.shape
        scores = self.ops.index_scores(
            query[group.rows].unflatten(0, shape), weights[group.rows].unflatten(0, shape), keys[group.slots], group.visible
        )
        return self.ops.select_tokens(scores, self.topk) if select is None else select(self.layer, group, scores, self.topk)

    def _rotate(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """The first dims carry the position, the rest don't: x [N, heads, D]."""
        return torch.cat((self.ops.rotate(x[..., : self.rope], *rotary), x[..., self.rope :]), dim=-1)
