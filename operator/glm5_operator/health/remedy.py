"""The remedy of a node's cards as a state machine: facts, policy, memory and time in, a decision out. docs/health.md has the table.

Called by the node controller after each change of facts and when a decision asked to be called again. Pure: no clock, no I/O, and nothing
is remembered but what is in `Memory`, so a decision made twice is the same decision.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from glm5_operator.api.node import ResetRequest
from glm5_operator.health import policy as limits
from glm5_operator.health import radius
from glm5_operator.health.decision import OUT_OF_SERVICE, Alert, Decision, Room, Step
from glm5_operator.health.memory import Memory
from glm5_operator.health.situation import BAD, Situation, look
from glm5_operator.health.types import Grade, NodeHealth, Trust

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from glm5_operator.api.node import RemedyState
    from glm5_operator.health.policy import Policy
    from glm5_operator.health.situation import Plan

__all__ = ["OUT_OF_SERVICE", "Alert", "Decision", "Memory", "Room", "Step", "decide"]

SOON: Final = timedelta(seconds=1)
LATER: Final = timedelta(seconds=10)
_TRY_AGAIN: Final = frozenset({"CardsBusy", "AnotherReset", "TooLate"})
"""Refusals that pass by themselves; any other needs a person."""


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
        memory = replace(Memory(), history=memory.history)  # what would have been done wasn't: it counts for nothing
    begun = not memory.dry_run and memory.state in {"WaitingMindCluster", "Resetting", "Verifying", "Returning", "Quarantined"}
    if policy.mode != "Auto" and not begun:
        # What has begun on the cards is brought to its end whatever the mode; what hasn't is undone at once.
        return _watch_only(node, policy, memory, room, now)
    if node.trust is not Trust.FRESH:
        return _unsure(node, memory, now)
    situation, memory = look(node, policy, memory, room, now)
    if memory.state == "Quarantined":
        return _quarantined(situation, memory, released)
    return _HANDLERS[memory.state](situation, memory)


def _forward(memory: Memory, now: datetime) -> datetime:
    # Whole seconds, as the status keeps them: a decision from the memory and one from the status must be the same.
    times = [time for time in (memory.since, memory.reason_since) if time]
    return max(now.astimezone(UTC).replace(microsecond=0), *times) if times else now.astimezone(UTC).replace(microsecond=0)


# --- nothing is done ----------------------------------------------------------------------------------------------------------


def _watch_only(node: NodeHealth, policy: Policy, memory: Memory, room: Room, now: datetime) -> Decision:
    back = tuple(sorted({*memory.quieted, *room.quiet}))
    memory = replace(memory, quieted=(), cordoned=False, healthy_since=None)
    if policy.mode == "Off":
        memory = replace(memory.to(now, "Healthy", "Off", "health isn't graded in this pool"), dry_run=False, hot=(), faulty=(), cards=())
        return _decision(memory, Step.NO_ACTION, return_to_traffic=back)
    if not memory.dry_run:
        memory = replace(memory.to(now, "Healthy", "DryRun", "the pool went to DryRun"), dry_run=True, faulty=(), restarted=())
    if node.trust is not Trust.FRESH:
        return replace(_unsure(node, memory, now), return_to_traffic=back)
    before = memory
    situation, memory = look(node, policy, memory, room, now)
    handler = _quiescing if memory.state == "Quiescing" else _watching
    would = handler(situation, memory)
    after = replace(would.memory, remedies=before.remedies, resets=before.resets, quieted=(), cordoned=False, dry_run=True)
    return replace(would, memory=after, quiesce=(), evict=(), restart=(), return_to_traffic=back, taint="", reset=None)


def _unsure(node: NodeHealth, memory: Memory, now: datetime) -> Decision:
    """Of facts that can't be believed nothing is concluded: things stay as they are, and a person is asked when that takes too long."""
    reason = f"Facts{node.trust.value}"
    alerts = (Alert(reason, node.why),)
    if memory.state in {"Suspect", "Quarantined"}:
        return _decision(replace(memory, healthy_since=None), Step.ALERT, alerts=alerts, requeue_after=LATER)
    if memory.state != "Healthy" and _elapsed(now, memory.reason_since, limits.UNSURE_FOR) and memory.reason == reason:
        return _quarantine(memory, now, "FactsGone", f"in the middle of a remedy nothing can be believed any more: {node.why}")
    memory = replace(memory.to(now, memory.state, reason, node.why), healthy_since=None)
    step = Step.ALERT if memory.state == "Healthy" else Step.WAIT
    return _decision(memory, step, alerts=alerts, reset=_request(memory), requeue_after=LATER)


