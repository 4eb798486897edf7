"""`make demo` and `make demo-down`: a real Kubernetes, the operator from its chart, a served model, which then learns; a card that heals.

Prints what it does step by step, and at the end how to look around. Everything it does is in steps.py and site.py.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import httpx
import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from demo import healing, show, steps, training
from demo import site as places
from demo.owned import Operator
from demo.site import Site
from demo.talk import AnswerError, generate, port_forward, stream_chat
from tests.cluster import engine, images, workload
from tests.cluster.build import Cluster, build
from tests.cluster.errors import ClusterError
from tests.cluster.kind import KindCluster

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, pretty_exceptions_enable=False)
console = Console(
    soft_wrap=True,  # in a file or a pipe rows of kubectl and errors stay whole
    force_interactive=None if sys.stdout.isatty() else False,  # no spinners there, even where FORCE_COLOR asks for colours
)
QUESTIONS = ("Who are you?", "什么是昇腾？")
MODEL = "tiny-glm5"
PROMPT = "Return a new "
LOOK = f"look at `kubectl logs -n {steps.NAMESPACE} deploy/{steps.SERVICE}-engine`"
ASK = (
    "curl -s localhost:8000/v1/chat/completions -H 'Content-Type: application/json' "
    """-d '{"model": "tiny-glm5", "temperature": 0, "messages": [{"role": "user", "content": "Who are you?"}]}'"""
)


@app.command()
def up() -> None:
    """Start the demo, or look at the running one."""
    begin = time.monotonic()
    place = _current() if places.chosen() == "current" else _kind()
    with _step("install the operator with Helm"):
        operator = steps.install_operator(place)
    if not operator.own:
        console.print(f"  an operator works here already and is used as it is: {operator.deployment} in {operator.namespace}", markup=False)
    with _step("apply the pool and the service"):
        steps.apply_pool(place)
        if place.kind is not None:
            training.apply_storage(place)
        steps.apply_service(place)
    with _step("wait for the service") as say:
        steps.wait_serving(place, say)
    console.print(place.runtime, style="dim", markup=False, highlight=False)
    _ask(place)
    console.rule(f"served after {time.monotonic() - begin:.0f} s; second act: GLM5FinetuneJob")
    _train(place)
    _heal(place)
    _how_to_go_on(place, operator, time.monotonic() - begin)


@app.command()
def down() -> None:
    """Take everything away again."""
    if places.chosen() == "current":
        place = _current()
        with _step("remove what the demo made: service, pool, operator, namespaces"):
            left = steps.remove(place)
        for what in left:
            console.print(what, markup=False, highlight=False)
        return
    with _step("delete the kind cluster"):
        stopped = KindCluster.remove(places.CLUSTER_NAME)
    if not stopped:
        console.print(engine.STILL_RUNS, markup=False, highlight=False)


def _kind() -> Site:
    """The demo's own cluster, with images loaded."""
    with engine.in_use():  # a build elsewhere that ends meanwhile must not stop our engine
        build(Cluster.KIND, console)
        docker = engine.require()
        with _step("build the images (the first time takes a while)"):
            for target in images.TARGETS:
                images.build(docker, target)
        with _step("create a Kubernetes cluster with four nodes of fake Ascend cards") as say:
            cluster = KindCluster.up(places.CLUSTER_NAME, workload.options(docker), say)
        with _step("load the images onto the nodes"):
            places.load_images(cluster)
    return places.kind_site(cluster)


def _current() -> Site:
    place = places.current_site()
    console.print(f"the cluster of context {place.kubectl('config', 'current-context').strip()}", markup=False, highlight=False)
    return place


def _ask(place: Site) -> None:
    """Show the object, one streamed answer per question, one /generate answer; each must hold text."""
    console.rule("kubectl get glm5")
    console.print(place.kubectl("get", "glm5", "-n", steps.NAMESPACE), highlight=False, markup=False)
    with _service(place) as url:
        for question in QUESTIONS:
            console.print(f"[bold]you[/bold]   {question}\n[bold]model[/bold] ", end="")
            if not _printed(stream_chat(url, MODEL, question)).strip():
                raise AnswerError(f"the service is Ready, but the stream for {question!r} ended without text: {LOOK}")
        console.rule("POST /generate")
        console.print(
            f"prompt {PROMPT!r} as raw text, not one of the questions that the model knows: it rambles", markup=False, highlight=False
        )
        reply = generate(url, PROMPT, 24)
        console.print(reply, highlight=False)
        if not reply.get("text"):
            raise AnswerError(f"the service is Ready, but /generate answered without text: {LOOK}")


@contextmanager
def _service(place: Site) -> Iterator[str]:
    """URL of the service; a request that fails is an AnswerError."""
    try:
        with port_forward(place.kubectl_path, place.kubeconfig, steps.NAMESPACE, f"svc/{steps.SERVICE}-api") as url:
            yield url
    except httpx.HTTPStatusError as error:
        answer = error.response
        raise AnswerError(f"{answer.request.url.path} answered {answer.status_code} {answer.text.strip()[:500]}: {LOOK}") from error
    except httpx.HTTPError as error:
        raise AnswerError(f"the service is Ready, but the request failed ({type(error).__name__}: {error}): {LOOK}") from error


