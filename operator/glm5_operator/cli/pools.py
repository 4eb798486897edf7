"""`glm5 pools` and `glm5 pool move`: whose cards are where, what is against the rules, and a node's way to another pool.

Called by `pool_commands`. A move is an annotation of the Node; the operator acts on it, and this only waits.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.cli import cluster, output
from glm5_operator.cli.errors import CliError, ExitCode
from glm5_operator.cli.status import ready_word, why_not
from glm5_operator.kube import Key, errors, kinds

if TYPE_CHECKING:
    from glm5_operator.cli.cluster import Json
    from glm5_operator.kube.client import Client

POLL: Final = 1.0
"""Seconds between two looks at a move."""
_COLUMNS: Final = (
    "NAME",
    "ROLE",
    "PRODUCT",
    "NODES",
    "CARDS",
    "HELD",
    "FREE",
    "QUARANTINED",
    "FREE NODES",
    "VIOLATIONS",
    "READY",
    "WHY NOT",
)
_HOLDER_COLUMNS: Final = ("NODE", "NAMESPACE", "POD", "COUNT", "CARDS", "ASCENDREAL")
_VIOLATION_COLUMNS: Final = ("POOL", "NODE", "NAMESPACE", "POD", "CARDS", "RULE", "SINCE")
_MOVE_COLUMNS: Final = ("NODE", "FROM", "TO", "STATE", "REASON", "WHY")


@dataclass(frozen=True, slots=True)
class Move:
    """What the command was asked for. `target` None stops the move; `timeout` None doesn't wait."""

    node: str
    target: str | None
    timeout: float | None
    kubeconfig: str | None


def show_pools(name: str | None, kubeconfig: str | None, form: output.Format) -> None:
    """Print all pools a line each, or one with its holders; violations and moves wherever there are some."""
    cluster.check_kubeconfig(kubeconfig)
    pools = [pool for pool in cluster.run(_read(kubeconfig)) if name in {None, pool["metadata"]["name"]}]
    if name is not None and not pools:
        raise CliError(ExitCode.INPUT, "doesn't exist", where=f"{names.POOL_KIND} {name}", remedy="`glm5 pools` lists all")
    if form is output.Format.JSON:
        output.write_json({"pools": pools})
    elif form is output.Format.YAML:
        output.write_yaml(pools)
    else:
        output.write_table(_COLUMNS, [_row(pool) for pool in pools])
        if name is not None:
            _write_holders(pools[0])
        _write_more(pools)


def move_node(asked: Move) -> None:
    """Write the annotation, or take it off, and wait until the operator has done what it says."""
    cluster.check_kubeconfig(asked.kubeconfig)
    cluster.run(_move(asked))


async def _read(kubeconfig: str | None) -> list[Json]:
    async with cluster.connected(kubeconfig) as client:
        await cluster.require_api(client, f"/apis/{names.API_VERSION}")
        found = [item async for page, _ in client.pages(kinds.POOL) for item in page]
    for pool in found:
        pool["metadata"].pop("managedFields", None)  # bookkeeping that nobody reads
    return sorted(found, key=lambda pool: str(pool["metadata"]["name"]))


async def _move(asked: Move) -> None:
    async with cluster.connected(asked.kubeconfig) as client:
        await cluster.require_api(client, f"/apis/{names.API_VERSION}")
        node = await _find(client, kinds.NODE.name, asked.node, "`kubectl get nodes` lists all")
        origin = _labels(node).get(names.POOL_LABEL, "")
        if asked.target is not None:
            await _find(client, names.POOL_KIND, asked.target, "`glm5 pools` lists all")
            if not origin:
                remedy = f"label it so that {names.POOL_KIND} {asked.target} selects it: cards of no pool need no handover"
                raise CliError(ExitCode.INPUT, "belongs to no pool", where=f"Node {asked.node}", remedy=remedy)
        key = Key(kinds.NODE.name, "", asked.node)
        await client.merge_patch(key, {"metadata": {"annotations": {names.MOVE_ANNOTATION: asked.target}}})
        if asked.target is None:
            output.note(f"{asked.node}: no longer asked to move; a reset that runs is waited for, then new pods may come again")
        elif origin == asked.target:
            output.note(f"{asked.node} belongs to {asked.target} already")
        elif asked.timeout is None:
            output.note(f"{asked.node}: asked to move to {asked.target}; `glm5 pools` shows how far it is")
        else:
            await _wait(client, asked.node, asked.target, asked.timeout)


