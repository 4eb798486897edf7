"""The agent's work: poll the cards, write what is worth it, do the resets that are asked for. Called by `__main__`.

Each part goes on whatever happens to the others: an API server that is away delays no reading, a hanging tool no write, and a reset
neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from glm5_operator.agent import probes
from glm5_operator.agent.apiserver import ApiError
from glm5_operator.agent.gauges import CardGauges
from glm5_operator.agent.worth import due
from glm5_operator.health.remedy.decision import OUT_OF_SERVICE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from glm5_operator.agent.apiserver import ApiServer
    from glm5_operator.agent.collect import Collector
    from glm5_operator.agent.rare import Rare
    from glm5_operator.agent.settings import AgentSettings
    from glm5_operator.api.node import AscendNode, ResetReport, ResetRequest
    from glm5_operator.api.node_facts import NodeFactsReport

FIRST_DELAY: Final = 1.0
LONGEST_DELAY: Final = 60.0
"""Seconds between two tries while the API server doesn't answer, with some chance in it."""
LONGEST_PAUSE: Final = 5.0
"""Seconds left to a node's tools between two readings, however long they took."""
NO_OBJECT: Final = 404
FORBIDDEN: Final = 403
_ON_ITS_WAY: Final = frozenset({"Draining", "Resetting", "Verifying"})
"""States of a move to another pool in which the operator waits for facts."""

log = logging.getLogger(__name__)


class Resets(Protocol):
    """What does resets: `reset.Resets`."""

    async def handle(self, request: ResetRequest) -> ResetReport:
        """Do what is asked, once."""
        ...

    def reports(self) -> tuple[ResetReport, ...]:
        """The newest resets, oldest first."""
        ...


class Backoff:
    """Delays that double with each failure."""

    def __init__(self) -> None:
        self._failures = 0

    def failed(self) -> float:
        """How long to wait now."""
        delay: float = min(FIRST_DELAY * 2**self._failures, LONGEST_DELAY)
        self._failures = min(self._failures + 1, 10)
        return delay * random.uniform(0.75, 1.25)  # noqa: S311 - spreads load, guards nothing

    def well(self) -> None:
        """Begin anew."""
        self._failures = 0


