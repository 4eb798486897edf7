"""How far a run is: one record that anybody may read at any time, and how it is told to people.

The loop replaces the record after every step; readers (a terminal, the log, whoever serves it over HTTP) see one or the next, never a mix.
"""

from __future__ import annotations

import logging
import math
import sys
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Progress:
    """State after a step. Losses are means over learned tokens; None: not known yet."""

    step: int
    total: int
    epoch: float
    loss: float | None = None
    learning_rate: float = 0.0
    gradient_norm: float | None = None
    tokens: int = 0
    """Tokens of all rows so far."""
    tokens_per_second: float = 0.0
    eta_seconds: float | None = None
    evaluation_loss: float | None = None
    overflows: int = 0
    """Steps that were left out because fp16 gradients overflowed; expected now and then."""
    skipped: int = 0
    """Steps that were left out because something wasn't finite; not expected."""
    checkpoint_step: int | None = None
    """Step of the newest complete checkpoint."""
    rl: Mapping[str, float] | None = None
    """With grpo and ppo, of the step's answers: `reward` (mean) and so on (`train.rl.step`)."""

    def to_json(self) -> dict[str, Any]:
        """For `json.dumps`, which has no NaN: numbers that aren't finite are null."""
        return _finite(asdict(self))

    def __str__(self) -> str:
        eta = "-" if self.eta_seconds is None else str(timedelta(seconds=round(self.eta_seconds)))
        loss = "-" if self.loss is None else f"{self.loss:.4f}"
        reward = "" if self.rl is None else f" reward {self.rl['reward']:.3f}"
        return (
            f"step {self.step}/{self.total} epoch {self.epoch:.2f} loss {loss}{reward} rate {self.learning_rate:.3g}"
            f" {self.tokens_per_second:.0f} tokens/s ETA {eta}"
        )


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _finite(value) if isinstance(value, dict) else None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in values.items()
    }


class Reporter(Protocol):
    """Tells people."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...
    def __call__(self, progress: Progress) -> None:
        """After every step."""


class Lines:
    """A log line for every step."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __call__(self, progress: Progress) -> None:
        """One line."""
        log.info("%s", progress)


class OnTerminal:
    """A bar that stays in its line."""

    def __init__(self, console: Console) -> None:
        self._bar = Bar(BarColumn(), TextColumn("{task.description}"), console=console)
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        """Redraw."""
        self._bar.update(self._task, total=progress.total, completed=progress.step, description=str(progress))


def reporter() -> Reporter:
    """A bar where a person looks on, else lines."""
    console = Console(file=sys.stderr)
    return OnTerminal(console) if console.is_terminal else Lines()