# --- in service ---------------------------------------------------------------------------------------------------------------


def _watching(s: Situation, memory: Memory) -> Decision:
    """Healthy and Suspect: faults that send nobody away."""
    if s.node.recovering and not memory.dry_run:
        return _found_resetting(s, memory)
    if s.need in BAD:
        return _begin(s, memory)
    decision = _restart(s, memory) if set(s.cards(Grade.RESTART_ENGINE)) - set(memory.restarted) else _suspect(s, memory)
    if len(decision.memory.remedies) > s.policy.remedies:
        return _quarantine(memory, s.now, "TooManyRemedies", f"{s.told(*Grade)}: again and again within the window", faulty=s.cards(*Grade))
    return replace(decision, return_to_traffic=tuple(sorted(s.room.quiet)))


def _restart(s: Situation, memory: Memory) -> Decision:
    cards = tuple(card for card in s.cards(Grade.RESTART_ENGINE) if card not in memory.restarted)
    message = f"{s.told(Grade.RESTART_ENGINE)}: the pods on it start anew"
    memory = replace(
        memory.to(s.now, "Suspect", "EngineRestarted", message),
        since=s.now,
        faulty=s.cards(Grade.RESTART_ENGINE),
        restarted=tuple(sorted({*memory.restarted, *cards})),
        remedies=(*memory.remedies, s.now),
        healthy_since=None,
    )
    alerts = (Alert("EngineRestarted", message),)
    return _decision(memory, Step.RESTART_ENGINE, restart=s.sitting(cards), alerts=alerts, requeue_after=SOON)


def _suspect(s: Situation, memory: Memory) -> Decision:
    if s.need in {None, Grade.NOTE, Grade.DEGRADED}:
        return _calm(s, memory)
    stays_away = bool(s.cards(Grade.NO_NEW_PODS))
    counted = (*memory.remedies, s.now) if stays_away and not memory.cordoned else memory.remedies
    faulty = s.cards(Grade.NO_NEW_PODS, Grade.RESET_WHEN_IDLE, Grade.RESTART_ENGINE)
    memory = replace(memory, healthy_since=None, faulty=faulty, cordoned=stays_away, remedies=counted)
    if s.cards(Grade.RESET_WHEN_IDLE):
        return _when_idle(s, memory)
    if stays_away:
        message = f"{s.told(Grade.NO_NEW_PODS)}: no new pods"
        return _decision(memory.to(s.now, "Suspect", "NoNewPods", message), Step.ALERT, alerts=(Alert("NoNewPods", message),))
    return _decision(memory.to(s.now, "Suspect", "EngineRestarted", memory.message), Step.WAIT, requeue_after=LATER)


