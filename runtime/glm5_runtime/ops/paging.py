"""What the operators read and write: one layer's paged cache, the queries of one call, the tokens chosen for them.

Built by `model.batch` and `model.cache`, read by every operator set. Legend: see `ops.interface`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from glm5_runtime.ops.packing import PackedRows

    Rows = Tensor | PackedRows
    """Cache rows [S, W] as they are, or in fewer bits."""


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's paged cache: latent [S, L] after its norm, rope [S, R] after rotation, index [S, D] on layers with an indexer.

    Row = page · page size + offset. Page 0 belongs to nobody and stays zero: padding reads it, and a masked row weighs nothing, but
    nothing times another request's NaN would be NaN.
    """

    latent: Rows
    rope: Rows
    index: Rows | None


@dataclass(slots=True)
class Selection:
    """The context tokens that each query of a group attends to: positions [B, Q, K] int64. One beyond the query's own is padding.

    `form` is the set's to keep what it works out from them: layers that share a choice share that too.
    """

    positions: Tensor
    form: Any = None


@dataclass
class Queries:
    """Queries computed in one call: `rows` of the step's token axis, seen as [B, Q], and where their sequences' tokens lie.

    positions [B, Q] int64; ends: each sequence's tokens, its last query included; page_lists: each sequence's pages.
    """

    rows: slice
    positions: Tensor
    ends: Sequence[int]
    page_lists: Sequence[Sequence[int]]
    page_size: int

    @property
    def context(self) -> int:
        """T: tokens of the longest context."""
        return max(self.ends)

    @cached_property
    def pages(self) -> Tensor:
        """Pages of the contexts, [B, P] int64; 0 past an end."""
        used = [-(-end // self.page_size) for end in self.ends]
        rows = [[*pages[:count], *[0] * (max(used) - count)] for pages, count in zip(self.page_lists, used, strict=True)]
        return torch.tensor(rows, device=self.positions.device)

    @cached_property
    def first(self) -> int | None:
        """Cache row of position 0 where the pages of a single sequence follow each other: then the context is a slice."""
        if len(self.ends) > 1:
            return None
        pages = self.page_lists[0][: -(-self.ends[0] // self.page_size)]
        return pages[0] * self.page_size if all(after - page == 1 for page, after in pairwise(pages)) else None

    @cached_property
    def slots(self) -> Tensor:
        """Cache rows of the contexts, [B, T] int64; rows of page 0 past an end."""
        offsets = torch.arange(self.page_size, device=self.pages.device)
        return (self.pages.unsqueeze(-1) * self.page_size + offsets).flatten(1)[:, : self.context]

    @cached_property
    def hidden(self) -> Tensor | None:
        """What a query may not see, [B, Q, T] bool; None when every query sees the whole context."""
        if self.positions.shape[1] == 1 and min(self.ends) == self.context:
            return None
        return torch.arange(self.context, device=self.positions.device) > self.positions.unsqueeze(-1)

    def of(self, x: Tensor) -> Tensor:
        """This group's part of a per-token tensor: [N, ...] → [B, Q, ...]."""
        return x[self.rows].view(*self.positions.shape, *x.shape[1:])

    def read(self, cache: Rows) -> Tensor:
        """The contexts' rows of a cache [S, W] → [B, T, W]: a view where they lie side by side and are no packed ones."""
        if self.first is not None:
            return cache[self.first : self.first + self.context].unsqueeze(0)
        if isinstance(cache, torch.Tensor):  # page by page: rows are short, and copying them one by one takes eight times as long
            whole = cache.view(-1, self.page_size * cache.shape[1]).index_select(0, self.pages.flatten())
            return whole.view(len(self.ends), -1, cache.shape[1])[:, : self.context]
        return cache.index_select(0, self.slots.flatten()).view(*self.slots.shape, cache.shape[1])

    def read_in_parts(self, cache: Rows, size: int) -> Iterator[Tensor]:
        """The same in parts of up to so many rows, along T."""
        step = max(1, size // len(self.ends))
        for start in range(0, self.context, step):
            end = min(start + step, self.context)
            if self.first is not None:
                yield cache[self.first + start : self.first + end].unsqueeze(0)
            else:
                slots = self.slots[:, start:end]
                yield cache.index_select(0, slots.flatten()).view(*slots.shape, cache.shape[1])
