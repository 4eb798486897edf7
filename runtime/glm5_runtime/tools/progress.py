"""How far a tool is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

_LINES = 10
"""Of a whole run where there is no terminal."""


@contextmanager
def counting(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """What to call with how many of how many are done."""
    if not console.is_terminal:

        def tell(done: int, total: int) -> None:
            if done and (done * _LINES // total > (done - 1) * _LINES // total):
                console.print(f"{done} of {total} {what}", highlight=False)

        yield tell
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
