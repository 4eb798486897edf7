"""`glm5 deploy`: a cluster file and a model's name become a pool and a service on the cluster, and the command waits until it serves.

Called by `app`. The operator does the work; this applies two objects and reads one status.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from glm5_operator.api import names
from glm5_operator.cli import cluster, output
from glm5_operator.cli.cluster_file import EXAMPLE, Order, read_order
from glm5_operator.cli.errors import CliError, ExitCode
from glm5_operator.kube import errors, kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from glm5_operator.kube.client import Client

FIELD_MANAGER: Final = "glm5-cli"  # a name of its own: the operator never owns a field of a spec
POLL_SECONDS: Final = 1.0
STALL_GRACE: Final = 15.0
"""A new pool's nodes are labelled a moment after the service was first planned: a stall counts only after this many seconds."""
UNSEEN_AFTER: Final = 20.0
"""An operator that runs looks at an object within this many seconds."""


@dataclass(frozen=True)
class Deployment:
    """The options of one run; `timeout` in seconds, None doesn't wait."""

    cluster_config: str
    model: str
    kubeconfig: str | None
    timeout: float | None
    write: str | None
    dry_run: bool
    force_conflicts: bool
    form: output.Format


def print_example() -> None:
    """A cluster file to start from."""
    sys.stdout.write(EXAMPLE)


def deploy_model(options: Deployment) -> None:
    """Read, apply, wait, print."""
    order = read_order(options.cluster_config, options.model)
    if options.write is not None:
        _write(order, Path(options.write))
    if options.dry_run:
        output.write_yaml(order.manifests)
        return
    cluster.check_kubeconfig(options.kubeconfig)
    service = cluster.run(_deploy(order, options))
    _print(service, options)


async def _deploy(order: Order, options: Deployment) -> cluster.Json:
    async with cluster.connected(options.kubeconfig) as client:
        await cluster.require_api(client, kinds.SERVICE.path(order.namespace))
        applied: cluster.Json = {}
        for manifest in order.manifests:
            applied = await _apply(client, manifest, force=options.force_conflicts)
            output.note(f"applied {manifest['kind']} {manifest['metadata']['name']}")
        if options.timeout is None:
            return applied
        with _progress(order.service_name) as say:
            return await _until_ready(client, order, int(applied["metadata"]["generation"]), options.timeout, say)


async def _apply(client: Client, manifest: cluster.Json, *, force: bool) -> cluster.Json:
    try:
        return await client.apply(manifest, force=force, manager=FIELD_MANAGER)
    except errors.NotFoundError as error:
        namespace = manifest["metadata"].get("namespace", "")
        remedy = f"kubectl create namespace {namespace}"
        raise CliError(
            ExitCode.REFUSED, error.message, where=f"{manifest['kind']} {manifest['metadata']['name']}", remedy=remedy
        ) from error


async def _until_ready(client: Client, order: Order, generation: int, patience: float, say: Callable[[str], None]) -> cluster.Json:
    """Poll the service until the operator has seen this generation and it serves; raises when it stalls or time is up."""
    where = f"{names.SERVICE_KIND} {order.namespace}/{order.service_name}"
    started = time.monotonic()
    stalled_since: float | None = None
    while True:
        try:
            service = await client.get(kinds.SERVICE, order.namespace, order.service_name)
        except errors.NotFoundError as error:
            raise CliError(ExitCode.REFUSED, "was deleted while waiting", where=where) from error
        except errors.UnavailableError as error:
            say(f"the API server doesn't answer: {error.message}")
            service = {}
        now = time.monotonic()
        verdict = _verdict(service, generation)
        say(verdict.text if verdict.seen or now - started < UNSEEN_AFTER else _UNSEEN)
        if verdict.ready:
            return service
        stalled_since = (stalled_since or now) if verdict.stalled else None
        if stalled_since is not None and now - stalled_since >= STALL_GRACE:
            raise CliError(ExitCode.STALLED, verdict.text, where=where)
        if now - started >= patience:
            raise CliError(ExitCode.TIMEOUT, f"isn't ready after {patience:g} s: {verdict.text}", where=where, remedy="see `glm5 status`")
        await asyncio.sleep(POLL_SECONDS)


_UNSEEN: Final = "the operator hasn't looked at it yet: is it running? kubectl -n glm5-system get pods"


@dataclass(frozen=True)
class _Verdict:
    """What a service's status says about the generation that was applied."""

    seen: bool
    ready: bool
    stalled: bool
    text: str


def _verdict(service: cluster.Json, generation: int) -> _Verdict:
    ready, stalled = cluster.condition(service, "Ready"), cluster.condition(service, "Stalled")
    if int(ready.get("observedGeneration", 0)) < generation:
        return _Verdict(seen=False, ready=False, stalled=False, text="waiting for the operator")
    why = stalled if stalled.get("status") == "True" else ready
    text = ": ".join(part for part in (why.get("reason"), why.get("message")) if part)
    return _Verdict(seen=True, ready=ready.get("status") == "True", stalled=stalled.get("status") == "True", text=text)


@contextmanager
def _progress(name: str) -> Iterator[Callable[[str], None]]:
    """Says what is going on: a spinner on a terminal, a line for each change elsewhere."""
    if sys.stderr.isatty():
        from rich.console import Console  # slow to import

        with Console(stderr=True).status(f"{name}: waiting") as spinner:
            yield lambda text: spinner.update(f"{name}: {text}")
        return
    last = ""

    def say(text: str) -> None:
        nonlocal last
        if text != last:
            last = text
            output.note(f"{name}: {text}")

    yield say


def _write(order: Order, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for manifest in order.manifests:
            path = folder / f"{manifest['kind'].lower()}-{manifest['metadata']['name']}.yaml"
            path.write_text(yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True), encoding="utf-8")
            output.note(f"wrote {path}")
    except OSError as error:
        raise CliError(ExitCode.INPUT, f"can't be written: {error.strerror}", where=str(folder), remedy="give another --write") from error


def _print(service: cluster.Json, options: Deployment) -> None:
    status: dict[str, Any] = service.get("status") or {}
    metadata = service["metadata"]
    found = {
        "namespace": metadata["namespace"],
        "service": metadata["name"],
        "ready": cluster.condition(service, "Ready").get("status", "Unknown"),
        "endpoint": status.get("endpoint"),
        "revision": status.get("revision"),
    }
    if options.form is output.Format.JSON:
        output.write_json(found)
    elif options.form is output.Format.YAML:
        output.write_yaml([found])
    else:
        sys.stdout.write(f"{found['endpoint'] or 'no endpoint yet'}\n")
        if found["endpoint"]:
            forward = (
                f"kubectl -n {found['namespace']} port-forward service/{names.client_service_name(metadata['name'])} {names.ENGINE_PORT}"
            )
            output.note(f"inside the cluster as above; from here: {forward}")
