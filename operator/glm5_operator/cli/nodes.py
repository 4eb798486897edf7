"""`glm5 nodes` and `glm5 node release`: cards of the cluster's nodes, what is done about them, and a person's word that one is well again.

Called by `node_commands`. A release is an annotation; the operator acts on it.
"""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.cli import cluster, output
from glm5_operator.cli.deploy import FIELD_MANAGER
from glm5_operator.cli.errors import CliError, ExitCode
from glm5_operator.kube import errors, kinds

if TYPE_CHECKING:
    from glm5_operator.cli.cluster import Json
    from glm5_operator.kube.client import Client

NO_NODES: Final = f"there are no AscendNodes: the operator makes one for each node of an {names.POOL_KIND}, and `glm5 pools` lists those"
_COLUMNS: Final = ("NAME", "PRODUCT", "DRIVER", "CARDS", "HELD", "HEALTH", "REMEDY", "READ", "WHY")
_CARD_COLUMNS: Final = (
    "CARD",
    "NPU",
    "CHIP",
    "NAME",
    "HEALTH",
    "CODES",
    "°C",
    "W",
    "AICORE %",
    "HBM MiB",
    "PIDS",
    "HOLDER",
    "LINK",
    "NUMA",
)


def show_nodes(name: str | None, kubeconfig: str | None, form: output.Format) -> None:
    """Print all nodes a line each, or one node with a line for each card."""
    cluster.check_kubeconfig(kubeconfig)
    nodes = cluster.run(_read(name, kubeconfig))
    if form is output.Format.JSON:
        output.write_json({"nodes": nodes})
    elif form is output.Format.YAML:
        output.write_yaml(nodes)
    else:
        now = datetime.now(UTC)
        output.write_table(_COLUMNS, [_row(node, now) for node in nodes])
        if not nodes:
            output.note(NO_NODES)
        if name is not None:
            output.write_table(_CARD_COLUMNS, [_card_row(card) for card in _facts(nodes[0]).get("cards") or ()])


def release_node(name: str, reason: str, kubeconfig: str | None) -> None:
    """Ask the operator to take a node out of quarantine."""
    cluster.check_kubeconfig(kubeconfig)
    cluster.run(_release(name, reason, kubeconfig))
    output.note(f"{name}: the operator verifies the cards, then gives them back; `glm5 nodes {name}` shows how far it is")


def driver_of(name: str, kubeconfig: str | None) -> str:
    """The driver's version on a node, as its agent has read it."""
    cluster.check_kubeconfig(kubeconfig)
    (node,) = cluster.run(_read(name, kubeconfig))
    driver = _facts(node).get("driver")
    if not driver:
        raise CliError(ExitCode.INPUT, "nobody has read its driver yet", where=f"{names.NODE_KIND} {name}", remedy="state --driver")
    return str(driver)


async def _release(name: str, reason: str, kubeconfig: str | None) -> None:
    async with cluster.connected(kubeconfig) as client:
        node = await get_node(client, name)
        state = _remedy(node).get("state")
        if state != "Quarantined":
            said = f"its remedy is {state}" if state else "there is no remedy under way"
            raise CliError(ExitCode.INPUT, f"isn't in quarantine: {said}", where=f"{names.NODE_KIND} {name}")
        words = ": ".join(part for part in (getpass.getuser(), reason) if part)
        annotations = {names.RELEASE_ANNOTATION: words}
        manifest = {"apiVersion": names.API_VERSION, "kind": names.NODE_KIND, "metadata": {"name": name, "annotations": annotations}}
        await client.apply(manifest, force=True, manager=FIELD_MANAGER)


async def _read(name: str | None, kubeconfig: str | None) -> list[Json]:
    async with cluster.connected(kubeconfig) as client:
        if name is not None:
            return [await get_node(client, name)]
        return await list_nodes(client)


