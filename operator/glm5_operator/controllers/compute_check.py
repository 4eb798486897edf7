"""The pods that check nodes' cards by computing: there while a remedy asks for one, gone otherwise; and what they found.

Used by the node controller. Decides nothing: when a check is due, and what follows from it, says `health.remedy`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from glm5_operator.api import names
from glm5_operator.health.remedy.answers import check_id
from glm5_operator.health.remedy.decision import ComputeCheck
from glm5_operator.kube import kinds
from glm5_operator.plan.compute_check import CheckInput, compute_check_pod
from glm5_operator.plan.facts import Finding
from glm5_operator.status.compute_check import check_of

if TYPE_CHECKING:
    from glm5_operator.api.pool import NPUPool
    from glm5_operator.controllers.facts import Facts
    from glm5_operator.health.remedy.memory import Memory
    from glm5_operator.kube import ApiFailure, Applier, Cache, Manifest, Resource

_PASSING: Final = frozenset({"ApiError", "Conflict", "NotLeader", "TooManyRequests", "Unavailable"})
"""Failures of the API server that say nothing of the pod."""


@dataclass(frozen=True)
class ComputeChecks:
    """Keeps at most one such pod a node."""

    cache: Cache
    applier: Applier
    facts: Facts
    namespace: str | None  # the operator's own; None where it can't be seen
    # By node, the check whose pod can't be made, and why: it isn't asked for again. An operator that starts anew asks once more.
    refused: dict[str, tuple[str, str]] = field(default_factory=dict)

    def known(self, node: str, pool: NPUPool, memory: Memory) -> ComputeCheck:
        """What became of the check that the memory asks for; or, where it asks for none, whether one could be run."""
        if not (check := check_id(memory)):
            return ComputeCheck(unavailable=self._unavailable(node, pool))
        of, why = self.refused.get(node, ("", ""))
        if of == check:
            return ComputeCheck(check, "CouldNotRun", why)
        pod = self.cache.get(kinds.POD.name, self.namespace or "", names.compute_check_name(node, check))
        return check_of(pod, check) if pod is not None else ComputeCheck(check)

    def waiting(self, node: str) -> list[Resource]:
        """Those that the scheduler may bind in the next moment: until one is gone, its cards count as held."""
        return [pod for pod in self._pods(node) if not pod["spec"].get("nodeName")]

    def _pods(self, node: str) -> list[Resource]:
        return [pod for pod in self.cache.compute_checks(node) if pod["metadata"]["namespace"] == self.namespace]

    async def settle(self, node: Resource, ascend_node: Resource, pool: NPUPool, check: str) -> list[ApiFailure]:
        """Have the pod of this check there, and no other of this node; with "" none."""
        if self.namespace is None:
            return []
        name = node["metadata"]["name"]
        wanted = names.compute_check_name(name, check) if check else ""
        found = {pod["metadata"]["name"]: pod for pod in self._pods(name)}
        failures = []
        for pod in (pod for pod_name, pod in found.items() if pod_name != wanted and not pod["metadata"].get("deletionTimestamp")):
            if (failure := await self.applier.delete(pod)) is not None:
                failures.append(failure)
        if self.refused.get(name, ("", ""))[0] != check:
            self.refused.pop(name, None)
        if wanted and wanted not in found and name not in self.refused:
            failures += await self._create(name, check, self._manifest(name, pool, check), ascend_node)
        return failures

    async def _create(self, node: str, check: str, manifest: Manifest | str, ascend_node: Resource) -> list[ApiFailure]:
        if isinstance(manifest, str):
            self.refused[node] = check, manifest
            return []
        failure = await self.applier.create_pod(manifest, ascend_node)
        if failure is None or failure.reason in _PASSING:
            return [failure] if failure else []
        self.refused[node] = check, f"{failure.reason}: {failure.message}"
        return []

    def _manifest(self, node: str, pool: NPUPool, check: str) -> Manifest | str:
        """The pod; or why there can be none."""
        assert self.namespace is not None
        if why := self._unavailable(node, pool):
            return why
        resource = self.facts.resource_of_pool(pool.metadata.name)
        given = CheckInput(node, check, pool, resource, self.facts.free_cards(node, resource), self.namespace, self.facts.site)
        pod = compute_check_pod(given)
        return pod.message if isinstance(pod, Finding) else pod

    def _unavailable(self, node: str, pool: NPUPool) -> str:
        if self.namespace is None:
            return "the operator doesn't watch its own namespace, where the check would run"
        if not self.facts.site.images.get("native"):
            return "no image of the runtime is configured (site.native_image)"
        resource = self.facts.resource_of_pool(pool.metadata.name)
        if not resource or self.facts.free_cards(node, resource) < 1:
            return "no card of the node is free for it"
        return ""
