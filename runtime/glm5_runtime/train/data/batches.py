"""Which examples are computed together, in what order, on which rank. Called by the loop; knows lengths only, no tokens.

An epoch's plan is a pure function of lengths, settings, seed and epoch: whoever resumes makes the same plan and goes on at any batch of it,
also on another number of ranks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from itertools import cycle, islice
from random import Random
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from glm5_runtime.train.data.example import Example

MULTIPLE = 16
"""Rows are filled up to a multiple of it: the cards' matrix units take 16 at a time, and a page of the cache holds 16."""
_WINDOW = 64
"""Buckets are made within so many batches' worth of examples in random order: enough for rows of one length to meet, few enough that
neighbours change from epoch to epoch."""


@dataclass(frozen=True)
class BatchConfig:
    """How batches are made."""

    tokens: int
    """Most tokens of a batch, padding included: rows times their width. What fits in a card's memory."""
    mode: Literal["buckets", "packed", "random"] = "buckets"
    """buckets: rows of about the same length, as many as fit. packed: whole examples behind one another in one row, which keep their
    boundaries. random: rows as they come; only to compare with."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: indices of examples, those of one row together. `counts` is false for one that only keeps a rank busy."""

    rows: tuple[tuple[int, ...], ...]
    counts: bool = True


@dataclass(frozen=True)
class Plan:
    """The batches of one epoch in their order, and what padding they need."""

    batches: tuple[Batch, ...]
    tokens: int
    padded: int
    """Tokens computed, padding included."""

    @property
    def waste(self) -> float:
        """Share of the computed tokens that are padding."""
        return 1 - self.tokens / self.padded if self.padded else 0.0

    def share(self, rank: int, ranks: int, start: int = 0) -> list[Batch]:
        """What `rank` computes from batch `start` on, which counts those of all ranks. All ranks get the same number.

        Where batches don't divide evenly, the last round is filled up with ones that don't count: each rank must take part in every
        exchange of gradients, and no example may weigh twice.
        """
        rest = self.batches[start:]
        fillers = islice(cycle(self.batches), -len(rest) % ranks)
        return [*rest, *(Batch(batch.rows, counts=False) for batch in fillers)][rank::ranks]


def plan_epoch(lengths: Sequence[int], config: BatchConfig, epoch: int) -> Plan:
    """The plan of an epoch (counted from 0) for examples of these lengths; raises ValueError for one longer than a batch."""
    longest = max(lengths, default=0)
    if filled(longest) > config.tokens:
        raise ValueError(f"an example of {longest} tokens doesn't fit in batches of {config.tokens}; allow more, or shorter rows only")
    random = Random(f"{config.seed}/{epoch}")  # noqa: S311 - an order, no secret
    order = list(range(len(lengths)))
    random.shuffle(order)
    match config.mode:
        case "packed":
            batches = _packed(lengths, order, config.tokens)
        case "buckets":
            batches = _buckets(lengths, order, config.tokens)
        case "random":
            batches = _cut(lengths, order, config.tokens)
    random.shuffle(batches)
    return Plan(tuple(batches), sum(lengths), sum(padded_tokens(batch, lengths) for batch in batches))


def padded_tokens(batch: Batch, lengths: Sequence[int]) -> int:
    """Tokens that a batch computes: each row is as wide as the widest."""
    return len(batch.rows) * max(sum(filled(lengths[index]) for index in row) for row in batch.rows)


def filled(length: int) -> int:
    """Tokens that a row of this length takes."""
    return -(-length // MULTIPLE) * MULTIPLE


def _buckets(lengths: Sequence[int], order: Sequence[int], tokens: int) -> list[Batch]:
    """Within each window by length, longest first, cut where the next row would no longer fit."""
    mean = max(1, sum(lengths) // max(1, len(lengths)))
    window = max(1, _WINDOW * tokens // mean)
    batches: list[Batch] = []
    for start in range(0, len(order), window):
        batches += _cut(lengths, sorted(order[start : start + window], key=lambda index: -lengths[index]), tokens)
    return batches


def _cut(lengths: Sequence[int], order: Sequence[int], tokens: int) -> list[Batch]:
    """Rows in this order, as many to a batch as fit beside its longest."""
    batches: list[Batch] = []
    rows: list[tuple[int, ...]] = []
    width = 0
    for index in order:
        wider = max(width, filled(lengths[index]))
        if rows and wider * (len(rows) + 1) > tokens:
            batches.append(Batch(tuple(rows)))
            rows, wider = [], filled(lengths[index])
        rows.append((index,))
        width = wider
    return [*batches, Batch(tuple(rows))] if rows else batches


def _packed(lengths: Sequence[int], order: Sequence[int], tokens: int) -> list[Batch]:
    """Best fit, longest first: each example goes where it leaves the least room. One row is a batch."""
    bins: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (what is left, bin), sorted
    for index in sorted(order, key=lambda index: -lengths[index]):
        size = filled(lengths[index])
        at = bisect_left(room, (size, -1))
        if at == len(room):
            left, place = tokens, len(bins)
            bins.append([])
        else:
            left, place = room.pop(at)
        bins[place].append(index)
        if left - size >= MULTIPLE:
            insort(room, (left - size, place))
    return [Batch((tuple(row),)) for row in bins]


# --- tensors of a batch -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Padded:
    """A batch as arrays [B rows, T width], T a multiple of 16. Padding is decided by place, never by the token: models use a stop token."""

    tokens: NDArray[np.int64]
    trained: NDArray[np.bool_]
    """Whether the token is learned; false on padding and in batches that don't count."""
    segments: NDArray[np.int32]
    """0 on padding, else 1, 2, … for the examples of a row: tokens see only their own. Nonzero is the attention mask."""
    positions: NDArray[np.int32]
    """From 0 within each example."""


def pad(batch: Batch, examples: Sequence[Example], pad_token: int) -> Padded:
    """The arrays of a batch. Each example of a row begins at a multiple of 16."""
    width = max(sum(filled(len(examples[index].tokens)) for index in row) for row in batch.rows)
    shape = (len(batch.rows), width)
    made = Padded(np.full(shape, pad_token, np.int64), np.zeros(shape, np.bool_), np.zeros(shape, np.int32), np.zeros(shape, np.int32))
    for at, row in enumerate(batch.rows):
        start = 0
        for segment, index in enumerate(row, 1):
            example = examples[index]
            span = slice(start, start + len(example.tokens))
            made.tokens[at, span] = example.tokens
            made.trained[at, span] = example.trained if batch.counts else False
            made.segments[at, span] = segment
            made.positions[at, span] = np.arange(len(example.tokens))
            start += filled(len(example.tokens))
    return made
