"""Prepares grammars off the event loop, within time and memory, and follows one for each answer.

Used by the endpoints (`Grammars.constraint`); the engine thread runs the constraints. A new grammar is tried out in a child process first
(`grammar_trial`), one at a time; what was prepared is kept, refusals too, since most clients send the same grammar again and again. That a
trial gave no answer is kept for a while only: the machine may have been busy, or the child ended from outside.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import select
import subprocess
import sys
import time
import weakref
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from glm5_runtime.engine.constraint import AfterToken
from glm5_runtime.server import grammar_trial
from glm5_runtime.server.errors import ApiError, bad_request
from glm5_runtime.text.tokens import MARKERS

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from llguidance import LLMatcher, LLTokenizer
    from numpy.typing import NDArray

    from glm5_runtime.engine.constraint import ConstraintFactory
    from glm5_runtime.server.grammar import Grammar
    from glm5_runtime.server.params import Limits
    from glm5_runtime.text.tokens import TextTokenizer

logger = logging.getLogger(__name__)
_SECONDS = 5.0
_START_SECONDS = 60.0  # a tokenizer of 150,000 tokens takes one or two on a free core
_KEPT = 64
_WAITING = 64
_TRIAL_RETRY = 10  # seconds
_UNTRIED_SECONDS = 30.0  # a grammar without an answer is not tried again before: it takes the child 5 of 35 s however often it is sent
_TOO_MUCH = (
    f"it takes more than {_SECONDS:g} s or {grammar_trial.MEMORY >> 20} MB to prepare; make it simpler,"
    f" or send it again after {_UNTRIED_SECONDS:g} s in case the server was busy"
)
_NO_TRIAL = "this server can't prepare grammars at the moment; retry later"


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a grammar can't be used, and until when by the clock that holds without another trial."""

    why: str
    until: float = math.inf


class Grammars:
    """Prepared grammars of one model. `clock`: seconds, for how long a refusal holds."""

    def __init__(self, tokenizer: TextTokenizer, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokenizer, self._limits, self._clock = tokenizer, limits, clock
        self._reader: LLTokenizer | None = None
        self._trial: _Trial | None = None
        self._kept: OrderedDict[str, LLMatcher | _Refusal] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, "grammars")  # the default one's places are for bodies
        self._waiting = 0

    def token_of(self, text: str) -> int | None:
        """The token that is this text, if there is one."""
        found: int | None = self._tokenizer.raw.token_to_id(text)
        return found

    async def constraint(self, grammar: Grammar) -> ConstraintFactory:
        """What makes the constraint of one answer; raises ApiError 400 naming the field when the grammar can't be used."""
        found = self._known(grammar.text)
        if found is None:
            found = await self._prepare_aside(grammar)
        else:
            with suppress(KeyError):  # the thread may have dropped it just now
                self._kept.move_to_end(grammar.text)
        if found is None:
            raise ApiError(503, _NO_TRIAL, code="no_grammars", retry_after=_TRIAL_RETRY)
        if isinstance(found, _Refusal):
            raise bad_request(f"{grammar.field} can't be used: {found.why}", grammar.field)
        return partial(GrammarConstraint, found, grammar.field)

    def after(
        self, text: str, inner: ConstraintFactory | None, *, field: str, may_end: bool = False, budget: int | None = None
    ) -> ConstraintFactory:
        """The same behind the token `text`, which comes by itself, or after `budget` tokens. `may_end`: the answer may end without it."""
        token = self.token_of(text)
        if token is None:
            raise bad_request(f"{field} can't be honoured: this model's tokenizer has no {text}", field)
        held_back = frozenset[int]() if may_end else self._limits.eos_token_ids
        return lambda: AfterToken(token, None if inner is None else inner(), held_back, budget)

    def _known(self, text: str) -> LLMatcher | _Refusal | None:
        found = self._kept.get(text)
        return None if isinstance(found, _Refusal) and self._clock() >= found.until else found

    async def _prepare_aside(self, grammar: Grammar) -> LLMatcher | _Refusal | None:
        if self._waiting >= _WAITING:
            raise ApiError(429, f"{_WAITING} new grammars wait to be prepared; retry", code="queue_full", retry_after=1)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._prepare, grammar.text)
        finally:
            self._waiting -= 1

    def _prepare(self, text: str) -> LLMatcher | _Refusal | None:
        found = self._known(text)  # by now another request may have brought the same
        if found is None:
            found = self._prepared(text)
            if found is None:  # no fault of the grammar
                return None
            self._kept[text] = found
            self._kept.move_to_end(text)  # one that was tried again kept its old place
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found

    def _prepared(self, text: str) -> LLMatcher | _Refusal | None:
        """None when no grammar can be tried out."""
        if self._trial is None or self._reader is None:
            stored, size, eos = _with_special_markers(self._tokenizer), self._limits.vocab_size, sorted(self._limits.eos_token_ids)
            self._reader = grammar_trial.make_tokenizer(stored, size, eos)
            self._trial = _Trial({"tokenizer": stored, "vocab_size": size, "eos": eos, "memory": grammar_trial.MEMORY})
        error, text = self._trial.of(text)
        if error is _NO_TRIAL:
            return None
        if error is _TOO_MUCH:
            return _Refusal(_TOO_MUCH, self._clock() + _UNTRIED_SECONDS)
        if error:
            return _Refusal(" ".join(error.removesuffix("<non-verbose/>").split())[:300])
        return grammar_trial.prepare(self._reader, text)


