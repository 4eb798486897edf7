"""Multi-head latent attention in absorbed form over the paged cache, on the indexer's choice of tokens.

Called by the decoder layer. Keys and values of all heads are one latent a token (and one rotary key), so the cache is read as it
is: W_UK moves to the query's side, W_UV to the output's, and nothing is expanded per context token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from glm5_runtime.model.indexer import Indexer, StepContext
from glm5_runtime.model.layers import Linear, Module, RMSNorm
from glm5_runtime.model.parallel import ALONE

if TYPE_CHECKING:
    from glm5_runtime.config import ModelConfig
    from glm5_runtime.model.indexer import Choice
    from glm5_runtime.model.parallel import Ranks
    from glm5_runtime.ops.interface import OperatorSet
    from glm5_runtime.ops.paging import LayerCache


class Attention(Module):
    """One layer's attention, or a tensor rank's heads of it; legend as in `ops.interface`, N tokens of the step."""

    def __init__(self, config: ModelConfig, layer: int, ops: OperatorSet, ranks: Ranks = ALONE) -> None:
        super().__init__()
        self.ops = ops
        self.heads = config.num_attention_heads // ranks.tensor_size
        self.nope, self.rope = config.qk_nope_head_dim, config.qk_rope_head_dim
        self.latent, self.value = config.kv_lora_rank, config.v_head_dim
        self.scale = (self.nope + self.rope) ** -0.5
        self.q_lora = config.q_lora_rank
        self.qkv_a_proj = Linear(config.hidden_size, self.q_lora + self.latent + self.rope)  # q_a_proj, then kv_a_proj_with_mqa
        self.q_a_layernorm = RMSNorm(config.q_lora_rank, config.latent_norm_eps, ops)
        self.q_b_proj = Linear(config.q_lora_rank, self.heads * (self.nope + self.rope))
        self.kv_a_layernorm = RMSNorm(self.latent, config.latent_norm_eps, ops)
        self.kv_b_proj = Linear(self.latent, self.heads * (self.nope + self.value))
        self.o_proj = Linear(self.heads * self.value, config.hidden_size)
        self.indexer = Indexer(config, layer, ops) if config.indexer_types[layer] == "full" else None
        self.absorbed: tuple[Tensor, Tensor] | None = None

    def absorb(self) -> tuple[Tensor, Tensor]:
        """W_UK [H, nope, L] and W_UV [H, L, V] of kv_b_proj, views of its weight."""
        expand = self.kv_b_proj.weight.view(self.heads, self.nope + self.value, self.latent)
        return expand[:, : self.nope], expand[:, self.nope :].mT

    def settle(self) -> None:
        """Work the absorbed matrices out once."""
        self.absorbed = self.absorb()

    def to_latent(self, query: Tensor) -> Tensor:
        """The keys' side of kv_b_proj, on the queries: [N, H, nope] → [N, H, L]."""
        return torch.bmm(query.transpose(0, 1), (self.absorbed or self.absorb())[0]).transpose(0, 1)

    def from_latent(self, mixed: Tensor) -> Tensor:
        """The values' side of it, on the attended latents: [N, H, L] → [N, H, V]."""
        return torch.bmm(mixed.transpose(0, 1), (self.absorbed or self.absorb())[1]).transpose(0, 1)

    def forward(self, x: Tensor, context: StepContext, cache: LayerCache, shared: Choice) -> tuple[Tensor, Choice]:
        """[N, hidden] → [N, hidden], to be summed over the tensor ranks, and the selection used, for the layers that share it.

        `shared` is the last full layer's.
        """
        down = self.qkv_a_proj(x)
        resident = self.q_a_layernorm(down[:, : self.q_lora])
        query = self.q_b_proj(resident).view(-1, self.heads, self.nope + self.rope)
        query_rope = query[..., self.nope :]
        self.ops.rotate(query_rope, context.rotary)
        kv, norm = down[:, self.q_lora :], self.kv_a_layernorm
        self.ops.remember(
            kv, norm.weight, norm.eps, context.rotary, slots=context.batch.slots, cache=cache
        )  # first: a token attends to itself
        choice = shared if self.indexer is None else self.indexer(x, resident, context, cache)
        latent = self.to_latent(query[..., : self.nope])
        mixed = [
            self.ops.attend(latent, query_rope, cache, queries, selection, scale=self.scale)
            for queries, selection in zip(context.batch.groups, choice, strict=True)
        ]
        output = self.from_latent(mixed[0] if len(mixed) == 1 else torch.cat(mixed))
        return self.o_proj(output.flatten(1)), choice
