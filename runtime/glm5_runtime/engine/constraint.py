"""What restricts the next token of a request: the interface between the engine and whoever has a grammar, and the gate in front of one.

A request brings a factory, since the engine makes the constraint when it first needs it, in its own thread. Preemption keeps it: it has
seen the tokens of the answer, not the cache. No torch and no grammar here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

WORD_BITS = 32


class TokenConstraint(Protocol):
    """State of one answer's grammar. Masks are int32 words, [ceil(V / 32)], lowest bit first; they come with all bits set."""

    @property
    def fault(self) -> str | None:
        """Why nothing can be said about the next token any more; the request ends with it. None while all is well."""

    @property
    def finished(self) -> bool:
        """Whether the answer is complete and nothing but its end may come."""

    def fill(self, mask: NDArray[np.int32]) -> bool:
        """Clear the bits of tokens that must not come next; False when every token may, then the mask is unspecified."""

    def accept(self, token: int) -> None:
        """Take the next token, one of those the mask allowed."""

    def rollback(self, count: int) -> None:
        """Forget the last `count` tokens: drafts that were not taken."""


ConstraintFactory = Callable[[], TokenConstraint]


class AfterToken:
    """Lets everything through until `token` has come, then does what `inner` says (nothing when it is None).

    The thinking before an answer that has a grammar, or the text before a tool call. `held_back`: tokens that must not come before it (the
    end, when the answer has to come). After `budget` tokens without it, it is the only one allowed.
    """

    def __init__(
        self, token: int, inner: TokenConstraint | None, held_back: frozenset[int] = frozenset(), budget: int | None = None
    ) -> None:
        self._token, self._inner, self._budget = token, inner, budget
        self._held_back = np.array(sorted(held_back), dtype=np.int64)
        self._seen = 0
        self._opened_at: int | None = None  # tokens up to and with the one waited for

    @property
    def fault(self) -> str | None:
        """The inner one's; waiting can't fail."""
        return None if self._inner is None else self._inner.fault

    @property
    def finished(self) -> bool:
        """Whether the inner one is."""
        return self._opened_at is not None and self._inner is not None and self._inner.finished

    def fill(self, mask: NDArray[np.int32]) -> bool:
        """See TokenConstraint."""
        if self._opened_at is not None:
            return self._inner is not None and self._inner.fill(mask)
        if self._budget is not None and self._seen >= self._budget:
            mask.fill(0)
            mask.view(np.uint32)[self._token // WORD_BITS] = 1 << self._token % WORD_BITS
            return True
        clear(mask, self._held_back)
        return len(self._held_back) > 0

    def accept(self, token: int) -> None:
        """See TokenConstraint."""
        self._seen += 1
        if self._opened_at is not None:
            if self._inner is not None:
                self._inner.accept(token)
        elif token == self._token:
            self._opened_at = self._seen

    def rollback(self, count: int) -> None:
        """See TokenConstraint."""
        self._seen -= count
        if self._opened_at is None:
            return
        if self._inner is not None:
            self._inner.rollback(min(count, self._seen + count - self._opened_at))
        if self._seen < self._opened_at:
            self._opened_at = None


def clear(mask: NDArray[np.int32], tokens: NDArray[np.int64]) -> None:
    """Take tokens out of a mask; several may share a word."""
    np.bitwise_and.at(mask, tokens // WORD_BITS, ~np.left_shift(1, tokens % WORD_BITS).astype(np.int32))