async def get_node(client: Client, name: str) -> Json:
    """One AscendNode; what is missing is told."""
    await cluster.require_api(client, f"/apis/{names.API_VERSION}")
    try:
        node = await client.get(kinds.ASCEND_NODE, "", name)
    except errors.NotFoundError as error:
        remedy = "`glm5 nodes` lists all; the operator makes one for each node of an NPUPool"
        raise CliError(ExitCode.INPUT, "doesn't exist", where=f"{names.NODE_KIND} {name}", remedy=remedy) from error
    return _plain(node)


async def list_nodes(client: Client) -> list[Json]:
    """All AscendNodes by name."""
    await cluster.require_api(client, f"/apis/{names.API_VERSION}")
    found = [_plain(item) async for page, _ in client.pages(kinds.ASCEND_NODE) for item in page]
    return sorted(found, key=lambda node: str(node["metadata"]["name"]))


def _plain(node: Json) -> Json:
    node["metadata"].pop("managedFields", None)  # bookkeeping that nobody reads
    return node


def _facts(node: Json) -> Json:
    return (node.get("status") or {}).get("facts") or {}


def _remedy(node: Json) -> Json:
    return (node.get("status") or {}).get("remedy") or {}


def _row(node: Json, now: datetime) -> tuple[object, ...]:
    facts, remedy = _facts(node), _remedy(node)
    cards: list[Json] = facts.get("cards") or []
    held = sum(1 for card in cards if card.get("holder"))
    dry = " (dry run)" if remedy.get("dryRun") else ""
    return (
        node["metadata"]["name"],
        facts.get("product"),
        facts.get("driver"),
        len(cards) if facts else None,
        f"{held}/{len(cards)}" if facts.get("allocationsKnown") else "?" if facts else None,
        _health(facts),
        f"{remedy['state']}{dry}" if remedy else None,
        age_of(facts.get("observedAt"), now),
        _why(facts, remedy),
    )


def _health(facts: Json) -> str | None:
    """`8 OK`, or what isn't: `1 Alarm, 7 OK`. What can't be read is Unknown, not well."""
    if not facts:
        return None
    words: dict[str, int] = {}
    for card in facts.get("cards") or ():
        words[card["health"]] = words.get(card["health"], 0) + 1
    missing = len(facts.get("missing") or ())
    parts = [f"{count} {word}" for word, count in sorted(words.items(), key=lambda item: item[0] == "OK")]
    return ", ".join([*([f"{missing} missing"] if missing else []), *parts]) or "none"


def _why(facts: Json, remedy: Json) -> str:
    if remedy and remedy.get("state") != "Healthy":
        return ": ".join(part for part in (remedy.get("reason"), remedy.get("message")) if part)
    tool = facts.get("tool") or {}
    if tool and tool.get("state") != "Working":
        return ": ".join(part for part in (f"npu-smi {tool.get('state')}", tool.get("message")) if part)
    return "" if facts else "no node agent has read it yet"


def age_of(written: object, now: datetime) -> str | None:
    """`40s`, `12m`, `3h`, `2d` ago; None of what is no time."""
    try:
        seconds = int((now - datetime.fromisoformat(str(written))).total_seconds())
    except (ValueError, TypeError):
        return None
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{max(0, seconds)}s"


def _card_row(card: Json) -> tuple[object, ...]:
    holder: dict[str, Any] = card.get("holder") or {}
    used, total = card.get("memoryUsed"), card.get("memoryTotal")
    pids = card.get("pids")
    return (
        card["physical"],
        card["npu"],
        card.get("chip", 0),
        card.get("name"),
        f"{card['health']}{' (stale)' if card.get('stale') else ''}",
        ", ".join(card.get("codes") or ()),
        card.get("temperature"),
        card.get("power"),
        card.get("utilisation"),
        f"{used}/{total}" if used is not None and total is not None else used,
        "?" if pids is None else len(pids),
        f"{holder['namespace']}/{holder['pod']}" if holder else None,
        card.get("link"),
        card.get("numa"),
    )
