"""A small cluster in simulated time, around the real remedy: cards, pods, agents and an operator that can each fail.

What is true (cards, pods), what the agent has reported, and what the operator has written are kept apart, as they are in life. Every
decision goes through `check`, which holds the invariants of the remedy; the chaos test and the stateful test only differ in who turns the
knobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from glm5_operator.api.node import ResetRequest
from glm5_operator.health.remedy.answers import check_id
from glm5_operator.health.remedy.decision import OUT_OF_SERVICE, ComputeCheck, Decision, Room
from glm5_operator.health.remedy.machine import decide
from glm5_operator.health.remedy.memory import Memory, dump, load
from glm5_operator.health.remedy.policy import Policy
from glm5_operator.health.types import CardHealth, Fault, Grade, NodeHealth, Product, ResetResult, Trust
from tests.support.clock import at
from tests.support.health import IDLE_MEMORY

CARDS = 4
RESET_SECONDS = 150
RESTS = frozenset({"Healthy", "Suspect", "Quarantined"})
"""States in which a node may stay."""


class OperatorDiedError(Exception):
    """In the middle of its writes."""


@dataclass
class Card:
    grade: Grade | None = None
    missing: bool = False
    readable: bool = True
    process: bool = False
    hot: bool = False


@dataclass
class Pod:
    name: str
    service: str
    cards: tuple[int, ...]
    in_traffic: bool = True
    ends: datetime | None = None
    stuck: bool = False
    """No eviction ends it: a disruption budget, a finalizer."""
    bare: bool = False
    """Nobody makes it anew."""


@dataclass
class CheckPod:
    """Of a compute check: it holds all cards that were free, until it ends."""

    id: str
    cards: tuple[int, ...]
    result: str
    ends: datetime
    gone: datetime | None = None
    """When it will be, after it was told to go."""


@dataclass
class Site:
    """One node: the truth, the agent's report of it, and what the operator has written."""

    name: str
    cards: list[Card] = field(default_factory=lambda: [Card() for _ in range(CARDS)])
    pods: dict[str, Pod] = field(default_factory=dict)
    ready: bool = True
    # the agent
    alive: bool = True
    reported: tuple[CardHealth, ...] = ()
    read: datetime | None = None
    running: tuple[str, datetime] | None = None
    result: ResetResult | None = None
    done: list[str] = field(default_factory=list)
    # MindCluster's plugin
    idle_since: datetime | None = None
    recovering: datetime | None = None
    # the operator's writes
    memory: Memory = field(default_factory=Memory)
    request: ResetRequest | None = None
    taint: str = ""
    released: bool = False
    check_pod: CheckPod | None = None
    # what was seen, for the invariants
    asked: dict[str, datetime] = field(default_factory=dict)
    left: list[datetime] = field(default_factory=list)

    def holder(self, card: int) -> str:
        if self.check_pod is not None and card in self.check_pod.cards:
            return self.check_pod.id
        return next((pod.name for pod in self.pods.values() if card in pod.cards), "")


