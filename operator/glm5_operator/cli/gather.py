"""What doctor judges, from a cluster: AscendNodes, Nodes, pods with cards, their events and the ends of their logs.

Called by `doctor`. Reads only, with the person's own rights; what they may not read is told and left out. The raw objects are kept
beside what is made of them, since they go into a bundle.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from glm5_operator.api import names
from glm5_operator.api.node import AscendNode
from glm5_operator.api.pool import NPUPool
from glm5_operator.cli import cluster, nodes, output
from glm5_operator.cli.compat import of_report
from glm5_operator.cli.errors import CliError, ExitCode
from glm5_operator.health.doctor.collected import facts_of
from glm5_operator.health.doctor.evidence import IDLE_MEMORY, Evidence, Text
from glm5_operator.health.doctor.pod_troubles import images
from glm5_operator.health.sources.mindcluster import CLUSTER_NAMESPACE, DEVICE_MAP, HOST_MAP
from glm5_operator.kube import errors, kinds
from glm5_operator.kube.cluster_info import part_of
from glm5_operator.plan.compat import Versions
from glm5_operator.plan.pool import owner_of
from glm5_operator.plan.product import is_card_resource, node_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glm5_operator.cli.cluster import Json
    from glm5_operator.kube.client import Client

LOG_LINES: Final = 500
"""Of each container."""
_PAGE: Final = 500
_MAPS: Final = (("kube-system", DEVICE_MAP), ("mindx-dl", HOST_MAP))


@dataclass(frozen=True)
class Collected:
    """One node's raw objects and texts; `maps` are MindCluster's; `reports` are those of `glm5-runtime doctor`."""

    node: str
    ascend_node: Json | None = None
    kube_node: Json | None = None
    pods: tuple[Json, ...] = ()
    texts: tuple[Text, ...] = ()
    pools: tuple[Json, ...] = ()
    maps: tuple[Json, ...] = ()
    reports: tuple[Json, ...] = ()


def from_cluster(name: str | None, kubeconfig: str | None) -> list[Collected]:
    """One node with events of it and its pods, and their logs; without a name all nodes, and pods with cards that wait for one."""
    cluster.check_kubeconfig(kubeconfig)
    return cluster.run(_gather(name, kubeconfig))


async def _gather(name: str | None, kubeconfig: str | None) -> list[Collected]:
    async with cluster.connected(kubeconfig) as client:
        known = {str(node["metadata"]["name"]): node for node in await nodes.list_nodes(client)}
        pools = tuple(await _list(client, kinds.POOL.path(), "pools"))
        if name is not None:
            return [await _one(client, name, known.get(name), pools)]
        kube_nodes = {str(node["metadata"]["name"]): node for node in await _list(client, kinds.NODE.path(), "Nodes")}
        pods = [pod for pod in await _list(client, kinds.POD.path(), "pods") if has_cards(pod) and not _ended(pod)]
        found = [
            Collected(node, known.get(node), kube_nodes.get(node), tuple(pod for pod in pods if _node(pod) == node), pools=pools)
            for node in sorted(known)
        ]
        waiting = tuple(pod for pod in pods if not _node(pod))
        return [*found, *([Collected("", pods=waiting)] if waiting else [])]


async def _one(client: Client, name: str, ascend_node: Json | None, pools: tuple[Json, ...]) -> Collected:
    try:
        kube_node: Json | None = await client.get(kinds.NODE, "", name)
    except errors.NotFoundError as error:
        raise CliError(ExitCode.INPUT, "doesn't exist", where=f"Node {name}", remedy="`kubectl get nodes` lists all") from error
    except errors.ForbiddenError as error:
        output.note(f"the Node isn't read: {error.message}")
        kube_node = None
    query = urlencode({"fieldSelector": f"spec.nodeName={name}"})
    there = await _list(client, f"{kinds.POD.path()}?{query}", "pods")
    pods = [pod for pod in there if has_cards(pod)]
    speaking = [*pods, *(pod for pod in there if _watches_cards(pod) and not has_cards(pod))]
    texts = await _events(client, f"node {name}", "", {"involvedObject.kind": "Node", "involvedObject.name": name})
    for pod in speaking:
        metadata = pod["metadata"]
        about = {"involvedObject.uid": str(metadata.get("uid", ""))}
        texts += await _events(client, f"pod {metadata['namespace']}/{metadata['name']}", metadata["namespace"], about)
        texts += await _logs(client, pod)
    maps = [found for namespace, prefix in _MAPS if (found := await _map(client, namespace, prefix + name)) is not None]
    maps += await _cluster_info(client, name)
    return Collected(name, ascend_node, kube_node, tuple(pods), tuple(texts), pools, tuple(maps))


async def _map(client: Client, namespace: str, name: str) -> Json | None:
    """A ConfigMap of MindCluster; None where it isn't, as on clusters without it."""
    try:
        found = await client.get(kinds.CONFIG_MAP, namespace, name)
    except errors.NotFoundError:
        return None
    except errors.ForbiddenError as error:
        output.note(f"ConfigMap {namespace}/{name} isn't read: {error.message}")
        return None
    found["metadata"].pop("managedFields", None)
    return found