def _calm(s: Situation, memory: Memory) -> Decision:
    """Nothing that asks for an act: well, told only, or on the way there."""
    told_only = {"Degraded", "CardUnknown"}
    if s.unknown:
        message = f"{radius.ids(s.unknown)} can't be read: nothing is concluded from that"
        # A suspect card that can't be read isn't well again, and what keeps new pods away stays.
        memory = replace(memory.to(s.now, "Suspect", "CardUnknown", message), healthy_since=None)
        return _decision(memory, Step.ALERT, alerts=(Alert("CardUnknown", message),), requeue_after=LATER)
    since = memory.healthy_since or s.now
    doubted = memory.state == "Suspect" and (memory.reason not in told_only or memory.cordoned)
    if doubted and s.now - since < s.policy.debounce:
        memory = memory.to(s.now, "Suspect", "Recovering", "the faults are gone; waiting whether they stay away")
        return _decision(replace(memory, healthy_since=since), Step.WAIT, requeue_after=LATER)
    memory = replace(memory, cordoned=False, faulty=s.cards(Grade.DEGRADED), cards=(), radius=None, healthy_since=None)
    if s.need is Grade.DEGRADED:
        message = f"{s.told(Grade.DEGRADED)}: work on several cards avoids it"
        return _decision(memory.to(s.now, "Suspect", "Degraded", message), Step.ALERT, alerts=(Alert("Degraded", message),))
    message = s.told(Grade.NOTE)
    alerts = (Alert("Noted", message),) if message else ()
    memory = memory.to(s.now, "Healthy", "Noted" if message else "Healthy", message)
    return _decision(memory, Step.ALERT if message else Step.NO_ACTION, alerts=alerts, requeue_after=LATER if memory.hot else None)


def _when_idle(s: Situation, memory: Memory) -> Decision:
    told = s.told(Grade.RESET_WHEN_IDLE)
    taken = radius.reach(s.node, memory.faulty)
    if len(memory.resets) >= s.policy.resets:
        return _quarantine(memory, s.now, "ResetBudgetSpent", f"{told}: no more resets are allowed within the window", faulty=memory.faulty)
    blocked = radius.obstacle(s.node, taken) if taken else "no reset can be planned here"
    if not blocked and s.room.others >= s.policy.nodes_in_remedy:
        blocked = "other nodes of the pool are in remedy"
    if s.node.hot_reset:
        blocked = "MindCluster resets it once it is idle"
    if blocked or memory.dry_run:
        message = f"{told}: reset once idle; {blocked or 'it is idle now'}"
        return _decision(memory.to(s.now, "Suspect", "WaitingForIdle", message), Step.WAIT, requeue_after=LATER)
    memory = replace(memory, cordoned=True, remedies=(*memory.remedies, s.now))
    return _decision(memory.to(s.now, "Draining", "Idle", f"{told}: idle, to be reset"), Step.DRAIN, requeue_after=SOON)


# --- out of traffic -----------------------------------------------------------------------------------------------------------


def _begin(s: Situation, memory: Memory) -> Decision:
    memory = replace(memory, remedies=(*memory.remedies, s.now), faulty=s.cards(*BAD), healthy_since=None, cards=(), radius=None, id="")
    return _quiesce(s, memory, s.plan(memory), "CardFault")


def _quiesce(s: Situation, memory: Memory, plan: Plan, reason: str, *, all_pods: bool = False) -> Decision:
    pods = plan.pods if all_pods else s.sitting(s.cards(*BAD))
    quiet = tuple(sorted({*memory.quieted, *(set(pods) - s.room.last)}))
    memory = replace(memory.to(s.now, "Quiescing", reason, plan.message), quieted=quiet)
    alerts = (Alert(plan.reason, plan.message),)
    return _decision(memory, Step.QUIESCE, quiesce=quiet, alerts=alerts, requeue_after=SOON)


