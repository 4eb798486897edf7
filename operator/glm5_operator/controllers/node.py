"""Reconcile one AscendNode: observe, decide, remember, act, and say when to look again.

Called by the queue with the key of an AscendNode, which bears its Node's name; the object itself is made and removed here. Decides nothing:
what a node's health is says `health.view`, what follows from it `health.remedy`. The decision is written into the status before anything
is done: what an operator that dies in between leaves undone is asked for again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.controllers.compute_check import ComputeChecks
from glm5_operator.controllers.moves import Moves, resting, status_of
from glm5_operator.controllers.taints import with_health_taint
from glm5_operator.controllers.traffic import Traffic
from glm5_operator.health.move.handover import Stepped
from glm5_operator.health.remedy import memory as memories
from glm5_operator.health.remedy.machine import decide
from glm5_operator.health.remedy.policy import Policy
from glm5_operator.health.resets import resets_end
from glm5_operator.health.types import NodeHealth, Product
from glm5_operator.health.view import node_health
from glm5_operator.kube import ApiFailure, Key, Outcome, kinds
from glm5_operator.plan.trainer import time_to_save
from glm5_operator.status.node import OURS, node_status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from datetime import datetime

    from glm5_operator.api.pool import NPUPool
    from glm5_operator.controllers.facts import Facts
    from glm5_operator.controllers.remedies import Remedies
    from glm5_operator.health.remedy.decision import Decision
    from glm5_operator.health.remedy.memory import Memory
    from glm5_operator.kube import Applier, Cache, Events, Manifest, Resource

EVICT_AGAIN: Final = timedelta(seconds=5)
"""While a disruption budget holds a pod: no event tells when it allows more."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What this pass works on."""

    node: Resource
    ascend_node: Resource
    pool: NPUPool
    health: NodeHealth
    memory: Memory
    policy: Policy
    released: bool
    limited: bool  # the pool says Auto, and this operator doesn't do it


