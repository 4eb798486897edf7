"""Rows of a micro-batch as one step of the decoder: which tokens, at which positions, who attends to what, what is to be predicted.

Called by the loop for every micro-batch. Rows are laid side by side, not padded to the longest: each is filled up to a multiple of 16, the
cache's page, and those that are then equally long are attended to in one call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from glm5_runtime.model.batch import Batch
from glm5_runtime.ops.paging import Queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from glm5_runtime.train.data.example import Example

PAGE = 16
"""Rows are filled up to a multiple of it, and it is what the cards' matrix units like."""
MOST_QUERIES = 512
"""Of a row in one call of attention: the last one decides how much context all of them are multiplied with."""


@dataclass(frozen=True, slots=True)
class Pack:
    """One micro-batch: the decoder's `batch`; `rows` [M] int64 of its tokens whose next token is learned, `targets` [M] int64."""

    batch: Batch
    rows: Tensor
    targets: Tensor
    pages: int
    lines: tuple[int, ...]
    """Where the rows stand in their file, for messages."""

    @property
    def tokens(self) -> int:
        """Tokens computed, fillers included."""
        return len(self.batch.tokens)


def trained_tokens(examples: Sequence[Example]) -> int:
    """Tokens that are learned. The first of a row can't be: nothing precedes it."""
    return sum(sum(example.trained[1:]) for example in examples)


def pack(examples: Sequence[Example], device: torch.device) -> Pack:
    """Build the step. Its tokens stand block by block: some positions of all rows of a length, then the next positions."""
    by_length: dict[int, list[Example]] = {}
    for example in examples:
        by_length.setdefault(-(-len(example.tokens) // PAGE), []).append(example)
    made = _Columns()
    for pages, rows in sorted(by_length.items()):
        made.add_rows(rows, pages)
    tokens, positions, slots, targets = torch.tensor([made.tokens, made.positions, made.slots, made.targets], device=device)
    groups = tuple(
        Queries(slice(start, end), positions[start:end].view(len(lists), -1), [last] * len(lists), lists, PAGE)
        for start, end, last, lists in made.blocks
    )
    learned = (targets >= 0).nonzero().squeeze(1)
    lines = tuple(example.line for example in examples)
    return Pack(Batch(tokens, positions, slots, groups), learned, targets[learned], made.pages, lines)


class _Columns:
    """What the tensors are made of; a target of -1 is none."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.slots: list[int] = []
        self.targets: list[int] = []
        self.blocks: list[tuple[int, int, int, list[range]]] = []  # first and last token of the step, context, pages of each row
        self.pages = 0

    def add_rows(self, examples: Sequence[Example], pages: int) -> None:
        """Rows of the same number of pages; page 0 belongs to nobody."""
        length = pages * PAGE
        lists = [range(1 + self.pages + pages * row, 1 + self.pages + pages * (row + 1)) for row in range(len(examples))]
        self.pages += pages * len(examples)
        for start in range(0, length, MOST_QUERIES):
            span = range(start, min(start + MOST_QUERIES, length))
            first = len(self.tokens)
            for example, own in zip(examples, lists, strict=True):
                self.tokens += _filled(example.tokens, span, 0)
                self.targets += _filled(_next_trained(example, span), range(len(span)), -1)
                self.positions += span
                self.slots += range(own[0] * PAGE + span.start, own[0] * PAGE + span.stop)
            self.blocks.append((first, len(self.tokens), span.stop, lists))


def _next_trained(example: Example, span: range) -> list[int]:
    """What each position predicts, -1 where that isn't learned."""
    after = slice(span.start + 1, span.stop + 1)
    return [token if trained else -1 for token, trained in zip(example.tokens[after], example.trained[after], strict=True)]


def _filled(values: Sequence[int], span: range, filler: int) -> list[int]:
    part = list(values[span.start : span.stop])
    return part + [filler] * (len(span) - len(part))


def cut(examples: Sequence[Example], parts: int) -> list[list[Example]]:
    """Micro-batches of a batch, at most so many, with about the same number of tokens each: the longest rows are dealt out first."""
    piles: list[list[Example]] = [[] for _ in range(min(parts, len(examples)))]
    sizes = [0] * len(piles)
    for example in sorted(examples, key=lambda each: -len(each.tokens)):
        least = sizes.index(min(sizes))
        piles[least].append(example)
        sizes[least] += len(example.tokens)
    return piles