def _quiescing(s: Situation, memory: Memory) -> Decision:
    if s.node.recovering and not memory.dry_run:
        return _found_resetting(s, memory)
    if s.need not in BAD:
        return _recovering(s, memory)
    memory = replace(memory, healthy_since=None, faulty=tuple(sorted({*s.cards(*BAD)})))
    plan = s.plan(memory)
    if memory.dry_run:
        return _quiesce(s, memory, plan, "WouldReset" if plan.kind == "Reset" else f"Would{plan.kind}", all_pods=True)
    only_missing = all(card.missing for card in s.node.cards if card.physical in memory.faulty)
    if only_missing and not _elapsed(s.now, memory.since, s.policy.debounce):
        return _quiesce(s, memory, plan, "CardMissing")
    if s.room.others >= s.policy.nodes_in_remedy:
        return replace(_quiesce(s, memory, plan, "NoRoom"), step=Step.WAIT)
    kept = set(plan.pods) & s.room.last
    if kept and not (memory.reason == "LastReplica" and _elapsed(s.now, memory.reason_since, s.policy.drain)):
        return replace(_quiesce(s, memory, plan, "LastReplica", all_pods=True), step=Step.WAIT)
    if plan.pods and not kept and not set(plan.pods) <= set(memory.quieted):
        return _quiesce(s, memory, plan, "Quieting", all_pods=True)
    if plan.pods and not _elapsed(s.now, memory.reason_since, limits.SETTLE):
        return _quiesce(s, memory, plan, memory.reason, all_pods=True)
    return _drain(s, memory, plan)


def _recovering(s: Situation, memory: Memory) -> Decision:
    """Out of traffic, and nothing is bad now: wait whether it stays so. Nobody is sent away meanwhile."""
    if s.unknown:
        if memory.reason == "CardUnknown" and _elapsed(s.now, memory.reason_since, limits.UNSURE_FOR):
            return _quarantine(memory, s.now, "CardUnknown", f"{radius.ids(s.unknown)} can't be read any more")
        memory = replace(memory.to(s.now, memory.state, "CardUnknown", f"{radius.ids(s.unknown)} can't be read"), healthy_since=None)
        return _decision(memory, Step.WAIT, quiesce=memory.quieted, requeue_after=LATER)
    since = memory.healthy_since or s.now
    if s.now - since >= s.policy.debounce:
        return _return(s, memory, "Recovered", "the faults went away by themselves")
    message = "the faults are gone; waiting whether they stay away"
    memory = replace(memory.to(s.now, memory.state, "Recovering", message), healthy_since=since)
    return _decision(memory, Step.WAIT, quiesce=memory.quieted, requeue_after=SOON)


def _drain(s: Situation, memory: Memory, plan: Plan) -> Decision:
    memory = replace(
        memory.to(s.now, "Draining", plan.reason, plan.message),
        cordoned=True,
        quieted=tuple(sorted({*memory.quieted, *plan.pods})),
        cards=plan.cards,
        radius=plan.taken.radius if plan.taken else None,
    )
    return _decision(
        memory, Step.DRAIN, quiesce=memory.quieted, evict=plan.pods, alerts=(Alert(plan.reason, plan.message),), requeue_after=SOON
    )


def _draining(s: Situation, memory: Memory) -> Decision:
    if s.node.recovering:
        return _found_resetting(s, memory)
    if s.need in BAD:
        memory = replace(memory, faulty=s.cards(*BAD), healthy_since=None)
        plan = s.plan(memory)
        decision = _drain(s, memory, plan)
        if not (blocked := _blocked(s, plan)):
            return _drained(s, decision.memory, plan)
    elif s.cards(Grade.RESET_WHEN_IDLE):
        return _idle_no_more_or_reset(s, memory)
    else:
        decision, blocked = _recovering(s, memory), "the faults come and go"
    if decision.memory.state == "Draining" and _elapsed(s.now, memory.since, s.policy.drain):
        return _quarantine(decision.memory, s.now, "DrainTimeout", f"after {_seconds(s.policy.drain)} still: {blocked}")
    return decision


def _blocked(s: Situation, plan: Plan) -> str:
    if plan.kind == "Isolate" or plan.taken is None:
        return f"pod {plan.pods[0]} holds a card of it" if plan.pods else ""
    if plan.kind == "MindCluster":
        return f"pod {plan.pods[0]} holds a card of it" if plan.pods else ""
    return radius.obstacle(s.node, plan.taken)


