"""Workers with real asyncio and reconcilers of our own; waits are for events, not for time."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import pytest

from glm5_operator.kube.errors import ForbiddenError, TooManyRequestsError
from glm5_operator.kube.queue import Backoff, WorkQueue
from glm5_operator.kube.types import Key, Outcome
from glm5_operator.kube.workers import Workers
from glm5_operator.metrics import Metrics

A, B = Key("GLM5Service", "ns", "a"), Key("GLM5Service", "ns", "b")


class Scripted:
    """Answers as the test says; records who was looked at and how many at a time."""

    def __init__(self, act: Callable[[Key], Awaitable[Outcome]]) -> None:
        self.act = act
        self.seen: list[Key] = []
        self.running: set[Key] = set()
        self.most = 0

    async def reconcile(self, key: Key, now: datetime) -> Outcome:
        assert now.tzinfo is not None
        assert key not in self.running, "two workers with one key"
        self.seen.append(key)
        self.running.add(key)
        self.most = max(self.most, len(self.running))
        try:
            return await self.act(key)
        finally:
            self.running.discard(key)


@asynccontextmanager
async def working(
    script: Scripted, *, limit: int = 2, longest: float = 1.0, budget: int = 3, recheck: float = 60.0
) -> AsyncIterator[tuple[Workers, list[tuple[Key, str]], Metrics]]:
    given_up: list[tuple[Key, str]] = []

    async def give_up(key: Key, reason: str, _now: datetime) -> None:
        given_up.append((key, reason))

    metrics = Metrics()
    queue = WorkQueue(Backoff(0.001, 0.002, budget, recheck), random.Random(1))
    workers = Workers(queue, {"GLM5Service": script}, metrics, limit=limit, timeout=longest, give_up=give_up)
    task = asyncio.create_task(workers.run())
    try:
        yield workers, given_up, metrics
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not done():  # noqa: ASYNC110 - the code under test has no event to wait for
            await asyncio.sleep(0)


async def test_no_more_reconciles_at_a_time_than_workers() -> None:
    release = asyncio.Event()

    async def wait(_key: Key) -> Outcome:
        await release.wait()
        return Outcome.done()

    script = Scripted(wait)
    async with working(script, limit=2) as (workers, _, _):
        for number in range(6):
            workers.add(Key("GLM5Service", "ns", str(number)))
        await until(lambda: len(script.running) == 2)
        release.set()
        await until(lambda: len(script.seen) == 6)

    assert script.most == 2


async def test_a_key_added_while_it_is_worked_on_is_worked_on_again() -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def wait(_key: Key) -> Outcome:
        started.set()
        await release.wait()
        return Outcome.done()

    script = Scripted(wait)
    async with working(script) as (workers, _, _):
        workers.add(A)
        await started.wait()
        workers.add(A)
        release.set()
        await until(lambda: script.seen == [A, A])


async def test_a_bug_met_by_one_object_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def fail_for_a(key: Key) -> Outcome:
        if key == A:
            raise ZeroDivisionError("a bug")
        return Outcome.done()

    script = Scripted(fail_for_a)
    async with working(script) as (workers, given_up, metrics):
        workers.add(A)
        workers.add(B)
        await until(lambda: bool(given_up))

        assert given_up == [(A, "InternalError: ZeroDivisionError: a bug")]
        assert B in script.seen
        assert metrics.registry.get_sample_value("glm5_operator_given_up_total", {"kind": "GLM5Service"}) == 1
    assert "ZeroDivisionError" in caplog.text


async def test_after_giving_up_an_event_starts_a_fresh_budget() -> None:
    async def fail(_key: Key) -> Outcome:
        return Outcome.retry("boom")

    script = Scripted(fail)
    async with working(script, budget=3) as (workers, given_up, _):
        workers.add(A)
        await until(lambda: len(given_up) == 1)
        assert len(script.seen) == 3
        workers.add(A)
        await until(lambda: len(given_up) == 2)
        assert len(script.seen) == 6


async def test_a_slow_recheck_that_fails_tells_the_status_again_but_not_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_key: Key) -> Outcome:
        return Outcome.retry("boom")

    script = Scripted(fail)
    async with working(script, budget=2, recheck=0.001) as (workers, given_up, metrics):
        workers.add(A)
        await until(lambda: len(given_up) == 4)

        assert len(script.seen) >= 5
        assert metrics.registry.get_sample_value("glm5_operator_given_up_total", {"kind": "GLM5Service"}) == 1
    assert caplog.text.count("failed too often in a row") == 1


async def test_the_servers_own_words_reach_whoever_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def refuse(_key: Key) -> Outcome:
        raise ForbiddenError("policy no-deployments denied it")

    async with working(Scripted(refuse), budget=1) as (workers, given_up, _):
        workers.add(A)
        await until(lambda: bool(given_up))

        assert given_up == [(A, "Forbidden: policy no-deployments denied it")]
    assert "policy no-deployments" in caplog.text


async def test_a_reconcile_that_hangs_is_ended_and_tried_again() -> None:
    async def hang_once(_key: Key) -> Outcome:
        if len(script.seen) == 1:
            await asyncio.Event().wait()
        return Outcome.done()

    script = Scripted(hang_once)
    async with working(script, longest=0.02) as (workers, _, metrics):
        workers.add(A)
        await until(lambda: len(script.seen) == 2)
        labels = {"kind": "GLM5Service", "result": "error"}
        assert metrics.registry.get_sample_value("glm5_operator_reconcile_seconds_count", labels) == 1


async def test_a_servers_retry_after_is_kept() -> None:
    async def refuse(_key: Key) -> Outcome:
        raise TooManyRequestsError("slow down", retry_after=timedelta(hours=1))

    script = Scripted(refuse)
    async with working(script) as (workers, given_up, _):
        workers.add(A)
        await until(lambda: script.seen == [A] and not script.running)
        for _ in range(50):
            await asyncio.sleep(0)

        assert script.seen == [A]
        assert given_up == []


async def test_a_sooner_wish_wakes_workers_that_sleep_for_a_later_one() -> None:
    async def done(_key: Key) -> Outcome:
        return Outcome.again(timedelta(hours=1))

    script = Scripted(done)
    async with working(script) as (workers, _, _):
        workers.add(A)
        await until(lambda: script.seen == [A])
        workers.add(A, delay=0.01)
        await until(lambda: script.seen == [A, A])