async def _cluster_info(client: Client, node: str) -> list[Json]:
    """The node's part of ClusterD's ConfigMaps: whole ones would make a bundle of megabytes, and tell of other nodes."""
    query = urlencode({"labelSelector": kinds.CLUSTER_INFO.selector})
    found = await _list(client, f"{kinds.CLUSTER_INFO.path(CLUSTER_NAMESPACE)}?{query}", f"ConfigMaps of {CLUSTER_NAMESPACE}")
    return [dict(part) for config_map in found if (part := part_of(config_map, node)) is not None]


async def _list(client: Client, path: str, what: str) -> list[Json]:
    """All objects of a collection; what may not be read is told."""
    items: list[Json] = []
    separator, token = "&" if "?" in path else "?", ""
    try:
        while True:
            answer = await client.raw_get(f"{path}{separator}{urlencode({'limit': str(_PAGE), **({'continue': token} if token else {})})}")
            for item in answer.get("items") or ():
                item.get("metadata", {}).pop("managedFields", None)
                items.append(item)
            token = (answer.get("metadata") or {}).get("continue") or ""
            if not token:
                return items
    except errors.ForbiddenError as error:
        output.note(f"{what} aren't read: {error.message}")
        return []


async def _events(client: Client, what: str, namespace: str, about: Mapping[str, str]) -> list[Text]:
    """What warnings say of an object. Those of a Node stand in several namespaces, so all are asked."""
    selector = ",".join(f"{field}={value}" for field, value in {**about, "type": "Warning"}.items())
    query = urlencode({"fieldSelector": selector})
    found = await _list(client, f"/api/v1/{f'namespaces/{namespace}/' if namespace else ''}events?{query}", f"events of {what}")
    lines = [f"{event.get('reason', '')}: {event.get('message', '')}" for event in found]
    return [Text(f"events of {what}", "\n".join(lines))] if lines else []


async def _logs(client: Client, pod: Json) -> list[Text]:
    texts, metadata = [], pod["metadata"]
    for state in (pod.get("status") or {}).get("containerStatuses") or ():
        runs = [False, True] if state.get("restartCount") else [False]
        for previous in runs:
            where = f"log of pod {metadata['namespace']}/{metadata['name']} container {state['name']}{' before its restart' * previous}"
            try:
                text = await client.pod_log(metadata["namespace"], metadata["name"], state["name"], LOG_LINES, previous=previous)
                texts.append(Text(where, text))
            except errors.KubeError as error:  # a container that hasn't started has none; some may not read logs
                output.note(f"no {where}: {error.message}")
    return texts


def evidence_of(found: Collected, *, live: bool, now: datetime | None = None) -> Evidence:
    """What the judging part wants to know of it."""
    report = AscendNode.parse(found.ascend_node) if found.ascend_node is not None else None
    status = report.status if report is not None else None
    facts = status.facts if status is not None else None if live else facts_of(found.texts)
    kube_node = node_facts(found.kube_node) if found.kube_node is not None else None
    return Evidence(
        node=found.node,
        facts=facts,
        remedy=status.remedy if status is not None else None,
        conditions=status.conditions or () if status is not None else (),
        age=_age(facts.observed_at, now or datetime.now(UTC)) if facts is not None and live else None,
        labels=kube_node.labels if kube_node is not None else {},
        annotations=((found.kube_node or {}).get("metadata") or {}).get("annotations") or {},
        maps=found.maps,
        offered=_offered(kube_node.allocatable) if kube_node is not None else None,
        pods=found.pods,
        texts=found.texts,
        versions=of_report(found.reports[-1]) if found.reports else Versions(),
        lacking=tuple(str(item) for report in found.reports for item in report.get("lacking") or ()),
        live=live and found.node != "",
        idle_memory=_idle_memory(found),
    )


def has_cards(pod: Json) -> bool:
    """The pod asks for whole cards, as far as their names are known."""
    return bool(images((pod,)))


def _watches_cards(pod: Json) -> bool:
    """The node agent, or MindCluster's pods on the node: what they log explains facts that are missing."""
    metadata = pod.get("metadata") or {}
    component = (metadata.get("labels") or {}).get(names.APP_COMPONENT_LABEL)
    return component == names.COMPONENT_NODE_AGENT or str(metadata.get("name", "")).startswith(
        ("ascend-device-plugin", "noded", "npu-exporter")
    )


def _offered(allocatable: Mapping[str, int]) -> int | None:
    """Cards; None on a node that names no resource of cards, where the plugin may call them otherwise."""
    counts = [count for name, count in allocatable.items() if is_card_resource(name)]
    return sum(counts) if counts else None


def _idle_memory(found: Collected) -> int:
    """As the node's pool says, where it does."""
    if found.kube_node is None:
        return IDLE_MEMORY
    pools = {pool.metadata.name: pool for pool in map(NPUPool.parse, found.pools)}
    owner = owner_of(node_facts(found.kube_node), pools.values())
    health = pools[owner].spec.health if owner is not None else None
    return health.idle_memory if health is not None and health.idle_memory is not None else IDLE_MEMORY


def _age(written: str, now: datetime) -> timedelta | None:
    try:
        return now - datetime.fromisoformat(written)
    except (ValueError, TypeError):
        return None


def _node(pod: Json) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def _ended(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}
