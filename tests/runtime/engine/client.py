"""A client of the engine for tests: submits requests, collects their outputs, waits with a deadline."""

from __future__ import annotations

import itertools
import json
import queue
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from glm5_runtime.engine.request import Output, Request, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from glm5_runtime.engine.engine import Engine

TINY = Path(__file__).parents[2] / "fixtures" / "tiny-glm5"
DEADLINE = 60.0

_ids = itertools.count()


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TINY / "tokenizer.json"))


@cache
def expected_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((TINY / "expected.json").read_text())
    return rows


def encode(text: str) -> tuple[int, ...]:
    return tuple(tokenizer().encode(text, add_special_tokens=False).ids)


def question(text: str = "Who are you?") -> tuple[int, ...]:
    return encode(f"[gMASK]<sop><|user|>{text}<|assistant|></think>")


def greedy(max_tokens: int, **changes: Any) -> SamplingParams:  # noqa: ANN401 - any field of SamplingParams
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, **changes)


def ask(prompt: Sequence[int], params: SamplingParams) -> Request:
    return Request(f"request-{next(_ids)}", tuple(prompt), params)


def poll(condition: Callable[[], bool], what: str) -> None:
    """Wait until the condition holds; the engine is a real thread."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"not within {DEADLINE} s: {what}"
        time.sleep(0.002)


class Stream:
    """Outputs of one request."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Output] = queue.Queue()
        self.outputs: list[Output] = []

    def __call__(self, output: Output) -> None:
        self._queue.put(output)

    def next(self) -> Output:
        output = self._queue.get(timeout=DEADLINE)
        assert not self.outputs or self.outputs[-1].finish_reason is None, "an output after the last one"
        self.outputs.append(output)
        return output

    def all(self) -> list[Output]:
        """Every output up to the last, and proof that nothing follows so far."""
        while not self.outputs or self.outputs[-1].finish_reason is None:
            self.next()
        assert self._queue.empty()
        return self.outputs

    @property
    def is_silent(self) -> bool:
        return self._queue.empty()

    def tokens(self) -> list[int]:
        return [output.token for output in self.all() if output.token is not None]

    def last(self) -> Output:
        return self.all()[-1]


class Client:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def send(self, prompt: Sequence[int], params: SamplingParams) -> Stream:
        return self.submit(ask(prompt, params))

    def submit(self, request: Request) -> Stream:
        stream = Stream()
        self.engine.submit(request, stream)
        return stream

    def wait_until_idle(self) -> None:
        poll(lambda: not self.engine.stats().has_work, "the engine has nothing to do")
