"""Post-inference hooks: a command or a URL that gets one JSON object for each request that reached the engine.

A hook costs no request anything: it runs afterwards, beside others, from a bounded queue. What doesn't fit is dropped, what takes too long
is ended, what fails is not tried again; all three are counted, and reported once in a while. A command never meets a shell, and doesn't
inherit the API key.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import signal
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx2
import pydantic_core

from glm5_runtime.server.logs import Sparingly

if TYPE_CHECKING:
    from collections.abc import Callable

    from glm5_runtime.server.account import Account

logger = logging.getLogger(__name__)
_QUEUED = 1000  # records
_AT_ONCE = 4  # runs of one hook side by side
RUN_SECONDS = 5.0
OUTCOMES = ("ok", "error", "timeout", "dropped")
_SECRETS = frozenset({"GLM5_API_KEY"})


class Hook:
    """One hook. `count` is called with one of OUTCOMES for each record. Runs on the event loop it is made on."""

    def __init__(self, target: str, count: Callable[[str], None], *, run_seconds: float = RUN_SECONDS) -> None:
        self._target = target
        self._is_url = target.startswith(("http://", "https://"))
        # Neither a URL's path nor a command's arguments are told: they may hold a token.
        self._name = urlsplit(target).hostname if self._is_url else shlex.split(target)[0]
        self._count = count
        self._run_seconds = run_seconds
        self._records: asyncio.Queue[bytes] = asyncio.Queue(_QUEUED)
        self._complaint = Sparingly(logger)
        self._client = httpx2.AsyncClient(timeout=run_seconds) if self._is_url else None
        self._workers = [asyncio.create_task(self._work(), name="hook") for _ in range(_AT_ONCE)]

    def tell(self, account: Account) -> None:
        """Queue the record of a request that reached the engine, or drop it when too many wait."""
        if not account.finish_reasons:
            return
        try:
            self._records.put_nowait(pydantic_core.to_json(account.record()))
        except asyncio.QueueFull:
            self._count("dropped")
            self._complaint.warning(f"hook {self._name}: records come faster than it takes them; they are dropped")

    async def close(self, seconds: float) -> None:
        """Run for what is queued, then end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._records.join()
        if left := self._records.qsize():
            logger.error("hook %s: %d records were left at the end", self._name, left)
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    async def _work(self) -> None:
        while True:
            record = await self._records.get()
            outcome, why = "ok", ""
            try:
                async with asyncio.timeout(self._run_seconds):
                    await (self._post(self._client, record) if self._client else self._run(record))
            except TimeoutError:
                outcome, why = "timeout", f"it took longer than {self._run_seconds:g} s"
            except Exception as error:  # noqa: BLE001 - whatever a foreign program or server does, it ends here
                outcome, why = "error", str(error) or type(error).__name__
            self._records.task_done()
            self._count(outcome)
            if why:
                self._complaint.error(f"hook {self._name} failed: {why[:200]}")

    async def _post(self, client: httpx2.AsyncClient, record: bytes) -> None:
        """POST the record; only the status of the reply is read."""
        async with client.stream("POST", self._target, content=record, headers={"content-type": "application/json"}) as reply:
            if not reply.is_success:
                raise RuntimeError(f"it answered with status {reply.status_code}")

    async def _run(self, record: bytes) -> None:
        """Start the command with the record as its input; its output goes nowhere. It and its children are killed when time is up."""
        process = await asyncio.create_subprocess_exec(
            *shlex.split(self._target),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name not in _SECRETS},
            start_new_session=True,
        )
        try:
            with contextlib.suppress(RuntimeError):  # what uvloop raises when a program has ended before it was given its input
                await process.communicate(record)
            await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode != 0:
            raise RuntimeError(f"it ended with code {process.returncode}")
