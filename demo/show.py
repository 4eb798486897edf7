"""How the second act looks: the run's news with loss and speed, and the answers side by side. Used by __main__.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from demo import training

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import Console

    from demo.training import Course

_LINES = 8
"""News of a whole run where there is no terminal."""
_WIDTH = 20
"""Characters of the bar."""


def news(console: Console, say: Callable[[str], None]) -> Callable[[Course], None]:
    """What shows a course: on a terminal by `say`, with a bar; elsewhere as a line now and then.

    The bar is text in the line that `say` writes: a second live display below it would be left behind where the output is recorded.
    """
    said = -1

    def show(now: Course) -> None:
        nonlocal said
        if console.is_interactive:
            say(_line(now, _bar(now)))
            return
        part = _LINES * (now.step or 0) // (now.total or 1)
        if part != said:
            said = part
            console.print(f"  {_line(now)}", markup=False, highlight=False)

    return show


def _line(now: Course, bar: str = "") -> str:
    """Step, loss and speed; before there are any, what is waited for."""
    if now.step is None or now.loss is None:
        return now.reason
    speed = f"  {now.tokens_per_second:,.0f} tokens/s" if now.tokens_per_second else ""
    return f"step {now.step}/{now.total} {bar}loss {now.loss:.3f}{speed}"


def _bar(now: Course) -> str:
    done = _WIDTH * (now.step or 0) // (now.total or 1)
    return f"{'━' * done}{'─' * (_WIDTH - done)} "


def below(name: str, now: str) -> Group:
    """A step's name, and what goes on now on lines of its own: behind the name a narrow terminal would cut it off."""
    return Group(Text(name), Text(now, style="dim"))


def side_by_side(console: Console, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """The answers to the same questions before and after: green what was learned, red what wasn't."""
    missing = training.unlearned(before, after)
    table = Table(show_lines=True)
    for header in ("question", "before", "after"):
        table.add_column(header, overflow="fold")  # Chinese has no blanks to break a line at
    for question, answer in before.items():
        table.add_row(Text(question), Text(answer), Text(after[question], style="red" if question in missing else "green"))
    console.print(table, highlight=False)
