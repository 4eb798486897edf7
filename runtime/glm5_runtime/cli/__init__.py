"""The command line `glm5-runtime`: one module for each group of commands; nothing heavy is imported before a command runs.

`parse_serve` is the contract with whoever writes such a command (the operator's plan): flags in, checked arguments out, all faults at once.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated

import typer

from glm5_runtime.cli import data, evaluate, serve, tools, train
from glm5_runtime.cli.arguments import ArgumentFaults, ServeArguments, check_arguments
from glm5_runtime.cli.packages import Commands
from glm5_runtime.cli.serve import API_KEY, read_key

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["API_KEY", "ArgumentFaults", "ServeArguments", "app", "main", "parse_serve", "read_key"]

app = typer.Typer(name="glm5-runtime", cls=Commands, help="Serve a GLM-5 checkpoint.", no_args_is_help=True, pretty_exceptions_enable=False)
for _command in (serve.serve, tools.doctor, tools.quantize, data.check, train.train, evaluate.evaluate):
    app.command()(_command)


def parse_serve(argv: Sequence[str]) -> ServeArguments:
    """The checked arguments of a `serve …` command line; raises ArgumentFaults. Touches no file."""
    group = typer.main.get_command(app)
    name, *rest = argv or [""]
    command = getattr(group, "commands", {}).get(name)
    if command is None:
        raise ArgumentFaults([f"unknown command {name!r}"])
    try:
        with command.make_context(name, list(rest)) as context:
            return check_arguments(context.params)
    except ArgumentFaults:
        raise
    except Exception as error:  # click's own errors: unknown flag, flag without a value
        raise ArgumentFaults([getattr(error, "message", str(error))]) from error


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"glm5-runtime {version('glm5-ascend')}")
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Serve a GLM-5 checkpoint on CPU, NPU or CUDA."""


def main() -> None:
    """Entry point of the console script."""
    app()
