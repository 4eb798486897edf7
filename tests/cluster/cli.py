"""The command line of the test clusters. It prints and exits; what it does is in the other modules."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tests.cluster import api as api_cluster
from tests.cluster.api import ApiCluster, ApiOptions
from tests.cluster.build import Cluster
from tests.cluster.build import build as build_everything
from tests.cluster.errors import ClusterError
from tests.cluster.tools import TOOLS, tool

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, pretty_exceptions_enable=False)
api = typer.Typer(no_args_is_help=True, help="Control plane only, on this host: API tests and benchmarks.")
app.add_typer(api, name="api")

console = Console(stderr=True)  # stdout is for paths and names that scripts read
Name = Annotated[str, typer.Option(help="Name of the cluster; several can run at once.")]


def main() -> None:
    """Run the command line; errors are printed without a traceback."""
    try:
        app(standalone_mode=True)
    except ClusterError as error:
        console.print(f"[red]{type(error).__name__}[/red]", error, highlight=False, markup=True)
        sys.exit(1)


@app.command()
def build(only: Annotated[Cluster | None, typer.Option(help="Only what this kind of cluster needs.")] = None) -> None:
    """Make binaries and images that are missing in the cache."""
    seconds = build_everything(only, console)
    console.print(f"nothing left to build; {len(seconds)} steps took {sum(seconds.values()):.0f} s together")


@app.command("tool")
def tool_path(name: Annotated[str, typer.Argument(help=" | ".join(TOOLS))]) -> None:
    """Print the path of one program (kubectl, helm, …), building it first when needed."""
    if name not in TOOLS:
        raise typer.BadParameter(f"{name}: know only {', '.join(TOOLS)}")
    print(tool(name))  # noqa: T201 - the answer of this command


@api.command("up")
def api_up(
    name: Name = "default",
    kwok: Annotated[int, typer.Option(help="Number of KWOK nodes with Ascend cards to add.")] = 0,
    product: Annotated[str, typer.Option(help="A2 (8 cards a node) or A3 (16).")] = "A2",
    qps: Annotated[int, typer.Option(help="Requests a second for controllers and scheduler; 0 = their defaults.")] = 0,
    audit_policy: Annotated[Path | None, typer.Option(help="Audit policy file; turns the audit log on.")] = None,
) -> None:
    """Start it and print its kubeconfig."""
    build_everything(Cluster.API, console)
    begin = time.monotonic()
    cluster = ApiCluster.start(name, ApiOptions(qps=qps, audit_policy=audit_policy))
    if kwok:
        cluster.add_nodes(kwok, product=product)
    console.print(f"API cluster [bold]{name}[/bold] is ready after {time.monotonic() - begin:.1f} s at {cluster.server}")
    print(cluster.kubeconfig)  # noqa: T201 - the answer of this command


@api.command("down")
def api_down(name: Name = "default") -> None:
    """Stop it; logs stay in the cache's logs folder."""
    cluster = ApiCluster.find(name)
    if cluster is None:
        console.print(f"no API cluster {name}")
        return
    cluster.stop()
    console.print(f"API cluster {name} is gone")


@api.command("status")
def api_status() -> None:
    """List API clusters with the state of each part."""
    for name in api_cluster.names():
        cluster = ApiCluster.find(name)
        parts = {} if cluster is None else {part: cluster.processes.alive(part) for part in cluster.processes.names()}
        state = "ready" if cluster is not None and cluster.alive else "broken: run `api up` or `api down`"
        console.print(f"[bold]{name}[/bold] {state} " + " ".join(f"{part}={'up' if up else 'DOWN'}" for part, up in sorted(parts.items())))


@api.command("kubeconfig")
def api_kubeconfig(name: Name = "default") -> None:
    """Print the path of its kubeconfig."""
    cluster = ApiCluster.find(name)
    if cluster is None:
        raise ClusterError(f"no API cluster {name}: start it with `python -m tests.cluster api up`")
    print(cluster.kubeconfig)  # noqa: T201 - the answer of this command