class Loop:
    """One node's agent."""

    def __init__(
        self,
        settings: AgentSettings,
        collector: Collector,
        rare: Rare,
        api: ApiServer,
        *,
        resets: Resets | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        # Agents that were started together, by an update say, give their signs of life apart.
        spread = random.uniform(0.9, 1.0)  # noqa: S311 - spreads load, guards nothing
        self._settings = replace(settings, every=replace(settings.every, heartbeat=spread * settings.every.heartbeat))
        self._collector, self._rare, self._api = collector, rare, api
        self.resets = resets
        self._clock, self._sleep = clock, sleep
        self._read: NodeFactsReport | None = None
        self._read_at = clock()
        # Readings are numbered by their beginning: after a reset the operator waits for one that began later.
        self._begun = self._number = 0
        self._owed: int | None = None
        self._out_of_service = False
        self._written: tuple[NodeFactsReport, tuple[ResetReport, ...]] | None = None
        self._written_at = clock()
        self._unwritten_since: float | None = clock()
        self._news = asyncio.Event()
        self._codes_owed = asyncio.Event()
        self._running: set[asyncio.Task[ResetReport]] = set()

    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            OSError: The port for probes can't be had.
        """
        probe = self._settings.probe
        gauges = CardGauges(self._settings.node.name, self.reading)
        server = await probes.serve(probe.host, probe.port, {"/readyz": self.unready, "/healthz": self.stuck}, gauges.exposition)
        log.info("node %s, probes at %s", self._settings.node.name, server.sockets[0].getsockname())
        async with server:
            polls, rare = self._always(self._poll), self._always(self._rare_reading)
            await asyncio.gather(polls, rare, self._reading_codes(), self._writing(), self._watching())

    # --- probes ------------------------------------------------------------------------------------------------------------

    def unready(self) -> str:
        """Why what the API server has of this node may be old; empty when it isn't."""
        now, stale = self._clock(), self._settings.probe.stale
        if now - self._read_at > stale + self._settings.tool.table_timeout:
            return f"nothing was read for {now - self._read_at:.0f} s"
        if self._written is None:
            return "nothing was written yet"
        if self._unwritten_since is not None and now - self._unwritten_since > stale:
            return f"a change couldn't be written for {now - self._unwritten_since:.0f} s"
        return ""

    def stuck(self) -> str:
        """Why a new process would do better; an API server that is away is no reason."""
        idle = self._clock() - self._read_at
        return f"nothing was read for {idle:.0f} s" if idle > 5 * self._settings.probe.stale else ""

    def reading(self) -> NodeFactsReport | None:
        """What was read last; None when that is too old to be shown as what is."""
        old = self._clock() - self._read_at > self._settings.probe.stale + self._settings.tool.table_timeout
        return None if old else self._read

    # --- parts -------------------------------------------------------------------------------------------------------------

    async def look(self) -> NodeFactsReport:
        """A full reading now; what a reset looks at before it begins."""
        return await self._collector.read(_now(), self._clock(), full=True)

    def tell(self) -> None:
        """A reset has got further."""
        self._news.set()

    async def _always(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A step each poll interval; one that fails is logged, and the next one comes.

        A tool that is slow gets as long a pause as it took: on a busy node the driver would be kept at it all the time.
        """
        while True:
            begun = self._clock()
            try:
                await step()
            except Exception:
                log.exception("%s failed", step.__name__)
            took = self._clock() - begun
            await self._sleep(max(self._settings.every.poll - took, min(took, LONGEST_PAUSE)))

    async def _poll(self) -> None:
        self._begun += 1
        # A reset waits until the cards' holders have left, so that is looked at each time.
        read = await self._collector.read(_now(), self._clock(), holders=self._out_of_service)
        self._read, self._number, self._read_at = read, self._begun, self._clock()
        self._news.set()
        if self._collector.owes_codes:
            self._codes_owed.set()

    async def _reading_codes(self) -> None:
        """Codes of faults whose health is told already, beside the polls: a card may hang when it is asked."""
        while True:
            await self._codes_owed.wait()
            self._codes_owed.clear()
            try:
                read = await self._collector.ask_codes()
            except Exception:
                log.exception("asking for fault codes failed")
                continue
            if read is not None:
                self._read = read
                self._news.set()

    async def _rare_reading(self) -> None:
        while await self._rare.ask_next(self._clock()):
            pass

    async def _writing(self) -> None:
        backoff = Backoff()
        while True:
            await self._news.wait()
            self._news.clear()
            if self._read is None:
                continue
            report = (self._read, self.resets.reports() if self.resets is not None else ())
            now, number, newest = self._clock(), self._number, self._begun
            every, worth, waited = self._settings.every, self._settings.worth, now - self._written_at
            owed = self._owed is not None and number > self._owed
            if not (owed or due(self._written, report, waited, every, worth, out_of_service=self._out_of_service)):
                continue
            self._unwritten_since = now if self._unwritten_since is None else self._unwritten_since
            try:
                await self._api.write(self._settings.node.name, *report)
            except ApiError as problem:
                _tell_failure(problem)
                await asyncio.sleep(backoff.failed())
                self._news.set()
                continue
            backoff.well()
            if _ended(report[1]) - _ended(self._written[1] if self._written else ()):
                self._owed = newest  # this reading may be from before the end; the cards of the next one count
            elif owed:
                self._owed = None
            self._written, self._written_at, self._unwritten_since = report, self._clock(), None

    async def _watching(self) -> None:
        backoff = Backoff()
        while True:
            try:
                async for node in self._api.watch(self._settings.node.name):
                    backoff.well()
                    self._out_of_service = _out_of_service(node)
                    self._ask_for(node.spec.reset)
            except ApiError as problem:
                _tell_failure(problem)
                await asyncio.sleep(backoff.failed())

    def _ask_for(self, request: ResetRequest | None) -> None:
        """Hand a request on; whether it is a new one is known there."""
        if request is None or self.resets is None:
            return
        task = asyncio.create_task(self.resets.handle(request))
        self._running.add(task)
        task.add_done_callback(self._reset_ended)

    def _reset_ended(self, task: asyncio.Task[ResetReport]) -> None:
        self._running.discard(task)
        with contextlib.suppress(asyncio.CancelledError):
            if (problem := task.exception()) is not None:
                log.error("a reset failed inside the agent", exc_info=problem)
        self._news.set()


def _ended(reports: tuple[ResetReport, ...]) -> set[str]:
    """Ids of the resets that did something to cards and are over."""
    return {report.id for report in reports if report.state not in {"Running", "Refused"}}


def _out_of_service(node: AscendNode) -> bool:
    """The operator waits for what is read here, to bring the node back or to give it away."""
    remedy, move = (node.status.remedy, node.status.move) if node.status is not None else (None, None)
    healed = remedy is not None and not remedy.dry_run and remedy.state in OUT_OF_SERVICE
    return healed or (move is not None and move.state in _ON_ITS_WAY)


def _tell_failure(problem: ApiError) -> None:
    if problem.status == NO_OBJECT:
        log.info("no AscendNode yet: the operator makes one for each node of a pool")
    elif problem.status == FORBIDDEN:
        log.error("%s; see the chart's role and admission policy of the agent", problem)
    else:
        log.warning("%s", problem)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