@dataclass(frozen=True)
class NodeController:
    """Keeps one AscendNode for each node of a pool, and takes the node through its remedy."""

    cache: Cache
    applier: Applier
    events: Events
    facts: Facts
    resets_itself: Callable[[Resource], Awaitable[bool]]  # a device plugin on that node does
    remedies: Remedies
    resync: timedelta
    agents: str | None  # the namespace of the agents' pods; None where it can't be seen
    whole_cluster: bool  # else pods of others may hold cards unseen, and nothing is done that could hit them
    wake: Callable[[Key], None]
    # Two nodes that look for room in a pool at the same time would both find the same.
    pools: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    refused: dict[str, tuple[str, str]] = field(default_factory=dict)  # compute checks that can't be made
    # Nodes that wait with the last replica of a service, and for which: no event of theirs tells that it is served elsewhere.
    keeping: dict[str, frozenset[Key]] = field(default_factory=dict)

    async def reconcile(self, key: Key, now: datetime) -> Outcome:
        """Take the node of `key` one step further, where there is one."""
        node = self.cache.get(kinds.NODE.name, "", key.name)
        if node is None:
            self.keeping.pop(key.name, None)
            self._wake(self.remedies.forget(key.name))
            return Outcome.done()  # the owner reference removes the AscendNode
        pool = self.facts.stated(_label(node))
        ascend_node = self.cache.get(key.kind, "", key.name)
        if pool is None:
            return await self._without_pool(node, ascend_node, now)
        if ascend_node is None:
            failure = await self.applier.put_ascend_node(_manifest(node, None), None)
            ascend_node = self.cache.get(key.kind, "", key.name)
            if failure is not None or ascend_node is None:
                return _outcome([failure] if failure else [], self.resync)
        async with self.pools[pool.metadata.name]:
            seen = await self._observe(node, ascend_node, pool, now)
            self.remedies.learn(self.cache)
            move = self._moves.step(ascend_node, pool.metadata.name, seen.health, seen.policy, memory=seen.memory, now=now)
            decision = _of_pods_here(resting(seen.memory, move) if move.holds else self._decide(seen, now), self.cache.held(key.name))
            status = node_status(ascend_node, seen.health, decision, now, limited=seen.limited) | status_of(move)
            failures = await self._remember(seen, decision, status, now)
            remembered = not failures
            if remembered:
                # Under the lock too: who is the last one of a service in traffic is counted from the pods.
                failures = await self._traffic.set(decision.quiesce, decision.return_to_traffic)
        if remembered:
            # A pod that isn't out of traffic yet isn't asked to end in it; the others, the taint and the reset don't wait for it.
            later = _named(failure for failure in failures if failure.retryable)
            decision = replace(decision, evict=tuple(pod for pod in decision.evict if pod not in later))
            failures += await self._act(seen, decision) + await self._moves.act(key.name, move)
        self._tell(seen, decision)
        self._moves.tell(ascend_node, move)
        self._served(seen.health, move.way.reason if move.way is not None and move.holds else decision.reason)
        return _outcome(failures, min(decision.requeue_after or self.resync, move.requeue_after or self.resync, self.resync))

    async def give_up(self, key: Key, reason: str, now: datetime) -> None:
        """The status tells how far the remedy is, and its conditions why; a failure of the API server is nothing to add to it."""

    @property
    def _moves(self) -> Moves:
        return Moves(self.cache, self.applier, self.events, self.facts, self.remedies)

    @property
    def _checks(self) -> ComputeChecks:
        return ComputeChecks(self.cache, self.applier, self.facts, self.agents, self.refused)

    @property
    def _traffic(self) -> Traffic:
        return Traffic(self.cache, self.applier)

    async def _observe(self, node: Resource, ascend_node: Resource, pool: NPUPool, now: datetime) -> _Seen:
        name, spec = node["metadata"]["name"], pool.spec
        health = node_health(
            node,
            ascend_node,
            self.cache.maps(name),
            self._holders(name),
            agent_ready=self._agent_ready(name),
            now=now,
            product=Product(spec.product) if spec.product else None,
            resource_name=self.facts.resource_of_pool(pool.metadata.name),
            hot_reset=await self.resets_itself(node),
        )
        policy = Policy.of(spec.health, health.product)
        limited = not self.whole_cluster and policy.mode == "Auto"
        if limited:
            policy = replace(policy, mode="DryRun")
        released = names.RELEASE_ANNOTATION in (ascend_node["metadata"].get("annotations") or {})
        return _Seen(node, ascend_node, pool, health, _memory(ascend_node, node, now), policy, released, limited)

    def _decide(self, seen: _Seen, now: datetime) -> Decision:
        pool = seen.pool.metadata.name
        room = self._traffic.room(seen.health, self.remedies.out_of_service(pool, besides=seen.health.name))
        if seen.policy.compute_check:
            room = replace(room, check=self._checks.known(seen.health.name, seen.pool, seen.memory))
        return decide(seen.health, seen.policy, seen.memory, room, now, released=seen.released)

    async def _remember(self, seen: _Seen, decision: Decision, status: dict[str, Any], now: datetime) -> list[ApiFailure]:
        ours = {name: value for name, value in (seen.ascend_node.get("status") or {}).items() if name in OURS}
        moved = ours.get("move") != status.get("move")  # its new pool shows it, too
        failure = await self.applier.write_status({**seen.ascend_node, "status": ours}, status, tell=moved)
        if failure is not None:
            return [failure]
        self._wake(self.remedies.note(seen.pool.metadata.name, seen.health, seen.memory, decision, now))
        return []

    def _wake(self, waiting: Iterable[str]) -> None:
        """Nodes that wait for what another one does or leaves: no event tells them of it."""
        for name in waiting:
            self.wake(Key(names.NODE_KIND, "", name))

    def _served(self, health: NodeHealth, reason: str) -> None:
        """Note what a node waits for with the last replicas of services, and wake those whose services this node serves."""
        if reason == "LastReplica":
            self.keeping[health.name] = frozenset(self._traffic.last(health).values())
        else:
            self.keeping.pop(health.name, None)
        self._wake(name for name, services in self.keeping.items() if name != health.name and self._traffic.serves(health.name, services))

    async def _act(self, seen: _Seen, decision: Decision) -> list[ApiFailure]:
        """All but traffic: the taint, evictions, the reset that is asked for, and the person's note that was obeyed."""
        found = [
            await self.applier.patch_node(seen.node, labels={}, taints=with_health_taint(seen.node, decision.taint or None)),
            *[
                await self.applier.evict(pod, time_to_save(pod, seen.policy.drain))
                for pod in self._pods((*decision.evict, *decision.restart))
            ],
            *await self._checks.settle(seen.node, seen.ascend_node, seen.pool, decision.check),
            await self.applier.put_ascend_node(_manifest(seen.node, decision), seen.ascend_node),
        ]
        if seen.released and decision.memory.state != "Quarantined":
            found.append(await self.applier.take_off(seen.ascend_node, names.RELEASE_ANNOTATION))
        return [failure for failure in found if failure is not None]

    def _tell(self, seen: _Seen, decision: Decision) -> None:
        """An Event for each alert of a step, or for a step without: an object has ten in ten minutes, and a quarantine must be among them.

        Trouble that goes on is no news, for a new leader neither: it doesn't know what the last one has sent.
        """
        before, after = seen.memory, decision.memory
        if before.since is None or (before.state, before.reason) == (after.state, after.reason):
            return  # nor is it news that the agent of a node just seen hasn't reported yet
        dry = "(dry run) " if after.dry_run else ""
        tell = self.events.normal if after.state == "Returning" else self.events.warning
        for alert in decision.alerts:
            tell(seen.ascend_node, alert.reason, dry + alert.message)
        if before.state != after.state and not decision.alerts:
            self.events.normal(seen.ascend_node, after.state, f"{dry}{after.reason}: {after.message or after.state}")

    async def _without_pool(self, node: Resource, ascend_node: Resource | None, now: datetime) -> Outcome:
        """Let go of it, unless its pool is there and only can't be read, or its cards are in the middle of a reset."""
        label = _label(node)
        if label and self.cache.get(kinds.POOL.name, "", label) is not None:
            return Outcome.again(self.resync)  # what is wrong with it says the pool's own status; one on its way out takes the label off
        if ascend_node is not None:
            ends = resets_end(ascend_node.get("status") or {}, now)
            if ends is not None and now < ends:
                return Outcome.again(min(ends - now, self.resync))
        return await self._let_go(node, ascend_node)

    async def _let_go(self, node: Resource, ascend_node: Resource | None) -> Outcome:
        """A node that no pool has any more is nobody's to heal: pods go back into traffic, our taint comes off, the object goes."""
        self.keeping.pop(node["metadata"]["name"], None)
        self._wake(self.remedies.forget(node["metadata"]["name"]))
        if ascend_node is None:
            return Outcome.done()
        quiet = self._traffic.quiet(node["metadata"]["name"])
        found = [
            *await self._traffic.set((), quiet),
            await self.applier.patch_node(node, labels={}, taints=with_health_taint(node, None)),
        ]
        failures = [failure for failure in found if failure is not None] + await self._moves.act(node["metadata"]["name"], Stepped())
        if not failures and (failure := await self.applier.delete(ascend_node)):
            failures.append(failure)
        return _outcome(failures, self.resync)

    def _holders(self, node: str) -> list[Resource]:
        """The pods that hold devices there, or are about to, whosever they are, in the form in which the view reads pods."""
        return [
            {
                "metadata": {"namespace": key.namespace, "name": key.name, "uid": self._uid(key)},
                "spec": {"containers": [{"resources": {"limits": {name: str(count) for name, count in held.items()}}}]},
            }
            for key, held in self.cache.held(node).items()
        ] + self._checks.waiting(node)

    def _uid(self, pod: Key) -> str:
        found = self.cache.get(pod.kind, pod.namespace, pod.name)
        return str(found["metadata"].get("uid") or "") if found is not None else ""

    def _agent_ready(self, node: str) -> bool | None:
        if self.agents is None:
            return None
        pods = [pod for pod in self.cache.agents(node) if pod["metadata"]["namespace"] == self.agents]
        return any(not pod["metadata"].get("deletionTimestamp") and _is_ready(pod) for pod in pods)

    def _pods(self, wanted: Iterable[str]) -> list[Resource]:
        found = (self.cache.get(kinds.POD.name, *name.split("/", 1)) for name in wanted)
        return [pod for pod in found if pod is not None]


