"""The engine: one thread that turns requests into tokens, and the thread-safe door to it.

The server calls `submit`, `abort`, `stats` from its own thread; one queue leads in, the request's sink leads out. All else runs in
the engine thread: take commands, schedule, compute, choose, deliver, again.

What happens when something fails:
- a request that can't be served gets an ERROR output (`checks`), and never meets a tensor;
- logits that are not finite fail that request alone; those of the engine's own first token leave `tokens_since_start` at 0;
- out of memory in a step fails the requests of that step; their pages and temporaries are free again, and the engine goes on;
- a grammar that outgrows its limits fails its request;
- a sink that raises loses its request;
- anything else (a device fault, our own mistake) fails every unfinished request and ends the thread: `stats().alive` is False,
  `submit` raises EngineDead, health falls, and the process is restarted. State on a device that has faulted can't be trusted.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from bisect import bisect_left
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from glm5_runtime.engine import checks
from glm5_runtime.engine.errors import EngineDead, QueueFull
from glm5_runtime.engine.request import FinishReason, Output, Request, SamplingParams
from glm5_runtime.engine.sequence import Sequence
from glm5_runtime.engine.stats import STEP_TOKENS, EngineStats
from glm5_runtime.engine.steps import is_out_of_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from glm5_runtime.config import EngineConfig, ModelConfig
    from glm5_runtime.engine.adapters import AdapterStore
    from glm5_runtime.engine.replicas import Replicas
    from glm5_runtime.engine.runner import Chosen, Runner
    from glm5_runtime.engine.scheduler import Scheduler

log = logging.getLogger(__name__)


class Engine:
    """One model, one thread, many requests."""

    def __init__(
        self,
        model_config: ModelConfig,
        config: EngineConfig,
        runner: Runner,
        scheduler: Scheduler | Replicas,
        clock: Callable[[], float] = time.monotonic,
        *,
        adapters: AdapterStore | None = None,
    ) -> None:
        self.model_config = model_config
        self.adapters = adapters
        self.config = config
        self.max_model_len = min(config.max_model_len or model_config.max_model_len, model_config.max_model_len)
        self.tiers = {tier.name: int(tier.length) for tier in scheduler.tiers if tier.name}
        self._runner, self._scheduler, self._clock = runner, scheduler, clock
        self._seeds = random.Random(config.seed)  # noqa: S311 - sampling, not secrets
        self._thread: threading.Thread | None = None
        # Everything below is shared with callers' threads and guarded by the condition.
        self._wake = threading.Condition()
        self._arrived: list[Sequence] = []
        self._aborted: list[str] = []
        self._unfinished = 0
        self._of_client: Counter[str] = Counter()
        self._stopping = False
        self._fault: str | None = None
        self._ended = False
        # Written by the engine thread, read by stats().
        self._last_progress = clock()
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._warm_up_tokens = 0
        self._step_tokens = [0] * (len(STEP_TOKENS) + 1)
        self._step_tokens_sum = 0

    def start(self) -> None:
        """Start the thread. Its first act is a token of its own, so readiness needs no request and the first user no patience."""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the step under way; unfinished requests get an ABORT output."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        else:
            self._end_all(FinishReason.ABORT, "the engine was stopped before it started")
            self._runner.close()

    def fail(self, fault: str) -> None:
        """Something that the engine needs is gone: it ends as if a step had failed, whatever it is waiting for. From any thread."""
        with self._wake:
            self._fault = fault
            self._wake.notify()

    def refusal(self, request: Request) -> str | None:
        """Why this request can't be served (too long, unknown token ids, senseless parameters, no such adapter), None when it can."""
        known = not request.adapter or (self.adapters is not None and self.adapters.has(request.adapter))
        return self._refusal(request, has_adapter=known)

    def _refusal(self, request: Request, *, has_adapter: bool) -> str | None:
        if not has_adapter:
            return f"there is no adapter {request.adapter[:80]!r} here; GET /v1/models names those that are loaded"
        return checks.refusal(request, self.model_config.vocab_size, self.max_model_len, self.tiers)

    def submit(self, request: Request, sink: Callable[[Output], None]) -> None:
        """Queue a request; `sink` is called from the engine thread. Raises QueueFull or EngineDead, nothing else."""
        params = request.params
        stop_ids = params.stop_token_ids if params.ignore_eos else params.stop_token_ids | self.model_config.eos_token_ids
        with self._wake:
            if self._ended or self._stopping or self._fault:
                raise EngineDead("the engine has stopped and takes no requests; the process must be restarted")
            places, queue = self.config.max_sequences * self.config.data_parallel_size, self.config.max_queue
            has_nothing_here = bool(request.client) and not self._of_client[request.client]
            if self._unfinished >= places + queue + (min(places, queue) if has_nothing_here else 0):
                raise QueueFull(queue)  # one client's queue is no reason to refuse another's first request, within bounds
            if self._unfinished == 0:
                self._last_progress = self._clock()  # else an engine idle for long would look stuck
            seed = self._seeds.getrandbits(63) if params.seed is None else params.seed
            self._unfinished += 1
            self._of_client[request.client] += 1
            adapter = self.adapters.hold(request.adapter) if self.adapters is not None and request.adapter else 0
            self._arrived.append(Sequence(request, sink, stop_ids, seed, adapter))
            self._wake.notify()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Requests submitted inside reach the engine at the same time: what is computed side by side doesn't depend on threads' turns."""
        with self._wake:
            yield

    def abort(self, request_id: str) -> None:
        """Give up a request: its pages are free before the next step, its last output says ABORT. Unknown ids are nothing."""
        with self._wake:
            self._aborted.append(request_id)
            self._wake.notify()

    def stats(self) -> EngineStats:
        """A snapshot for health and metrics."""
        sequences = tuple(self._scheduler.running)
        running = len(sequences)
        adapters = Counter(sequence.request.adapter for sequence in sequences if sequence.adapter)
        in_use = {} if self.adapters is None else self.adapters.in_use()
        return EngineStats(
            running=running,
            waiting=max(0, self._unfinished - running),
            kv_usage=self._scheduler.usage,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            last_progress=self._last_progress,
            tokens_since_start=self._generation_tokens + self._warm_up_tokens,
            alive=self._thread is not None and self._thread.is_alive() and not self._ended and self._fault is None,
            preemptions=self._scheduler.preemptions,
            step_tokens=tuple(self._step_tokens),
            step_tokens_sum=self._step_tokens_sum,
            prefix_queries=self._scheduler.prefix_queries,
            prefix_hits=self._scheduler.prefix_hits,
            max_adapters=0 if self.adapters is None else self.adapters.most,
            running_adapters=tuple(sorted(adapters)),
            waiting_adapters=tuple(sorted(name for name, users in in_use.items() if users > adapters[name])),
            drafts=self._runner.draft_counts.rounds,
            draft_tokens=self._runner.draft_counts.tokens,
            accepted_drafts=tuple(self._runner.draft_counts.accepted[: self.config.speculative_tokens]),
        )

    def _run(self) -> None:
        """The thread: until stopped, or until something fails that isn't one request's own trouble."""
        try:
            with torch.inference_mode():
                self._warm_up()
                while self._take_commands():
                    self._step()
        except Exception as error:  # the last line of defence: whatever it was, every request must get an answer
            log.exception("the engine has died; all requests fail and the process must be restarted")
            self._end_all(FinishReason.ERROR, f"the engine failed: {type(error).__name__}: {error}")
        else:
            self._end_all(FinishReason.ABORT, "the engine was stopped")
        self._runner.close()

    def _warm_up(self) -> None:
        """One token through everything, guesses for more included, in no statistics but `tokens_since_start`."""
        request = Request("warm-up", (0,), SamplingParams(max_tokens=3, temperature=0.0))
        sequence = Sequence(request, lambda _: None, frozenset(), seed=0, scheduled=self._clock())  # so that no counter takes it for new
        self._scheduler.add(sequence)
        try:
            for choice in self._runner.run(self._scheduler.schedule()):
                if choice.broken is None:
                    sequence.append(choice.token)
                    self._warm_up_tokens += 1
                else:
                    log.error("the first token failed, the server stays unready: %s", choice.broken)
        finally:
            self._scheduler.remove(sequence)
        self._last_progress = self._clock()

    def _take_commands(self) -> bool:
        """Wait for something to do; take what callers left. False when the engine shall stop."""
        with self._wake:
            self._wake.wait_for(lambda: self._stopping or self._fault or self._arrived or self._aborted or self._scheduler.has_work)
            arrived, self._arrived = self._arrived, []
            aborted, self._aborted = self._aborted, []
            stopping, fault = self._stopping, self._fault
        if fault is not None:
            raise EngineDead(fault)
        for sequence in arrived:
            self._accept(sequence)
        for request_id in aborted:
            if sequence_found := self._scheduler.find(request_id):
                self._finish(sequence_found, FinishReason.ABORT)
        return not stopping

    def _accept(self, sequence: Sequence) -> None:
        problem = self._refusal(sequence.request, has_adapter=sequence.adapter > 0 or not sequence.request.adapter)
        if problem is None and self._scheduler.find(sequence.request.id) is not None:
            problem = f"a request with id {sequence.request.id!r} is running; ids must be unique"
        nothing_to_do = sequence.params.max_tokens == 0 and sequence.params.prompt_logprobs is None
        if problem is None and not nothing_to_do:
            self._scheduler.add(sequence)
            return
        self._leave(sequence)
        _tell(sequence, None, FinishReason.LENGTH if problem is None else FinishReason.ERROR, problem, own_fault=problem is not None)

    def _step(self) -> None:
        """One batch: schedule, compute, deliver."""
        plan = self._scheduler.schedule()
        if not plan:
            return
        now, tokens = self._clock(), sum(step.count for step in plan)
        for step in plan:
            if step.sequence.scheduled is None:
                step.sequence.scheduled, step.sequence.cached = now, step.sequence.computed
        begun = [step.sequence for step in plan if step.completes and not step.sequence.produced]
        try:
            choices = self._runner.run(plan)
            self._count(tokens, begun)
            for choice in choices:
                self._advance(choice)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            log.error("out of memory in a step of %d tokens: its %d requests fail: %s", tokens, len(plan), str(error)[:300])
            message = f"out of memory: {error}; lower --max-batched-tokens or --max-sequences"
            for step in plan:
                if step.sequence.running:
                    self._finish(step.sequence, FinishReason.ERROR, error=message, out_of_memory=True)
            return
        self._last_progress = self._clock()

    def _count(self, tokens: int, begun: list[Sequence]) -> None:
        """So many tokens are computed, and these sequences' prompts with them."""
        self._step_tokens[bisect_left(STEP_TOKENS, tokens)] += 1
        self._step_tokens_sum += tokens
        for sequence in begun:
            self._prompt_tokens += sequence.prompt_length
            if sequence.params.max_tokens == 0:
                self._finish(sequence, FinishReason.LENGTH)

    def _advance(self, choice: Chosen) -> None:
        """Append the token, tell the client, and finish the sequence when it is the last."""
        sequence = choice.sequence
        if choice.broken is not None:
            self._finish(sequence, FinishReason.ERROR, error=choice.broken)
            return
        sequence.append(choice.token)
        self._generation_tokens += 1
        if sequence.sampling.fault is not None:
            self._finish(sequence, FinishReason.ERROR, error=sequence.sampling.fault, own_fault=True)
            return
        reason = None
        may_stop = sequence.produced >= sequence.params.min_tokens or sequence.sampling.finished
        if choice.token in sequence.stop_ids and may_stop:
            reason = FinishReason.STOP
        elif sequence.produced >= sequence.params.max_tokens:
            reason = FinishReason.LENGTH
        if reason is not None:
            self._finish(sequence, reason, choice)
        elif not _tell(sequence, choice, None):
            self._release(sequence)

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        choice: Chosen | None = None,
        error: str | None = None,
        *,
        out_of_memory: bool = False,
        own_fault: bool = False,
    ) -> None:
        """Free what the sequence holds, then say the last word: who reads it finds the place free."""
        self._release(sequence, spoiled=reason is FinishReason.ERROR)
        _tell(sequence, choice, reason, error, out_of_memory=out_of_memory, own_fault=own_fault)

    def _release(self, sequence: Sequence, *, spoiled: bool = False) -> None:
        """A sequence that failed leaves nothing that others might share: its rows may be what it failed of."""
        self._scheduler.remove(sequence, spoiled=spoiled)
        self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        if sequence.adapter and self.adapters is not None:
            self.adapters.release(sequence.adapter)
        with self._wake:
            self._unfinished -= 1
            client = sequence.request.client
            self._of_client[client] -= 1
            if not self._of_client[client]:
                del self._of_client[client]

    def _end_all(self, reason: FinishReason, error: str) -> None:
        """Close the door, then answer everyone inside."""
        with self._wake:
            self._ended = True
            arrived, self._arrived = self._arrived, []
        for sequence in arrived:
            self._leave(sequence)
            _tell(sequence, None, reason, error)
        for sequence in self._scheduler.alive:
            self._finish(sequence, reason, error=error)


def _tell(
    sequence: Sequence,
    choice: Chosen | None,
    reason: FinishReason | None,
    error: str | None = None,
    *,
    out_of_memory: bool = False,
    own_fault: bool = False,
) -> bool:
    """Call the sink; False when it raises: nobody is listening any more, and that is no trouble of the others."""
    is_first = sequence.produced <= 1 and sequence.params.prompt_logprobs is not None
    output = Output(
        request_id=sequence.request.id,
        token=None if choice is None else choice.token,
        logprob=None if choice is None else choice.logprob,
        finish_reason=reason,
        error=error,
        prompt_logprobs=tuple(sequence.prompt_logprobs) if is_first and error is None and reason is not FinishReason.ABORT else None,
        out_of_memory=out_of_memory,
        own_fault=own_fault,
        scheduled=sequence.scheduled,
        cached=sequence.cached,
    )
    try:
        sequence.sink(output)
    except Exception:  # foreign code, any fault
        log.exception("the listener of request %s failed; the request ends", sequence.request.id)
        return False
    return True
