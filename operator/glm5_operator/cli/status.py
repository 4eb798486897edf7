"""`glm5 status`: services and pools of a cluster, and for what doesn't serve the reason.

Called by `app`. Reads only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api.names import POOL_KIND, SERVICE_KIND
from glm5_operator.cli import cluster, output
from glm5_operator.cli.errors import CliError, ExitCode
from glm5_operator.kube import errors, kinds

if TYPE_CHECKING:
    from glm5_operator.kube.client import Client
    from glm5_operator.kube.kinds import Kind

_SERVICE_COLUMNS: Final = ("NAMESPACE", "NAME", "MODEL", "WEIGHTS", "SERVING", "READY", "REVISION", "ENDPOINT", "WHY NOT")
_POOL_COLUMNS: Final = ("NAME", "ROLE", "PRODUCT", "NODES", "CARDS", "FREE", "READY", "WHY NOT")


def show_status(name: str | None, namespace: str | None, kubeconfig: str | None, form: output.Format) -> None:
    """Print the services (all, of a namespace, or of a name) and the pools."""
    cluster.check_kubeconfig(kubeconfig)
    services, pools = cluster.run(_read(name, namespace, kubeconfig))
    if name is not None and not services:
        where = f"{SERVICE_KIND} {name}"
        raise CliError(ExitCode.INPUT, "doesn't exist", where=where, remedy="`glm5 status` lists all")
    if form is output.Format.TABLE:
        _tables(services, pools)
    elif form is output.Format.JSON:
        output.write_json({"services": services, "pools": pools})
    else:
        output.write_yaml([*pools, *services])


async def _read(name: str | None, namespace: str | None, kubeconfig: str | None) -> tuple[list[cluster.Json], list[cluster.Json]]:
    async with cluster.connected(kubeconfig) as client:
        await cluster.require_api(client, f"/apis/{kinds.SERVICE.api_version}")
        services = await _list(client, kinds.SERVICE, namespace or "")
        try:
            pools = await _list(client, kinds.POOL)
        except errors.ForbiddenError as error:
            output.note(f"pools aren't shown: {error.message}")
            pools = []
    return [one for one in services if name is None or one["metadata"]["name"] == name], pools


async def _list(client: Client, kind: Kind, namespace: str = "") -> list[cluster.Json]:
    items: list[cluster.Json] = []
    async for page, _ in client.pages(kind, namespace):
        for item in page:
            item["metadata"].pop("managedFields", None)  # bookkeeping that nobody reads
            items.append(item)
    return items


def _tables(services: list[cluster.Json], pools: list[cluster.Json]) -> None:
    output.write_table(_SERVICE_COLUMNS, [_service_row(service) for service in services], title=f"{SERVICE_KIND}s")
    if pools:
        output.write_table(_POOL_COLUMNS, [_pool_row(pool) for pool in pools], title=f"{POOL_KIND}s")


def _service_row(service: cluster.Json) -> tuple[object, ...]:
    metadata, spec, status = service["metadata"], service["spec"], service.get("status") or {}
    return (
        metadata["namespace"],
        metadata["name"],
        spec["model"]["name"],
        spec["model"]["weights"],
        f"{status.get('readyReplicas', 0)}/{spec['replicas']}",
        ready_word(service),
        status.get("revision"),
        status.get("endpoint"),
        why_not(service),
    )


def _pool_row(pool: cluster.Json) -> tuple[object, ...]:
    status = pool.get("status") or {}
    cards: dict[str, Any] = status.get("cards") or {}
    return (
        pool["metadata"]["name"],
        pool["spec"]["role"],
        status.get("product"),
        status.get("nodes"),
        cards.get("total"),
        cards.get("free"),
        ready_word(pool),
        why_not(pool),
    )


def ready_word(resource: cluster.Json) -> str:
    """True, False or Unknown; Unknown while the operator hasn't seen the newest spec."""
    ready = cluster.condition(resource, "Ready")
    if int(ready.get("observedGeneration", 0)) < int(resource["metadata"].get("generation", 0)):
        return "Unknown"
    return str(ready.get("status", "Unknown"))


def why_not(resource: cluster.Json) -> str:
    """Why it isn't ready; empty when it is."""
    if ready_word(resource) == "True":
        return ""
    stalled, ready = cluster.condition(resource, "Stalled"), cluster.condition(resource, "Ready")
    why = stalled if stalled.get("status") == "True" else ready
    if not why or ready_word(resource) == "Unknown":
        return "the operator hasn't looked at it yet"
    return ": ".join(part for part in (why.get("reason"), why.get("message")) if part)
