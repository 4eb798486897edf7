"""Which cache pages belong to whom, and which hold text that may come again. Pure bookkeeping: the rows themselves are in `model.cache`.

Used by the scheduler only. A full page is named by a digest of everything up to its end, so pages of equal name hold equal rows and
sequences that begin alike share them. A page that nobody holds keeps its name until it is needed for something else.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PageName = bytes


def first_name(salt: str, adapter: int = 0) -> PageName:
    """What the first page's name is made from. Sequences of different salt never share: who can't guess it can't time its prefixes.

    Nor do those of different adapters (by number, 0 is none): their rows differ.
    """
    return hashlib.sha256(f"glm5 prefix {adapter} {salt}".encode()).digest()


def next_name(before: PageName, tokens: Sequence[int]) -> PageName:
    """Name of a page with these tokens behind a page of that name. SHA-256: a collision would answer with another's text."""
    return hashlib.sha256(before + array("q", tokens).tobytes()).digest()


class PagePool:
    """Pages 1 … count, each held by some sequences or free. Page 0 is never given out: it stays zero, for padding to point at."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = OrderedDict.fromkeys(range(1, count + 1))  # the next to be taken comes first
        self._holders = [0] * (count + 1)
        self._name_of: dict[int, PageName] = {}
        self._page_of: dict[PageName, int] = {}

    @property
    def free(self) -> int:
        """Pages nobody holds."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of pages held, 0..1."""
        return 1.0 - len(self._free) / self.count

    def take(self, count: int) -> list[int]:
        """`count` pages for new rows; ask `free` first. What they held is forgotten, and that longest unused goes first."""
        assert count <= len(self._free), "the scheduler asks before it takes"
        pages = [self._free.popitem(last=False)[0] for _ in range(count)]
        self.forget(pages)
        for page in pages:
            self._holders[page] = 1
        return pages

    def give_back(self, pages: list[int]) -> None:
        """One holder less for each, and the caller's list is emptied. The end of a text is forgotten before its beginning."""
        for page in reversed(pages):
            assert self._holders[page] > 0, "a page came back twice"
            self._holders[page] -= 1
            if self._holders[page] == 0:
                self._free[page] = None
                if page not in self._name_of:
                    self._free.move_to_end(page, last=False)  # worth nothing to anybody
        pages.clear()

    def find(self, names: Iterable[PageName]) -> list[int]:
        """The pages of these names, up to the first that isn't there. They aren't the caller's before `share`."""
        pages = []
        for name in names:
            if name not in self._page_of:
                break
            pages.append(self._page_of[name])
        return pages

    def unheld(self, pages: Iterable[int]) -> int:
        """How many of the pages are counted as free."""
        return sum(self._holders[page] == 0 for page in pages)

    def share(self, pages: Iterable[int]) -> None:
        """One holder more for each."""
        for page in pages:
            if self._holders[page] == 0:
                del self._free[page]
            self._holders[page] += 1

    def name(self, page: int, name: PageName) -> None:
        """The page is full, and this is its text. Of two pages with one text the first keeps the name."""
        if name not in self._page_of:
            self._name_of[page], self._page_of[name] = name, page

    def forget(self, pages: Iterable[int]) -> None:
        """Nobody shall find these pages any more."""
        for page in pages:
            if page in self._name_of:
                del self._page_of[self._name_of.pop(page)]
