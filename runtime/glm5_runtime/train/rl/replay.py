"""Rollouts that wait for their updates: host memory taken once, pinned where there is a card, and batches gathered from it.

Called by the RL loop: rollout workers add, the update gathers. A batch is copied once on the host, rows straight into the memory that the
card then reads on its own (pinned memory needs no second copy by the driver, and the host doesn't wait). Not for several threads at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Columns:
    """What a rollout consists of, by name: a number for each of its tokens, and numbers of the rollout as a whole."""

    tokens: Mapping[str, torch.dtype]
    whole: Mapping[str, torch.dtype]


@dataclass(frozen=True, slots=True)
class ReplayBatch:
    """Rollouts side by side on the device: `tokens` each [B, T] (T of the longest, 0 behind a row's end), `whole` and `lengths` [B]."""

    tokens: Mapping[str, Tensor]
    whole: Mapping[str, Tensor]
    lengths: Tensor


class ReplayBuffer:
    """The last `capacity` rollouts, each of `length` tokens at most; a newer one takes the place of the oldest.

    Rows are named by their place, 0 to len - 1, which a rollout keeps until it is replaced.
    """

    def __init__(self, columns: Columns, capacity: int, length: int, device: torch.device) -> None:
        """Takes all memory at once, on the host. `device` is where batches go."""
        if capacity < 1 or length < 1:
            raise ValueError(f"a replay buffer needs room: {capacity} rollouts of {length} tokens")
        if both := columns.tokens.keys() & columns.whole.keys():
            raise ValueError(f"columns both of tokens and of the whole: {', '.join(sorted(both))}")
        self.columns, self.capacity, self.length, self.device = columns, capacity, length, device
        self._pinned = device.type != "cpu"
        self._tokens = {name: self._zeros(kind, capacity, length) for name, kind in columns.tokens.items()}
        self._whole = {name: self._zeros(kind, capacity) for name, kind in columns.whole.items()}
        self._lengths = self._zeros(torch.int64, capacity)
        self._added = 0

    def __len__(self) -> int:
        """Rollouts that are there."""
        return min(self._added, self.capacity)

    @property
    def bytes(self) -> int:
        """Host memory taken."""
        return sum(each.nbytes for each in (*self._tokens.values(), *self._whole.values(), self._lengths))

    def add(self, tokens: Mapping[str, Tensor], whole: Mapping[str, float]) -> int:
        """Copy one rollout in, from any device: each of `tokens` [n]. Gives its place.

        ValueError, and nothing is changed, when columns are missing or unknown, lengths differ or don't fit, fractions would become whole
        numbers, or a number isn't finite: one NaN would destroy every batch that it gets into.
        """
        length = self._length(tokens, whole)
        row = self._added % self.capacity
        for name, values in tokens.items():
            column = self._tokens[name][row]
            column[:length].copy_(values)
            column[length:] = 0
        for name, number in whole.items():
            self._whole[name][row] = number
        self._lengths[row] = length
        self._added += 1
        return row

    def clear(self) -> None:
        """Forget all rollouts, as on-policy training does after each update."""
        self._added = 0

    def sample(self, number: int, generator: torch.Generator) -> Tensor:
        """Places of so many different rollouts at random, [number] int64 on the host. ValueError when there aren't as many."""
        if not 0 < number <= len(self):
            raise ValueError(f"{number} rollouts of {len(self)} can't be drawn")
        return torch.randperm(len(self), generator=generator)[:number]

    def gather(self, rows: Tensor | Sequence[int]) -> ReplayBatch:
        """The rollouts at these places, in this order, as one batch on the device. A later `add` doesn't change it. IndexError: no such."""
        rows = torch.as_tensor(rows, dtype=torch.int64, device="cpu")
        if rows.dim() != 1 or not len(rows):
            raise ValueError(f"rows must be [B] with B at least 1, not {list(rows.shape)}")
        if int(rows.min()) < 0 or int(rows.max()) >= len(self):
            raise IndexError(f"there are rollouts 0 to {len(self) - 1}, asked for {int(rows.min())} to {int(rows.max())}")
        width = int(self._lengths[rows].max())
        return ReplayBatch(
            {name: self._taken(column[:, :width], rows) for name, column in self._tokens.items()},
            {name: self._taken(column, rows) for name, column in self._whole.items()},
            self._taken(self._lengths, rows),
        )

    def _taken(self, column: Tensor, rows: Tensor) -> Tensor:
        """Rows of a column on the device. Each batch gets staging memory of its own from torch's pool of pinned blocks.

        The pool gives a block out again only when the card has read it; one block for all batches would be overwritten under its transfer.
        """
        staged = torch.empty(len(rows), *column.shape[1:], dtype=column.dtype, pin_memory=self._pinned)
        torch.index_select(column, 0, rows, out=staged)
        return staged.to(self.device, non_blocking=True)  # on the CPU: `staged` itself

    def _length(self, tokens: Mapping[str, Tensor], whole: Mapping[str, float]) -> int:
        for given, known in ((tokens, self._tokens), (whole, self._whole)):
            if wrong := given.keys() ^ known.keys():
                raise ValueError(f"columns missing or unknown: {', '.join(sorted(wrong))}")
        shapes = {name: tuple(values.shape) for name, values in tokens.items()}
        sizes = set(shapes.values())
        if len(sizes) != 1 or len(next(iter(sizes))) != 1:
            raise ValueError(f"a rollout's columns must be equally long, [n] each: {shapes}")
        ((length,),) = sizes
        if not 0 < length <= self.length:
            raise ValueError(f"a rollout of {length} tokens; there is room for 1 to {self.length}")
        for name, values in tokens.items():
            if not torch.can_cast(values.dtype, self._tokens[name].dtype):
                raise ValueError(f"{name} is {values.dtype}, the buffer keeps {self._tokens[name].dtype}")
            if not bool(values.isfinite().all()):
                raise ValueError(f"{name} has numbers that aren't finite")
        for name, number in whole.items():
            if not math.isfinite(number):
                raise ValueError(f"{name} is {number}")
            if not self._whole[name].is_floating_point() and number != int(number):
                raise ValueError(f"{name} is {number}, the buffer keeps whole numbers of it")
        return length

    def _zeros(self, kind: torch.dtype, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=kind, pin_memory=self._pinned)