def _drained(s: Situation, memory: Memory, plan: Plan) -> Decision:
    if plan.kind == "Isolate":
        return _quarantine(memory, s.now, plan.reason, plan.message)
    if plan.kind == "MindCluster":
        return _leave_to_mind_cluster(s, memory)
    assert plan.taken is not None
    return _reset(s, memory, plan.taken, plan.message)


def _idle_no_more_or_reset(s: Situation, memory: Memory) -> Decision:
    taken = radius.reach(s.node, s.cards(Grade.RESET_WHEN_IDLE))
    allowed = taken is not None and len(memory.resets) < s.policy.resets and not s.node.hot_reset
    if taken is not None and allowed and not radius.obstacle(s.node, taken):
        return _reset(s, memory, taken, memory.message)
    memory = replace(memory.to(s.now, "Suspect", "WaitingForIdle", "it isn't idle any more"), cordoned=bool(s.cards(Grade.NO_NEW_PODS)))
    back = tuple(sorted({*memory.quieted, *s.room.quiet}))
    memory = replace(memory, quieted=())
    return _decision(memory, Step.WAIT, return_to_traffic=back, requeue_after=LATER)


# --- on the cards -------------------------------------------------------------------------------------------------------------


def _reset(s: Situation, memory: Memory, taken: radius.Reach, message: str) -> Decision:
    linked = tuple(card.physical for card in s.node.cards if card.physical in taken.cards and card.link_up)
    memory = replace(
        memory.to(s.now, "Resetting", "ResetRequested", message),
        id=s.now.strftime("%Y%m%dt%H%M%S"),
        radius=taken.radius,
        cards=taken.cards,
        linked=linked,
        resets=(*memory.resets, s.now),
        healthy_since=None,
        cordoned=True,
    )
    alerts = (Alert("ResetRequested", message),)
    return _decision(memory, Step.RESET, reset=_request(memory), alerts=alerts, requeue_after=LATER)


def _request(memory: Memory) -> ResetRequest | None:
    """The request of this memory: the same id, cards and deadline however often it is asked for."""
    if memory.state != "Resetting" or memory.since is None or memory.radius is None or not memory.id:
        return None
    deadline = (memory.since + limits.RESET_BEGINS).strftime("%Y-%m-%dT%H:%M:%SZ")
    return ResetRequest(id=memory.id, radius=memory.radius, cards=memory.cards, deadline=deadline)


def _resetting(s: Situation, memory: Memory) -> Decision:
    result = s.node.reset if s.node.reset and s.node.reset.id == memory.id else None
    quiet = s.sitting(s.cards(*BAD))
    if result is None:
        taken = radius.Reach(memory.radius or "Node", memory.cards)
        if held := radius.held(s.node, taken):
            # Withdrawn: the agent looks again before it begins and would refuse too.
            memory = memory.to(s.now, "Draining", "CardsHeld", f"{held}; the reset hadn't begun and is withdrawn")
            return _decision(memory, Step.DRAIN, quiesce=quiet, requeue_after=SOON)
    if result is None or result.state == "Running":
        if not _elapsed(s.now, memory.since, limits.RESET_TAKES):
            memory = memory.to(s.now, "Resetting", "ResetRunning" if result else "ResetRequested", memory.message)
            return _decision(memory, Step.RESET, quiesce=quiet, reset=_request(memory), requeue_after=LATER)
        return _verify(s, memory, "ResetUnanswered", "the agent didn't say what became of the reset; the cards' health will")
    if result.state in {"Succeeded", "Unknown"}:
        return _verify(s, memory, f"Reset{result.state}", result.message or "the reset has ended")
    told = f"{result.reason or result.state}: {result.message}"
    if result.state == "Refused" and result.reason not in _TRY_AGAIN:
        return _quarantine(memory, s.now, result.reason or "ResetRefused", f"the reset was refused, {told}")
    return _again(s, memory, "ResetFailed" if result.state == "Failed" else "ResetRefused", told)


