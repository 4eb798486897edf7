"""What the engine says no with. Both reach the server from `submit`; everything later comes as an Output."""

from __future__ import annotations


class EngineError(Exception):
    """Base of everything the engine raises to its callers."""


class QueueFull(EngineError):  # noqa: N818 - names what happened, as queue.Full does
    """The bounded waiting queue has no place: try again later (HTTP 429)."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the waiting queue is full ({limit} requests); retry later or raise --max-queue")
        self.limit = limit


class EngineDead(EngineError):  # noqa: N818 - a state, not a mistake of the caller
    """The engine thread has ended and answers nothing any more: restart the process (HTTP 503)."""
