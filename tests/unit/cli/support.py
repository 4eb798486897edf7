"""Runs the command line in this process, as typer's own runner does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer.testing import CliRunner

from glm5_operator.cli.app import app

if TYPE_CHECKING:
    from click.testing import Result  # typer's runner returns a class of the same shape


def glm5(*words: str, stdin: str | None = None, env: dict[str, str] | None = None) -> Result:
    """One run of `glm5 WORDS…`; an exception that isn't reported in one line is raised here."""
    return CliRunner().invoke(app, list(words), input=stdin, env=env, catch_exceptions=False)  # type: ignore[return-value]
