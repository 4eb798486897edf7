"""Takes the operator's marks off all nodes, puts pods back into traffic and removes AscendNodes: what `glm5-operator cleanup` does.

Run before the operator is uninstalled by the chart's pre-delete hook through `__main__`. Afterwards nobody would be left to do it. A
running operator would put the labels back, so the lease is taken from it first: it notices at its next renewal and ends, and may write
nothing from then on.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.controllers.taints import without_taints
from glm5_operator.kube import Applier, Cache, errors, kinds
from glm5_operator.kube.client import Client, load_configuration
from glm5_operator.metrics import Metrics

if TYPE_CHECKING:
    from glm5_operator.kube import ApiFailure, Resource
    from glm5_operator.settings import Lease, Settings

log = logging.getLogger(__name__)

HOLD_SECONDS: Final = 60
"""How long no operator may start after the lease was taken: until the release is gone, and no longer than a re-install can wait."""

ROUNDS: Final = 5
"""A node changed by somebody else meanwhile is tried again this often."""
_NOTES: Final = (names.MOVE_ANNOTATION, names.LENT_ANNOTATION)
"""Where a node was to go, and who lent it: an operator that is installed anew must not act on it."""


class CleanupError(Exception):
    """Some nodes still carry our label or taint, or pods are still out of traffic."""


async def cleanup(settings: Settings, kubeconfig: str | None = None) -> int:
    """Take the lease, then our marks off all nodes; returns how many nodes were changed.

    Raises:
        CleanupError: Nodes are left; the message names one and why.
        KubeError: The API server can't be reached or refuses to be read.
    """
    metrics = Metrics()
    client = Client(await load_configuration(kubeconfig), settings.api, metrics)
    try:
        if settings.lease.enabled:
            await take_lease(client, settings.lease)
        return await release_all_nodes(client, metrics)
    finally:
        await client.close()


async def take_lease(client: Client, settings: Lease) -> None:
    """Make whoever leads end, and wait until it can't write any more."""
    while True:
        try:
            lease = await client.get(kinds.LEASE, settings.namespace, settings.name)
        except errors.NotFoundError:
            return  # no operator ever ran here
        try:
            await client.replace(kinds.LEASE, lease | {"spec": _taken(lease.get("spec") or {})})
        except errors.ConflictError:
            continue  # the leader renewed in between
        break
    if (lease.get("spec") or {}).get("holderIdentity"):
        log.info("took the lease from %s; waiting %g s until it can't write", lease["spec"]["holderIdentity"], settings.duration)
        await asyncio.sleep(settings.duration)


async def release_all_nodes(client: Client, metrics: Metrics) -> int:
    """Take our label and taints off every node that has one; what others put there stays. First pods that wait for a remedy go on."""
    applier = Applier(client, Cache(), metrics)
    await _end_remedies(client, applier)
    released: set[str] = set()
    for _ in range(ROUNDS):
        failures: list[ApiFailure] = []
        nodes = [node async for page, _ in client.pages(kinds.NODE) for node in page if _is_marked(node)]
        for node in nodes:
            failure = await applier.patch_node(
                node, labels={names.POOL_LABEL: None}, taints=without_taints(node), annotations=dict.fromkeys(_NOTES)
            )
            if failure is None:
                released.add(node["metadata"]["name"])
            else:
                failures.append(failure)
        if not failures:
            log.info("released %d nodes", len(released))
            return len(released)
    raise CleanupError(f"{len(failures)} nodes are left; {failures[0].target.name}: {failures[0].message}")


async def _end_remedies(client: Client, applier: Applier) -> None:
    """Nobody would put a quiesced replica back into traffic, and nobody would write an AscendNode any more."""
    quiet = replace(kinds.POD, selector=f"{names.SERVING_LABEL}={names.QUIESCED_VALUE}")
    pods = [pod async for page, _ in client.pages(quiet) for pod in page]
    nodes = [node async for page, _ in client.pages(kinds.ASCEND_NODE) for node in page]
    found = [await applier.label_pod(pod, names.SERVING_LABEL, names.SERVING_VALUE) for pod in pods]
    found += [await applier.delete(node) for node in nodes]
    if failures := [failure for failure in found if failure is not None]:
        raise CleanupError(f"{len(failures)} pods or AscendNodes are left; {failures[0].target}: {failures[0].message}")


def _is_marked(node: Resource) -> bool:
    metadata = node["metadata"]
    noted = any(name in (metadata.get("annotations") or {}) for name in _NOTES)
    return noted or names.POOL_LABEL in (metadata.get("labels") or {}) or without_taints(node) is not None


def _taken(spec: dict[str, Any]) -> dict[str, Any]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    holder = f"cleanup_{uuid.uuid4().hex[:8]}"
    transitions = int(spec.get("leaseTransitions") or 0) + 1
    return spec | {
        "holderIdentity": holder,
        "leaseDurationSeconds": HOLD_SECONDS,
        "renewTime": now,
        "acquireTime": now,
        "leaseTransitions": transitions,
    }
