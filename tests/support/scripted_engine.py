"""An engine that answers what a test wrote down, over the same five methods as the real one.

Only for answers that the tiny model doesn't give (thinking without an end, one exact text). Faults of the engine itself are provoked on the
real one, see `tests.support.serving`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from glm5_runtime.engine.request import FinishReason, Output, Request
from glm5_runtime.engine.stats import EngineStats


class ScriptedEngine:
    """Gives every request the same tokens, from a thread of its own."""

    def __init__(self, tokens: Sequence[int], finish: FinishReason, stop_token: int | None = None) -> None:
        self._outputs = [*((token, None) for token in tokens), (stop_token, finish)]
        self._inbox: SimpleQueue[tuple[Request, Callable[[Output], None]]] = SimpleQueue()
        self.aborted: list[str] = []
        self.requests: list[Request] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            request, sink = self._inbox.get()
            for token, finish in self._outputs:
                sink(Output(request.id, token, None, finish))

    def refusal(self, request: Request) -> str | None:
        del request
        return None

    def submit(self, request: Request, sink: Callable[[Output], None]) -> None:
        self.requests.append(request)
        self._inbox.put((request, sink))

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def stats(self) -> EngineStats:
        return EngineStats(0, 0, 0.0, 0, 0, time.monotonic(), 1, True, 0)