async def _wait(client: Client, name: str, target: str, seconds: float) -> None:
    """Tell each step until the node has arrived."""
    deadline, told = time.monotonic() + seconds, ""
    while True:
        node = await _find(client, kinds.NODE.name, name, "")
        if _labels(node).get(names.POOL_LABEL) == target:
            output.note(f"{name}: belongs to {target} now")
            return
        step = await _step(client, name)
        said = f"{step.get('state', 'Asked')} ({step.get('reason', 'the operator has yet to look')}): {step.get('message', '')}"
        if said != told:
            output.note(f"{name}: {said}")
            told = said
        if step.get("state") == "Blocked":
            remedy = f"do that and wait, or stop with `glm5 pool move {name} --cancel`"
            raise CliError(ExitCode.STALLED, f"the move is blocked: {step.get('message', '')}", where=f"Node {name}", remedy=remedy)
        if time.monotonic() >= deadline:
            remedy = f"it goes on; `glm5 pools` shows it, `glm5 pool move {name} --cancel` stops it"
            raise CliError(ExitCode.TIMEOUT, f"not moved after {seconds:g} s: {said}", where=f"Node {name}", remedy=remedy)
        await asyncio.sleep(POLL)


async def _step(client: Client, name: str) -> Json:
    try:
        ascend_node = await client.get(kinds.ASCEND_NODE, "", name)
    except errors.NotFoundError:
        return {}
    move: Json = (ascend_node.get("status") or {}).get("move") or {}
    return move


async def _find(client: Client, kind: str, name: str, remedy: str) -> Json:
    try:
        return await client.get(kinds.BY_NAME[kind], "", name)
    except errors.NotFoundError as error:
        raise CliError(ExitCode.INPUT, "doesn't exist", where=f"{kind} {name}", remedy=remedy) from error


def _labels(resource: Json) -> dict[str, str]:
    return resource["metadata"].get("labels") or {}


def _row(pool: Json) -> tuple[object, ...]:
    status = pool.get("status") or {}
    cards: dict[str, Any] = status.get("cards") or {}
    return (
        pool["metadata"]["name"],
        pool["spec"]["role"],
        status.get("product"),
        status.get("nodes"),
        cards.get("total"),
        cards.get("held"),
        cards.get("free"),
        cards.get("quarantined", 0 if cards else None),
        (status.get("fragmentation") or {}).get("freeNodes"),
        len(status.get("violations") or ()),
        ready_word(pool),
        why_not(pool),
    )


def _write_holders(pool: Json) -> None:
    status = pool.get("status") or {}
    rows = [
        (
            one["node"],
            one["namespace"],
            one["pod"],
            one["count"],
            ",".join(map(str, one["cards"])) if "cards" in one else "?",
            one.get("annotated"),
        )
        for one in status.get("holders") or ()
    ]
    more = f", and {status['moreHolders']} more pods" if status.get("moreHolders") else ""
    output.write_table(_HOLDER_COLUMNS, rows, title=f"Holders{more}")


def _processes(violation: Json) -> str:
    return f"(processes {', '.join(map(str, violation.get('pids') or ()))})"


def _write_more(pools: list[Json]) -> None:
    found = [(pool["metadata"]["name"], pool.get("status") or {}) for pool in pools]
    broken = [
        (name, one["node"], one.get("namespace"), one.get("pod") or _processes(one), one["count"], one["reason"], one["since"])
        for name, status in found
        for one in status.get("violations") or ()
    ]
    moving = [
        (one["node"], one["origin"], name, one["state"], one["reason"], one.get("message"))
        for name, status in found
        for one in status.get("moves") or ()
    ]
    if broken:
        output.write_table(_VIOLATION_COLUMNS, broken, title="Violations")
    if moving:
        output.write_table(_MOVE_COLUMNS, moving, title="Moves")
