"""Runs the engine requests of one HTTP request: submits all choices, yields their pieces, aborts what nobody reads any more.

The only place of the server that talks to the engine's queues. The engine calls back from its own thread; outputs cross into the event
loop here. Every accepted request ends: by its last output, by an error, or by `close`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from glm5_runtime.engine.errors import EngineDead, QueueFull
from glm5_runtime.engine.request import FinishReason, Request
from glm5_runtime.server.errors import ApiError, bad_request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from glm5_runtime.engine.constraint import ConstraintFactory
    from glm5_runtime.engine.request import Output, SamplingParams
    from glm5_runtime.engine.stats import EngineStats
    from glm5_runtime.server.account import Account
    from glm5_runtime.server.choice import Choice, Piece
    from glm5_runtime.server.metrics import Metrics

logger = logging.getLogger(__name__)
_OUT_OF_MEMORY_RETRY = 5  # seconds; the requests beside it end meanwhile


class EnginePort(Protocol):
    """What the server needs of an engine."""

    def refusal(self, request: Request) -> str | None:
        """Why this request can't be served, None when it can."""

    def submit(self, request: Request, sink: Callable[[Output], None]) -> None:
        """Queue a request; raises QueueFull or EngineDead."""

    def abort(self, request_id: str) -> None:
        """Give up a request."""

    def stats(self) -> EngineStats:
        """Counters and state."""


class _Crossing:
    """Carries outputs from the engine's thread to one event loop: all that has come together wakes it once, not once each."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[asyncio.Queue[tuple[int, Output]], tuple[int, Output]]] = deque()
        self._awake = False

    def carry(self, queue: asyncio.Queue[tuple[int, Output]], item: tuple[int, Output]) -> None:
        """From any thread; raises RuntimeError when the loop is closed."""
        self._waiting.append((queue, item))
        if not self._awake:
            self._awake = True
            self._loop.call_soon_threadsafe(self._arrive)

    def _arrive(self) -> None:
        self._awake = False  # first: what comes from now on wakes the loop again
        while self._waiting:
            queue, item = self._waiting.popleft()
            queue.put_nowait(item)


_crossing = lru_cache(maxsize=8)(_Crossing)
"""One for each loop: a process has one, tests have many."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One choice before it starts: what the engine gets, and the text state for what comes back."""

    prompt: tuple[int, ...]
    params: SamplingParams
    choice: Choice
    cache_salt: str = ""
    constraint: ConstraintFactory | None = None
    priority: int = 0
    tier: str | None = None
    user: str | None = None  # takes turns with other users instead of other addresses


@dataclass(frozen=True, slots=True)
class Route:
    """What answers a request: the name for replies, and the adapter, empty for the model itself."""

    model: str
    adapter: str


