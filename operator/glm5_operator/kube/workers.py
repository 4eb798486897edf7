"""Runs the queue: at most N reconciles at a time, each with a time limit, each failure an outcome.

Started by `app` once this process is the leader and the cache is warm. Nothing that a reconcile raises can end it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from glm5_operator.kube import errors
from glm5_operator.kube.queue import Budget, WorkQueue
from glm5_operator.kube.types import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from glm5_operator.kube.types import Key, Reconciler
    from glm5_operator.metrics import Metrics

log = logging.getLogger(__name__)


class Workers:
    """Takes keys from the queue and gives each to its kind's reconciler.

    `give_up` is told when an object has used up its budget of failures, to say so in its status, and again with each slow recheck that
    fails: the first telling may have failed too. Log and metric are told once.
    """

    def __init__(
        self,
        queue: WorkQueue,
        reconcilers: Mapping[str, Reconciler],
        metrics: Metrics,
        *,
        limit: int,
        timeout: float,
        give_up: Callable[[Key, str, datetime], Awaitable[None]] | None = None,
    ) -> None:
        self._queue = queue
        self._reconcilers = reconcilers
        self._metrics = metrics
        self._limit = limit
        self._timeout = timeout
        self._give_up = give_up
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, key: Key, delay: float = 0.0) -> None:
        """Have a key reconciled."""
        self._queue.add(key, time.monotonic(), delay)
        self._wake.set()

    async def run(self) -> None:
        """Work until cancelled; then wait for no one: an interrupted reconcile is repeated by whoever comes next."""
        try:
            while True:
                self._wake.clear()
                self._start_due()
                self._report()
                await self._sleep()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start_due(self) -> None:
        while len(self._tasks) < self._limit and (taken := self._queue.take(time.monotonic())) is not None:
            key, waited = taken
            self._metrics.queue_wait.labels(key.kind).observe(waited)
            task = asyncio.create_task(self._work(key), name=f"reconcile {key}")
            self._tasks.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._wake.set()

    async def _sleep(self) -> None:
        """Until something is added or done, or a delayed key becomes due while a worker is free."""
        now = time.monotonic()
        moment = self._queue.next_time(now) if len(self._tasks) < self._limit else None
        try:
            async with asyncio.timeout(None if moment is None else max(0.0, moment - now)):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _work(self, key: Key) -> None:
        started = time.monotonic()
        outcome, result = await self._reconcile(key)
        self._metrics.reconciles.labels(key.kind, result).observe(time.monotonic() - started)
        budget = self._queue.finish(key, outcome, time.monotonic())
        if budget is Budget.USED_UP:
            log.error("%s: failed too often in a row, tried again only now and then: %s", key, outcome.reason)
            self._metrics.given_up.labels(key.kind).inc()
        if budget is not Budget.LEFT:
            await self._tell(key, outcome.reason)

    async def _reconcile(self, key: Key) -> tuple[Outcome, str]:
        """The one place where anything that went wrong becomes "try again"."""
        try:
            async with asyncio.timeout(self._timeout):
                outcome = await self._reconcilers[key.kind].reconcile(key, datetime.now(UTC))
        except errors.KubeError as error:
            log.warning("%s: %s", key, error)
            return Outcome.retry(f"{error.reason}: {error}", error.retry_after), "error"
        except TimeoutError:
            log.warning("%s: a reconcile took longer than %g s and was ended", key, self._timeout)
            return Outcome.retry("Timeout"), "error"
        except Exception as error:  # a bug met by one object must not stop the work on all others; it is logged with its trace
            log.exception("%s: reconcile failed", key)
            return Outcome.retry(f"InternalError: {type(error).__name__}: {error}"), "error"
        log.debug("%s: %s %s", key, outcome.kind, outcome.reason)
        return outcome, str(outcome.kind)

    async def _tell(self, key: Key, reason: str) -> None:
        if self._give_up is None:
            return
        try:
            async with asyncio.timeout(self._timeout):
                await self._give_up(key, reason, datetime.now(UTC))
        except Exception:  # as above
            log.exception("%s: could not be told that it was given up", key)

    def _report(self) -> None:
        sizes = self._queue.sizes()
        self._metrics.queue_depth.set(sizes["due"])
        self._metrics.queue_delayed.set(sizes["delayed"])
        self._metrics.queue_running.set(sizes["running"])
