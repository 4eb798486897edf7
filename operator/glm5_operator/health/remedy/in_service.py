"""Healthy and Suspect: the node serves, and its faults, if any, send nobody away. Called by `machine` alone. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from glm5_operator.health.remedy import radius
from glm5_operator.health.remedy.answers import answer, elapsed, left, quarantine
from glm5_operator.health.remedy.decision import Alert, Decision, Step
from glm5_operator.health.remedy.out_of_service import LATER, SELDOM, SOON, begin, found_resetting
from glm5_operator.health.remedy.situation import BAD, Situation
from glm5_operator.health.types import Grade

if TYPE_CHECKING:
    from glm5_operator.health.remedy.memory import Memory


def watching(s: Situation, memory: Memory) -> Decision:
    """Healthy and Suspect: faults that send nobody away."""
    if s.node.recovering and not memory.dry_run:
        return found_resetting(s, memory)
    if s.need in BAD:
        return begin(s, memory)
    decision = _restart(s, memory) if set(s.cards(Grade.RESTART_ENGINE)) - set(memory.restarted) else _suspect(s, memory)
    if len(decision.memory.remedies) > s.policy.remedies:
        return quarantine(memory, s.now, "TooManyRemedies", f"{s.told(*Grade)}: again and again within the window", faulty=s.cards(*Grade))
    decision = replace(decision, return_to_traffic=tuple(sorted(s.room.quiet)))
    kept = _kept(s, decision.memory)
    restart = tuple(pod for pod in _still_to_restart(s, decision.memory) if pod not in kept)
    if not (restart or kept):
        return decision
    return replace(decision, restart=restart, requeue_after=decision.requeue_after or LATER)


def _still_to_restart(s: Situation, memory: Memory) -> tuple[str, ...]:
    """Pods that are asked to end as long as they haven't: a disruption budget may have refused it, or an operator died before it asked."""
    sick = s.sitting(s.cards(Grade.RESTART_ENGINE))
    return tuple(name for name in (pod.rpartition("/")[0] for pod in memory.restarting) if name in sick)


def _kept(s: Situation, memory: Memory) -> tuple[str, ...]:
    """Of these the last ones of their services in traffic: they stay as long as pods have to end, for their card may still serve."""
    if memory.dry_run or elapsed(s.now, memory.since, s.policy.drain):
        return ()
    return tuple(pod for pod in _still_to_restart(s, memory) if pod in s.room.last)


def _restart(s: Situation, memory: Memory) -> Decision:
    cards = tuple(card for card in s.cards(Grade.RESTART_ENGINE) if card not in memory.restarted)
    pods = [pod for pod in s.sitting(cards) if pod not in s.room.bare]
    memory = replace(
        memory,
        since=s.now,
        faulty=s.cards(Grade.RESTART_ENGINE),
        restarted=tuple(sorted({*memory.restarted, *cards})),
        restarting=tuple(sorted({*memory.restarting, *(f"{pod}/{s.node.uids.get(pod, '')}" for pod in pods)})),
        remedies=(*memory.remedies, s.now),
        healthy_since=None,
    )
    decision = _engines(s, memory)
    return replace(decision, alerts=(Alert(decision.reason, decision.message),), requeue_after=SOON)


