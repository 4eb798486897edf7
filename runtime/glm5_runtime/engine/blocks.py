"""Which cache pages belong to whom. Pure bookkeeping: the rows themselves are in `model.cache`.

Used by the scheduler only. A prefix cache will keep freed pages findable by the hash of their tokens; the free list is the place.
"""

from __future__ import annotations


class PagePool:
    """Pages 1 … count, each free or taken. Page 0 is never given out: it stays zero, for padding to point at."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count, 0, -1))

    @property
    def free(self) -> int:
        """Pages nobody holds."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of pages taken, 0..1."""
        return 1.0 - len(self._free) / self.count

    def take(self, count: int) -> list[int]:
        """`count` pages; ask `free` first."""
        assert count <= len(self._free), "the scheduler asks before it takes"
        return [self._free.pop() for _ in range(count)]

    def give_back(self, pages: list[int]) -> None:
        """Free the pages, last one first so that they are reused in order, and empty the caller's list."""
        self._free.extend(reversed(pages))
        pages.clear()
        assert len(self._free) <= self.count, "a page came back twice"
