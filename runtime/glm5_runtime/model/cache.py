"""Storage of the paged cache: what attention of every layer remembers of each token.

The engine decides which pages belong to whom (`engine.blocks`); layers write and read here by slot number
(page · page size + offset). Allocated once at start and never again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from glm5_runtime.ops.paging import LayerCache

if TYPE_CHECKING:
    from torch import Tensor

    from glm5_runtime.config import ModelConfig


@dataclass(frozen=True, slots=True)
class KVCache:
    """All layers' rows for `pages` pages of `page_size` tokens, and page 0 before them, which belongs to nobody and stays zero."""

    layers: tuple[LayerCache, ...]
    pages: int
    page_size: int

    @classmethod
    def allocate(cls, config: ModelConfig, pages: int, page_size: int, device: torch.device, dtype: torch.dtype) -> KVCache:
        """Zeros: page 0 must be, and the others may be read by a masked row before they are first written."""

        def rows(width: int) -> Tensor:
            return torch.zeros((pages + 1) * page_size, width, device=device, dtype=dtype)

        layers = tuple(
            LayerCache(rows(config.kv_lora_rank), rows(config.qk_rope_head_dim), rows(config.index_head_dim) if kind == "full" else None)
            for kind in config.indexer_types
        )
        return cls(layers, pages, page_size)


def bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """Cache bytes of one token over all layers (95,232 for GLM-5.2 in bf16)."""
    latent = config.num_hidden_layers * (config.kv_lora_rank + config.qk_rope_head_dim)
    return (latent + config.indexer_types.count("full") * config.index_head_dim) * dtype.itemsize
