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
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def write_yaml(documents: Iterable[Any]) -> None:
    """Documents as YAML, separated as kubectl reads them."""
    import yaml  # tables need none

    sys.stdout.write(yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=140))


def write_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Rows under headings; in a pipe as wide as needed, on a terminal as wide as that."""
    from rich import box  # slow to import
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    console = Console() if sys.stdout.isatty() else Console(width=10_000)
    console.print(table)


def note(text: str) -> None:
    """A remark for the person, not part of the data."""
    typer.echo(text, err=True)
