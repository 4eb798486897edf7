"""The commands of `glm5`, with their options; each calls one function that does the work.

Errors are printed here and nowhere else. A command imports what it needs when it runs.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from glm5_operator.cli import node_commands, output, pool_commands
from glm5_operator.cli.errors import CliError
from glm5_operator.cli.output import Format, FormatOption

HELP = """Serve GLM-5 on Ascend cards under Kubernetes.

Exit codes: 0 done, 2 wrong options, 3 wrong file or value, 4 can't work until something changes, 5 cluster not reachable or operator
not installed, 6 refused by the API server, 7 timed out, 8 the local engine failed, 130 interrupted.
"""


class _Reporting(TyperGroup):
    """Prints our errors in one line and ends with their exit code."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - the base class's types are private
        try:
            return super().invoke(ctx)
        except CliError as error:
            output.note(str(error))
            raise typer.Exit(int(error.code)) from error


app = typer.Typer(cls=_Reporting, help=HELP, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)

PRODUCTS = ("A2", "A3", "310P", "950")
DEVICES = ("auto", "cpu", "npu", "cuda")
Kubeconfig = Annotated[str | None, typer.Option("--kubeconfig", help="Credentials; default: $KUBECONFIG, else ~/.kube/config.")]


@app.command()
def plan(
    *,
    files: Annotated[
        list[str], typer.Option("--filename", "-f", help="File with GLM5Services and GLM5FinetuneJobs (and NPUPools); - is standard input.")
    ],
    pool_file: Annotated[str | None, typer.Option("--pool-file", help="File with the NPUPool.")] = None,
    product: Annotated[
        str | None, typer.Option("--product", help="Product of the nodes: A2, A3, 310P or 950.", autocompletion=lambda: PRODUCTS)
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="Nodes of the pool; default: one for each replica or pod of a job.")
    ] = None,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace of objects that name none.")] = "default",
    form: FormatOption = Format.TABLE,
) -> None:
    """Show what services and fine-tuning jobs become, without a cluster.

    The pool is taken from the files; without one it is assumed from --product. The CRD's own rules are checked by the API server alone:
    kubectl apply --dry-run=server -f FILE.
    """
    from glm5_operator.cli.plan import Hardware, show_plans

    show_plans(files + ([pool_file] if pool_file else []), Hardware.of(product, nodes), namespace, form)


@app.command()
def deploy(
    *,
    cluster_config: Annotated[
        str, typer.Option("--cluster-config", help="File that describes the site; see `glm5 deploy --example`.")
    ] = "",
    model: Annotated[str, typer.Option("--model", help="Which model of the file to serve, for example glm-5.1.")] = "",
    kubeconfig: Kubeconfig = None,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds to wait until it serves.")] = 5400,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it serves.")] = True,
    write: Annotated[str | None, typer.Option("--write", help="Also write the objects into this folder, for Git.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the objects and change nothing.")] = False,
    force_conflicts: Annotated[bool, typer.Option("--force-conflicts", help="Take over fields that another tool set.")] = False,
    example: Annotated[bool, typer.Option("--example", help="Print a cluster file to start from.")] = False,
    form: FormatOption = Format.TABLE,
) -> None:
    """Serve a model from a cluster file.

    Applies pool and service, waits until it serves, and prints the endpoint.
    """
    from glm5_operator.cli.deploy import Deployment, deploy_model, print_example

    if example:
        print_example()
        return
    missing = [option for option, value in (("--cluster-config", cluster_config), ("--model", model)) if not value]
    if missing:
        raise typer.BadParameter(f"missing {' and '.join(missing)}")
    deploy_model(Deployment(cluster_config, model, kubeconfig, timeout if wait else None, write, dry_run, force_conflicts, form))


@app.command()
def inference(
    *,
    model: Annotated[str, typer.Option("--model", help="Folder of a checkpoint, or its name in a folder of $GLM5_MODELS.")],
    prompt: Annotated[str | None, typer.Option("--prompt", help="Ask this and end; - reads standard input.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Talk until end of file (Ctrl-D).")] = False,
    system: Annotated[str | None, typer.Option("--system", help="System message.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Longest answer, in tokens.")] = 512,
    temperature: Annotated[float, typer.Option("--temperature", min=0, max=2, help="0 always takes the most likely token.")] = 0.0,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, npu or cuda.", autocompletion=lambda: DEVICES)] = "auto",
    max_model_len: Annotated[int | None, typer.Option("--max-model-len", min=16, help="Longest conversation, in tokens.")] = None,
    start_timeout: Annotated[float, typer.Option("--start-timeout", min=1, help="Seconds to wait for the engine to load.")] = 3600,
) -> None:
    """Run one model on this machine and ask it."""
    from glm5_operator.cli.inference import Session, run_session

    run_session(
        Session(model, prompt, chat, system, max_tokens, temperature, device, max_model_len, start_timeout),
    )


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(help="Only this service.")] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Only this namespace; default: all.")] = None,
    everywhere: Annotated[bool, typer.Option("--all-namespaces", "-A", help="All namespaces, whatever -n says, as in kubectl.")] = False,
    kubeconfig: Kubeconfig = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Show what serves, and what doesn't and why."""
    from glm5_operator.cli.status import show_status

    show_status(name, None if everywhere else namespace, kubeconfig, form)


@app.command()
def crds() -> None:
    """Print the CRDs, for kubectl apply -f -."""
    import sys

    from glm5_operator.api.schema import crds as definitions
    from glm5_operator.api.schema import render

    sys.stdout.write("---\n".join(render(crd) for crd in definitions().values()))


@app.command()
def version(form: FormatOption = Format.TABLE) -> None:
    """Print the version of this program and its API."""
    _print_version(form)


def _print_version(form: Format) -> None:
    from importlib.metadata import version as installed

    from glm5_operator.api.names import API_VERSION

    found = {"version": installed("glm5-ascend"), "apiVersion": API_VERSION}
    if form is Format.TABLE:
        typer.echo(f"glm5 {found['version']} (API {found['apiVersion']})")
    elif form is Format.JSON:
        output.write_json(found)
    else:
        output.write_yaml([found])


def _version_asked(wanted: bool) -> None:
    if wanted:
        _print_version(Format.TABLE)
        raise typer.Exit


node_commands.join(app)
pool_commands.join(app)


@app.callback()
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version_asked, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """See HELP."""