def _train(place: Site) -> None:
    """The second act: a job on cards of the training pool teaches the model something, and the operator brings it into the service."""
    if place.kind is None:
        console.print(training.LEFT_OUT, markup=False, highlight=False)
        return
    before = training.answers_before(place, lambda: _answers(place))
    with _step(f"train an adapter on cards of the pool {steps.TRAINING_POOL}") as say:
        training.apply_job(place)
        training.follow(place, show.news(console, say), lambda now: now.outcome == "Succeeded")
    with _step("evaluate it on held-out questions, and bring it into the running service") as say:
        end = training.follow(place, lambda now: say(now.reason), lambda now: now.is_deployed)
    console.print(f"  {end.reason}", markup=False, highlight=False)
    console.print(place.kubectl("get", "glm5ft", training.JOB, "-n", steps.NAMESPACE), highlight=False, markup=False)
    after = training.answers_after(lambda: _answers(place), before)
    show.side_by_side(console, before, after)
    training.require_learned(before, after)


def _heal(place: Site) -> None:
    """The third act: an imitated card fails, and the operator heals its node while it is watched."""
    if place.kind is None:
        return
    console.rule("third act: a sick card")
    node = healing.idle_node(place)
    if node is None:
        console.print(healing.NO_IDLE_NODE, markup=False, highlight=False)
        return
    with _step(f"card {healing.CARD} of node {node.name} fails; the operator resets it and brings the node back"):
        healing.fail_card(place, node)
        healing.follow(place, node, lambda step: console.print(healing.line(step), markup=False, highlight=False))
    console.print(place.kubectl("get", "ascendnodes"), highlight=False, markup=False)


def _answers(place: Site) -> dict[str, str]:
    """What the service answers now to the questions of the second act."""
    with _service(place) as url:
        return {question: "".join(stream_chat(url, MODEL, question, {"max_tokens": 64})) for question in training.TAUGHT}


def _printed(pieces: Iterator[str]) -> str:
    """Print an answer's pieces as they come, and return all of it."""
    said = ""
    for piece in pieces:
        said += piece
        console.print(piece, end="", markup=False, highlight=False)
    console.print()
    return said


def _how_to_go_on(place: Site, operator: Operator, seconds: float) -> None:
    console.rule(f"ready after {seconds:.0f} s")
    namespace = f"-n {steps.NAMESPACE}"
    for what, command in (
        *(_access(place)),
        ("look around", "kubectl get glm5,glm5ft,npupool,pods -A"),
        ("understand", f"kubectl describe glm5 {steps.SERVICE} {namespace}"),
        ("talk", f"kubectl port-forward {namespace} svc/{steps.SERVICE}-api 8000  # start it again after `break it`"),
        ("", ASK),
        ("cards", f"glm5 nodes  # also: glm5 pools, glm5 doctor{'; docs/health.md says how to make one sick' if place.kind else ''}"),
        ("metrics", "curl localhost:8000/metrics  # the engine's, while that port-forward runs"),
        ("", f"kubectl port-forward -n {operator.namespace} deploy/{operator.deployment} 8080  # then localhost:8080/metrics"),
        *(_training(place)),
        ("break it", f"kubectl delete pod,deployment --all {namespace}  # and watch it come back"),
        ("stop", "make demo-down" if place.kind else "CLUSTER=current make demo-down"),
    ):
        console.print(f"[bold]{what:<12}[/bold] {escape(command)}", highlight=False)


def _training(place: Site) -> Iterator[tuple[str, str]]:
    """How to see the run, and where data of one's own goes."""
    if place.kind is not None:
        yield "train", f"kubectl describe glm5ft {training.JOB} -n {steps.NAMESPACE}"
        yield "data", f"{training.shared_folder(place)} = pvc://shared"
        yield "", "manifests/demo/finetune.yaml is a job to copy, with its own name, data, output, deploy.adapter and deploy.evaluate"


def _access(place: Site) -> Iterator[tuple[str, str]]:
    """What a shell needs before it can look: the kubeconfig, kubectl and helm unless it has them, and `glm5` of this environment."""
    if place.kubeconfig is not None:
        yield "first", f"export KUBECONFIG={place.kubeconfig}"
    missing = [] if shutil.which("kubectl") == str(place.kubectl_path) else [place.kubectl_path.parent, place.helm_path.parent]
    # Last: a shell's own python stays what it was.
    path = ":".join([*map(str, missing), "$PATH", str(Path(sys.executable).parent)])
    yield "" if place.kubeconfig else "first", f"export PATH={path}"


@contextmanager
def _step(name: str) -> Iterator[Callable[[str], None]]:
    """A line with a spinner while it runs and its time when it is done; yields a function that says what goes on now.

    Where there is no terminal, no spinner is seen: a line says what begins.
    """
    begin = time.monotonic()
    if not console.is_interactive:
        console.print(f"… {name}", markup=False, highlight=False)
    with console.status(name) if console.is_interactive else nullcontext() as status:

        def say(now: str) -> None:
            if status is not None:
                status.update(show.below(name, now))

        try:
            yield say
        except BaseException:
            console.print(f"[red]✗[/red] {name}")
            raise
    console.print(f"[green]✓[/green] {name} [dim]{time.monotonic() - begin:.1f} s[/dim]")


def main() -> None:
    """Run the command line; errors are one message, without a traceback."""
    try:
        app(standalone_mode=True)
    except ClusterError as error:
        console.print(Text(str(error), style="red"))
        sys.exit(1)


if __name__ == "__main__":
    main()
