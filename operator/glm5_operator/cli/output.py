"""Writes what a command found: data to standard output as a table, JSON or YAML; progress and remarks to standard error.

A pipe gets data only, so `glm5 … -o json | jq` works while progress is shown.
"""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Format(StrEnum):
    """Forms of output."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


FormatOption = Annotated[Format, typer.Option("--output", "-o", help="Form of the output.")]


def write_json(data: Any) -> None:  # noqa: ANN401 - any JSON
    """Data as indented JSON."""
    sys.stdout.write(_encodable(json.dumps(data, indent=2, ensure_ascii=False)) + "\n")


def write_yaml(documents: Iterable[Any]) -> None:
    """Documents as YAML, separated as kubectl reads them."""
    import yaml  # tables need none

    sys.stdout.write(_encodable(yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=140)))


def write_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Rows under headings; on a terminal as wide as that, long cells go on below; in a pipe a line for each row, as wide as needed."""
    from rich import box  # slow to import
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    on_terminal = sys.stdout.isatty()
    table = Table(box=box.SIMPLE_HEAD if on_terminal else None, title=title or None, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")  # an endpoint that is cut can't be copied
    for row in rows:
        table.add_row(*(Text("" if cell is None else _printable(str(cell))) for cell in row))
    if on_terminal:
        Console().print(table)
        return
    console = Console(width=100_000)
    with console.capture() as drawn:
        console.print(table)
    lines = drawn.get().splitlines()
    sys.stdout.write("".join(line.rstrip() + "\n" for line in [*lines, ""]))  # one long reason must not pad all other rows


def write_lines(lines: Iterable[str]) -> None:
    """Lines for people."""
    for line in lines:
        sys.stdout.write(_printable(line) + "\n")


def note(text: str) -> None:
    """A remark for the person, not part of the data."""
    typer.echo("\n".join(map(_printable, text.split("\n"))), err=True)


def _printable(text: str) -> str:
    """Without control characters, with which what is quoted from logs, nodes and files could write anywhere on a terminal."""
    return "".join(letter for letter in text if letter.isprintable())


def _encodable(text: str) -> str:
    """With a mark for halves of characters, which JSON can spell and no file can hold."""
    return text.encode(errors="replace").decode()
