"""How the second act looks: the run's bar with loss and speed, and the answers side by side. Used by __main__.py."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.console import Console

    from demo.training import Course

_LINES = 8
"""News of a whole run where there is no terminal for a bar."""


@contextmanager
def bar(console: Console) -> Iterator[Callable[[Course], None]]:
    """Yields what shows a course: on a terminal as a bar, elsewhere as a line now and then."""
    columns = (TextColumn("  step {task.fields[steps]}"), BarColumn(), TextColumn("{task.fields[news]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None, steps="–", news="")
        said = -1

        def show(now: Course) -> None:
            nonlocal said
            progress.update(task, total=now.total, completed=now.step or 0, steps=_steps(now), news=_news(now))
            part = _LINES * (now.step or 0) // (now.total or 1)
            if not console.is_terminal and part != said:
                said = part
                console.print(f"  step {_steps(now)} {_news(now)}", markup=False, highlight=False)

        yield show


def _steps(now: Course) -> str:
    return f"{now.step}/{now.total}" if now.step is not None else "–"


def _news(now: Course) -> str:
    """Loss and speed; before there are any, what is waited for."""
    if now.loss is None:
        return now.reason
    speed = f"  {now.tokens_per_second:,.0f} tokens/s" if now.tokens_per_second else ""
    return f"loss {now.loss:.3f}{speed}"


def side_by_side(console: Console, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """The answers to the same questions before and after."""
    table = Table(show_lines=True)
    for header in ("question", "before", "after"):
        table.add_column(header, overflow="fold")  # Chinese has no blanks to break a line at
    for question, answer in before.items():
        table.add_row(question, answer, f"[green]{after[question]}[/green]")
    console.print(table, highlight=False)
