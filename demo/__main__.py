"""`make demo` and `make demo-down`: a real Kubernetes, the operator from its chart, a served model, two questions.

Prints what it does step by step, and at the end how to look around. Everything it does is in steps.py and site.py.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from demo import site as places
from demo import steps
from demo.site import Site
from demo.talk import generate, port_forward, stream_chat
from tests.cluster import engine, images, workload
from tests.cluster.build import Cluster, build
from tests.cluster.errors import ClusterError
from tests.cluster.kind import KindCluster

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, pretty_exceptions_enable=False)
console = Console()


@app.command()
def up() -> None:
    """Start the demo, or look at the running one."""
    begin = time.monotonic()
    place = _current() if os.environ.get("CLUSTER") == "current" else _kind()
    with _step("install the operator with Helm"):
        steps.install_operator(place)
    with _step("apply the pool and the service"):
        steps.apply_pool(place)
        steps.apply_service(place)
    with _step("wait for the service") as say:
        steps.wait_serving(place, say)
    _ask(place)
    _how_to_go_on(place, time.monotonic() - begin)


@app.command()
def down() -> None:
    """Take everything away again."""
    if os.environ.get("CLUSTER") == "current":
        with _step("remove service, pool, operator and namespaces"):
            steps.remove(places.current_site())
    else:
        with _step("delete the kind cluster"):
            KindCluster.remove(places.CLUSTER_NAME)


def _kind() -> Site:
    """The demo's own cluster, with images loaded."""
    build(Cluster.KIND, console)
    with _step("find or start a Docker engine"):
        docker = engine.require()
    with _step("build the images (the first time takes a while)"):
        for target in images.TARGETS:
            images.build(docker, target)
    with _step("create a Kubernetes cluster with two nodes of fake Ascend cards") as say:
        cluster = KindCluster.up(places.CLUSTER_NAME, workload.options(docker), say)
    with _step("load the images onto the nodes"):
        places.load_images(cluster)
    return places.kind_site(cluster)


def _current() -> Site:
    place = places.current_site()
    console.print(f"using the cluster of {place.kubeconfig}: {place.kubectl('config', 'current-context').strip()}")
    return place


def _ask(place: Site) -> None:
    """Show the object, one streamed answer, one /generate answer."""
    console.rule("kubectl get glm5")
    console.print(place.kubectl("get", "glm5", "-n", steps.NAMESPACE), highlight=False)
    with port_forward(place.kubectl_path, place.kubeconfig, steps.NAMESPACE, f"svc/{steps.SERVICE}-api") as url:
        for question in ("Who are you?", "什么是昇腾？"):
            console.print(f"[bold]you[/bold]   {question}\n[bold]model[/bold] ", end="")
            for piece in stream_chat(url, "tiny-glm5", question):
                console.print(piece, end="", markup=False, highlight=False)
            console.print()
        console.rule("POST /generate")
        console.print(generate(url, "Return a new ", 24), highlight=False)


def _how_to_go_on(place: Site, seconds: float) -> None:
    table = Table.grid(padding=(0, 2))
    namespace, operator = f"-n {steps.NAMESPACE}", f"-n {steps.OPERATOR_NAMESPACE} deploy/{steps.RELEASE}-glm5-operator"
    for what, command in (
        ("first", f"export KUBECONFIG={place.kubeconfig}"),
        ("", f"export PATH={place.kubectl_path.parent}:{place.helm_path.parent}:$PATH"),
        ("look around", "kubectl get glm5,npupool,pods -A"),
        ("understand", f"kubectl describe glm5 {steps.SERVICE} {namespace}"),
        ("talk", f"kubectl port-forward {namespace} svc/{steps.SERVICE}-api 8000"),
        ("metrics", "curl localhost:8000/metrics (the engine's, while that port-forward runs)"),
        ("", f"kubectl port-forward {operator} 8080, then localhost:8080/metrics"),
        ("break it", f"kubectl delete pod,deployment --all {namespace}, and watch it come back"),
        ("stop", "make demo-down"),
    ):
        table.add_row(f"[bold]{what}[/bold]", command)
    console.print(Panel(table, title=f"served after {seconds:.0f} s", expand=False))


@contextmanager
def _step(name: str) -> Iterator[Callable[[str], None]]:
    """A line with a spinner while it runs and its time when it is done; yields a function that says what goes on now."""
    begin = time.monotonic()
    with console.status(name) as status:
        try:
            yield lambda now: status.update(f"{name} [dim]{now}[/dim]")
        except BaseException:
            console.print(f"[red]✗[/red] {name}")
            raise
    console.print(f"[green]✓[/green] {name} [dim]{time.monotonic() - begin:.1f} s[/dim]")


def main() -> None:
    """Run the command line; errors are one message, without a traceback."""
    try:
        app(standalone_mode=True)
    except ClusterError as error:
        console.print(f"[red]{error}[/red]", highlight=False, markup=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