def _engines(s: Situation, memory: Memory) -> Decision:
    """What becomes of the pods on cards that ask for a restart."""
    told, kept = s.told(Grade.RESTART_ENGINE), _kept(s, memory)
    bare = [pod for pod in s.sitting(s.cards(Grade.RESTART_ENGINE)) if pod in s.room.bare]
    alone = f"pod {bare[0]} has no controller that would make it anew, and is left alone: delete it, and make it anew" if bare else ""
    if kept:
        message = (
            f"{told}: pod {kept[0]} is the last one of its service in traffic, and starts anew once another serves, or the time is over"
        )
        after = min(SELDOM, left(s.now, memory.since, s.policy.drain))
        return answer(memory.to(s.now, "Suspect", "LastReplica", message), Step.WAIT, requeue_after=after)
    if bare and not memory.restarting and memory.reason not in {"EngineRestarted", "LastReplica"}:
        return answer(memory.to(s.now, "Suspect", "NotRestarted", f"{told}: {alone}"), Step.ALERT, requeue_after=LATER)
    message = f"{told}: the pods on it start anew" + (f"; {alone}" if alone else "")
    alerts = (Alert("EngineRestarted", message),) if memory.reason == "LastReplica" else ()
    step = Step.RESTART_ENGINE if memory.restarting else Step.WAIT
    return answer(memory.to(s.now, "Suspect", "EngineRestarted", message), step, alerts=alerts, requeue_after=LATER)


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
        return answer(memory.to(s.now, "Suspect", "NoNewPods", message), Step.ALERT, alerts=(Alert("NoNewPods", message),))
    return _engines(s, memory)


def _calm(s: Situation, memory: Memory) -> Decision:
    """Nothing that asks for an act: well, told only, or on the way there."""
    told_only = {"Degraded", "CardUnknown"}
    if s.unknown:
        message = f"{radius.ids(s.unknown)} can't be read: nothing is concluded from that"
        # A suspect card that can't be read isn't well again, and what keeps new pods away stays.
        memory = replace(memory.to(s.now, "Suspect", "CardUnknown", message), healthy_since=None)
        return answer(memory, Step.ALERT, alerts=(Alert("CardUnknown", message),), requeue_after=LATER)
    since = memory.healthy_since or s.now
    doubted = memory.state == "Suspect" and (memory.reason not in told_only or memory.cordoned)
    if doubted and s.now - since < s.policy.debounce:
        memory = memory.to(s.now, "Suspect", "Recovering", "the faults are gone; waiting whether they stay away")
        return answer(replace(memory, healthy_since=since), Step.WAIT, requeue_after=LATER)
    memory = replace(memory, cordoned=False, faulty=s.cards(Grade.DEGRADED), restarting=(), cards=(), radius=None, healthy_since=None)
    if s.need is Grade.DEGRADED:
        message = f"{s.told(Grade.DEGRADED)}: work on several cards avoids it"
        return answer(memory.to(s.now, "Suspect", "Degraded", message), Step.ALERT, alerts=(Alert("Degraded", message),))
    message = s.told(Grade.NOTE)
    alerts = (Alert("Noted", message),) if message else ()
    memory = memory.to(s.now, "Healthy", "Noted" if message else "Healthy", message)
    return answer(memory, Step.ALERT if message else Step.NO_ACTION, alerts=alerts, requeue_after=LATER if memory.hot else None)


def _when_idle(s: Situation, memory: Memory) -> Decision:
    told = s.told(Grade.RESET_WHEN_IDLE)
    taken = radius.reach(s.node, memory.faulty)
    if len(memory.resets) >= s.policy.resets:
        return quarantine(memory, s.now, "ResetBudgetSpent", f"{told}: no more resets are allowed within the window", faulty=memory.faulty)
    blocked = radius.obstacle(s.node, taken) if taken else "no reset can be planned here"
    if not blocked and s.room.others >= s.policy.nodes_in_remedy:
        blocked = "other nodes of the pool are in remedy"
    if s.node.hot_reset:
        blocked = "MindCluster resets it once it is idle"
    if blocked or memory.dry_run:
        message = f"{told}: reset once idle; {blocked or 'it is idle now'}"
        return answer(memory.to(s.now, "Suspect", "WaitingForIdle", message), Step.WAIT, requeue_after=LATER)
    memory = replace(memory, cordoned=True, remedies=(*memory.remedies, s.now))
    return answer(memory.to(s.now, "Draining", "Idle", f"{told}: idle, to be reset"), Step.DRAIN, requeue_after=SOON)
