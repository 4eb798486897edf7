"""Which part of the model a rank holds, and what ranks exchange while they compute it together.

Built by `engine.team`, asked by the layers. `tensor_size` ranks hold attention and dense layers once between them: heads, inner sizes and
vocabulary are cut into equal parts in order of rank. `data_size` such groups have sequences and a cache of their own and share the
routed experts. A rank alone exchanges nothing, and no operation is added to its step.

Tokens go to experts by all-gather and come back by reduce-scatter: their shapes are known before the step, so nothing waits for a count
that a device has worked out, as it would with all-to-all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class Ranks:
    """One rank's place. Rank = data rank · tensor size + tensor rank; rank 0 leads."""

    rank: int = 0
    tensor_size: int = 1
    data_size: int = 1
    spread_experts: bool = False  # routed experts are dealt out whole, over all ranks; else each is cut by its inner size
    tensor_group: Any = None
    data_group: Any = None
    counts: tuple[int, ...] = ()
    """Tokens that each data rank computes in this step."""
    done: list[tuple[str, int]] = field(default_factory=list)
    """Exchanges of this step so far, each with the width of its rows, for `finish`."""

    @property
    def size(self) -> int:
        """All ranks."""
        return self.tensor_size * self.data_size

    @property
    def tensor_rank(self) -> int:
        """Which part of attention and dense layers it holds."""
        return self.rank % self.tensor_size

    @property
    def data_rank(self) -> int:
        """Whose sequences it computes."""
        return self.rank // self.tensor_size

    @property
    def expert_size(self) -> int:
        """Over how many ranks whole experts are dealt out."""
        return self.size if self.spread_experts else 1

    @property
    def expert_cut(self) -> int:
        """Into how many parts each expert is cut."""
        return 1 if self.spread_experts else self.tensor_size

    def join(self, timeout: float, device: torch.device) -> None:
        """Make the groups; every rank of an initialised torch.distributed calls it. `timeout`: longest exchange, seconds.

        Each exchanges a number at once: what exchanges need of the device's memory is taken before anybody measures what is free.
        """
        for first in range(0, self.size, self.tensor_size):
            self._take(list(range(first, first + self.tensor_size)), "tensor_group", timeout, device)
        for first in range(self.tensor_size):
            self._take(list(range(first, self.size, self.tensor_size)), "data_group", timeout, device)

    def _take(self, members: list[int], name: str, timeout: float, device: torch.device) -> None:
        group = dist.new_group(members, timedelta(seconds=timeout))  # made by all ranks, in one order
        if self.rank in members:
            dist.all_reduce(torch.zeros(1, device=device), group=group)
            setattr(self, name, group)

    def begin(self, counts: tuple[int, ...]) -> None:
        """A step with so many tokens of each data rank."""
        self.counts = counts
        self.done.clear()

    def sum(self, x: Tensor) -> Tensor:
        """The tensor ranks' parts [N, hidden] added up, in place."""
        if self.tensor_size > 1:
            dist.all_reduce(x, group=self.tensor_group)
            self.done.append(("sum", x.shape[1]))
        return x

    def share(self, x: Tensor, *, everyone: bool = False) -> Tensor:
        """Rank 0's [N, hidden], in place, for the ranks of its tensor group or for all."""
        if everyone or self.tensor_size > 1:
            dist.broadcast(x, 0, group=None if everyone else self.tensor_group)
            self.done.append(("share_all" if everyone else "share", x.shape[1]))
        return x

    def columns(self, x: Tensor) -> Tensor:
        """The tensor ranks' columns side by side: [M, W] → [M, W · tensor size]."""
        if self.tensor_size == 1:
            return x
        parts = x.new_empty(self.tensor_size, *x.shape)
        dist.all_gather_into_tensor(parts.flatten(0, 1), x.contiguous(), group=self.tensor_group)
        self.done.append(("columns", x.shape[1]))
        return parts.transpose(0, 1).flatten(1)

    def gather(self, x: Tensor) -> Tensor:
        """All data ranks' tokens: [N of this one, hidden] → [N of all, hidden]."""
        if self.data_size == 1:
            return x
        most = max(self.counts)
        parts = x.new_empty(self.data_size * most, x.shape[1])
        dist.all_gather_into_tensor(parts, functional.pad(x, (0, 0, 0, most - len(x))).contiguous(), group=self.data_group)
        self.done.append(("gather", x.shape[1]))
        return torch.cat([part[:count] for part, count in zip(torch.split(parts, most), self.counts, strict=True)])

    def scatter(self, x: Tensor) -> Tensor:
        """The data ranks' parts added up, and to each its own tokens: [N of all, hidden] → [N of this one, hidden]."""
        if self.data_size == 1:
            return x
        most = max(self.counts)
        parts = torch.cat([functional.pad(part, (0, 0, 0, most - len(part))) for part in torch.split(x, list(self.counts))])
        own = x.new_empty(most, x.shape[1])
        dist.reduce_scatter_tensor(own, parts, group=self.data_group)
        self.done.append(("scatter", x.shape[1]))
        return own[: self.counts[self.data_rank]]

    def finish(self, script: list[tuple[str, int]], like: Tensor) -> None:
        """What is left of a step with the exchanges of `script`, with zeros in the type and on the device of `like`."""
        own, everyone = self.counts[self.data_rank], sum(self.counts)
        for name, width in script[len(self.done) :]:
            if name == "share_all":
                self.share(like.new_zeros(everyone, width), everyone=True)
            else:
                getattr(self, name)(like.new_zeros(everyone if name == "scatter" else own, width))


ALONE = Ranks()
"""The whole model on one rank."""