def _again(s: Situation, memory: Memory, reason: str, message: str) -> Decision:
    plan = s.plan(memory)
    if plan.kind == "Isolate":
        return _quarantine(memory, s.now, plan.reason, f"{message}; {plan.message}")
    return _decision(memory.to(s.now, "Draining", reason, message), Step.DRAIN, quiesce=memory.quieted, requeue_after=SOON)


def _found_resetting(s: Situation, memory: Memory) -> Decision:
    """MindCluster resets by its own decision. That counts too, or the two could hand a card to each other for ever."""
    memory = replace(memory, remedies=(*memory.remedies, s.now))
    if len(memory.remedies) > s.policy.remedies:
        return _quarantine(memory, s.now, "TooManyRemedies", "MindCluster resets its cards again and again within the window")
    return _leave_to_mind_cluster(s, memory)


def _leave_to_mind_cluster(s: Situation, memory: Memory) -> Decision:
    cards = tuple(sorted(s.node.recovering)) or memory.cards
    faulty = s.cards(*BAD) or memory.faulty
    reason = "MindClusterResetting" if s.node.recovering else "MindClusterResets"
    message = f"MindCluster's hot reset takes {radius.ids(cards)}" if cards else "MindCluster's hot reset is on"
    memory = replace(memory.to(s.now, "WaitingMindCluster", reason, message), cordoned=True, cards=cards, faulty=faulty, id="", linked=())
    return _decision(memory, Step.WAIT_MIND_CLUSTER, quiesce=s.sitting(s.cards(*BAD)), requeue_after=LATER)


def _waiting_mind_cluster(s: Situation, memory: Memory) -> Decision:
    if _elapsed(s.now, memory.since, limits.MIND_CLUSTER_TAKES):
        return _quarantine(memory, s.now, "MindClusterTimeout", "MindCluster's reset hasn't ended")
    if s.node.recovering:
        return _leave_to_mind_cluster(s, memory)
    if s.need not in BAD:
        return _verify(s, memory, "MindClusterReset", "MindCluster's reset is over")
    if s.plan(memory).kind != "MindCluster":
        memory = memory.to(s.now, "Draining", "OwnReset", "MindCluster leaves the reset to others")
        return _decision(memory, Step.DRAIN, requeue_after=SOON)
    if _elapsed(s.now, memory.since, limits.MIND_CLUSTER_BEGINS):
        return _quarantine(memory, s.now, "MindClusterTimeout", f"MindCluster hasn't reset it in {_seconds(limits.MIND_CLUSTER_BEGINS)}")
    return _leave_to_mind_cluster(s, memory)


# --- back, or out -------------------------------------------------------------------------------------------------------------


def _verify(s: Situation, memory: Memory, reason: str, message: str) -> Decision:
    memory = replace(memory.to(s.now, "Verifying", reason, message), healthy_since=None, cordoned=True, hot=())
    return _decision(memory, Step.VERIFY, quiesce=s.sitting(s.cards(*BAD)), requeue_after=SOON)


def _verifying(s: Situation, memory: Memory) -> Decision:
    trouble = s.unfit(memory)
    if not trouble and not _read_since(s, memory):
        trouble = "the facts are from before the reset"
    if not trouble:
        since = memory.healthy_since or s.now
        if s.now - since >= s.policy.verify:
            return _return(s, memory, "Verified", f"good for {_seconds(s.policy.verify)}")
        memory = replace(memory.to(s.now, "Verifying", "Good", "all is well; waiting whether it stays so"), healthy_since=since)
        return _decision(memory, Step.VERIFY, requeue_after=SOON)
    memory = replace(memory.to(s.now, "Verifying", "NotYetGood", trouble), healthy_since=None)
    if _elapsed(s.now, memory.since, limits.VERIFY_TAKES + s.policy.verify):
        return _quarantine(memory, s.now, "VerifyTimeout", f"after a reset or a release not well again: {trouble}")
    if s.need in BAD and not s.node.recovering and _elapsed(s.now, memory.since, limits.BOOT_TAKES):
        return _again(s, memory, "StillFaulty", trouble)
    return _decision(memory, Step.VERIFY, quiesce=s.sitting(s.cards(*BAD)), requeue_after=SOON)