class GrammarConstraint:
    """One answer on its way through a grammar. See engine.constraint.TokenConstraint; engine thread only."""

    def __init__(self, beginning: LLMatcher, field: str) -> None:
        self._matcher = beginning.deep_copy()
        self._field = field
        self.fault: str | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing but the end may come."""
        return self._matcher.is_stopped()

    def fill(self, mask: NDArray[np.int32]) -> bool:
        """Clear the bits of tokens that the grammar doesn't allow here; tokens that end an answer stay where it may end."""
        if self.fault is None:
            self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            self._check()
        return self.fault is None

    def accept(self, token: int) -> None:
        """Follow one token."""
        if self.fault is None and not self._matcher.consume_token(token):
            self._check()

    def rollback(self, count: int) -> None:
        """Go back."""
        if self.fault is None and count and not self._matcher.rollback(count):
            self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            self.fault = f"{self._field} outgrew its limits ({self._matcher.get_error().splitlines()[0][:200]}); make it simpler"


class _Trial:
    """The child process; started when first asked, and again after it had to be killed. Used by one thread at a time."""

    def __init__(self, about: dict[str, Any]) -> None:
        self._about = json.dumps(about)
        self._child: subprocess.Popen[bytes] | None = None

    def of(self, grammar: str) -> tuple[str, str]:
        """What is wrong with a grammar, nothing when it can be used; and what to prepare."""
        if self._child is None or self._child.poll() is not None:
            command = [sys.executable, "-P", grammar_trial.__file__]  # packages where this process has them, PYTHONPATH too; not its folder
            self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            weakref.finalize(self, self._end, self._child)
            if self._ask(self._about, _START_SECONDS) is None:
                logger.error("the process that tries out grammars does not start; if it said why, that stands above")
                return _NO_TRIAL, ""
        reply = self._ask(json.dumps({"grammar": grammar}), _SECONDS)
        return (_TOO_MUCH, "") if reply is None else (reply["error"], reply["grammar"])

    def _ask(self, line: str, seconds: float) -> dict[str, Any] | None:
        """The child's answer; None when it gave none in time, and then the child is gone."""
        child = self._child
        assert child is not None and child.stdin is not None and child.stdout is not None, "opened with pipes"  # noqa: PT018 - one fact
        reply = b""
        try:
            child.stdin.write(line.encode() + b"\n")
            child.stdin.flush()
            ready, until = select.poll(), time.monotonic() + seconds
            ready.register(child.stdout, select.POLLIN | select.POLLHUP)
            while not reply.endswith(b"\n"):
                if not ready.poll(max(0.0, until - time.monotonic()) * 1000):
                    break
                piece = os.read(child.stdout.fileno(), 1 << 16)
                if not piece:
                    break
                reply += piece
        except BrokenPipeError:
            reply = b""
        if reply.endswith(b"\n"):
            answer: dict[str, Any] = json.loads(reply)
            return answer
        self._end(child)
        return None

    @staticmethod
    def _end(child: subprocess.Popen[bytes]) -> None:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


def _with_special_markers(tokenizer: TextTokenizer) -> str:
    """The tokenizer's JSON in which the markers of thinking and calls are tokens of their own, not text that a string may hold."""
    stored = json.loads(tokenizer.raw.to_str())
    for entry in stored.get("added_tokens", []):
        if entry["content"] in MARKERS:
            entry["special"] = True
    return json.dumps(stored)
