"""The command line of the test clusters. It prints and exits; what it does is in the other modules."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tests.cluster import api as api_cluster
from tests.cluster import engine, images, workload
from tests.cluster import kind as kind_cluster
from tests.cluster.api import ApiCluster, ApiOptions
from tests.cluster.build import Cluster
from tests.cluster.build import build as build_everything
from tests.cluster.devices import Health, NodeDevices, ResetMode
from tests.cluster.errors import ClusterError
from tests.cluster.kind import KindCluster, KindOptions, Mount
from tests.cluster.site_packages import site_packages
from tests.cluster.tools import TOOLS, tool

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, pretty_exceptions_enable=False)
api = typer.Typer(no_args_is_help=True, help="Control plane only, on this host: API tests and benchmarks.")
kind = typer.Typer(no_args_is_help=True, help="Five nodes with fake Ascend cards, in containers: demo and end-to-end tests.")
app.add_typer(api, name="api")
app.add_typer(kind, name="kind")

console = Console(stderr=True, soft_wrap=True)  # stdout is for paths and names that scripts read
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
    with nullcontext() if only is Cluster.API else _engine_for_a_while():
        seconds = build_everything(only, console)
    console.print(f"nothing left to build; {len(seconds)} steps took {sum(seconds.values()):.0f} s together")


@app.command("tool")
def tool_path(name: Annotated[str, typer.Argument(help=" | ".join(TOOLS))]) -> None:
    """Print the path of one program (kubectl, helm, …), building it first when needed."""
    if name not in TOOLS:
        raise typer.BadParameter(f"{name}: know only {', '.join(TOOLS)}")
    print(tool(name))


@app.command("images")
def build_images() -> None:
    """Build the operator's and the runtime's image with the engine that is there, and print their names.

    The variables TORCH_INDEX_URL, RUNTIME_EXTRA, OPERATOR_BASE, RUNTIME_BASE and PLATFORM go into the build.
    """
    begin = time.monotonic()
    names: list[str] = []
    with _engine_for_a_while():
        with console.status("find or start a Docker engine"):
            docker = engine.require()
        for target in images.TARGETS:
            with console.status(f"image {target}"):
                names.append(images.build(docker, target))
            console.print(f"[green]✓[/green] {names[-1]} [dim]{time.monotonic() - begin:.1f} s[/dim]")
        if docker.own:  # it stops now, and nobody else knows where its images are
            for name in names:
                console.print(f"for `docker load -i` or `ctr images import`: {images.save(docker, name)}", highlight=False)
    if images.reference("runtime") not in names:
        console.print(
            f"[yellow]{images.reference('runtime', with_torch=False)} holds no torch: it is for tests only[/yellow], "
            "because no registry was reached and no RUNTIME_BASE was named"
        )
    for name in names:
        print(name)


@app.command("site-packages")
def runtime_packages() -> None:
    """Install the runtime's packages into a folder for Debian's Python 3.11 and print its path; $TORCH_INDEX_URL names torch's index."""
    with console.status("Python packages of the runtime"):
        print(site_packages())


@contextmanager
def _engine_for_a_while() -> Iterator[None]:
    """Stop our own engine afterwards, also after an error, unless somebody else uses it."""
    try:
        with engine.in_use():
            yield
    finally:
        if not engine.stop_own():
            console.print(engine.STILL_RUNS, highlight=False)


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
    print(cluster.kubeconfig)


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
    print(cluster.kubeconfig)


KindName = Annotated[str, typer.Option(help="kind's cluster name.")]


