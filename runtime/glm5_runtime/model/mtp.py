"""The multi-token-prediction layer: from a token and the hidden state before it, a guess of what comes after the token.

Built by the decoder when drafts are wanted, run by `engine.draft`. One decoder layer behind the main ones, in the checkpoint's layer
`num_hidden_layers`, with a cache of its own: its row of position i holds token i + 1 seen together with hidden state i.
Sources: DeepSeek-V3 (arXiv 2412.19437, 2.2); vLLM's deepseek_mtp for the order of concatenation and for chained drafts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from glm5_runtime.model.indexer import StepContext
from glm5_runtime.model.layers import Linear, Module, RMSNorm

if TYPE_CHECKING:
    from glm5_runtime.config import ModelConfig
    from glm5_runtime.model.batch import Batch
    from glm5_runtime.model.decoder import DecoderLayer
    from glm5_runtime.model.layers import Embedding
    from glm5_runtime.model.parallel import Ranks
    from glm5_runtime.ops.interface import OperatorSet
    from glm5_runtime.ops.paging import LayerCache


class SharedHead(Module):
    """The layer's own norm and head."""

    def __init__(self, config: ModelConfig, ops: OperatorSet, ranks: Ranks) -> None:
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, ops)
        self.head = Linear(config.hidden_size, config.vocab_size // ranks.tensor_size)


class DraftLayer(Module):
    """`eh_proj` of the two norms' outputs, then a decoder layer like the others. Parameter names follow the checkpoint's layer."""

    def __init__(self, config: ModelConfig, layer: DecoderLayer, ops: OperatorSet) -> None:
        super().__init__()
        self.ops, self.theta, self.rope = ops, config.rope_theta, config.qk_rope_head_dim
        self.enorm = RMSNorm(config.hidden_size, config.rms_norm_eps, ops)
        self.hnorm = RMSNorm(config.hidden_size, config.rms_norm_eps, ops)
        self.eh_proj = Linear(2 * config.hidden_size, config.hidden_size)
        self.block, self.ranks = layer, layer.ranks
        self.shared_head = SharedHead(config, ops, layer.ranks)

    def forward(self, batch: Batch, embed: Embedding, hidden: Tensor, cache: LayerCache) -> Tensor:
        """[N, hidden] of the tokens before → [N, hidden], for `logits` and for the next draft."""
        x = self.eh_proj(torch.cat((self.enorm(embed(batch.tokens)), self.hnorm(hidden)), dim=-1))
        context = StepContext(batch, self.ops.rotary(batch.positions, self.theta, self.rope), None)
        drafted: Tensor = self.block(x, context, cache, [])[0]
        return drafted

    def logits(self, drafted: Tensor) -> Tensor:
        """[M, hidden] → [M, vocabulary]."""
        return self.ranks.columns(self.shared_head.head(self.shared_head.norm(drafted)))
