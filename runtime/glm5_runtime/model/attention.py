"""Multi-head latent attention in absorbed form over the paged cache, on the indexer's choice of tokens.

Called by the decoder layer. Keys and values of all heads are one latent a token (and one rotary key), so the cache is read as it
is: W_UK moves to the query's side, W_UV to the output's, and nothing is expanded per context token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from glm5_runtime.model.indexer import Indexer, Selection, StepContext
from glm5_runtime.model.layers import Linear, RMSNorm

if TYPE_CHECKING:
    from glm5_runtime.config import ModelConfig
    from glm5_runtime.model.batch import Group
    from glm5_runtime.model.cache import LayerCache
    from glm5_runtime.ops.interface import OperatorSet


class Attention(nn.Module):
    """One layer's attention; legend as in `ops.interface`, N tokens of the step."""

    def __init__(self, config: ModelConfig, layer: int, ops: OperatorSet) -> None:
        super().__init__()
        self.ops = ops
        self.heads, self.nope, self.rope = config.num_attention_heads, config.qk_nope_head_dim, config.qk_rope_head_dim
        self.latent, self.value = config.kv_lora_rank, config.v_head_dim
        self.scale = (self.nope + self.rope) ** -0.5
        self.q_a_proj = Linear(config.hidden_size, config.q_lora_rank)
        self.q_a_layernorm = RMSNorm(config.q_lora_rank, config.latent_norm_eps, ops)
        self.q_b_proj = Linear(config.q_lora_rank, self.heads * (self.nope + self.rope))
        self.kv_a_proj_with_mqa = Linear(config.hidden_size, self.latent + self.rope)
        self.kv_a_layernorm = RMSNorm(self.latent, config.latent_norm_eps, ops)
        self.kv_b_proj = Linear(self.latent, self.heads * (self.nope + self.value))
        self.o_proj = Linear(self.heads * self.value, config.hidden_size)
        self.indexer = Indexer(config, layer, ops) if config.indexer_types[layer] == "full" else None

    def forward(self, x: Tensor, context: StepContext, cache: LayerCache, shared: list[Selection]) -> tuple[Tensor, list[Selection]]:
        """[N, hidden] → [N, hidden], and the selection used, for the layers that share it (`shared` is the last full layer's)."""
        resident = self.q_a_layernorm(self.q_a_proj(x))
        query = self.q_b_proj(resident).view(-1, self.heads, self.nope + self.rope)
        query_nope, query_rope = query[..., : self.nope], self.ops.rotate(query[..., self.nope :], *context.rotary)
        self._remember(x, context, cache)
        selection = shared if self.indexer is None else self.indexer(x, resident, context, cache)
        expand = self.kv_b_proj.weight.view(self.heads, self.nope + self.value, self.latent)
        w_uk, w_uv = expand[:, : self.nope], expand[:, self.nope :]
        query_latent = torch.matmul(query_nope.transpose(0, 1), w_uk).transpose(0, 1)  # [N, H, L]
        groups = zip(context.batch.groups, selection, strict=True)
        mixed = torch.cat([self._attend(query_latent, query_rope, cache, group, chosen) for group, chosen in groups])
        output = torch.matmul(mixed.transpose(0, 1), w_uv.transpose(1, 2)).transpose(0, 1)  # [N, H, V]
        return self.o_proj(output.flatten(1)), selection

    def _remember(self, x: Tensor, context: StepContext, cache: LayerCache) -> None:
        """Write the step's tokens before anyone reads: a token attends to itself."""
        both = self.kv_a_proj_with_mqa(x)
        cache.latent[context.batch.slots] = self.kv_a_layernorm(both[:, : self.latent])
        cache.rope[context.batch.slots] = self.ops.rotate(both[:, self.latent :].unsqueeze(1), *context.rotary).squeeze(1)

    def _attend(self, query_latent: Tensor, query_rope: Tensor, cache: LayerCache, group: Group, chosen: Selection) -> Tensor:
        """One group's queries against the chosen cache rows only, [B·Q, H, L]."""
        if chosen is None:
            rows, visible = group.slots.unsqueeze(1), group.visible
        else:
            rows = group.slots.unsqueeze(1).expand(-1, chosen.shape[1], -1).gather(-1, chosen)
            visible = chosen <= group.positions.unsqueeze(-1)
        latent, key_rope = cache.latent[rows], cache.rope[rows]
        query = group.of(query_latent), group.of(query_rope)
        return self.ops.attend(*query, latent, key_rope, visible=visible, scale=self.scale).flatten(0, 1)
