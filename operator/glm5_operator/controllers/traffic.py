"""Which pods of services are in traffic, and taking them out of it or putting them back: by the label that the client Service selects.

Used by the node controller. Pods without that label (training, pods of others) have no traffic; one whose label somebody took off by hand
stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glm5_operator.api import names
from glm5_operator.health.remedy.decision import Room
from glm5_operator.kube import Key, kinds
from glm5_operator.kube.cache import controller_of
from glm5_operator.status.pods import is_true

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from glm5_operator.health.types import NodeHealth
    from glm5_operator.kube import ApiFailure, Applier, Cache, Resource


class Traffic:
    """Reads pods from the cache, and writes one label."""

    def __init__(self, cache: Cache, applier: Applier) -> None:
        self._cache, self._applier = cache, applier

    def room(self, health: NodeHealth, others: int) -> Room:
        """What the services of the node's pods can spare, beside the count of other nodes in remedy."""
        bare = frozenset(_name(pod) for pod in self._pods_on(health.name) if not _has_controller(pod))
        return Room(others=others, last=frozenset(self.last(health)), quiet=frozenset(self.quiet(health.name)), bare=bare)

    def last(self, health: NodeHealth) -> dict[str, Key]:
        """Of each service that only this node serves, one pod (`namespace/name`): one on cards that are well, where there is such a pod."""
        sick = {card.holder for card in health.cards if card.grade is not None or card.missing}
        return dict(self._last(health.name, sick))

    def serving(self, node: str) -> frozenset[str]:
        """`namespace/name` of the node's pods that get requests, or would once they are ready."""
        return frozenset(
            _name(pod)
            for pod in self._pods_on(node)
            if _serving(pod) == names.SERVING_VALUE and not pod["metadata"].get("deletionTimestamp")
        )

    def spares(self, node: str) -> bool:
        """No service would be without a replica in traffic if this node went."""
        return not any(self._last(node, set()))

    def serves(self, node: str, services: Collection[Key]) -> bool:
        """A replica of one of these services is in traffic there."""
        return any(_in_traffic(pod) and self._owner(pod) in services for pod in self._pods_on(node))

    def quiet(self, node: str) -> tuple[str, ...]:
        """`namespace/name` of the node's pods that a remedy took out of traffic."""
        return tuple(_name(pod) for pod in self._pods_on(node) if _serving(pod) == names.QUIESCED_VALUE)

    async def set(self, quiesce: Iterable[str], back: Iterable[str]) -> list[ApiFailure]:
        """Take these out of traffic, and put those back; what failed."""
        out = frozenset(quiesce)
        wanted = dict.fromkeys(out, (names.SERVING_VALUE, names.QUIESCED_VALUE))
        wanted |= {name: (names.QUIESCED_VALUE, names.SERVING_VALUE) for name in back if name not in out}
        failures = []
        for name, (before, after) in sorted(wanted.items()):
            pod = self._cache.get(kinds.POD.name, *name.split("/", 1))
            if pod is None or _serving(pod) != before:
                continue
            if (failure := await self._applier.label_pod(pod, names.SERVING_LABEL, after)) is not None:
                failures.append(failure)
        return failures

    def _last(self, node: str, sick: Collection[str]) -> Iterator[tuple[str, Key]]:
        here: dict[Key, list[Resource]] = {}
        for pod in self._pods_on(node):
            if _in_traffic(pod) and (owner := self._owner(pod)) is not None:
                here.setdefault(owner, []).append(pod)
        for owner, pods in here.items():
            if not any(_in_traffic(pod) and _node(pod) != node for pod in self._cache.pods(owner)):
                yield min((_name(pod) in sick, _name(pod)) for pod in pods)[1], owner

    def _pods_on(self, node: str) -> list[Resource]:
        found = (self._cache.get(key.kind, key.namespace, key.name) for key in self._cache.held(node))
        return [pod for pod in found if pod is not None]

    def _owner(self, pod: Resource) -> Key | None:
        value = (pod["metadata"].get("labels") or {}).get(names.SERVICE_LABEL)
        return self._cache.owner_of_label(names.SERVICE_LABEL, pod["metadata"]["namespace"], value) if value else None


def _in_traffic(pod: Resource) -> bool:
    return _serving(pod) == names.SERVING_VALUE and not pod["metadata"].get("deletionTimestamp") and is_true(pod, "Ready")


def _has_controller(pod: Resource) -> bool:
    """Somebody makes it anew when it has gone."""
    return controller_of(pod) is not None


def _serving(pod: Resource) -> str | None:
    value: str | None = (pod["metadata"].get("labels") or {}).get(names.SERVING_LABEL)
    return value


def _node(pod: Resource) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def _name(pod: Resource) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
