"""The lightning indexer: which tokens of the context a query attends to.

Attention layers with a full indexer call it; layers that share reuse the choice. Selection carries no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from glm5_runtime.model.layers import LayerNorm, Linear

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


@dataclass(frozen=True, slots=True)
class StepContext:
    """What every layer of a step needs: the batch, the rotary angles of its tokens ([N, R/2] each), who selects (None: the operators)."""

    batch: Batch
    rotary: tuple[Tensor, Tensor]
    select: Selector | None


class Indexer(nn.Module):
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

    def forward(self, x: Tensor, query_latent: Tensor, context: StepContext, cache: LayerCache) -> list[Selection]:
        """Write this layer's index keys, then choose for every group: x [N, hidden], query_latent [N, q_lora_rank] after its norm."""
        assert cache.index is not None, "a full layer has an index cache"
        batch, rotary = context.batch, context.rotary
        cache.index[batch.slots] = self._rotate(self.k_norm(self.wk(x)).unsqueeze(1), rotary).squeeze(1)
        if all(group.context <= self.topk for group in batch.groups):
            return [None] * len(batch.groups)
        query = self._rotate(self.wq_b(query_latent).view(-1, self.heads, self.size), rotary)
        weights = self.weights_proj(x.float())
        return [self._choose(query, weights, cache.index, group, context.select) for group in batch.groups]

    def _choose(self, query: Tensor, weights: Tensor, keys: Tensor, group: Group, select: Selector | None) -> Selection:
        if group.context <= self.topk:
            return None
        scores = self.ops.index_scores(group.of(query), group.of(weights), keys[group.slots], group.visible)
        return self.ops.select_tokens(scores, self.topk) if select is None else select(self.layer, group, scores, self.topk)

    def _rotate(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """The first dims carry the position, the rest don't: x [N, heads, D]."""
        return torch.cat((self.ops.rotate(x[..., : self.rope], *rotary), x[..., self.rope :]), dim=-1)