class World:
    """Nodes of one pool. `outcome` says how a reset ends: it heals, or it ends in the state and reason of a ResetReport."""

    def __init__(self, policy: Policy, nodes: int, outcome: Callable[[], str], *, hot_reset: bool = False) -> None:
        self.policy = policy
        self.hot_reset = hot_reset
        self.computes: Callable[[], str] = lambda: "Passed"
        """How a compute check ends: Passed, Failed, CouldNotRun; Hangs until its deadline."""
        self.sites = [Site(f"node-{number}") for number in range(nodes)]
        self.outcome = outcome
        self.seconds = 0.0
        self.down_until = 0.0
        self.dies: Callable[[], bool] = lambda: False
        self.steps: set[tuple[str, str, str]] = set()
        """Transitions seen: from, to, reason."""

    @property
    def now(self) -> datetime:
        return at(seconds=self.seconds)

    def tick(self, seconds: float = 1) -> None:
        """Time passes; pods end, agents read and reset, the operator decides about each node."""
        self.seconds += seconds
        for site in self.sites:
            site.pods = {name: pod for name, pod in site.pods.items() if pod.ends is None or pod.ends > self.now}
            self._check_pod(site)
            self._agent(site)
            self._mind_cluster(site)
        if self.seconds < self.down_until:
            return
        for site in self.sites:
            try:
                self._operator(site)
            except OperatorDiedError:
                self.down_until = self.seconds + 10
                return

    def _check_pod(self, site: Site) -> None:
        pod = site.check_pod
        if pod is not None and pod.gone is not None and pod.gone <= self.now:
            site.check_pod = None
        elif pod is not None and pod.ends <= self.now:
            pod.cards = ()

    # --- the agent ------------------------------------------------------------------------------------------------------------

    def kill_agent(self, site: Site) -> None:
        """A reset that runs dies with it; the next agent can only say that it doesn't know."""
        site.alive = False

    def start_agent(self, site: Site) -> None:
        if not site.alive and site.running:
            site.result, site.running = ResetResult(site.running[0], "Unknown", ended=self.now), None
        site.alive = True

    def _agent(self, site: Site) -> None:
        if not site.alive:
            return
        if site.running and site.running[1] <= self.now:
            self._end_reset(site, site.running[0])
        wanted = site.request
        if wanted and not site.running and wanted.id not in site.done:
            self._begin_reset(site, wanted)
        busy = site.running is not None
        site.read = self.now
        site.reported = tuple(self._read(site, number, card, busy) for number, card in enumerate(site.cards))

    def _begin_reset(self, site: Site, wanted: ResetRequest) -> None:
        assert wanted.id not in site.done, "the same id twice"
        site.done.append(wanted.id)
        if self.now > datetime.fromisoformat(wanted.deadline):
            site.result = ResetResult(wanted.id, "Refused", "TooLate", ended=self.now)
        elif any(site.holder(card) or site.cards[card].process for card in wanted.cards):
            site.result = ResetResult(wanted.id, "Refused", "CardsBusy", ended=self.now)
        else:
            site.running = (wanted.id, self.now + timedelta(seconds=RESET_SECONDS))
            site.result = ResetResult(wanted.id, "Running")

    def _end_reset(self, site: Site, id_: str) -> None:
        outcome = self.outcome()
        if outcome == "Heals":
            self._heal(site)
        state, _, reason = outcome.partition(":")
        site.result = ResetResult(id_, "Succeeded" if state in {"Heals", "Lies"} else state, reason, ended=self.now)
        site.running = None

    def _read(self, site: Site, number: int, card: Card, busy: bool) -> CardHealth:
        return CardHealth(
            number,
            number,
            known=card.readable and not busy,
            missing=card.missing,
            faults=(Fault("80E01801", card.grade.value, card.grade),) if card.grade else (),
            holder=site.holder(number),
            pids=(4711,) if card.process else (),
            memory_used=IDLE_MEMORY,
            temperature=91 if card.hot else 60,
            utilisation=99 if card.hot else 10,
            link_up=True,
        )

    # --- MindCluster's plugin, where its hot reset is on --------------------------------------------------------------------------

    def _mind_cluster(self, site: Site) -> None:
        faulty = any(card.grade in {Grade.RESTART_ENGINE, Grade.RESET_WHEN_IDLE, Grade.RESET} for card in site.cards)
        if not self.hot_reset or site.pods or any(card.process for card in site.cards) or not (faulty or site.recovering):
            site.idle_since = site.recovering = None
            return
        site.idle_since = site.idle_since or self.now
        if site.recovering and self.now - site.recovering > timedelta(seconds=RESET_SECONDS):
            if self.outcome() == "Heals":
                self._heal(site)
            site.idle_since = site.recovering = None
        elif self.now - site.idle_since > timedelta(seconds=60):
            site.recovering = site.recovering or self.now

    def _heal(self, site: Site) -> None:
        for card in site.cards:
            card.grade = None if card.grade is not Grade.ISOLATE else card.grade
            card.readable = True

    # --- the operator ---------------------------------------------------------------------------------------------------------

    def health(self, site: Site) -> NodeHealth:
        """What the operator can know."""
        fresh = site.alive and site.read is not None
        return NodeHealth(
            site.name,
            Product.A2,
            site.reported,
            trust=Trust.FRESH if fresh else Trust.STALE,
            why="" if fresh else "the agent isn't ready",
            as_of=site.read,
            measured=site.read,
            ready=site.ready,
            hccs=True,
            pods=tuple(sorted({*site.pods, *([site.check_pod.id] if site.check_pod and site.check_pod.cards else [])})),
            reset=site.result,
            hot_reset=self.hot_reset,
            recovering=frozenset(range(CARDS)) if site.recovering else frozenset(),
        )

    def room(self, site: Site) -> Room:
        serving = [pod for other in self.sites for pod in other.pods.values() if pod.in_traffic and pod.ends is None]
        alone = {pod.name for pod in serving if sum(other.service == pod.service for other in serving) == 1}
        return Room(
            others=sum(other.memory.state in OUT_OF_SERVICE for other in self.sites if other is not site),
            last=frozenset(alone & site.pods.keys()),
            quiet=frozenset(pod.name for pod in site.pods.values() if not pod.in_traffic and pod.ends is None),
            bare=frozenset(pod.name for pod in site.pods.values() if pod.bare),
            check=self.known(site),
        )

    def known(self, site: Site) -> ComputeCheck:
        """What the operator can know of the check that it asked for."""
        id_, pod = check_id(site.memory), site.check_pod
        if not id_:
            free = any(not site.holder(card) for card in range(CARDS))
            return ComputeCheck(unavailable="" if free else "no card is free")
        if pod is None or pod.id != id_ or pod.ends > self.now:
            return ComputeCheck(id_)
        ends: dict[str, Literal["Passed", "Failed", "CouldNotRun"]] = {"Passed": "Passed", "Failed": "Failed"}
        return ComputeCheck(id_, ends.get(pod.result, "CouldNotRun"), pod.result)

    def _operator(self, site: Site) -> None:
        node, room, before = self.health(site), self.room(site), site.memory
        decision = decide(node, self.policy, before, room, self.now, released=site.released)
        self.check(site, node, room, decision)
        for write in self._writes(site, decision):
            if self.dies():
                raise OperatorDiedError
            write()

    def _writes(self, site: Site, decision: Decision) -> Iterator[Callable[[], None]]:
        yield lambda: setattr(site, "memory", load(dump(decision.memory)))
        yield lambda: setattr(site, "taint", decision.taint)
        for names, in_traffic in ((decision.quiesce, False), (decision.return_to_traffic, True)):
            for name in names:
                if name in site.pods:
                    yield lambda name=name, in_traffic=in_traffic: setattr(site.pods[name], "in_traffic", in_traffic)
        for name in (*decision.evict, *decision.restart):
            if name in site.pods:
                yield lambda name=name: self._evict(site.pods[name])
        yield lambda: self._compute(site, decision.check)
        yield lambda: self._ask(site, decision.reset)
        if site.released and decision.memory.state != "Quarantined":
            yield lambda: setattr(site, "released", False)

    def _ask(self, site: Site, wanted: ResetRequest | None) -> None:
        site.request = wanted
        if wanted:
            site.asked.setdefault(wanted.id, self.now)

    def _compute(self, site: Site, wanted: str) -> None:
        if site.check_pod is not None and site.check_pod.id != wanted and site.check_pod.gone is None:
            site.check_pod.gone = self.now + timedelta(seconds=5)
        if wanted and site.check_pod is None:
            result = self.computes()
            ends = self.now + timedelta(seconds=180 if result == "Hangs" else 20)
            site.check_pod = CheckPod(wanted, tuple(card for card in range(CARDS) if not site.holder(card)), result, ends)

    def _evict(self, pod: Pod) -> None:
        if not pod.stuck and pod.ends is None:
            pod.ends = self.now + timedelta(seconds=20)

    # --- what must always hold ------------------------------------------------------------------------------------------------

    def check(self, site: Site, node: NodeHealth, room: Room, decision: Decision) -> None:
        """The invariants of point 8 of the issue, on every single decision."""
        before, after = site.memory, decision.memory
        if after is not before:
            self.steps.add((before.state, after.state, after.reason))
            assert load(dump(after)) == after, "the status says the same as the memory"
        times = [entry.time for entry in after.history]
        assert times == sorted(times), "history goes forward"
        kept = before.history[-10:]
        assert any(after.history[i : i + len(kept)] == kept for i in range(len(after.history) + 1)), "history is not rewritten"
        assert after.dry_run or decision.taint == ("quarantined" if after.state == "Quarantined" else "remedy" if after.cordoned else "")
        if self.policy.mode != "Auto" and after.state in {"Suspect", "Quiescing"}:
            assert (touched(decision), decision.reset, decision.taint) == ((), None, "")
        assert after.state != "Returning" or before.state == "Returning" or not site.running, "it returns under a running reset"
        if node.trust is not Trust.FRESH:
            assert touched(decision) == (), "nothing is concluded from facts that aren't fresh"
            assert decision.reset is None or decision.reset.id in site.asked, "a new reset needs fresh facts"
        assert not (self.hot_reset and decision.reset), "MindCluster resets here"
        assert not decision.check or (after.state == "Verifying" and self.policy.compute_check), "a compute check is part of Verify"
        if decision.reset and decision.reset.id not in site.asked:
            self._check_reset(site, node, decision.reset)
        if after.state == "Quiescing" and before.state != "Quiescing":
            assert not set(decision.quiesce) & room.last, "the last replica stays"
        self._check_replicas(before, room, decision)
        if before.state == "Quarantined" and after.state != "Quarantined" and not before.dry_run:
            assert site.released, "only a person ends a quarantine"
            site.asked, site.left = {}, []
        self._check_flapping(site, before, after)
        if after.state == "Draining" and before.state in {"Healthy", "Suspect", "Quiescing"}:
            assert room.others < self.policy.nodes_in_remedy, "too many nodes in remedy"

    def _check_reset(self, site: Site, node: NodeHealth, wanted: ResetRequest) -> None:
        assert not site.pods, "a pod may hold a card"
        assert site.check_pod is None or not site.check_pod.cards, "the compute check holds cards"
        assert all(card.known and card.pids == () and not card.holder for card in node.cards), "a card isn't known to be free"
        assert node.ready
        assert wanted.cards == tuple(range(CARDS)), "an A2 with HCCS resets as a whole"
        recent = [time for time in site.asked.values() if self.now - time < self.policy.window]
        assert len(recent) < self.policy.resets, "the budget of resets"

    def _check_replicas(self, before: Memory, room: Room, decision: Decision) -> None:
        assert not set(decision.restart) & room.bare, "nobody makes it anew"
        since = decision.memory.since
        if set(decision.restart) & room.last:
            assert since is not None
            assert self.now - since >= self.policy.drain, "a restart took the last replica too early"
        if decision.memory.state == "Draining" and before.state == "Quiescing" and set(decision.evict) & room.last:
            assert before.reason == "LastReplica"
            assert before.reason_since is not None
            assert self.now - before.reason_since >= self.policy.drain, "a remedy took the last replica too early"

    def _check_flapping(self, site: Site, before: Memory, after: Memory) -> None:
        if after.state == "Quiescing" and before.state != "Quiescing" and not after.dry_run:
            site.left.append(self.now)
        recent = [time for time in site.left if self.now - time < self.policy.window]
        assert len(recent) <= self.policy.remedies + 1, "out of traffic and back, again and again"


def touched(decision: Decision) -> tuple[str, ...]:
    """Pods that it does something to."""
    return (*decision.quiesce, *decision.evict, *decision.restart)


def at_rest(world: World) -> bool:
    """Every node is where it may stay."""
    return all(site.memory.state in RESTS for site in world.sites)


def settle(world: World, *, hours: float = 6, step: float = 5) -> None:
    """Nothing new happens. Every node must come to rest, and what was taken from pods is given back where nothing is wrong any more."""
    for _ in range(int(hours * 3600 / step)):
        world.tick(step)
        if at_rest(world):
            break
    stuck = {site.name: [(e.state, e.reason) for e in site.memory.history] for site in world.sites if site.memory.state not in RESTS}
    assert not stuck, "in remedy for ever"
    for _ in range(30):
        world.tick(step)
    for site in world.sites:
        if site.memory.state == "Healthy" and site.alive:
            assert site.taint == ""
            assert all(pod.in_traffic for pod in site.pods.values() if pod.ends is None), "a pod was forgotten out of traffic"
            assert site.request is None
            assert site.check_pod is None
