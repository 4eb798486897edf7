"""The decoder as it is trained: from rows to a loss, one micro-batch a call.

The loop calls `TrainingModel` and nothing of the decoder, so that DDP or FSDP can wrap it, and FSDP each layer. Every layer writes its
tokens into a cache of its own that lives as long as the micro-batch: gradients reach keys through it, and a layer that is computed again
for the backward pass begins with a fresh one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from glm5_runtime.model.indexer import StepContext
from glm5_runtime.ops.paging import LayerCache
from glm5_runtime.train.loss import summed_loss
from glm5_runtime.train.packing import PAGE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from glm5_runtime.model.decoder import Decoder, DecoderLayer
    from glm5_runtime.model.indexer import Choice, Selector
    from glm5_runtime.train.packing import Pack


class TrainingModel(nn.Module):
    """A decoder with trainable parameters, and its loss."""

    def __init__(self, decoder: Decoder, *, recompute: bool = False, select: Selector | None = None) -> None:
        """`recompute`: activation checkpointing, layer by layer; `select` overrides the choice of tokens, as in `Decoder`."""
        super().__init__()
        self.decoder, self.recompute, self.select = decoder, recompute, select

    def forward(self, pack: Pack) -> Tensor:
        """Cross entropy summed over the tokens that are learned, fp32. Whoever knows how many a step has divides."""
        hidden = self.decoder.norm(self.stream(pack)[pack.rows])
        return summed_loss(hidden, self.decoder.lm_head.weight, pack.targets)

    def stream(self, pack: Pack) -> Tensor:
        """What the last layer gives, before the final norm: [N, hidden]."""
        decoder, batch = self.decoder, pack.batch
        rotary = decoder.ops.rotary(batch.positions, decoder.config.rope_theta, decoder.config.qk_rope_head_dim)
        context = StepContext(batch, rotary, self.select)
        x: Tensor = decoder.embed_tokens(batch.tokens)
        choice: Choice = []
        for layer in cast("Iterable[DecoderLayer]", decoder.layers):
            if self.recompute and self.training:
                x, choice = checkpoint(self._layer, layer, x, context, choice, pack.pages, use_reentrant=False)
            else:
                x, choice = self._layer(layer, x, context, choice, pack.pages)
        return x

    def _layer(self, layer: DecoderLayer, x: Tensor, context: StepContext, choice: Choice, pages: int) -> tuple[Tensor, Choice]:
        config, rows = self.decoder.config, (pages + 1) * PAGE
        cache = LayerCache(
            x.new_zeros(rows, config.kv_lora_rank),
            x.new_zeros(rows, config.qk_rope_head_dim),
            None if layer.self_attn.indexer is None else x.new_zeros(rows, config.index_head_dim),
        )
        output: tuple[Tensor, Choice] = layer(x, context, cache, choice)
        return output
