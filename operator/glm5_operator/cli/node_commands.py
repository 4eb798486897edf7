"""The commands of `glm5` about nodes and cards, with their options: nodes, node release, doctor, compat. Called by `app`, which they join.

Each calls one function that does the work. A command imports what it needs when it runs.
"""

from __future__ import annotations

from typing import Annotated

import typer

from glm5_operator.cli import completion
from glm5_operator.cli.output import Format, FormatOption

_Kubeconfig = Annotated[str | None, typer.Option("--kubeconfig", help="Credentials; default: $KUBECONFIG, else ~/.kube/config.")]

node_app = typer.Typer(help="Act on one node.", no_args_is_help=True, rich_markup_mode=None)


def nodes(
    name: Annotated[
        str | None, typer.Argument(help="Only this node, with a line for each card.", autocompletion=completion.node_names)
    ] = None,
    kubeconfig: _Kubeconfig = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Show the nodes' cards, who holds them, and what is done about sick ones."""
    from glm5_operator.cli.nodes import show_nodes

    show_nodes(name, kubeconfig, form)


@node_app.command()
def release(
    name: Annotated[str, typer.Argument(help="A node in quarantine.", autocompletion=completion.node_names)],
    reason: Annotated[str, typer.Option("--reason", help="What was repaired; kept in the node's history.")] = "",
    kubeconfig: _Kubeconfig = None,
) -> None:
    """Take a node out of quarantine: the operator verifies its cards and gives them back."""
    from glm5_operator.cli.nodes import release_node

    release_node(name, reason, kubeconfig)


def doctor(
    *,
    node: Annotated[
        str | None,
        typer.Option("--node", help="Only this node, with its pods' events and logs.", autocompletion=completion.node_names),
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", help="Folder or .tar.gz of collected files instead of a cluster: a bundle, outputs, logs.")
    ] = None,
    bundle: Annotated[str | None, typer.Option("--bundle", help="Also write what was collected into this .tar.gz.")] = None,
    kubeconfig: _Kubeconfig = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Say what is wrong with nodes, pods and logs: cause, evidence, fix.

    Without --node all nodes are looked at, without logs. Ends with 4 when there are troubles. What one container's stack supports is told
    by `glm5-runtime doctor` inside it; its report (--output json) may be among the collected files.
    """
    from glm5_operator.cli.doctor import run_doctor

    run_doctor(node, source, bundle, kubeconfig, form)


def compat(
    *,
    driver: Annotated[str, typer.Option("--driver", help="Version of the driver (HDK), for example 25.2.0.")] = "",
    cann: Annotated[str, typer.Option("--cann", help="For example 9.1.0.")] = "",
    torch_npu: Annotated[str, typer.Option("--torch-npu", help="For example 2.10.0.post4.")] = "",
    torch: Annotated[str, typer.Option("--torch", help="For example 2.10.0.")] = "",
    python: Annotated[str, typer.Option("--python", help="For example 3.11.")] = "",
    mindcluster: Annotated[str, typer.Option("--mindcluster", help="For example 26.1.0.")] = "",
    vllm_ascend: Annotated[str, typer.Option("--vllm-ascend", help="For example 0.23.0.")] = "",
    image: Annotated[str, typer.Option("--image", help="An image whose reference tells its stack.")] = "",
    report: Annotated[str, typer.Option("--report", help="Output of `glm5-runtime doctor --output json`; - is standard input.")] = "",
    node: Annotated[
        str | None,
        typer.Option("--node", help="A node whose driver is taken, as its agent has read it.", autocompletion=completion.node_names),
    ] = None,
    kubeconfig: _Kubeconfig = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Say whether versions fit together; without any, show the table.

    What is stated counts more than what node, image and report tell. Ends with 4 on a mismatch; what the table doesn't speak of is Unknown.
    """
    from glm5_operator.cli.compat import show_compat
    from glm5_operator.cli.nodes import driver_of
    from glm5_operator.plan.compat import Versions

    if node is not None and not driver:
        driver = driver_of(node, kubeconfig)
    show_compat(Versions(driver, cann, torch_npu, torch, python, mindcluster, vllm_ascend), image, report, form)


def join(app: typer.Typer) -> None:
    """Add these commands to the program."""
    for command in (nodes, doctor, compat):
        app.command()(command)
    app.add_typer(node_app, name="node")
