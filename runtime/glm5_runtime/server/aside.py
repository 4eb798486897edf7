"""Keeps work whose size a client chooses off the event loop, so that /health and other streams go on beside it.

Used by `service` for everything between a body's bytes and its prompt. One large body at a time: more threads would share one interpreter
lock and only add up their memory. What the thread does in Python gives the lock away every few milliseconds; the JSON parser holds it for
the length of a body (measured: 0.3 to 1 s for 16 MB of nothing but brackets, with two busy cores).
"""

from __future__ import annotations

import asyncio
import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
INLINE_BYTES = 8 * 1024  # smaller bodies take less time than a change of threads under load


class Aside:
    """One place for large work."""

    def __init__(self) -> None:
        self._place = asyncio.Semaphore(1)

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """The result of `work`, computed in a thread when `size` bytes are many; exceptions pass through."""
        if size <= INLINE_BYTES:
            return work()
        async with self._place:
            return await asyncio.to_thread(_without_collections, work)


def _without_collections(work: Callable[[], T]) -> T:
    with _collector_paused():
        return work()


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Millions of new JSON values make the cycle collector walk over all of them again and again: 5 s instead of 0.6 s in one go.

    There are no cycles among them. Only one thread does this at a time, see `Aside`.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