@kind.command("up")
def kind_up(
    name: KindName = "glm5",
    mount: Annotated[list[str] | None, typer.Option(help="HOST-FOLDER:NODE-FOLDER, read-only on every worker; repeatable.")] = None,
    product: Annotated[list[str] | None, typer.Option(help="A2 or A3, for each worker in turn; the others stay A2.")] = None,
    bare: Annotated[bool, typer.Option(help="Without the tiny model and the runtime's packages on the workers.")] = False,
) -> None:
    """Start it and print its kubeconfig."""
    begin = time.monotonic()
    with engine.in_use():
        build_everything(Cluster.KIND, console)
        standard = KindOptions() if bare else workload.options(engine.require())
        mounts = (*standard.mounts, *(_mount(text) for text in mount or []))
        options = KindOptions(mounts, (*(product or ()), *standard.products[len(product or ()) :]))
        cluster = KindCluster.up(name, options, say=lambda step: console.print(f"[dim]{time.monotonic() - begin:5.1f} s[/dim] {step}"))
    console.print(f"kind cluster [bold]{name}[/bold] is ready after {time.monotonic() - begin:.1f} s")
    if cluster.engine.own:
        console.print(f"its Docker engine: export DOCKER_HOST={cluster.engine.env['DOCKER_HOST']}", highlight=False)
    print(cluster.kubeconfig)


@kind.command("down")
def kind_down(name: KindName = "glm5") -> None:
    """Delete it, and stop the Docker engine when this tool started it and nothing else uses it."""
    stopped = KindCluster.remove(name)
    console.print(f"kind cluster {name} is gone")
    if not stopped:
        console.print(engine.STILL_RUNS, highlight=False)


@kind.command("status")
def kind_status() -> None:
    """List kind clusters with the state of their nodes."""
    for name in kind_cluster.names():
        cluster = KindCluster.find(name)
        state = "ready" if cluster is not None and cluster.alive else "broken: run `kind up` or `kind down`"
        console.print(f"[bold]{name}[/bold] {state}")


@kind.command("kubeconfig")
def kind_kubeconfig(name: KindName = "glm5") -> None:
    """Print the path of its kubeconfig."""
    print(_kind(name).kubeconfig)


@kind.command("load")
def kind_load(
    images: Annotated[list[str], typer.Argument(help="Image names, or archives ending in .tar.")], name: KindName = "glm5"
) -> None:
    """Put images onto its nodes."""
    _kind(name).load(*images)


@kind.command("card")
def kind_card(
    worker: Annotated[str, typer.Argument(help="Name of a worker node.")],
    cards: Annotated[list[int], typer.Argument(help="Physical ids of cards on it, as `npu-smi info -m` and `glm5 nodes NODE` show them.")],
    *,
    health: Annotated[Health, typer.Option(help="What npu-smi says of them from now on; from Alarm on kubelet no longer offers them.")],
    code: Annotated[list[str] | None, typer.Option(help="A fault code that npu-smi gives for them, such as 80E01801; repeatable.")] = None,
    reset: Annotated[ResetMode | None, typer.Option(help="How the next resets on that node go.")] = None,
    name: KindName = "glm5",
) -> None:
    """Make imitated cards sick, or well again."""
    cluster = _kind(name)
    if worker not in cluster.workers:
        raise ClusterError(f"no worker {worker} in kind cluster {name}: it has {', '.join(cluster.workers)}")
    file = cluster.cards(worker)
    node = NodeDevices.read(file)
    known = [device.physical for device in node.devices]
    if unknown := [card for card in cards if card not in known]:
        raise ClusterError(f"no card {', '.join(map(str, unknown))} on {worker}: it has {min(known)} to {max(known)}")
    node = node.change(*cards, health=health, codes=tuple(code or ()), information=())
    (node.resetting(reset) if reset else node).write(file)
    console.print(f"{worker}: npu-smi says {health} of card {', '.join(map(str, cards))}", highlight=False)


def _kind(name: str) -> KindCluster:
    cluster = KindCluster.find(name)
    if cluster is None:
        raise ClusterError(f"no kind cluster {name}: start it with `python -m tests.cluster kind up`")
    return cluster


def _mount(text: str) -> Mount:
    host, _, node = text.partition(":")
    if not node.startswith("/") or not Path(host).is_dir():
        raise typer.BadParameter(f"{text}: give HOST-FOLDER:NODE-FOLDER, the first existing, the second absolute")
    return Mount(str(Path(host).resolve()), node)
