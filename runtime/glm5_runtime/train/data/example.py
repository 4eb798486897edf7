"""What the data side hands to the training loop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Example:
    """One row as the model sees it: token ids, and of each whether it is one the model shall learn to produce."""

    tokens: tuple[int, ...]
    trained: tuple[bool, ...]
    line: int
    """Physical line of the file, 1-based, for messages."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A row of preferences: the same prompt with the better and the worse answer, of which only the answers are trained."""

    chosen: Example
    rejected: Example
