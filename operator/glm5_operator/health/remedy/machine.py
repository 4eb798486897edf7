"""The remedy of a node's cards as a state machine: facts, policy, memory and time in, a decision out. docs/health.md has the table.

Called by the node controller after each change of facts and when a decision asked to be called again. Pure: no clock, no I/O, and nothing
is remembered but what is in `Memory`, so a decision made twice is the same decision.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from glm5_operator.health.remedy import policy as limits
from glm5_operator.health.remedy.answers import answer, elapsed, quarantine, request
from glm5_operator.health.remedy.decision import OUT_OF_SERVICE, Alert, Decision, Room, Step
from glm5_operator.health.remedy.in_service import watching
from glm5_operator.health.remedy.memory import Memory
from glm5_operator.health.remedy.out_of_service import HANDLERS, LATER, quarantined, quiescing
from glm5_operator.health.remedy.situation import look
from glm5_operator.health.types import NodeHealth, Trust

if TYPE_CHECKING:
    from glm5_operator.health.remedy.policy import Policy

__all__ = ["OUT_OF_SERVICE", "Alert", "Decision", "Memory", "Room", "Step", "decide"]


def decide(node: NodeHealth, policy: Policy, memory: Memory, room: Room, now: datetime, *, released: bool = False) -> Decision:
    """What to do about the node now.

    Args:
        node: what is known of it.
        policy: of its pool.
        memory: what the last decision left; `Memory()` for a node never seen.
        room: what the rest of the cluster allows.
        now: with a time zone. A clock that goes back counts as standing still.
        released: a person has taken the node out of quarantine; obeyed when the memory's state isn't Quarantined any more.
    """
    now = _forward(memory, now)
    memory = memory.within(policy.window, now)
    if policy.mode == "Auto" and memory.dry_run:
        # What would have been done wasn't; what was done before that still counts.
        memory = Memory(resets=memory.resets, remedies=memory.remedies, history=memory.history)
    begun = not memory.dry_run and memory.state in {"WaitingMindCluster", "Resetting", "Verifying", "Returning", "Quarantined"}
    if policy.mode != "Auto" and not begun:
        # What has begun on the cards is brought to its end whatever the mode; what hasn't is undone at once.
        return _watch_only(node, policy, memory, room, now)
    if node.trust is not Trust.FRESH:
        return _unsure(node, memory, now)
    situation, memory = look(node, policy, memory, room, now)
    if memory.state == "Quarantined":
        return quarantined(situation, memory, released)
    return HANDLERS.get(memory.state, watching)(situation, memory)


def _forward(memory: Memory, now: datetime) -> datetime:
    # Whole seconds, as the status keeps them: a decision from the memory and one from the status must be the same.
    times = [time for time in (memory.since, memory.reason_since) if time]
    return max(now.astimezone(UTC).replace(microsecond=0), *times) if times else now.astimezone(UTC).replace(microsecond=0)


def _watch_only(node: NodeHealth, policy: Policy, memory: Memory, room: Room, now: datetime) -> Decision:
    back = tuple(sorted({*memory.quieted, *room.quiet}))
    memory = replace(memory, quieted=(), cordoned=False, healthy_since=None)
    if policy.mode == "Off":
        memory = replace(memory.to(now, "Healthy", "Off", "health isn't graded in this pool"), dry_run=False, hot=(), faulty=(), cards=())
        return answer(memory, Step.NO_ACTION, return_to_traffic=back)
    if not memory.dry_run:
        memory = replace(memory.to(now, "Healthy", "DryRun", "the pool went to DryRun"), dry_run=True, faulty=(), restarted=())
    if node.trust is not Trust.FRESH:
        return replace(_unsure(node, memory, now), return_to_traffic=back)
    before = memory
    situation, memory = look(node, policy, memory, room, now)
    handler = quiescing if memory.state == "Quiescing" else watching
    would = handler(situation, memory)
    after = replace(would.memory, remedies=before.remedies, resets=before.resets, restarting=(), quieted=(), cordoned=False, dry_run=True)
    return replace(would, memory=after, quiesce=(), evict=(), restart=(), return_to_traffic=back, taint="", reset=None)


def _unsure(node: NodeHealth, memory: Memory, now: datetime) -> Decision:
    """Of facts that can't be believed nothing is concluded: things stay as they are, and a person is asked when that takes too long."""
    reason = f"Facts{node.trust.value}"
    doubted = None if node.doubted_since is None else max(timedelta(0), now - node.doubted_since)
    if memory.since is not None and doubted is not None and doubted < limits.UNSURE_TOLD_AFTER:
        # Nothing is told or remembered of it yet: the agents of all nodes come and go with each of their updates.
        wait = limits.UNSURE_TOLD_AFTER - doubted
        return answer(replace(memory, healthy_since=None), Step.WAIT, reset=request(memory), requeue_after=wait)
    alerts = (Alert(reason, node.why),)
    if memory.state in {"Suspect", "Quarantined"}:
        return answer(replace(memory, healthy_since=None), Step.ALERT, alerts=alerts, requeue_after=LATER)
    if memory.state != "Healthy" and elapsed(now, memory.reason_since, limits.UNSURE_FOR) and memory.reason == reason:
        return quarantine(memory, now, "FactsGone", f"in the middle of a remedy nothing can be believed any more: {node.why}")
    memory = replace(memory.to(now, memory.state, reason, node.why), healthy_since=None)
    step = Step.ALERT if memory.state == "Healthy" else Step.WAIT
    return answer(memory, step, alerts=alerts, reset=request(memory), requeue_after=LATER)
