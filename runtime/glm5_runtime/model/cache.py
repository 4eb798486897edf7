"""Storage of the paged cache: what attention of every layer remembers of each token.

The engine decides which pages belong to whom (`engine.blocks`); layers write and read here by slot number
(page · page size + offset). Allocated once at start and never again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from glm5_runtime.ops.packing import PackedRows
from glm5_runtime.ops.paging import LayerCache

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from glm5_runtime.config import ModelConfig
    from glm5_runtime.ops.paging import Rows

INT4: torch.dtype = getattr(torch, "int4")  # noqa: B009 - torch has it, its type stubs don't
_BITS = {torch.int8: 8, INT4: 4}


@dataclass(frozen=True, slots=True)
class KVCache:
    """All layers' rows for `pages` pages of `page_size` tokens, and page 0 before them, which belongs to nobody and stays zero."""

    layers: tuple[LayerCache, ...]
    pages: int
    page_size: int

    @classmethod
    def allocate(cls, config: ModelConfig, pages: int, page_size: int, device: torch.device, dtype: torch.dtype) -> KVCache:
        """Zeros: page 0 must be, and the others may be read by a masked row before they are first written.

        Writing them also takes the memory, which a host only promises at allocation.
        dtype: a float type, or torch.int8 or torch.int4, which are packed with a scale a row. Index keys have 8 bits at least: they choose.
        """

        def rows(width: int, least_bits: int = 4) -> Rows:
            count = (pages + 1) * page_size
            if dtype in _BITS:
                return PackedRows.allocate(count, width, max(_BITS[dtype], least_bits), device)
            return torch.zeros(count, width, device=device, dtype=dtype)

        layers = tuple(
            LayerCache(rows(config.kv_lora_rank), rows(config.qk_rope_head_dim), rows(config.index_head_dim, 8) if kind == "full" else None)
            for kind in config.indexer_types
        )
        return cls(layers, pages, page_size)

    def tensors(self) -> Iterator[Tensor]:
        """All memory of the cache."""
        for layer in self.layers:
            for rows in (layer.latent, layer.rope, layer.index):
                if isinstance(rows, PackedRows):
                    yield from (rows.values, rows.scale)
                elif rows is not None:
                    yield rows


def bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """Cache bytes of one token over all layers, scales included (95,232 for GLM-5.2 in bf16)."""
    return sum(tensor.nbytes for tensor in KVCache.allocate(config, 0, 1, torch.device("meta"), dtype).tensors())
