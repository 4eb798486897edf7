"""Examples in memory: five bytes for each token, whatever the number of rows.

Filled by `reading`, read by the loop. Tuples of Python integers would take forty bytes a token: 1 GB of text would not fit.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import overload

from glm5_runtime.train.data.example import Example, Pair


class Dataset(Sequence[Example]):
    """Examples in the order of their files."""

    def __init__(self) -> None:
        self._tokens = array("i")
        self._trained = bytearray()
        self._ends = array("q", [0])
        self._lines = array("q")
        self._rows = array("q")
        self._is_new_file = False

    def begin_file(self) -> None:
        """What is added from here on comes from another file: lines are counted from 1 again."""
        self._is_new_file = True

    def append(self, example: Example) -> None:
        """Add one at the end."""
        is_same_row = bool(self._lines) and not self._is_new_file and self._lines[-1] == example.line
        self._rows.append(self._rows[-1] + (not is_same_row) if self._rows else 0)
        self._is_new_file = False
        self._tokens.extend(example.tokens)
        self._trained.extend(example.trained)
        self._ends.append(len(self._tokens))
        self._lines.append(example.line)

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        start, end = self._ends[index], self._ends[index + 1]
        return Example(tuple(self._tokens[start:end]), tuple(map(bool, self._trained[start:end])), self._lines[index])

    @property
    def lengths(self) -> list[int]:
        """Tokens of each example."""
        return [end - start for start, end in zip(self._ends, self._ends[1:], strict=False)]

    def digest(self) -> str:
        """SHA-256 of all tokens, what of them is learned, and where examples end: the same data gives the same."""
        found = hashlib.sha256()
        for part in (self._tokens, self._trained, self._ends):
            found.update(memoryview(part).cast("B"))
        return found.hexdigest()

    @property
    def rows(self) -> Sequence[int]:
        """For each example which row of the files it was made of, counted from 0: one conversation may be several examples."""
        return self._rows


class Pairs(Sequence[Pair]):
    """Preference pairs in the order of their files."""

    def __init__(self) -> None:
        self.chosen = Dataset()
        self.rejected = Dataset()

    def append(self, pair: Pair) -> None:
        """Add one at the end."""
        self.chosen.append(pair.chosen)
        self.rejected.append(pair.rejected)

    def __len__(self) -> int:
        return len(self.chosen)

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> list[Pair]: ...
    def __getitem__(self, index: int | slice) -> Pair | list[Pair]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        return Pair(self.chosen[index], self.rejected[index])

    @property
    def lengths(self) -> list[int]:
        """Tokens of the longer answer of each pair, prompt included: what both are padded to."""
        return [max(both) for both in zip(self.chosen.lengths, self.rejected.lengths, strict=True)]
