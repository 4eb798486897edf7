"""Carries a node's way to another pool into the cluster: what is wanted is read from its annotation, what `health.handover` says is done.

Used by the node controller, in whose pass a move is one step: while it holds the node, the remedy rests. The way is in the AscendNode's
status before anything is done, so a new operator goes on where the last one ended; a person stops it by taking the annotation off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.controllers.taints import with_move_taint
from glm5_operator.controllers.traffic import Traffic
from glm5_operator.health.move import way as ways
from glm5_operator.health.move.handover import Stepped, Wanted, step
from glm5_operator.health.remedy.decision import Decision, Step
from glm5_operator.kube import kinds
from glm5_operator.plan.offer import Offer, offer_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from glm5_operator.controllers.facts import Facts
    from glm5_operator.controllers.remedies import Remedies
    from glm5_operator.health.remedy.memory import Memory
    from glm5_operator.health.remedy.policy import Policy
    from glm5_operator.health.types import NodeHealth
    from glm5_operator.kube import ApiFailure, Applier, Cache, Events, Resource

_MOST_NAME: Final = 253
"""Characters."""


@dataclass(frozen=True)
class Moves:
    """Moves of nodes between pools."""

    cache: Cache
    applier: Applier
    events: Events
    facts: Facts
    remedies: Remedies

    def step(self, ascend_node: Resource, pool: str, health: NodeHealth, policy: Policy, *, memory: Memory, now: datetime) -> Stepped:
        """What to do about the move of a node of `pool`, if there is one."""
        way = ways.load((ascend_node.get("status") or {}).get("move"))
        target = self._target(health.name)
        if way is None and target in {"", pool}:
            return Stepped()
        traffic = Traffic(self.cache, self.applier)
        wanted = Wanted(
            pool,
            target,
            self._refusal(target, health),
            remedy="" if memory.state == "Healthy" else memory.state,
            others=self._others(pool, health.name),
            lent=_is_loan(self._notes(health.name), pool, target),
            serving=traffic.serving(health.name),
            quiet=frozenset(traffic.quiet(health.name)),
            last={pod: f"{service.namespace}/{service.name}" for pod, service in traffic.last(health).items()},
        )
        return step(health, way, wanted, policy, now)

    async def act(self, name: str, done: Stepped) -> list[ApiFailure]:
        """The taint that keeps new pods away, and at the end the label; of a loan that is given up the note goes back to its pool."""
        node = self.cache.get(kinds.NODE.name, "", name)
        if node is None:
            return []
        if done.way is not None and done.gives_up:
            notes = {names.MOVE_ANNOTATION: done.way.origin, names.LENT_ANNOTATION: None}
            failure = await self.applier.patch_node(node, labels={}, annotations=notes)
            return [] if failure is None else [failure]
        holds = done.way is not None and done.holds and not done.arrived
        labels: dict[str, str | None] = {names.POOL_LABEL: done.way.target} if done.way is not None and done.arrived else {}
        failure = await self.applier.patch_node(
            node, labels=labels, taints=with_move_taint(node, done.way.target if done.way is not None and holds else None)
        )
        return [] if failure is None else [failure]

    def tell(self, ascend_node: Resource, done: Stepped) -> None:
        """An Event for each step."""
        before, after = ways.load((ascend_node.get("status") or {}).get("move")), done.way
        if after is None and before is not None:
            arrived = self._label(ascend_node["metadata"]["name"]) == before.target
            word = f"it belongs to pool {before.target} now" if arrived else f"no longer on its way to pool {before.target}"
            self.events.normal(ascend_node, "Moved" if arrived else "MoveStopped", word)
        elif after is not None and (before is None or (before.state, before.reason) != (after.state, after.reason)):
            record = self.events.warning if after.state == "Blocked" else self.events.normal
            record(ascend_node, f"Move{after.state}", f"to pool {after.target}: {after.reason}: {after.message}")

    def _target(self, node: str) -> str:
        """As far as a status can name it: what is longer is no pool's name, and is told to be none."""
        return str(self._notes(node).get(names.MOVE_ANNOTATION, ""))[:_MOST_NAME]

    def _notes(self, node: str) -> Mapping[str, str]:
        found = self.cache.get(kinds.NODE.name, "", node) or {"metadata": {}}
        return dict(found["metadata"].get("annotations") or {})

    def _label(self, node: str) -> str:
        found = self.cache.get(kinds.NODE.name, "", node) or {"metadata": {}}
        return str((found["metadata"].get("labels") or {}).get(names.POOL_LABEL, ""))

    def _refusal(self, target: str, health: NodeHealth) -> str:
        if not target:
            return ""
        pool = self.facts.pool(target)
        if pool is None:
            return f"there is no NPUPool {target}: create it, or move the node to another one"
        offer = offer_of(pool)
        product = offer.product if isinstance(offer, Offer) else None
        if product is not None and health.product is not None and product is not health.product:
            return f"pool {target} has nodes of {product}, and this one is {health.product}: move it to a pool of its product"
        return ""

    def _others(self, pool: str, node: str) -> int:
        """Other nodes of the pool that a remedy or a move has taken out of service.

        By their status: that is written under the pool's lock, and the taint only afterwards.
        """
        moving = sum(self._is_held(other) for other in self.cache.nodes(pool) if other["metadata"]["name"] != node)
        return moving + self.remedies.out_of_service(pool, besides=node)

    def _is_held(self, node: Resource) -> bool:
        """A move has it, also one that was stopped and waits for its reset to end."""
        marked = names.MOVE_ANNOTATION in (node["metadata"].get("annotations") or {})
        tainted = any(taint.get("key") == names.MOVE_TAINT for taint in (node.get("spec") or {}).get("taints") or ())
        if not (marked or tainted):
            return False
        way = ways.load(((self.cache.get(names.NODE_KIND, "", node["metadata"]["name"]) or {}).get("status") or {}).get("move"))
        return way is not None and way.state != "Waiting"


def _is_loan(notes: Mapping[str, str], pool: str, target: str) -> bool:
    """By the mark that the pool sets with the target. A person who sends it somewhere else leaves the mark behind, of the old target."""
    return notes.get(names.LENT_ANNOTATION, "").split(" ")[:2] == [pool, target]


def status_of(done: Stepped) -> dict[str, Any]:
    """The part of the AscendNode's status."""
    report = ways.dump(done.way)
    return {} if report is None else {"move": report}


def resting(memory: Memory, done: Stepped) -> Decision:
    """The remedy's answer while a move holds the node: all as it was, and what the move does to pods and cards."""
    return Decision(
        memory,
        Step.NO_ACTION,
        memory.reason,
        memory.message,
        quiesce=done.quiesce,
        evict=done.evict,
        return_to_traffic=done.back,
        reset=done.reset,
        requeue_after=done.requeue_after,
    )