def _read_since(s: Situation, memory: Memory) -> bool:
    """The facts were read after the reset; both times are of the node's own clock where the agent says when it ended."""
    if not memory.id or s.node.as_of is None:
        return True
    ended = s.node.reset.ended if s.node.reset and s.node.reset.id == memory.id else None
    began = ended or memory.since
    return began is None or s.node.as_of >= began


def _return(s: Situation, memory: Memory, reason: str, message: str) -> Decision:
    memory = replace(memory.to(s.now, "Returning", reason, message), cordoned=bool(s.cards(Grade.NO_NEW_PODS)), healthy_since=None)
    back = tuple(sorted({*memory.quieted, *s.room.quiet}))
    return _decision(memory, Step.RETURN, return_to_traffic=back, alerts=(Alert("Returned", message),), requeue_after=SOON)


def _returning(s: Situation, memory: Memory) -> Decision:
    if s.need in BAD:
        return _begin(s, memory)
    back = tuple(sorted({*memory.quieted, *s.room.quiet}))
    if s.room.quiet and not _elapsed(s.now, memory.since, limits.RETURN_TAKES):
        return _decision(memory, Step.RETURN, return_to_traffic=back, requeue_after=SOON)
    memory = replace(memory.to(s.now, "Healthy", "Returned", ""), quieted=(), faulty=(), cards=(), radius=None, linked=(), restarted=())
    return _decision(memory, Step.NO_ACTION, return_to_traffic=back, requeue_after=SOON)


def _quarantine(memory: Memory, now: datetime, reason: str, message: str, faulty: tuple[int, ...] | None = None) -> Decision:
    help_ = "a person must look; `glm5 node release` brings it back"
    memory = replace(
        memory.to(now, "Quarantined", reason, f"{message}; {help_}"),
        cordoned=True,
        healthy_since=None,
        faulty=memory.faulty if faulty is None else faulty,
    )
    return _decision(memory, Step.QUARANTINE, quiesce=memory.quieted, alerts=(Alert("Quarantined", memory.message),))


def _quarantined(s: Situation, memory: Memory, released: bool) -> Decision:
    if released:
        memory = replace(memory, resets=(), remedies=(), id="", cards=(), radius=None, linked=(), restarted=())
        return _verify(s, memory, "Released", "released by a person")
    sick = s.sitting(s.cards(*BAD)) if s.policy.mode == "Auto" else ()
    pods = tuple(pod for pod in sick if pod not in s.room.last)
    memory = replace(memory, quieted=tuple(sorted({*memory.quieted, *pods})))
    return _decision(memory, Step.QUARANTINE, quiesce=pods, evict=pods, requeue_after=LATER if pods else None)


# --- helpers ------------------------------------------------------------------------------------------------------------------


def _decision(memory: Memory, step: Step, *, alerts: Iterable[Alert] = (), **what: object) -> Decision:
    taint = "quarantined" if memory.state == "Quarantined" else "remedy" if memory.cordoned else ""
    fields = {"reason": memory.reason, "message": memory.message, "taint": taint, "alerts": tuple(alerts), **what}
    return Decision(memory, step, **fields)  # type: ignore[arg-type]


def _elapsed(now: datetime, since: datetime | None, limit: timedelta) -> bool:
    return since is not None and now - since >= limit


def _seconds(length: timedelta) -> str:
    return f"{int(length.total_seconds())} s"


_HANDLERS: Final[Mapping[RemedyState, Callable[[Situation, Memory], Decision]]] = {
    "Healthy": _watching,
    "Suspect": _watching,
    "Quiescing": _quiescing,
    "Draining": _draining,
    "WaitingMindCluster": _waiting_mind_cluster,
    "Resetting": _resetting,
    "Verifying": _verifying,
    "Returning": _returning,
}
