"""Rows in memory, which of them are held back for evaluation, and the batches of each epoch.

Built by the command, asked by the loop. What an epoch looks like follows from the settings, its number and the seed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import TYPE_CHECKING, Literal, overload

from glm5_runtime.train.data.batches import BatchConfig, filled, plan_epoch
from glm5_runtime.train.data.example import Example

if TYPE_CHECKING:
    from glm5_runtime.train.config import TrainConfig
    from glm5_runtime.train.data.batches import Batch
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
    config: TrainConfig

    def epoch(self, number: int) -> Selected:
        """The batches of an epoch, counted from 0."""
        every = self.data.lengths
        chosen = self._batches([every[row] for row in self.rows], number)
        return Selected(self.data, [[self.rows[row] for row in batch] for batch in chosen])

    def _batches(self, lengths: Sequence[int], epoch: int) -> list[list[int]]:
        """Rows of about one length, or packed: so many of them, or as many as the tokens of a batch allow."""
        training = self.config.training
        size, seed = training.batch_size, training.seed
        if training.batch_tokens is not None:
            mode: Literal["packed", "buckets"] = "packed" if training.packing else "buckets"
            return _flat(plan_epoch(lengths, BatchConfig(training.batch_tokens, mode, seed), epoch).batches)
        if training.packing:
            full = plan_epoch(lengths, BatchConfig(filled(self.config.data.max_length), "packed", seed), epoch).batches
            return [list(chain.from_iterable(_flat(full[at : at + size]))) for at in range(0, len(full), size)]
        return by_length(lengths, size, Random(f"{seed}/{epoch}"))  # noqa: S311 - an order, no secret


def _flat(batches: Sequence[Batch]) -> list[list[int]]:
    return [[row for group in batch.rows for row in group] for batch in batches]


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


def split(rows: Sequence[int], share: float, seed: int) -> tuple[list[int], list[int]]:
    """Examples to train on and those that are held back, each in their order; `rows`: of which row of the files each one is.

    The share is one of rows, and all examples of a row are on one side: they repeat each other's text, so a model that has learned
    one knows the others. With a share above zero at least one row is held back.
    """
    every = sorted(set(rows))
    held = 0 if not share else max(1, round(len(every) * share))
    chosen = set(Random(f"{seed}/held back").sample(every, min(held, len(every))))  # noqa: S311 - as above
    places = range(len(rows))
    return [at for at in places if rows[at] not in chosen], [at for at in places if rows[at] in chosen]
