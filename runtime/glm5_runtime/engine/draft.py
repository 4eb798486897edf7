"""Guesses of the next tokens, which the model then checks all at once. What it would not have chosen itself is thrown away.

The runner asks after each step; a draft is a suggestion in `Sequence.drafts` and can be dropped by anybody at any time. Drafts are single
tokens, not distributions: the model draws its own token at every place, and a draft is accepted when it is that token. That accepts with
the model's probability of the draft, as rejection sampling does for such drafts, and the text is the same as without drafts.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from glm5_runtime.model.batch import Chunk

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from torch import Tensor

    from glm5_runtime.engine.sequence import Sequence
    from glm5_runtime.engine.steps import StepRunner

MATCH = 3
"""Tokens that must have stood together before. Fewer say too little, and more are found too seldom."""


class Seen(NamedTuple):
    """What a step has computed of a sequence: hidden states of its positions from `start` on, [n, hidden]."""

    sequence: Sequence
    start: int
    hidden: Tensor


class _Going(NamedTuple):
    """A sequence that gets another draft: the row of the hidden state it follows from, and its context so far, drafts included."""

    sequence: Sequence
    row: int
    end: int


class Drafter(Protocol):
    """Fills `drafts` of the sequences that a step has given a token."""

    def draft(self, seen: Rows[Seen]) -> None:
        """All sequences of the step that are still running."""


class NgramDrafter:
    """What followed the last time that these tokens stood together (prompt lookup): for text that repeats itself or its prompt."""

    def __init__(self, count: int) -> None:
        self._count = count

    def draft(self, seen: Rows[Seen]) -> None:
        """Only those whose prompt is read."""
        for sequence, _, _ in seen:
            if (wanted := wanted_drafts(sequence, self._count)) > 0:
                tokens, places = sequence.tokens, sequence.places
                for end in range(max(MATCH, sequence.learnt), len(tokens)):  # nothing follows the last three yet
                    places[tuple(tokens[end - MATCH : end])] = end
                sequence.learnt = len(tokens)
                after = places.get(tuple(tokens[-MATCH:]), len(tokens))
                sequence.drafts = tokens[after : after + wanted]


class MtpDrafter:
    """The model's own multi-token-prediction layer, applied again to its own output for each further token."""

    def __init__(self, steps: StepRunner, page_size: int, count: int) -> None:
        self._steps, self._page_size, self._count = steps, page_size, count

    def draft(self, seen: Rows[Seen]) -> None:
        """All that a step has computed passes through the layer, so that its cache knows the whole context."""
        chunks = [_chunk(sequence, sequence.tokens[start + 1 : start + 1 + len(hidden)], start) for sequence, start, hidden in seen]
        hidden = self._steps.draft(chunks, seen[0].hidden if len(seen) == 1 else torch.cat([each.hidden for each in seen]))
        ends = accumulate(len(chunk.tokens) for chunk in chunks)
        going = [_Going(each.sequence, end - 1, chunk.end) for each, chunk, end in zip(seen, chunks, ends, strict=True)]
        going = [each for each in going if wanted_drafts(each.sequence, self._count) > 0]
        while going:
            hidden = hidden[[each.row for each in going]]
            for each, token in zip(going, self._steps.draft_logits(hidden).argmax(dim=-1).tolist(), strict=True):
                each.sequence.drafts.append(token)
            kept = [(row, each) for row, each in enumerate(going) if self._may_go_on(each)]
            going = [_Going(each.sequence, row, each.end + 1) for row, (_, each) in enumerate(kept)]
            if going:
                chunks = [_chunk(each.sequence, each.sequence.drafts[-1:], each.end - 1) for each in going]
                hidden = self._steps.draft(chunks, hidden[[row for row, _ in kept]])

    def _may_go_on(self, going: _Going) -> bool:
        """A further draft is wanted, and the one before has a row in the pages that the sequence has anyway."""
        sequence = going.sequence
        has_room = going.end < len(sequence.pages) * self._page_size
        return has_room and wanted_drafts(sequence, self._count) > len(sequence.drafts)


def _chunk(sequence: Sequence, tokens: list[int], start: int) -> Chunk:
    return Chunk(tokens, start, sequence.pages, replica=sequence.replica)


def wanted_drafts(sequence: Sequence, count: int) -> int:
    """Drafts that can be of use: none while the prompt is read, none behind the last token that the request may get."""
    if sequence.reading or sequence.pending != 1:  # of a prompt, too, one token may be left for the next step
        return 0
    return min(count, sequence.params.max_tokens - sequence.produced - 1)
