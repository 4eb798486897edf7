"""Rows in memory, which of them are held back for evaluation, and the batches of each epoch.

Built by the command, asked by the loop. What an epoch looks like follows from the settings, its number and the seed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, overload

from glm5_runtime.train.data.batches import BatchConfig, plan_epoch
from glm5_runtime.train.data.example import Example

if TYPE_CHECKING:
    from glm5_runtime.train.config import TrainingConfig
    from glm5_runtime.train.data.dataset import Dataset

_WINDOW = 64
"""Batches' worth of rows in random order that are sorted by length together: enough for rows of one length to meet."""


class Selected(Sequence[list[Example]]):
    """Batches of a dataset's rows, each looked up when it is asked for."""

    def __init__(self, data: Dataset, batches: Sequence[Sequence[int]]) -> None:
        self._data, self._batches = data, batches

    def __len__(self) -> int:
        return len(self._batches)

    @overload
    def __getitem__(self, index: int) -> list[Example]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[Example]]: ...
    def __getitem__(self, index: int | slice) -> list[Example] | list[list[Example]]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        return [self._data[row] for row in self._batches[index]]


@dataclass(frozen=True)
class Source:
    """The rows to train on, as `loop.Batches`."""

    data: Dataset
    rows: Sequence[int]
    config: TrainingConfig

    def epoch(self, number: int) -> Selected:
        """Batches of rows of about one length: so many rows, or as many as the tokens of a batch allow."""
        every = self.data.lengths
        lengths = [every[row] for row in self.rows]
        if self.config.batch_tokens is not None:
            plan = plan_epoch(lengths, BatchConfig(self.config.batch_tokens, seed=self.config.seed), number)
            chosen = [[row for group in batch.rows for row in group] for batch in plan.batches]
        else:
            chosen = by_length(lengths, self.config.batch_size, Random(f"{self.config.seed}/{number}"))  # noqa: S311 - an order, no secret
        return Selected(self.data, [[self.rows[row] for row in batch] for batch in chosen])


def by_length(lengths: Sequence[int], size: int, random: Random | None = None) -> list[list[int]]:
    """Batches of `size` rows of about one length, one with fewer among them; in random order, or from the longest to the shortest."""
    order = list(range(len(lengths)))
    if random is None:
        order.sort(key=lambda row: -lengths[row])
        return [order[at : at + size] for at in range(0, len(order), size)]
    random.shuffle(order)
    batches = []
    for start in range(0, len(order), _WINDOW * size):
        window = sorted(order[start : start + _WINDOW * size], key=lambda row: -lengths[row])
        batches += [window[at : at + size] for at in range(0, len(window), size)]
    random.shuffle(batches)
    return batches


def split(count: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Rows to train on and rows that are held back, each in their order; with a share above zero at least one is held back."""
    held = 0 if not share else max(1, round(count * share))
    chosen = set(Random(f"{seed}/held back").sample(range(count), min(held, count)))  # noqa: S311 - as above
    return [row for row in range(count) if row not in chosen], sorted(chosen)