class Generation:
    """All choices of one HTTP request, running side by side."""

    def __init__(
        self,
        request_id: str,
        engine: EnginePort,
        metrics: Metrics,
        saw: Callable[[Output], None],
        account: Account,
        *,
        route: Callable[[], Route],
    ) -> None:
        """`route` is asked once, when the choices are submitted."""
        self.id = request_id
        self._account, self._route = account, route
        self.choices: list[Choice] = []
        self._engine = engine
        self._metrics = metrics
        self._saw = saw
        self._outputs: asyncio.Queue[tuple[int, Output]] = asyncio.Queue()
        self._open: set[int] = set()
        self._loop = asyncio.get_running_loop()
        self._timers: list[_Timer] = []

    @property
    def model(self) -> str:
        """What it runs on, the name for replies; before the start, what was asked for."""
        return self._account.model

    @property
    def completion_tokens(self) -> int:
        """Tokens produced so far over all choices, stop tokens included."""
        return sum(choice.tokens for choice in self.choices)

    def cached_tokens(self, choices_of_a_prompt: int = 1) -> int:
        """Tokens of the prompts that the prefix cache held, each prompt counted once: what its first choice found."""
        return sum(timer.cached for timer in self._timers[::choices_of_a_prompt])

    def start(self, planned: Sequence[Planned]) -> None:
        """Submit all choices or none; raises ApiError 400 (the engine refuses), 429 (queue full) or 503 (engine dead).

        Nothing is awaited between the choice of the adapter and its use: it can't be unloaded in between.
        """
        route = self._route()
        self._account.model = route.model
        requests = [
            Request(
                f"{self.id}-{index}",
                plan.prompt,
                plan.params,
                plan.cache_salt,
                plan.constraint,
                priority=plan.priority,
                client=f"user {plan.user}" if plan.user else self._account.client,
                tier=plan.tier,
                adapter=route.adapter,
            )
            for index, plan in enumerate(planned)
        ]
        for request in requests:
            refusal = self._engine.refusal(request)
            if refusal is not None:
                raise bad_request(refusal)
        self._account.prompt_tokens = sum(len(prompt) for prompt in {id(plan.prompt): plan.prompt for plan in planned}.values())
        for index, (request, plan) in enumerate(zip(requests, planned, strict=True)):
            self.choices.append(plan.choice)
            self._timers.append(_Timer(time.monotonic(), len(request.prompt), request.params.max_tokens))
            self._open.add(index)
            try:
                self._engine.submit(request, self._sink(index))
            except QueueFull as full:
                self._open.discard(index)
                self.close()
                self._metrics.rejected("queue_full")
                raise ApiError(429, str(full), code="queue_full", retry_after=1) from full
            except EngineDead as dead:
                self._open.discard(index)
                self.close()
                raise ApiError(503, "the engine has stopped; a restart follows", code="engine_dead", retry_after=30) from dead

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """(choice index, piece) in the order of arrival until all choices have ended; raises ApiError when one fails."""
        while self._open:
            index, output = await self._outputs.get()
            if index not in self._open:
                continue  # the tail of a choice that a stop string has ended
            piece = self.choices[index].feed(output)
            self._timers[index].scheduled, self._timers[index].cached = output.scheduled, output.cached
            if output.token is not None:
                self._timers[index].token(self._metrics)
            if piece.finish is not None:
                self._end(index, piece.finish, output)
            self._account.failed |= piece.finish is FinishReason.ERROR and not output.own_fault
            if piece.finish in {FinishReason.ERROR, FinishReason.ABORT}:
                raise self._failure(output)
            yield index, piece

    def close(self) -> None:
        """Stop whatever still runs. Safe to call always, and called on every way out."""
        for index in list(self._open):
            self._end(index, FinishReason.ABORT, None)

    def _end(self, index: int, reason: FinishReason, last: Output | None) -> None:
        self._open.discard(index)
        if last is None or last.finish_reason is None:  # ended by us (stop string, client gone), not by the engine
            self._engine.abort(f"{self.id}-{index}")
        self._timers[index].end(self._metrics, reason, self.choices[index].tokens)
        self._note(index, reason)

    def _note(self, index: int, reason: FinishReason) -> None:
        """Write down the end of a choice."""
        account, timer = self._account, self._timers[index]
        account.finish_reasons.append(reason.value)
        account.completion_tokens += self.choices[index].tokens
        if index == 0:
            account.cached_tokens = timer.cached
            account.queue_seconds = None if timer.scheduled is None else max(0.0, timer.scheduled - timer.started)
            account.first_token_seconds = None if timer.first is None else timer.first - timer.started

    def _sink(self, index: int) -> Callable[[Output], None]:
        def deliver(output: Output) -> None:
            self._saw(output)
            try:
                _crossing(self._loop).carry(self._outputs, (index, output))
            except RuntimeError:  # the loop is closed: the process is ending, nobody reads
                logger.debug("output of %s dropped, the loop is closed", self.id)

        return deliver

    def _failure(self, output: Output) -> ApiError:
        if output.finish_reason is FinishReason.ABORT:
            return ApiError(503, "the server stopped this request because it is shutting down", code="aborted", retry_after=1)
        if output.own_fault:
            return bad_request(output.error or "the request asks for what can't be done")
        logger.error("request failed id=%s error=%s", self.id, (output.error or "unknown")[:300])
        if output.out_of_memory:
            why = "the server had no memory left for this request; retry later, or send a shorter one"
            return ApiError(503, why, code="out_of_memory", retry_after=_OUT_OF_MEMORY_RETRY)
        return ApiError(500, output.error or "the engine failed on this request", code="engine_error")


@dataclass(slots=True)
class _Timer:
    """Times of one choice for the latency histograms."""

    started: float
    prompt_tokens: int
    max_tokens: int
    first: float | None = None
    last: float = 0.0
    scheduled: float | None = None
    cached: int = 0

    def token(self, metrics: Metrics) -> None:
        now = time.monotonic()
        if self.first is None:
            self.first = now
            metrics.first_token(now - self.started)
        else:
            metrics.next_token(now - self.last)
        self.last = now

    def end(self, metrics: Metrics, reason: FinishReason, tokens: int) -> None:
        now = time.monotonic()
        decode = None if self.first is None else self.last - self.first
        metrics.finished(
            reason,
            prompt_tokens=self.prompt_tokens,
            tokens=tokens,
            max_tokens=self.max_tokens,
            seconds=now - self.started,
            decode_seconds=decode,
        )
        if self.scheduled is None:
            return  # it never left the queue
        metrics.queued(self.scheduled - self.started)
        if self.first is not None:
            metrics.computed(prefill_seconds=self.first - self.scheduled, inference_seconds=self.last - self.scheduled)
