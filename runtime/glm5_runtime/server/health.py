"""Says whether the engine lives and whether it serves, and asks it when in doubt.

/health (liveness) fails when a restart is the only help: the engine thread has ended, it has work and makes no progress for `stuck_dead`
seconds, or every token has failed for that long. /health/ready fails earlier: while loading or draining, before the first token since
start, after `stuck_unready` seconds without progress, and as soon as an error is confirmed by a probe of our own (one token). A single
failed request is no fault of the engine, so it only causes the probe; while readiness is off nobody else sends requests, so probing also
finds the way back.

`judge` is pure; `EngineWatch` collects its facts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glm5_runtime.engine.errors import EngineError
from glm5_runtime.engine.request import FinishReason, Request, SamplingParams

if TYPE_CHECKING:
    from glm5_runtime.engine.request import Output
    from glm5_runtime.server.generation import EnginePort

logger = logging.getLogger(__name__)
_SHOWN_FAULT = 200  # characters


@dataclass(frozen=True)
class Patience:
    """How long the engine may be silent, seconds. A step of the largest model takes a few at most; prefill comes in chunks."""

    stuck_unready: float = 10.0  # with work and no finished step: out of traffic
    stuck_dead: float = 60.0  # with work and no finished step, or nothing but errors: restart
    probe_every: float = 1.0  # between probes while in doubt
    probe_answer: float = 5.0  # a probe without an answer for this long has failed


@dataclass(frozen=True)
class Facts:
    """What is known about the engine at one moment; ages in seconds."""

    loaded: bool
    draining: bool = False
    alive: bool = True
    has_work: bool = False
    since_progress: float = 0.0
    produced: bool = True  # a token since start
    failing_for: float | None = None  # since the first confirmed failure without a token after it
    fault: str = "see the log"  # what the last failed probe said


@dataclass(frozen=True)
class Verdict:
    """The answer of both health endpoints."""

    live: bool
    ready: bool
    reason: str
    message: str


def judge(facts: Facts, patience: Patience) -> Verdict:
    """Liveness and readiness from facts; the first reason that applies is the one told."""
    if not facts.loaded:
        return Verdict(True, False, "Loading", "the model is being loaded")
    if not facts.alive:
        return Verdict(False, False, "EngineDead", "the engine thread has ended; restart the process")
    silent = facts.since_progress if facts.has_work else 0.0
    if silent > patience.stuck_dead:
        return Verdict(False, False, "Stuck", f"the engine has work and no progress for {silent:.0f} s; restart the process")
    if facts.failing_for is not None and facts.failing_for > patience.stuck_dead:
        return Verdict(False, False, "Failing", f"every token has failed for {facts.failing_for:.0f} s; restart the process: {facts.fault}")
    if facts.draining:
        return Verdict(True, False, "Draining", "shutting down: running requests finish, new ones are refused")
    if silent > patience.stuck_unready:
        return Verdict(True, False, "Stuck", f"the engine has work and no progress for {silent:.0f} s")
    if facts.failing_for is not None:
        return Verdict(True, False, "Failing", f"the engine can't produce tokens: {facts.fault}")
    if not facts.produced:
        return Verdict(True, False, "WarmingUp", "no token has been produced since start")
    return Verdict(True, True, "Serving", "tokens are being produced on request")


class EngineWatch:
    """Listens to all outputs and probes the engine when one of them was an error."""

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self._engine: EnginePort | None = None
        self._last_token = float("-inf")
        self._suspect = False
        self._fault = Facts.fault
        self._failing_since: float | None = None
        self._probes = 0

    def attach(self, engine: EnginePort) -> None:
        """The engine is loaded and started."""
        self._engine = engine

    def saw(self, output: Output) -> None:
        """Called from the engine thread with every output of every request, probes too."""
        if output.finish_reason is FinishReason.ERROR:
            self._suspect = True
        elif output.token is not None:
            self._last_token = time.monotonic()
            self._suspect, self._failing_since = False, None

    def verdict(self, *, draining: bool) -> Verdict:
        """Judge the engine now."""
        return judge(self._facts(draining), self.patience)

    def _facts(self, draining: bool) -> Facts:
        if self._engine is None:
            return Facts(loaded=False, draining=draining)
        stats, now = self._engine.stats(), time.monotonic()
        return Facts(
            loaded=True,
            draining=draining,
            alive=stats.alive,
            has_work=stats.has_work,
            since_progress=now - stats.last_progress,
            produced=stats.tokens_since_start > 0,
            failing_for=None if self._failing_since is None else now - self._failing_since,
            fault=self._fault,
        )

    async def run(self) -> None:
        """Probe while in doubt, for ever; cancelled at shutdown."""
        while True:
            await asyncio.sleep(self.patience.probe_every)
            try:
                if self._engine is not None and self._in_doubt(self._engine):
                    await self._probe(self._engine)
            except Exception:
                logger.exception("a health probe failed")

    def _in_doubt(self, engine: EnginePort) -> bool:
        stats = engine.stats()
        return stats.alive and (self._suspect or self._failing_since is not None or (stats.tokens_since_start == 0 and not stats.has_work))

    async def _probe(self, engine: EnginePort) -> None:
        """Ask for one token. Any token of any request meanwhile is as good an answer."""
        self._probes += 1
        asked, answered = time.monotonic(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def sink(output: Output) -> None:
            self.saw(output)
            if output.error is not None:
                self._fault = "out of memory; see the log" if output.out_of_memory else output.error[:_SHOWN_FAULT]
            if output.finish_reason is not None:
                loop.call_soon_threadsafe(answered.set)

        request = Request(f"probe-{self._probes}", (0,), SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True))
        try:
            engine.submit(request, sink)
            async with asyncio.timeout(self.patience.probe_answer):
                await answered.wait()
        except TimeoutError:
            engine.abort(request.id)
        except EngineError:
            return  # a full queue is no fault; a dead engine shows in `alive`
        if self._last_token < asked and self._failing_since is None:
            self._failing_since = asked
            logger.error("engine unhealthy: a probe produced no token; readiness is off until one does: %s", self._fault)
