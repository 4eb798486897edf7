"""A node's way from one pool to another: drained, reset, verified, and only then labelled anew. Pure; time is an argument.

Called by the node controller while a node carries names.MOVE_ANNOTATION with another pool than the one that has it, and until such a way is
over. Each call says what should be, not what should change, so doing it twice is doing it once. A way that nobody wants any more ends
where it is, but not in the middle of a reset. Services are treated as by the remedy: a pod leaves traffic before it is asked to end, and
the last one of its service stays in it for as long as the policy gives pods to end.

Waiting → Draining → Resetting → Verifying → (arrived); Blocked wherever a person is needed, and out of it as soon as the cause is gone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from glm5_operator.api.node import ResetRequest
from glm5_operator.health.move.way import Way
from glm5_operator.health.remedy.policy import RESET_BEGINS, RESET_TAKES, RETURN_TAKES, SETTLE, VERIFY_TAKES
from glm5_operator.health.remedy.radius import obstacle, reach
from glm5_operator.health.types import CardHealth, Grade, NodeHealth, Trust

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from glm5_operator.api.node import MoveState
    from glm5_operator.health.remedy.policy import Policy

SOON: Final = timedelta(seconds=2)
LATER: Final = timedelta(seconds=10)
SELDOM: Final = timedelta(minutes=1)
"""Where only news helps, and wakes the node. For news that got lost."""
TRY_AGAIN: Final = frozenset({"CardsBusy", "AnotherReset", "TooLate"})
"""Refusals of a reset that pass by themselves; any other needs a person."""
_HARMLESS: Final = {None, Grade.NOTE, Grade.DEGRADED}
"""Faults with which a node may change hands; the other pool's remedy knows them as well."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the cluster says about a move.

    Attributes:
        origin: the pool that has the node.
        target: the pool that it is to belong to; "" where nobody wants it moved.
        refusal: why that pool can't take it, in words; "" when it can.
        remedy: the state of its remedy, when that is under way; "" otherwise.
        others: other nodes of the origin that are out of service, by a remedy or on their own way.
        lent: the pool lends it by itself (spec.lend): for that no service loses its last replica.
        serving: `namespace/pod` of its pods that are in traffic.
        quiet: `namespace/pod` of its pods that are out of traffic by our hand.
        last: of its pods that are the last ones of their service in traffic, `namespace/name` of that service.
    """

    origin: str
    target: str
    refusal: str = ""
    remedy: str = ""
    others: int = 0
    lent: bool = False
    serving: frozenset[str] = frozenset()
    quiet: frozenset[str] = frozenset()
    last: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stepped:
    """What to do now.

    Attributes:
        way: for the status; None when there is no move, or when it is over.
        holds: the node is out of service for the move: its remedy rests, and new pods stay away.
        quiesce: `namespace/pod` to be out of traffic.
        evict: `namespace/pod` to end, by the Eviction API; ranks of training with more than their own grace.
        back: `namespace/pod` to be in traffic again.
        gives_up: nobody wants it moved any more: it is to be assigned to its pool again, and counts as lent no longer.
        reset: what `spec.reset` is to be.
        arrived: the node is to be labelled for the target.
        requeue_after: look again then.
    """

    way: Way | None = None
    holds: bool = False
    quiesce: tuple[str, ...] = ()
    evict: tuple[str, ...] = ()
    back: tuple[str, ...] = ()
    gives_up: bool = False
    reset: ResetRequest | None = None
    arrived: bool = False
    requeue_after: timedelta | None = None


def step(node: NodeHealth, way: Way | None, wanted: Wanted, policy: Policy, now: datetime) -> Stepped:
    """Take the move one step further."""
    goes = bool(wanted.target) and wanted.target != wanted.origin
    if not goes and (way is None or way.state != "Resetting"):
        return _stopped(way, wanted, now)
    if wanted.refusal and way is not None and way.state not in {"Waiting", "Resetting"}:
        # It would arrive nowhere: the pool has gone meanwhile, or another target was written down that can't take it.
        return replace(_stopped(way, wanted, now), requeue_after=SOON)
    if way is None:
        way = Way(wanted.origin, wanted.target, "Waiting", now, now, reason="Asked", message=f"asked to move to pool {wanted.target}")
    elif goes and way.target != wanted.target and way.state != "Resetting":
        way = replace(way, target=wanted.target)
    match way.state:
        case "Waiting":
            return _waiting(node, way, wanted, policy, now)
        case "Draining":
            return _draining(node, way, wanted, policy, now)
        case "Resetting":
            return _resetting(node, way, now)
        case "Verifying":
            return _verifying(node, way, wanted, policy, now)
        case "Blocked":
            return _blocked(node, way, wanted, policy, now)


def _stopped(way: Way | None, wanted: Wanted, now: datetime) -> Stepped:
    """It is remembered until the pods are back in traffic; one that can't be changed doesn't hold the node for ever."""
    if way is None or way.state == "Waiting" or not wanted.quiet:
        return Stepped()
    if way.reason == "Stopped" and now - way.since >= RETURN_TAKES:
        return Stepped()
    way = way.to(way.state, "Stopped", "not wanted any more: its pods go back into traffic", now)
    return Stepped(way, holds=True, back=tuple(sorted(wanted.quiet)), requeue_after=SOON)


def _waiting(node: NodeHealth, way: Way, wanted: Wanted, policy: Policy, now: datetime) -> Stepped:
    if wanted.refusal:
        return _wait(way.to("Waiting", "TargetRefused", wanted.refusal, now))
    if wanted.remedy:
        return _wait(way.to("Waiting", "InRemedy", f"its remedy is in state {wanted.remedy}: the move waits until it is over", now))
    if wanted.others >= policy.nodes_in_remedy:
        message = f"{wanted.others} other nodes of pool {way.origin} are out of service; spec.health.nodesInRemedy allows no more"
        return _wait(way.to("Waiting", "NoRoom", message, now))
    if wanted.lent and (kept := _last_here(node, wanted)):
        return _given_up(way, _last_of(wanted, kept), now)
    way = replace(way.to("Draining", "Begun", "new pods stay away", now), drained=now, quiet=None)
    return _draining(node, way, wanted, policy, now)


@dataclass(frozen=True, slots=True)
class _Leaving:
    """The pods that the node has: which of them are to be out of traffic, and which may be asked to end already.

    Attributes:
        way: remembers since when the first ones are.
        kept: the last ones of their services in traffic: they stay in it for now.
        quiesce: all others.
        evict: of those whoever has been out of traffic for long enough, or never was in it.
    """

    way: Way
    kept: tuple[str, ...]
    quiesce: tuple[str, ...]
    evict: tuple[str, ...]


def _leaving(node: NodeHealth, way: Way, wanted: Wanted, policy: Policy, now: datetime) -> _Leaving:
    began = way.drained or way.since
    kept = _last_here(node, wanted) if wanted.lent or now - began < policy.drain else ()
    going = tuple(pod for pod in node.pods if pod not in kept)
    quiet = None if wanted.serving & set(going) else way.quiet or now
    settled = quiet is not None and now - quiet >= SETTLE
    evict = tuple(pod for pod in going if settled or pod not in wanted.serving | wanted.quiet)
    return _Leaving(replace(way, quiet=quiet), kept, going, evict)


def _last_here(node: NodeHealth, wanted: Wanted) -> tuple[str, ...]:
    return tuple(pod for pod in node.pods if pod in wanted.last)


def _draining(node: NodeHealth, way: Way, wanted: Wanted, policy: Policy, now: datetime) -> Stepped:
    if node.pods:
        return _sending_away(node, way, wanted, policy, now)
    taken = reach(node, [card.physical for card in node.cards]) if node.trust is Trust.FRESH else None
    if policy.mode != "Auto" or node.hot_reset or taken is None:
        return _verifying(node, way.to("Verifying", "Drained", _no_reset(node, policy), now), wanted, policy, now)
    if why := obstacle(node, taken):
        if wanted.lent and now - (way.drained or way.since) > policy.drain + RESET_TAKES:
            return _given_up(way, why, now)
        return _held(way.to("Draining", "CardsInUse", why, now))
    deadline = (now + RESET_BEGINS).strftime("%Y-%m-%dT%H:%M:%SZ")
    reset = ResetRequest(id=_reset_id(node, now), radius=taken.radius, cards=taken.cards, deadline=deadline)
    way = replace(way.to("Resetting", "Asked", "all its cards are reset before another pool gets them", now), reset=reset)
    return Stepped(way, holds=True, reset=reset, requeue_after=SOON)


def _sending_away(node: NodeHealth, way: Way, wanted: Wanted, policy: Policy, now: datetime) -> Stepped:
    leaving = _leaving(node, way, wanted, policy, now)
    way, began, after = leaving.way, way.drained or way.since, SOON
    if leaving.kept and wanted.lent:
        return _given_up(way, _last_of(wanted, leaving.kept), now)
    if leaving.kept:
        ends = began + policy.drain
        others = f"; waits for {len(leaving.quiesce)} other pods as well" if leaving.quiesce else ""
        message = (
            f"waits until {_services(wanted, leaving.kept)} is served elsewhere, too: pod {leaving.kept[0]} is the last one in traffic; "
            f"it is asked to end at {ends:%Y-%m-%dT%H:%M:%SZ} at the latest (spec.health.drain){others}"
        )
        way = way.to("Draining", "LastReplica", message, now)
        if set(leaving.evict) == set(leaving.quiesce):
            after = max(SOON, min(SELDOM, ends - now))
    elif set(leaving.evict) != set(leaving.quiesce):
        first = next(pod for pod in leaving.quiesce if pod not in leaving.evict)
        if now - began > policy.drain + RETURN_TAKES:
            return _not_ended(way, wanted, f"pod {first} can't be taken out of traffic", now)
        way = way.to("Draining", "Quieting", f"pods leave traffic before they are asked to end, first {first}", now)
    else:
        if now - (way.quiet or began) > policy.drain + SETTLE:
            return _not_ended(way, wanted, f"pod {node.pods[0]} hasn't ended in the time of spec.health.drain", now)
        way = way.to("Draining", "PodsEnding", f"waits for {len(node.pods)} pods with cards, first {node.pods[0]}", now)
    return Stepped(way, holds=True, quiesce=leaving.quiesce, evict=leaving.evict, requeue_after=after)


def _not_ended(way: Way, wanted: Wanted, why: str, now: datetime) -> Stepped:
    """Its pods serve on: out of traffic they would leave all requests to others, for as long as nobody lets them end.

    A loan isn't worth another try, and gives up.
    """
    if wanted.lent:
        return _given_up(way, why, now)
    message = f"{why}: see its disruption budget and its grace, or delete it; pods are in traffic again until the next try"
    return _pods_stay(replace(way.to("Blocked", "PodsDoNotEnd", message[:1024], now), quiet=None), wanted)


def _pods_stay(way: Way, wanted: Wanted) -> Stepped:
    return Stepped(way, holds=True, back=tuple(sorted(wanted.quiet)), requeue_after=SOON if wanted.quiet else LATER)


def _given_up(way: Way, why: str, now: datetime) -> Stepped:
    """A loan that nobody asked for by name; the pool looks for another node."""
    way = way.to(way.state, "GivenUp", f"not lent: {why}"[:1024], now)
    return Stepped(way, holds=way.state != "Waiting", gives_up=True, requeue_after=SOON)


def _last_of(wanted: Wanted, kept: tuple[str, ...]) -> str:
    return f"pod {kept[0]} is the last one of {_services(wanted, kept)} in traffic"


def _services(wanted: Wanted, pods: tuple[str, ...]) -> str:
    names = sorted({wanted.last[pod] for pod in pods})
    return f"service{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _no_reset(node: NodeHealth, policy: Policy) -> str:
    if policy.mode != "Auto":
        return "no reset, for spec.health.mode of its pool isn't Auto: its memory must be idle as it is"
    return "no reset, for MindCluster's plugin resets by itself" if node.hot_reset else "no reset can be planned on what is known of it"


def _resetting(node: NodeHealth, way: Way, now: datetime) -> Stepped:
    """The request stays until the agent's last word: one that is taken away too early would leave a reset running that nobody knows of."""
    told = node.reset if node.reset is not None and way.reset is not None and node.reset.id == way.reset.id else None
    if told is not None and told.state in {"Succeeded", "Unknown"}:
        return _held(way.to("Verifying", "Reset", f"the reset ended ({told.state}); now the cards' health counts", now))
    if told is not None and told.state == "Refused" and told.reason in TRY_AGAIN:
        return _held(way.to("Draining", told.reason, f"the reset was put off: {told.message}"[:1024], now))
    if told is not None and told.state in {"Failed", "Refused"}:
        message = f"the reset was {told.state.lower()} ({told.reason}): {told.message}; take {way.origin} as the target to give it back"
        return _held(way.to("Blocked", "ResetFailed", message[:1024], now))
    if now - way.since > RESET_TAKES:
        return _held(way.to("Blocked", "ResetUnanswered", "the node agent hasn't answered: see that its pod runs on the node", now))
    return Stepped(way, holds=True, reset=way.reset, requeue_after=SOON)


