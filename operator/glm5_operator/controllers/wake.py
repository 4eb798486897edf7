"""Which objects are looked at again because another one changed or went. Pure: reads the cache, starts nothing.

Called by `app` for each event that is news to the cache. A rule may wake too much (a reconcile that finds nothing to do costs no
request), never too little: what no event tells is only found by the resync, minutes later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from glm5_operator.api import names
from glm5_operator.kube import Key, key_of, kinds
from glm5_operator.kube.cache import controller_of, node_of_map
from glm5_operator.plan.preflight import VERSIONS_DO_NOT_FIT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from glm5_operator.kube import Cache, Resource

_OWNERS: Final = frozenset(kind.name for kind in kinds.OWNERS)

NODE_SETTLE: Final = 1.0
"""Seconds; a node changes for many services at once, and nodes change in crowds."""

CARDS_SETTLE: Final = 5.0
"""Seconds; a pool counts the cards that pods hold, and a rollout changes them all the time."""


def woken_by(cache: Cache, resource: Resource, settle: float) -> Iterator[tuple[Key, float]]:
    """Keys to look at, and in how many seconds. A user's own edit isn't made to wait; what comes in bursts waits `settle` for the rest.

    `resource` is the object as it is now, or as it was last when it has gone.
    """
    kind = resource["kind"]
    if kind == kinds.ASCEND_NODE.name:
        yield key_of(resource), 0.0
        if target := ((resource.get("status") or {}).get("move") or {}).get("target"):
            yield Key(kinds.POOL.name, "", target), settle  # it shows who is on the way to it
        yield from _by_driver(cache, resource)
    elif kind == kinds.MIND_CLUSTER_MAP.name:
        if node := node_of_map(resource["metadata"]["name"]):
            yield Key(names.NODE_KIND, "", node), 0.0
    elif kind == kinds.CLUSTER_INFO.name:
        for node in sorted(cache.told_anew(resource["metadata"]["name"])):
            yield Key(names.NODE_KIND, "", node), 0.0
    elif kind in _OWNERS:
        yield key_of(resource), 0.0
        yield from _by_adapters(cache, resource, settle)
    elif kind == kinds.POOL.name:
        yield from _by_pool(cache, resource, settle)
    elif kind == kinds.NODE.name:
        yield from _by_node(cache, resource, settle)
    elif kind == kinds.POD.name:
        yield from _by_pod(cache, resource, settle)
    else:
        reference = controller_of(resource)
        if reference is not None and reference.get("kind") in _OWNERS:
            yield Key(reference["kind"], resource["metadata"]["namespace"], reference["name"]), settle


def _by_adapters(cache: Cache, owner: Resource, settle: float) -> Iterator[tuple[Key, float]]:
    """A job's adapter goes into services of its namespace, and how far it is depends on them. Others aren't looked through."""
    namespace, name, spec = owner["metadata"].get("namespace") or "", owner["metadata"]["name"], owner.get("spec") or {}
    if owner["kind"] == kinds.SERVICE.name:
        if spec.get("adapterStorage") or (owner.get("status") or {}).get("adapters"):
            for job in cache.list(kinds.FINETUNE.name, namespace):
                if ((job.get("spec") or {}).get("deploy") or {}).get("service") == name:
                    yield key_of(job), settle
        return
    status = owner.get("status") or {}
    targets = {str((part or {}).get("service") or "") for part in (spec.get("deploy"), status.get("deployment"))} - {""}
    for target in sorted(targets):
        yield Key(kinds.SERVICE.name, namespace, target), settle
    if spec.get("method") == "full" or not status.get("outcome"):
        return  # while it trains, nothing of it is in any service
    for service in cache.list(kinds.SERVICE.name, namespace):
        listed = (service.get("spec") or {}).get("adapters") or ()
        if service["metadata"]["name"] not in targets and any(one.get("source") == f"job://{name}" for one in listed):
            yield key_of(service), settle


def _by_driver(cache: Cache, ascend_node: Resource) -> Iterator[tuple[Key, float]]:
    """What waits for another driver, when the agent of a node of its pool has written: it may have read a new one."""
    node = cache.get(kinds.NODE.name, "", ascend_node["metadata"]["name"])
    for key in cache.users_of(_labels(node).get(names.POOL_LABEL, "")) if node else ():
        user = cache.get(key.kind, key.namespace, key.name) or {}
        if any(one.get("reason") == VERSIONS_DO_NOT_FIT for one in (user.get("status") or {}).get("conditions") or ()):
            yield key, NODE_SETTLE


def _by_pool(cache: Cache, pool: Resource, settle: float) -> Iterator[tuple[Key, float]]:
    yield key_of(pool), 0.0  # also when it has gone: its nodes are to be let go
    for key in cache.keys(kinds.POOL.name):
        if key != key_of(pool):
            yield key, settle  # a node that one pool lets go of is another's to take
    for key in cache.users_of(pool["metadata"]["name"]):
        yield key, settle
    for node in cache.nodes(pool["metadata"]["name"]):
        yield Key(names.NODE_KIND, "", node["metadata"]["name"]), settle  # its policy may be another


def _by_node(cache: Cache, node: Resource, settle: float) -> Iterator[tuple[Key, float]]:
    for key in cache.keys(kinds.POOL.name):
        yield key, settle
    yield Key(names.NODE_KIND, "", node["metadata"]["name"]), settle
    pool = _labels(node).get(names.POOL_LABEL)
    if pool:
        # No finalizer holds a pool back: one that was deleted while no operator ran is only remembered by this label.
        yield Key(kinds.POOL.name, "", pool), settle
        for key in cache.users_of(pool):
            yield key, NODE_SETTLE


def _by_pod(cache: Cache, pod: Resource, settle: float) -> Iterator[tuple[Key, float]]:
    labels = _labels(pod)
    ours = [(label, labels[label]) for label in names.OWNER_LABELS if label in labels]
    # A run that waits for cards may have them now. A pod of others is in the cache's news only when it took or freed devices.
    node = cache.get(kinds.NODE.name, "", (pod.get("spec") or {}).get("nodeName") or "")
    pool = _labels(node).get(names.POOL_LABEL) if node else None
    if pool:
        yield Key(names.NODE_KIND, "", pod["spec"]["nodeName"]), settle
        yield from ((key, CARDS_SETTLE) for key in cache.users_of(pool) if key.kind == kinds.FINETUNE.name)
    # Whose node it is on counts its cards. The pool that it names, too, where it isn't there yet or has got past the rules.
    selector = ((pod.get("spec") or {}).get("nodeSelector") or {}) if ours else {}
    for concerned in sorted({pool or "", str(selector.get(names.POOL_LABEL) or "")} - {""}):
        yield Key(kinds.POOL.name, "", concerned), CARDS_SETTLE
    for label, value in ours:
        owner = cache.owner_of_label(label, pod["metadata"]["namespace"], value)
        if owner is not None:
            yield owner, settle


def _labels(resource: Resource) -> dict[str, str]:
    return dict(resource["metadata"].get("labels") or {})