def _named(failures: Iterable[ApiFailure]) -> set[str]:
    """`namespace/name` of what they are about."""
    return {f"{failure.target.namespace}/{failure.target.name}" for failure in failures}


def _of_pods_here(decision: Decision, here: Iterable[Key]) -> Decision:
    """Without pods of other nodes: who holds a card says the agent there, and a forged word must not reach beyond its node."""
    pods = {f"{key.namespace}/{key.name}" for key in here}
    return replace(
        decision,
        quiesce=tuple(pod for pod in decision.quiesce if pod in pods),
        evict=tuple(pod for pod in decision.evict if pod in pods),
        restart=tuple(pod for pod in decision.restart if pod in pods),
        return_to_traffic=tuple(pod for pod in decision.return_to_traffic if pod in pods),
    )


def _manifest(node: Resource, decision: Decision | None) -> Manifest:
    """The AscendNode but for its status. It goes with its Node."""
    metadata = node["metadata"]
    owner = {"apiVersion": "v1", "kind": kinds.NODE.name, "name": metadata["name"], "uid": metadata["uid"]}
    reset = decision.reset if decision is not None else None
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.NODE_KIND,
        "metadata": {"name": metadata["name"], "ownerReferences": [owner]},
        "spec": {"reset": reset.model_dump(mode="json", by_alias=True, exclude_none=True)} if reset is not None else {},
    }


def _memory(ascend_node: Resource, node: Resource, now: datetime) -> Memory:
    """What the last pass remembered. A status that can't be read is as good as lost; what it left behind is seen from pods and taints.

    Of those a quarantine is obeyed: it ends by a person's word, and not because somebody deleted the object that remembered it.
    """
    report = memories.read((ascend_node.get("status") or {}).get("remedy"))
    if report is None and any(_is_quarantine(taint) for taint in (node.get("spec") or {}).get("taints") or ()):
        return memories.quarantined_by_taint(now)
    return memories.load(report)


def _is_quarantine(taint: Mapping[str, Any]) -> bool:
    return (taint.get("key"), taint.get("value")) == (names.HEALTH_TAINT, "quarantined")


def _label(node: Resource) -> str:
    return str((node["metadata"].get("labels") or {}).get(names.POOL_LABEL) or "")


def _is_ready(pod: Resource) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)


def _outcome(failures: list[ApiFailure], after: timedelta) -> Outcome:
    """A disruption budget that holds a pod is no failure: it is asked again until the remedy's own patience ends."""
    held = [failure for failure in failures if failure.reason == "TooManyRequests" and failure.target.kind == kinds.POD.name]
    others = [failure for failure in failures if failure not in held]
    if others:
        return Outcome.retry(others[0].reason, others[0].retry_after)
    return Outcome.again(min(after, EVICT_AGAIN) if held else after)
