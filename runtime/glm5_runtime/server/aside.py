"""Keeps work whose size a client chooses off the event loop, so that /health and other streams go on beside it.

Used by `service` for everything between a body's bytes and its prompt. Two places of one thread each, for bodies of ordinary conversations
and for large ones, so that the former never wait for the latter; more threads would share one interpreter lock and only add up their
memory. What a thread does in Python gives the lock away every few milliseconds; the JSON parser holds it for the length of a body
(measured: 0.3 to 1 s for 16 MB of nothing but brackets, with two busy cores). What the server itself does for long, such as loading, has
`in_thread`.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from bisect import insort
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from glm5_runtime.server.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_SWITCH_SECONDS = 0.0005
INLINE_BYTES = 8 * 1024  # smaller bodies take less time than a change of threads under load
ORDINARY_BYTES = 256 * 1024  # some 60,000 tokens; with the built-in templates, a second at worst
_WAITING = 256  # as many as the engine queues by default


class Aside:
    """The two places for work that is not done on the loop."""

    def __init__(self) -> None:
        self._ordinary = _Place(_SWITCHING_OFTEN)
        self._large = _Place(_SWITCHING_OFTEN, _NOT_COLLECTING)

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """The result of `work`, in a thread when `size` bytes are many; its exceptions pass through. ApiError 429 when too many wait.

        A caller that is cancelled while it waits is forgotten; a thread that has begun keeps its place to its end.
        """
        if size <= INLINE_BYTES:
            return work()
        return await (self._ordinary if size < ORDINARY_BYTES else self._large).run(size, work)


class _Place:
    """One thread at a time. The smallest of those that wait is next, so that nobody waits for more than one larger body."""

    def __init__(self, *settings: _Setting) -> None:
        self._settings = settings
        self._taken = False
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # size, order of arrival, its turn; sorted
        self._arrivals = count()

    async def run(self, size: int, work: Callable[[], T]) -> T:
        await self._enter(size)
        thread = asyncio.get_running_loop().run_in_executor(None, self._with_settings, work)
        thread.add_done_callback(self._ended)
        await asyncio.wait({thread})  # unlike awaiting the thread itself, this leaves it alone when the caller is cancelled
        return thread.result()

    async def _enter(self, size: int) -> None:
        """Take the place. Past the limit the largest is sent away, be it this one."""
        if not self._taken:
            self._taken = True
            return
        turn = asyncio.get_running_loop().create_future()
        mine = (size, next(self._arrivals), turn)
        insort(self._waiting, mine)
        if len(self._waiting) > _WAITING:
            _, _, last = self._waiting.pop()
            if not last.done():
                last.set_exception(ApiError(429, f"{_WAITING} requests wait to be read; retry", code="queue_full", retry_after=1))
        try:
            await turn
        except asyncio.CancelledError:
            if mine in self._waiting:
                self._waiting.remove(mine)
            elif not turn.cancelled() and turn.exception() is None:
                self._leave()  # the turn had just come
            raise

    def _leave(self) -> None:
        while self._waiting:
            _, _, turn = self._waiting.pop(0)
            if not turn.done():
                turn.set_result(None)
                return
        self._taken = False

    def _with_settings(self, work: Callable[[], T]) -> T:
        with ExitStack() as settings:
            for setting in self._settings:
                settings.enter_context(setting)
            return work()

    def _ended(self, thread: asyncio.Future[T]) -> None:
        self._leave()
        if not thread.cancelled():
            thread.exception()  # looked at, or a caller that has gone would leave a complaint in the log


class _Setting:
    """A setting of the whole interpreter, changed while at least one thread is within it. `change` gives what changes it back."""

    def __init__(self, change: Callable[[], Callable[[], object]]) -> None:
        self._change = change
        self._lock = threading.Lock()
        self._within = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._within == 0:
                self._back = self._change()
            self._within += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._within -= 1
            if self._within == 0:
                self._back()


def _switch_often() -> Callable[[], object]:
    """Let the interpreter lock change hands ten times as often.

    Torch lets go of it in its operations, and the engine would else wait 5 ms each time it wants it back (an answer of the tiny model
    beside a busy thread: 0.27 s instead of 0.48 s).
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(min(interval, _SWITCH_SECONDS))
    return partial(sys.setswitchinterval, interval)


def _stop_collecting() -> Callable[[], object]:
    """Turn the cycle collector off. Only for large bodies, between which it gets its turn.

    Millions of new JSON values would make it walk over all of them again and again (5 s instead of 0.6 s in one go), and there are no
    cycles among them.
    """
    was_on = gc.isenabled()
    gc.disable()
    return gc.enable if was_on else gc.disable


_SWITCHING_OFTEN = _Setting(_switch_often)
_NOT_COLLECTING = _Setting(_stop_collecting)


async def in_thread(work: Callable[[], T], name: str) -> T:
    """Run `work` in a daemon thread: unlike the executor's, it can't keep a process alive that has been told to end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def target() -> None:
        try:
            result, error = work(), None
        except Exception as failure:  # noqa: BLE001 - it is handed to the awaiting task
            result, error = None, failure
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=target, name=name, daemon=True).start()
    return await done
