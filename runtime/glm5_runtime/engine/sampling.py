"""What the sampler keeps of one sequence between steps, so that no step looks at all of its tokens again. Engine thread only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence as Tokens

    from numpy.typing import NDArray

    from glm5_runtime.engine.constraint import TokenConstraint
    from glm5_runtime.engine.request import Request

GREEDY_BELOW = 1e-5
"""Temperatures below are greedy: dividing by them overflows, and the result would be greedy anyway."""
_MASK = (1 << 64) - 1
_DRAW_BITS = 23
"""A draw times any fp32 sum stays below the sum, so that it always points at a token."""


class Sampling:
    """Which kinds of work a sequence's rows need, and their state: distinct tokens, constraint, random numbers."""

    __slots__ = ("_bias", "_constraint", "_counts", "_mixed_seed", "_request", "_start", "draws", "penalised", "plain")

    def __init__(self, request: Request, seed: int) -> None:
        params = request.params
        self._request, self._start = request, len(request.prompt)
        self.draws = params.temperature >= GREEDY_BELOW
        self.penalised = params.repetition_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0
        # Greedy and nothing else: the next token is the argmax of the row.
        self.plain = not (self.draws or self.penalised or params.logit_bias or params.min_tokens or request.constraint)
        self._bias: tuple[NDArray[np.int64], NDArray[np.float32]] | None = None
        self._mixed_seed = _mix(seed & _MASK)
        self._counts: TokenCounts | None = None
        self._constraint: TokenConstraint | None = None

    def uniform(self, position: int) -> float:
        """A number in [0, 1) that depends on nothing but seed and position: whatever runs beside it, and after any preemption."""
        return (_mix(self._mixed_seed + position & _MASK) >> 64 - _DRAW_BITS) / (1 << _DRAW_BITS)

    @property
    def bias(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Token ids and what is added to their logits. Not made before the engine has checked the numbers."""
        if self._bias is None:
            bias = self._request.params.logit_bias
            self._bias = np.array(list(bias), np.int64), np.array(list(bias.values()), np.float32)
        return self._bias

    def counts(self, tokens: Tokens[int]) -> TokenCounts:
        """Distinct tokens of the sequence, those of the answer only when the prompt's don't matter; `tokens` is prompt plus answer."""
        if self._counts is None:
            repeats = self._request.params.repetition_penalty != 1.0
            self._counts = TokenCounts(tokens[: self._start] if repeats else (), tokens[self._start :])
        return self._counts

    def constraint(self, tokens: Tokens[int]) -> TokenConstraint | None:
        """The request's constraint after the answer's tokens so far, if it has one."""
        if self._constraint is None and self._request.constraint is not None:
            self._constraint = self._request.constraint()
            for token in tokens[self._start :]:
                self._constraint.accept(token)
        return self._constraint

    @property
    def fault(self) -> str | None:
        """Why the request can't go on, if its constraint has failed."""
        return None if self._constraint is None else self._constraint.fault

    @property
    def finished(self) -> bool:
        """Whether only the end may follow."""
        return self._constraint is not None and self._constraint.finished

    def append(self, token: int) -> None:
        """The sequence has a new token."""
        if self._counts is not None:
            self._counts.add(token)
        if self._constraint is not None:
            self._constraint.accept(token)


class TokenCounts:
    """The distinct tokens of a growing sequence, and how often each stands in the answer (0 for those of the prompt only)."""

    def __init__(self, prompt: Tokens[int], answer: Tokens[int]) -> None:
        distinct = np.unique(np.array(prompt, dtype=np.int64))
        self._size = len(distinct)
        self._ids = np.zeros(2 * self._size + 64, np.int64)
        self._ids[: self._size] = distinct
        self._counts = np.zeros(len(self._ids), np.float32)
        self._places = {token: place for place, token in enumerate(distinct.tolist())}
        for token in answer:
            self.add(token)

    def add(self, token: int) -> None:
        """One more token of the answer."""
        place = self._places.setdefault(token, self._size)
        if place == self._size:
            if self._size == len(self._ids):
                self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            self._ids[place] = token
            self._size += 1
        self._counts[place] += 1

    @property
    def ids(self) -> NDArray[np.int64]:
        """The distinct tokens, [N]."""
        return self._ids[: self._size]

    @property
    def answer_counts(self) -> NDArray[np.float32]:
        """Occurrences in the answer of each of `ids`, [N]."""
        return self._counts[: self._size]


def _mix(value: int) -> int:
    """SplitMix64's output function: 64 bits in, 64 well-mixed bits out (numpy's own generators take 30 µs to set up, this takes 1)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
