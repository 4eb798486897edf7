"""The engine's face; the working one follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from glm5_runtime.config import EngineConfig, ModelConfig
    from glm5_runtime.engine.request import Output, Request
    from glm5_runtime.engine.stats import EngineStats


class Engine:
    """One model, one thread, many requests."""

    model_config: ModelConfig
    config: EngineConfig
    max_model_len: int  # the smaller of the checkpoint's and the flag's

    @classmethod
    def load(cls, model_dir: Path, config: EngineConfig) -> Engine:
        """Read the checkpoint and size the cache; raises ConfigError or WeightsError."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the thread; its first act is a warm-up token, so readiness needs no request."""
        raise NotImplementedError

    def stop(self) -> None:
        """End the thread; unfinished requests get an ABORT output."""
        raise NotImplementedError

    def refusal(self, request: Request) -> str | None:
        """Why this request can't be served (too long, unknown token ids, senseless parameters), None when it can."""
        raise NotImplementedError

    def submit(self, request: Request, sink: Callable[[Output], None]) -> None:
        """Queue a request; `sink` is called from the engine thread. Raises QueueFull or EngineDead, nothing else."""
        raise NotImplementedError

    def abort(self, request_id: str) -> None:
        """Give up a request: its pages are free before the next step, its last output says ABORT."""
        raise NotImplementedError

    def stats(self) -> EngineStats:
        """A snapshot for health and metrics."""
        raise NotImplementedError
