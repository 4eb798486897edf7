"""Keeps work whose size a client chooses off the event loop, so that /health and other streams go on beside it.

Used by `service` for everything between a body's bytes and its prompt. One large body at a time: more threads would share one interpreter
lock and only add up their memory. What the thread does in Python gives the lock away every few milliseconds; the JSON parser holds it for
the length of a body (measured: 0.3 to 1 s for 16 MB of nothing but brackets, with two busy cores).
"""

from __future__ import annotations

import asyncio
import gc
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
_SWITCH_SECONDS = 0.0005
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
            return await asyncio.to_thread(_considerately, work)


def _considerately(work: Callable[[], T]) -> T:
    with _interpreter_shared():
        return work()


@contextmanager
def _interpreter_shared() -> Iterator[None]:
    """Settings of the interpreter while large work runs beside the loop and the engine. Only one thread does this at a time, see `Aside`.

    The cycle collector is off: millions of new JSON values would make it walk over all of them again and again (5 s instead of 0.6 s in one
    go), and there are no cycles among them. The lock changes hands ten times as often: torch lets go of it in its operations, and the
    engine would else wait 5 ms each time it wants it back (an answer of the tiny model beside a busy thread: 0.27 s instead of 0.48 s).
    """
    was_on, interval = gc.isenabled(), sys.getswitchinterval()
    gc.disable()
    sys.setswitchinterval(min(interval, _SWITCH_SECONDS))
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        if was_on:
            gc.enable()
