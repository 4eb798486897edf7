"""Log lines of the serving process: one line an event, `time level logger message key=value…`, never a body or a key."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_SPARING_SECONDS = 60.0
LEVELS = ("debug", "info", "warning", "error")


def set_up(level: str) -> None:
    """Send all loggers of the process to standard error."""
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("httpx2", "httpcore2"):  # they would tell the URLs of hooks, which may hold a token
        logging.getLogger(name).setLevel(logging.WARNING)
    # uvicorn says at info what our own lines say better
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLogger().level))


def say(message: str) -> None:
    """One line of the process itself."""
    logging.getLogger("glm5_runtime").info(message)


class Sparingly:
    """A logger for what may happen with every request: one line a minute at most, which says how many came before it."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger, self._clock = logger, clock
        self._next = float("-inf")
        self._kept_back = 0

    def warning(self, message: str) -> None:
        """Say or count."""
        self._say(logging.WARNING, message)

    def error(self, message: str) -> None:
        """Say or count."""
        self._say(logging.ERROR, message)

    def _say(self, level: int, message: str) -> None:
        now = self._clock()
        if now < self._next:
            self._kept_back += 1
            return
        self._next = now + _SPARING_SECONDS
        more = f" ({self._kept_back} more such lines were kept back)" if self._kept_back else ""
        self._kept_back = 0
        self._logger.log(level, "%s%s", message, more)
