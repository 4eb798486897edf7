"""The node is out of service: quiet, drained, reset, verified, returned, or in quarantine. Called by `machine` and `in_service`. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from glm5_operator.health.remedy import computing, radius
from glm5_operator.health.remedy import policy as limits
from glm5_operator.health.remedy.answers import answer, elapsed, left, quarantine, request, seconds
from glm5_operator.health.remedy.decision import Alert, Decision, Step
from glm5_operator.health.remedy.situation import BAD, Plan, Situation, look
from glm5_operator.health.types import Grade

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from glm5_operator.api.node import RemedyState
    from glm5_operator.health.remedy.memory import Memory

SOON: Final = timedelta(seconds=1)
LATER: Final = timedelta(seconds=10)
SELDOM: Final = timedelta(minutes=1)
"""Where only news can change the answer, and wakes the node: hundreds of nodes may wait like that. For news that got lost."""
_TRY_AGAIN: Final = frozenset({"CardsBusy", "CardsUnknown", "AnotherReset", "TooLate"})
"""Refusals that pass by themselves; any other needs a person."""


# --- out of traffic -----------------------------------------------------------------------------------------------------------


def begin(s: Situation, memory: Memory) -> Decision:
    """A fault that takes the node out of service: its pods leave traffic at once, everything else is judged afterwards."""
    memory = replace(
        memory, remedies=(*memory.remedies, s.now), faulty=s.cards(*BAD), healthy_since=None, cards=(), radius=None, id="", restarting=()
    )
    return _quiesce(s, memory, s.plan(memory), "CardFault")


def _quiesce(
    s: Situation, memory: Memory, plan: Plan, reason: str, *, waits: str = "", all_pods: bool = False, requeue_after: timedelta = SOON
) -> Decision:
    pods = plan.pods if all_pods else s.sitting(s.cards(*BAD))
    quiet = tuple(sorted({*memory.quieted, *pods} - s.room.last))
    memory = replace(memory.to(s.now, "Quiescing", reason, plan.message + (waits and f"; waits {waits}")), quieted=quiet)
    alerts = (Alert(plan.reason, plan.message),)
    return answer(memory, Step.QUIESCE, quiesce=quiet, alerts=alerts, requeue_after=requeue_after)


def quiescing(s: Situation, memory: Memory) -> Decision:
    """Out of traffic. Pods are sent away once the fault is still there, the pool has room, and others serve in their place."""
    if s.node.recovering and not memory.dry_run:
        return found_resetting(s, memory)
    if s.need not in BAD:
        return _recovering(s, memory)
    memory = replace(memory, healthy_since=None, faulty=tuple(sorted({*s.cards(*BAD)})))
    plan = s.plan(memory)
    if memory.dry_run:
        return _quiesce(s, memory, plan, f"Would{plan.kind}", all_pods=True, requeue_after=SELDOM)
    only_missing = all(card.missing for card in s.node.cards if card.physical in memory.faulty)
    if only_missing and not elapsed(s.now, memory.since, s.policy.debounce):
        return _quiesce(s, memory, plan, "CardMissing")
    if s.room.others >= s.policy.nodes_in_remedy:
        # The controller wakes it when there is room. Of a replica's heir, on another node, no event tells it.
        after = LATER if s.room.last else SELDOM
        waits = f"until fewer than {s.policy.nodes_in_remedy} other nodes of the pool are out of service (spec.health.nodesInRemedy)"
        return replace(_quiesce(s, memory, plan, "NoRoom", waits=waits, requeue_after=after), step=Step.WAIT)
    kept = set(plan.pods) & s.room.last
    waiting_since = memory.reason_since if memory.reason == "LastReplica" else None
    if kept and not elapsed(s.now, waiting_since, s.policy.drain):
        # The controller wakes it when another node serves, too.
        after = min(SELDOM, left(s.now, waiting_since, s.policy.drain))
        waits = f"for another replica in traffic than {min(kept)}, as long as spec.health.drain says at most"
        return replace(_quiesce(s, memory, plan, "LastReplica", waits=waits, all_pods=True, requeue_after=after), step=Step.WAIT)
    if plan.pods and not kept and not set(plan.pods) <= set(memory.quieted):
        return _quiesce(s, memory, plan, "Quieting", all_pods=True)
    if plan.pods and not elapsed(s.now, memory.reason_since, limits.SETTLE):
        return _quiesce(s, memory, plan, memory.reason, all_pods=True)
    return _drain(s, memory, plan)


def _recovering(s: Situation, memory: Memory) -> Decision:
    """Out of traffic, and nothing is bad now: wait whether it stays so. Nobody is sent away meanwhile."""
    if s.unknown:
        if memory.reason == "CardUnknown" and elapsed(s.now, memory.reason_since, limits.UNSURE_FOR):
            return quarantine(memory, s.now, "CardUnknown", f"{radius.ids(s.unknown)} can't be read any more")
        memory = replace(memory.to(s.now, memory.state, "CardUnknown", f"{radius.ids(s.unknown)} can't be read"), healthy_since=None)
        return answer(memory, Step.WAIT, quiesce=memory.quieted, requeue_after=LATER)
    if s.resetting:  # one of which the agent's last word was waited for in vain: what it takes isn't well yet
        memory = replace(memory.to(s.now, memory.state, "ResetRunning", s.resetting), healthy_since=None)
        return answer(memory, Step.WAIT, quiesce=memory.quieted, requeue_after=LATER)
    since = memory.healthy_since or s.now
    if s.now - since >= s.policy.debounce:
        if len(memory.remedies) > s.policy.remedies:
            told = f"the faults went away by themselves, {len(memory.remedies)} times within the window"
            return quarantine(memory, s.now, "TooManyRemedies", told)
        return _return(s, memory, "Recovered", "the faults went away by themselves")
    message = "the faults are gone; waiting whether they stay away"
    memory = replace(memory.to(s.now, memory.state, "Recovering", message), healthy_since=since)
    return answer(memory, Step.WAIT, quiesce=memory.quieted, requeue_after=SOON)


def _drain(s: Situation, memory: Memory, plan: Plan) -> Decision:
    memory = replace(
        memory.to(s.now, "Draining", plan.reason, plan.message),
        cordoned=True,
        quieted=tuple(sorted({*memory.quieted, *plan.pods})),
        cards=plan.cards,
        radius=plan.taken.radius if plan.taken else None,
    )
    return answer(
        memory, Step.DRAIN, quiesce=memory.quieted, evict=plan.pods, alerts=(Alert(plan.reason, plan.message),), requeue_after=SOON
    )


def _draining(s: Situation, memory: Memory) -> Decision:
    if s.node.recovering:
        return found_resetting(s, memory)
    if s.need in BAD:
        memory = replace(memory, faulty=s.cards(*BAD), healthy_since=None)
        plan = s.plan(memory)
        decision = _drain(s, memory, plan)
        if not (blocked := _blocked(s, plan)):
            if plan.kind == "Reset" and s.unnamed and not elapsed(s.now, memory.since, limits.CODES_TAKE):
                return decision
            return _drained(s, decision.memory, plan)
    elif s.cards(Grade.RESET_WHEN_IDLE) and not s.resetting:
        return _idle_no_more_or_reset(s, memory)
    else:
        decision, blocked = _recovering(s, memory), s.resetting or "the faults come and go"
    if decision.memory.state == "Draining" and elapsed(s.now, memory.since, s.policy.drain):
        return quarantine(decision.memory, s.now, "DrainTimeout", f"after {seconds(s.policy.drain)} still: {blocked}")
    return decision


def _blocked(s: Situation, plan: Plan) -> str:
    if plan.kind == "Isolate" or plan.taken is None:
        return f"pod {plan.pods[0]} holds a card of it" if plan.pods else ""
    if plan.kind == "MindCluster":
        return f"pod {plan.pods[0]} holds a card of it" if plan.pods else ""
    return radius.obstacle(s.node, plan.taken)


def _drained(s: Situation, memory: Memory, plan: Plan) -> Decision:
    if plan.kind == "Isolate":
        return quarantine(memory, s.now, plan.reason, plan.message)
    if plan.kind == "MindCluster":
        return _leave_to_mind_cluster(s, memory)
    assert plan.taken is not None
    return _reset(s, memory, plan.taken, plan.message)


def _idle_no_more_or_reset(s: Situation, memory: Memory) -> Decision:
    if len(memory.remedies) > s.policy.remedies:
        # A fault that changes its kind would else lead out of here and in again, without an end.
        told = f"{s.told(Grade.RESET_WHEN_IDLE)}: out of service {len(memory.remedies)} times within the window"
        return quarantine(memory, s.now, "TooManyRemedies", told)
    taken = radius.reach(s.node, s.cards(Grade.RESET_WHEN_IDLE))
    allowed = taken is not None and len(memory.resets) < s.policy.resets and not s.node.hot_reset
    if taken is not None and allowed and not radius.obstacle(s.node, taken):
        return _reset(s, memory, taken, memory.message)
    memory = replace(memory.to(s.now, "Suspect", "WaitingForIdle", "it isn't idle any more"), cordoned=bool(s.cards(Grade.NO_NEW_PODS)))
    back = tuple(sorted({*memory.quieted, *s.room.quiet}))
    memory = replace(memory, quieted=())
    return answer(memory, Step.WAIT, return_to_traffic=back, requeue_after=LATER)


# --- on the cards -------------------------------------------------------------------------------------------------------------


def _reset(s: Situation, memory: Memory, taken: radius.Reach, message: str) -> Decision:
    linked = tuple(card.physical for card in s.node.cards if card.physical in taken.cards and card.link_up)
    memory = replace(
        memory.to(s.now, "Resetting", "ResetRequested", message),
        # A refusal may come back, and the next try be made, within the same second.
        id=f"{s.now:%Y%m%dt%H%M%S}-{len(memory.resets) + 1}",
        radius=taken.radius,
        cards=taken.cards,
        linked=linked,
        resets=(*memory.resets, s.now),
        healthy_since=None,
        cordoned=True,
    )
    alerts = (Alert("ResetRequested", message),)
    return answer(memory, Step.RESET, reset=request(memory), alerts=alerts, requeue_after=LATER)


def _resetting(s: Situation, memory: Memory) -> Decision:
    result = s.node.reset if s.node.reset and s.node.reset.id == memory.id else None
    quiet = s.sitting(s.cards(*BAD))
    if result is None:
        taken = radius.Reach(memory.radius or "Node", memory.cards)
        if held := radius.held(s.node, taken):
            # Withdrawn: the agent looks again before it begins and would refuse too.
            memory = memory.to(s.now, "Draining", "CardsHeld", f"{held}; the reset hadn't begun and is withdrawn")
            return answer(memory, Step.DRAIN, quiesce=quiet, requeue_after=SOON)
    if result is None or result.state == "Running":
        if not elapsed(s.now, memory.since, limits.RESET_TAKES):
            memory = memory.to(s.now, "Resetting", "ResetRunning" if result else "ResetRequested", memory.message)
            return answer(memory, Step.RESET, quiesce=quiet, reset=request(memory), requeue_after=LATER)
        return _verify(s, memory, "ResetUnanswered", "the agent didn't say what became of the reset; the cards' health will")
    if result.state in {"Succeeded", "Unknown"}:
        return _verify(s, memory, f"Reset{result.state}", result.message or "the reset has ended")
    told = f"{result.reason or result.state}: {result.message}"
    if result.state == "Refused" and result.reason not in _TRY_AGAIN:
        return quarantine(memory, s.now, result.reason or "ResetRefused", f"the reset was refused, {told}")
    return _again(s, memory, "ResetFailed" if result.state == "Failed" else "ResetRefused", told)


def _again(s: Situation, memory: Memory, reason: str, message: str) -> Decision:
    plan = s.plan(memory)
    if plan.kind == "Isolate":
        return quarantine(memory, s.now, plan.reason, f"{message}; {plan.message}")
    memory = memory if computing.failed(memory) else replace(memory, check=None)
    return answer(memory.to(s.now, "Draining", reason, message), Step.DRAIN, quiesce=memory.quieted, requeue_after=SOON)


def found_resetting(s: Situation, memory: Memory) -> Decision:
    """MindCluster resets by its own decision. That counts too, or the two could hand a card to each other for ever."""
    if len(memory.remedies) >= s.policy.remedies:
        return quarantine(memory, s.now, "TooManyRemedies", "MindCluster resets its cards again and again within the window")
    return _leave_to_mind_cluster(s, replace(memory, remedies=(*memory.remedies, s.now)))


def _leave_to_mind_cluster(s: Situation, memory: Memory) -> Decision:
    cards = tuple(sorted(s.node.recovering)) or memory.cards
    faulty = s.cards(*BAD) or memory.faulty
    reason = "MindClusterResetting" if s.node.recovering else "MindClusterResets"
    message = f"MindCluster's hot reset takes {radius.ids(cards)}" if cards else "MindCluster's hot reset is on"
    memory = replace(memory.to(s.now, "WaitingMindCluster", reason, message), cordoned=True, cards=cards, faulty=faulty, id="", linked=())
    return answer(memory, Step.WAIT_MIND_CLUSTER, quiesce=s.sitting(s.cards(*BAD)), requeue_after=LATER)


def _waiting_mind_cluster(s: Situation, memory: Memory) -> Decision:
    if elapsed(s.now, memory.since, limits.MIND_CLUSTER_TAKES):
        return quarantine(memory, s.now, "MindClusterTimeout", "MindCluster's reset hasn't ended")
    if s.node.recovering:
        return _leave_to_mind_cluster(s, memory)
    if s.need not in BAD:
        return _verify(s, memory, "MindClusterReset", "MindCluster's reset is over")
    if s.plan(memory).kind != "MindCluster":
        memory = memory.to(s.now, "Draining", "OwnReset", "MindCluster leaves the reset to others")
        return answer(memory, Step.DRAIN, requeue_after=SOON)
    if elapsed(s.now, memory.since, limits.MIND_CLUSTER_BEGINS):
        return quarantine(memory, s.now, "MindClusterTimeout", f"MindCluster hasn't reset it in {seconds(limits.MIND_CLUSTER_BEGINS)}")
    return _leave_to_mind_cluster(s, memory)


# --- back, or out -------------------------------------------------------------------------------------------------------------


def _verify(s: Situation, memory: Memory, reason: str, message: str) -> Decision:
    memory = replace(memory.to(s.now, "Verifying", reason, message), healthy_since=None, cordoned=True, hot=(), check=None)
    return answer(memory, Step.VERIFY, quiesce=s.sitting(s.cards(*BAD)), requeue_after=SOON)


def _verifying(s: Situation, memory: Memory) -> Decision:
    memory = computing.noted(memory, s.policy, s.room.check, s.now)
    if computing.failed(memory):
        return _computes_wrongly(s, memory)
    trouble = s.unfit(memory)
    if not trouble and not _read_since(s, memory):
        trouble = "the facts are from before the reset"
    if not trouble:
        since = memory.healthy_since or s.now
        if s.now - since >= s.policy.verify:
            return _check_or_return(s, replace(memory, healthy_since=since))
        memory = replace(memory.to(s.now, "Verifying", "Good", "all is well; waiting whether it stays so"), healthy_since=since)
        return answer(memory, Step.VERIFY, requeue_after=SOON)
    memory = replace(memory.to(s.now, "Verifying", "NotYetGood", trouble), healthy_since=None)
    if elapsed(s.now, memory.since, limits.VERIFY_TAKES + s.policy.verify):
        return quarantine(memory, s.now, "VerifyTimeout", f"after a reset or a release not well again: {trouble}")
    if s.need in BAD and not s.node.recovering and elapsed(s.now, memory.since, limits.BOOT_TAKES):
        return _again(s, memory, "StillFaulty", trouble)
    return answer(memory, Step.VERIFY, quiesce=s.sitting(s.cards(*BAD)), requeue_after=SOON)


def _check_or_return(s: Situation, memory: Memory) -> Decision:
    """All is well for long enough. What is left is whether the cards compute, once for each remedy."""
    good = f"good for {seconds(s.policy.verify)}"
    memory = computing.asked(memory, s.policy, s.room.check, s.now)
    if memory.check is None or memory.check.state != "Asked":
        return _return(s, memory, "Verified", good + computing.told(memory))
    memory = memory.to(s.now, "Verifying", "ComputeCheck", f"{good}; a pod on its cards checks whether they compute")
    return answer(memory, Step.VERIFY, requeue_after=LATER)  # the pod's end wakes the node


def _computes_wrongly(s: Situation, memory: Memory) -> Decision:
    """As a fault that asks for a reset, until the next one is over."""
    found = memory.check.message if memory.check else ""
    if s.node.hot_reset:
        told = f"{found}; MindCluster resets these cards, and knows nothing of it"
        return quarantine(memory, s.now, "ComputeCheckFailed", told)
    s, memory = look(s.node, s.policy, memory, s.room, s.now)
    decision = _again(s, memory, "ComputeCheckFailed", found)
    return decision if decision.alerts else replace(decision, alerts=(Alert("ComputeCheckFailed", found),))


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
    return answer(memory, Step.RETURN, return_to_traffic=back, alerts=(Alert("Returned", message),), requeue_after=SOON)


def _returning(s: Situation, memory: Memory) -> Decision:
    if s.need in BAD:
        return begin(s, memory)
    back = tuple(sorted({*memory.quieted, *s.room.quiet}))
    if s.room.quiet and not elapsed(s.now, memory.since, limits.RETURN_TAKES):
        return answer(memory, Step.RETURN, return_to_traffic=back, requeue_after=SOON)
    memory = replace(
        memory.to(s.now, "Healthy", "Returned", ""), quieted=(), faulty=(), cards=(), radius=None, linked=(), restarted=(), restarting=()
    )
    return answer(memory, Step.NO_ACTION, return_to_traffic=back, requeue_after=SOON)


def quarantined(s: Situation, memory: Memory, released: bool) -> Decision:
    """Until a person releases it. Pods on cards that are or turn bad still leave."""
    if released:
        memory = replace(memory, resets=(), remedies=(), id="", cards=(), radius=None, linked=(), restarted=(), restarting=())
        return _verify(s, memory, "Released", "released by a person")
    sick = s.sitting(s.cards(*BAD)) if s.policy.mode == "Auto" else ()
    pods = tuple(pod for pod in sick if pod not in s.room.last)
    memory = replace(memory, quieted=tuple(sorted({*memory.quieted, *pods})))
    return answer(memory, Step.QUARANTINE, quiesce=pods, evict=pods, requeue_after=LATER if pods else None)


HANDLERS: Final[Mapping[RemedyState, Callable[[Situation, Memory], Decision]]] = MappingProxyType(
    {
        "Quiescing": quiescing,
        "Draining": _draining,
        "WaitingMindCluster": _waiting_mind_cluster,
        "Resetting": _resetting,
        "Verifying": _verifying,
        "Returning": _returning,
    }
)