def _verifying(node: NodeHealth, way: Way, wanted: Wanted, policy: Policy, now: datetime) -> Stepped:
    if why := unfit(node, policy):
        leaving = _leaving(node, way, wanted, policy, now)
        if leaving.kept and wanted.lent:
            return _given_up(leaving.way, _last_of(wanted, leaving.kept), now)
        late = way.state == "Verifying" and way.reason == "NotIdle" and now - way.since > VERIFY_TAKES
        state: MoveState = "Blocked" if late or way.state == "Blocked" else "Verifying"
        way = leaving.way.to(state, "NotIdle", why, now)
        return replace(_held(way), quiesce=leaving.quiesce, evict=leaving.evict)
    way = way.to("Verifying", "AllWell", f"idle and well; it must stay so for {policy.verify.total_seconds():g} s", now)
    if now - way.since >= policy.verify:
        return Stepped(way, holds=True, arrived=True)
    return Stepped(way, holds=True, requeue_after=min(LATER, policy.verify))


def _blocked(node: NodeHealth, way: Way, wanted: Wanted, policy: Policy, now: datetime) -> Stepped:
    if way.reason == "NotIdle":
        return _verifying(node, way, wanted, policy, now)
    if way.reason == "PodsDoNotEnd":
        if node.pods and now - way.since < policy.drain:
            return _pods_stay(way, wanted)
        return _draining(node, replace(way.to("Draining", "Begun", "tried again", now), drained=now), wanted, policy, now)
    return _held(way)


