"""Log lines of the serving process: one line an event, `time level logger message key=value…`, never a body or a key."""

from __future__ import annotations

import logging
import time

LEVELS = ("debug", "info", "warning", "error")


def set_up(level: str) -> None:
    """Send all loggers of the process to standard error."""
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # uvicorn says at info what our own lines say better
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLogger().level))


def say(message: str) -> None:
    """One line of the process itself."""
    logging.getLogger("glm5_runtime").info(message)
