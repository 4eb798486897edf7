"""Packages of the runtime that aren't installed, told in one line; an environment of the operator alone (`make demo`) has no torch.

The group of the command line, in one place for all commands: each imports what is heavy when it runs.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

REMEDY = "the runtime's packages are missing; in a clone: pip install '.[runtime]'"
MISSING = 1
"""Exit code."""


class Commands(TyperGroup):
    """Runs a command; a package that it can't import ends it with REMEDY and the package's name."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - the base class's types are private
        """Run the command that the words name."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] == "glm5_runtime":
                raise  # our own fault
            typer.echo(f"glm5-runtime {ctx.invoked_subcommand}: {REMEDY} (no {error.name})", err=True)
            raise typer.Exit(MISSING) from None
