"""Which pods of services are in traffic, and taking them out of it or putting them back: by the label that the client Service selects.

Used by the node controller. Pods without that label (training, pods of others) have no traffic; one whose label somebody took off by hand
stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glm5_operator.api import names
from glm5_operator.health.remedy.decision import Room
from glm5_operator.kube import Key, kinds
from glm5_operator.status.pods import is_true

if TYPE_CHECKING:
    from collections.abc import Iterable

    from glm5_operator.health.types import NodeHealth
    from glm5_operator.kube import ApiFailure, Applier, Cache, Resource


class Traffic:
    """Reads pods from the cache, and writes one label."""

    def __init__(self, cache: Cache, applier: Applier) -> None:
        self._cache, self._applier = cache, applier

    def room(self, health: NodeHealth, others: int) -> Room:
        """What the services of the node's pods can spare, beside the count of other nodes in remedy."""
        return Room(others=others, last=frozenset(self._last(health)), quiet=frozenset(self.quiet(health.name)))

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

    def _last(self, health: NodeHealth) -> Iterable[str]:
        """Of each service that only this node serves, one pod: one on cards that are well, where there is such a pod."""
        sick = {card.holder for card in health.cards if card.grade is not None or card.missing}
        here: dict[Key, list[Resource]] = {}
        for pod in self._pods_on(health.name):
            if _in_traffic(pod) and (owner := self._owner(pod)) is not None:
                here.setdefault(owner, []).append(pod)
        for owner, pods in here.items():
            if not any(_in_traffic(pod) and _node(pod) != health.name for pod in self._cache.pods(owner)):
                yield min((_name(pod) in sick, _name(pod)) for pod in pods)[1]

    def _pods_on(self, node: str) -> list[Resource]:
        found = (self._cache.get(key.kind, key.namespace, key.name) for key in self._cache.held(node))
        return [pod for pod in found if pod is not None]

    def _owner(self, pod: Resource) -> Key | None:
        value = (pod["metadata"].get("labels") or {}).get(names.SERVICE_LABEL)
        return self._cache.owner_of_label(names.SERVICE_LABEL, pod["metadata"]["namespace"], value) if value else None


def _in_traffic(pod: Resource) -> bool:
    return _serving(pod) == names.SERVING_VALUE and not pod["metadata"].get("deletionTimestamp") and is_true(pod, "Ready")


def _serving(pod: Resource) -> str | None:
    value: str | None = (pod["metadata"].get("labels") or {}).get(names.SERVING_LABEL)
    return value


def _node(pod: Resource) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def _name(pod: Resource) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
