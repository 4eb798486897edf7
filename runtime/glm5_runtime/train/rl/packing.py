"""Answers as micro-batches in which a prompt is computed once for all of its answers.

As `train.packing`, but that rows to the same prompt share the pages of their beginning: its queries are computed in a row of its own, and
each answer's row begins behind them. Gradients of all answers reach the prompt through those pages. A group of 8 answers that are as long
as their prompt takes little more than half of the tokens.

Called by the step and by rewards. Legend: B answers, T tokens of the longest with its prompt, M tokens whose choice counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch

from glm5_runtime.model.batch import Batch
from glm5_runtime.ops.paging import Queries
from glm5_runtime.train.packing import MOST_QUERIES, PAGE, Pack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor


class Row(NamedTuple):
    """An answer in its table: where it begins behind its prompt, where it ends, which prompt that is, and its line in the data."""

    start: int
    end: int
    group: int
    line: int


def packs_of(tokens: Tensor, rows: Sequence[Row], parts: int) -> Iterator[tuple[Pack, Tensor]]:
    """Rows of `tokens` [B, T] as at most `parts` micro-batches; with each, where its chosen tokens stand among the B · T: [M] int64.

    Rows of one group have the same tokens before `start`.
    """
    flat, width = tokens.flatten(), tokens.shape[1]
    for places in _dealt(rows, parts):
        made = _Columns(width)
        groups: dict[int, list[int]] = {}
        for place in places:
            groups.setdefault(rows[place].group, []).append(place)
        for members in groups.values():
            made.add_group(members, rows)
        found, positions, slots, targets = made.tensors(tokens.device)
        learned = (targets >= 0).nonzero().squeeze(1)
        aims = targets[learned]
        lines = tuple(rows[place].line for place in places)
        yield Pack(Batch(flat[found], positions, slots, made.queries(positions)), learned, flat[aims], made.pages, lines), aims


def _dealt(rows: Sequence[Row], parts: int) -> list[list[int]]:
    """Places of rows in micro-batches of about as many tokens each: groups stay together while there are enough of them."""
    groups: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(row.group, []).append(place)
    units = list(groups.values()) if len(groups) >= parts else [[place] for place in range(len(rows))]
    sizes = [sum(rows[place].end for place in unit) for unit in units]
    piles: list[list[int]] = [[] for _ in range(min(parts, len(units)))]
    loads = [0] * len(piles)
    for unit in sorted(range(len(units)), key=lambda at: -sizes[at]):
        least = loads.index(min(loads))
        piles[least] += units[unit]
        loads[least] += sizes[unit]
    return piles


@dataclass
class _Piece:
    """Positions `begin` to `end`, filled up to whole pages, of the table's row `row`; what is chosen from `first` on counts."""

    row: int
    begin: int
    end: int
    first: int
    pages: Sequence[int]


@dataclass
class _Columns:
    """What the tensors are made of: places in the table for tokens and targets, -1 for none. Page 0 belongs to nobody."""

    width: int
    pages: int = 0
    pieces: dict[tuple[int, int], list[_Piece]] = field(default_factory=dict)  # by first position and length
    blocks: list[tuple[int, int, int, list[Sequence[int]]]] = field(default_factory=list)

    def add_group(self, members: Sequence[int], rows: Sequence[Row]) -> None:
        """Answers to one prompt, whose full pages before its last token are shared: that token chooses the first of each answer."""
        start = rows[members[0]].start
        shared = (start - 1) // PAGE if len(members) > 1 else 0
        before = self._take(shared)
        if shared:
            self._add(_Piece(members[0], 0, shared * PAGE, self.width, before))
        for place in members:
            end = rows[place].end
            own = self._take(-(-end // PAGE) - shared)
            self._add(_Piece(place, shared * PAGE, end, start, [*before, *own]))

    def tensors(self, device: torch.device) -> Tensor:
        """Tokens, positions, slots, targets: [4, N] int64, block by block."""
        columns: list[list[int]] = [[], [], [], []]
        for (begin, length), pieces in sorted(self.pieces.items()):
            for at in range(begin, begin + length, MOST_QUERIES):
                span = range(at, min(at + MOST_QUERIES, begin + length))
                first = len(columns[0])
                for piece in pieces:
                    zero = piece.row * self.width
                    columns[0] += [zero + each if each < piece.end else zero for each in span]
                    columns[1] += span
                    columns[2] += [piece.pages[each // PAGE] * PAGE + each % PAGE for each in span]
                    columns[3] += [zero + each + 1 if piece.first <= each + 1 < piece.end else -1 for each in span]
                self.blocks.append((first, len(columns[0]), span.stop, [piece.pages for piece in pieces]))
        return torch.tensor(columns, device=device)

    def queries(self, positions: Tensor) -> tuple[Queries, ...]:
        """The calls of attention for the tensors made."""
        return tuple(
            Queries(slice(first, end), positions[first:end].view(len(lists), -1), [last] * len(lists), lists, PAGE)
            for first, end, last, lists in self.blocks
        )

    def _take(self, count: int) -> list[int]:
        taken = list(range(1 + self.pages, 1 + self.pages + count))
        self.pages += count
        return taken

    def _add(self, piece: _Piece) -> None:
        length = -(-piece.end // PAGE) * PAGE - piece.begin
        self.pieces.setdefault((piece.begin, length), []).append(piece)
