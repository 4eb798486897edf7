"""The commands of `glm5` about pools, with their options: pools, pool move. Called by `app`, which they join.

Each calls one function that does the work. A command imports what it needs when it runs.
"""

from __future__ import annotations

from typing import Annotated

import typer

from glm5_operator.cli import completion
from glm5_operator.cli.output import Format, FormatOption

_Kubeconfig = Annotated[str | None, typer.Option("--kubeconfig", help="Credentials; default: $KUBECONFIG, else ~/.kube/config.")]

pool_app = typer.Typer(help="Act on pools.", no_args_is_help=True, rich_markup_mode=None)


def pools(
    name: Annotated[str | None, typer.Argument(help="Only this pool, with the pods that hold its cards.")] = None,
    kubeconfig: _Kubeconfig = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Show the pools' cards, pods that hold some against the rules, and nodes that change pools."""
    from glm5_operator.cli.pools import show_pools

    show_pools(name, kubeconfig, form)


@pool_app.command()
def move(
    node: Annotated[str, typer.Argument(help="The node to move.", autocompletion=completion.node_names)],
    *,
    target: Annotated[str | None, typer.Option("--to", help="The pool that is to have it.")] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Stop the move that is under way; the node stays where it is.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it has arrived.")] = True,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds to wait.")] = 3600,
    kubeconfig: _Kubeconfig = None,
) -> None:
    """Give a node to another pool: its pods end, its cards are reset and verified, then the pool gets it.

    Cards are reset only where spec.health.mode of its pool is Auto; elsewhere their memory must be idle as it is.
    """
    from glm5_operator.cli.pools import Move, move_node

    if cancel == (target is not None):
        raise typer.BadParameter("give --to POOL, or --cancel")
    move_node(Move(node, target, timeout if wait else None, kubeconfig))


def join(app: typer.Typer) -> None:
    """Add these commands to the program."""
    app.command()(pools)
    app.add_typer(pool_app, name="pool")