def unfit(node: NodeHealth, policy: Policy) -> str:
    """What keeps these cards from being given to somebody else, in words; "" when they are idle and well. Unknown isn't idle."""
    if node.trust is not Trust.FRESH:
        return f"nobody knows how its cards are: {node.why or 'the node agent must report'}"
    if not node.cards:
        return "no card is known of the node: the node agent must report"
    if not node.allocations_known:
        return "nobody knows who holds the cards: the agent can't read kubelet's PodResources API"
    if node.reset is not None and node.reset.state == "Running":
        return f"reset {node.reset.id} is still running"
    if node.pods:
        return f"pod {node.pods[0]} requests cards of the node"
    return next((why for card in node.cards if (why := _unfit_card(card, policy))), "")


def _unfit_card(card: CardHealth, policy: Policy) -> str:
    if card.missing or not card.known:
        return f"card {card.physical} is missing or can't be read"
    if card.holder:
        return f"card {card.physical} is held by pod {card.holder}"
    if card.pids is None or card.pids:
        return f"card {card.physical} has a process" if card.pids else f"nobody knows which processes are on card {card.physical}"
    if card.grade not in _HARMLESS:
        return f"card {card.physical} has fault {card.faults[0].code}"
    if card.memory_used is None or card.memory_used > policy.idle_memory:
        used = "unknown" if card.memory_used is None else f"{card.memory_used} MiB"
        return f"memory of card {card.physical} in use is {used}, and {policy.idle_memory} MiB count as idle: reset it"
    return ""


def _reset_id(node: NodeHealth, now: datetime) -> str:
    """Of this request alone; it is remembered before it is asked for, so whoever takes the move up asks for the same."""
    return f"move-{hashlib.sha256(f'{node.name}/{now.isoformat()}'.encode()).hexdigest()[:16]}"


def _wait(way: Way) -> Stepped:
    return Stepped(way, requeue_after=LATER)


def _held(way: Way) -> Stepped:
    return Stepped(way, holds=True, requeue_after=SOON if way.state == "Resetting" else LATER)
