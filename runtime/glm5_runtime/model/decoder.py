"""The decoder: embedding, layers, final norm, head. One step of any mix of prefills and decodes.

Built on the meta device and filled by `weights`; the engine's runner calls it. Parameter names follow the checkpoint
(without its `model.` prefix) so that adapters and sharding plans can name them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from glm5_runtime.model.attention import Attention
from glm5_runtime.model.indexer import StepContext
from glm5_runtime.model.layers import Embedding, Linear, Module, RMSNorm
from glm5_runtime.model.moe import MLP, MoE
from glm5_runtime.model.mtp import DraftLayer
from glm5_runtime.model.parallel import ALONE

if TYPE_CHECKING:
    from glm5_runtime.config import ModelConfig
    from glm5_runtime.model.adapters import Adapters
    from glm5_runtime.model.batch import Batch
    from glm5_runtime.model.cache import KVCache
    from glm5_runtime.model.indexer import Choice, Selector
    from glm5_runtime.model.parallel import Ranks
    from glm5_runtime.ops.interface import OperatorSet
    from glm5_runtime.ops.paging import LayerCache


class DecoderLayer(Module):
    """Attention and feed-forward, each behind a norm and added to the stream."""

    def __init__(self, config: ModelConfig, layer: int, ops: OperatorSet, ranks: Ranks = ALONE) -> None:
        super().__init__()
        self.ranks = ranks
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, ops)
        self.self_attn = Attention(config, layer, ops, ranks)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, ops)
        dense = config.mlp_layer_types[layer] == "dense"
        self.mlp = MLP(config.hidden_size, config.intermediate_size // ranks.tensor_size, ops) if dense else MoE(config, ops, ranks)

    def forward(self, x: Tensor, context: StepContext, cache: LayerCache, shared: Choice) -> tuple[Tensor, Choice]:
        """[N, hidden] → [N, hidden] and the token selection for layers that share it."""
        attended, choice = self.self_attn(self.input_layernorm(x), context, cache, shared)
        x = x + self.ranks.sum(attended)
        return x + self.ranks.sum(self.mlp(self.post_attention_layernorm(x))), choice


class Decoder(Module):
    """The whole model, `tokens → hidden states`; logits are asked for by row, since most prompt rows need none."""

    def __init__(self, config: ModelConfig, ops: OperatorSet, ranks: Ranks = ALONE) -> None:
        super().__init__()
        self.config, self.ops, self.ranks = config, ops, ranks
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, ranks)
        self.layers = nn.ModuleList(DecoderLayer(config, layer, ops, ranks) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, ops)
        self.lm_head = Linear(config.hidden_size, config.vocab_size // ranks.tensor_size)
        self.mtp = DraftLayer(config, DecoderLayer(config, config.num_hidden_layers, ops, ranks), ops) if config.has_draft_layer else None
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        self.adapters: Adapters | None = None  # set by `adapters.install`

    def forward(self, batch: Batch, cache: KVCache, select: Selector | None = None) -> Tensor:
        """Hidden states after the final norm, [N, hidden]; writes the tokens' cache rows. `select` overrides the choice of tokens."""
        if self.adapters is not None:
            self.adapters.begin(batch.adapters, batch.everyones_adapters)
        x = self.embed_tokens(batch.tokens)
        rotary = self.ops.rotary(batch.positions, self.config.rope_theta, self.config.qk_rope_head_dim)
        context = StepContext(batch, rotary, select)
        choice: Choice = []
        for layer, layer_cache in zip(self.layers, cache.layers, strict=False):
            x, choice = layer(x, context, layer_cache, choice)
        hidden: Tensor = self.norm(x)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[M, hidden] → [M, vocabulary] fp32."""
        logits = self.ranks.columns(self.lm_head(hidden))
        return logits.float()
