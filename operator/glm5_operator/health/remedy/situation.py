"""One look at a node: how bad each card is, and which remedy that asks for. Between the facts and the transitions. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from glm5_operator.health.remedy import computing, radius
from glm5_operator.health.remedy.memory import Hot, Memory
from glm5_operator.health.types import CardHealth, Fault, Grade, NodeHealth, Product, Source, worst

if TYPE_CHECKING:
    from datetime import datetime

    from glm5_operator.health.remedy.decision import Room
    from glm5_operator.health.remedy.policy import Policy, Thermal

URGENCY: Final = (
    Grade.ISOLATE,
    Grade.RESET,
    Grade.NO_NEW_PODS,
    Grade.RESET_WHEN_IDLE,
    Grade.RESTART_ENGINE,
    Grade.DEGRADED,
    Grade.NOTE,
)
"""What a node does first when its cards ask for different things. Not the order of one card's grades: there PreSeparateNPU rules a reset
out; on a node it doesn't keep another card from its reset."""
BAD: Final = frozenset({Grade.ISOLATE, Grade.RESET})
"""Grades that take the node out of service."""
UNFIT: Final = BAD | {Grade.RESET_WHEN_IDLE, Grade.RESTART_ENGINE}
"""Grades with which a node doesn't return from a remedy."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done about the bad cards.

    Attributes:
        kind: Reset by the agent; leave it to MindCluster; or only Isolate, since no reset helps or none may be done.
        reason: why that, in one CamelCase word.
        message: the faults, and what will be done.
        cards: physical ids that it takes.
        radius: of the reset; None when none is planned.
        pods: that hold these cards and are to end.
    """

    kind: Literal["Reset", "MindCluster", "Isolate"]
    reason: str
    message: str
    cards: tuple[int, ...]
    pods: tuple[str, ...]
    taken: radius.Reach | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that one decision is made from."""

    node: NodeHealth
    policy: Policy
    room: Room
    now: datetime
    faults: dict[int, tuple[Fault, ...]]
    """Of known and of missing cards, by physical id, as they count here."""

    def grade(self, card: int) -> Grade | None:
        """What a card asks for."""
        return worst(*(fault.grade for fault in self.faults.get(card, ())))

    def cards(self, *grades: Grade) -> tuple[int, ...]:
        """Physical ids of the cards that ask for one of these."""
        return tuple(card for card in sorted(self.faults) if self.grade(card) in grades)

    @property
    def need(self) -> Grade | None:
        """What the node asks for first."""
        found = {self.grade(card) for card in self.faults}
        return next((grade for grade in URGENCY if grade in found), None)

    @property
    def unknown(self) -> tuple[int, ...]:
        """Cards of which nothing is concluded, neither good nor bad."""
        return tuple(card.physical for card in self.node.cards if not card.known and not card.missing)

    @property
    def resetting(self) -> str:
        """Which reset the agent says is running, in words; empty when none is."""
        reset = self.node.reset
        return f"reset {reset.id} is still running" if reset is not None and reset.state == "Running" else ""

    @property
    def unnamed(self) -> bool:
        """A bad card of which npu-smi's word is all that is known: its fault codes come a little later, and may rule a reset out."""
        bad = (fault for card in self.cards(*BAD) for fault in self.faults[card] if fault.grade in BAD)
        return self.node.source is Source.AGENT and any(fault.code == fault.level for fault in bad)

    def told(self, *grades: Grade) -> str:
        """The faults of these grades in words: `card 3: 80E01801 (RestartNPU)`."""
        texts = [
            f"card {card}: " + ", ".join(f"{fault.code} ({fault.level})" for fault in self.faults[card] if fault.grade in grades)
            for card in self.cards(*grades)
        ]
        return "; ".join(texts)

    def sitting(self, cards: tuple[int, ...]) -> tuple[str, ...]:
        """Pods that surely hold one of these cards, or may where nobody knows."""
        if not self.node.allocations_known:
            return radius.holders(self.node, cards)
        return tuple(sorted({card.holder for card in self.node.cards if card.holder and card.physical in cards}))

    def plan(self, memory: Memory) -> Plan:
        """What is to be done about the cards that are bad now, and those that this remedy is about already."""
        bad = self.cards(*BAD) or memory.faulty
        told = self.told(*BAD) or memory.message
        if self.cards(Grade.ISOLATE):
            gone = any(card.missing for card in self.node.cards)
            return self._isolate("CardMissing" if gone else "CardIsolated", f"{told}: no reset helps", bad)
        if len(memory.remedies) > self.policy.remedies:
            return self._isolate("TooManyRemedies", f"{told}: left and came back {len(memory.remedies) - 1} times within the window", bad)
        taken = radius.reach(self.node, tuple({*bad, *memory.faulty}))
        if self.node.hot_reset and not self.node.manual & set(bad):
            cards = taken.cards if taken else tuple(card.physical for card in self.node.cards)
            return Plan(
                "MindCluster", "MindClusterResets", f"{told}: MindCluster resets it", cards, radius.holders(self.node, cards), taken
            )
        if len(memory.resets) >= self.policy.resets:
            return self._isolate("ResetBudgetSpent", f"{told}: {len(memory.resets)} resets within the window, and no more is allowed", bad)
        if taken is None:
            why = "cards are cut into vNPUs" if self.node.virtual else "the product is unknown, so nobody can say what a reset takes"
            return self._isolate("ResetImpossible", f"{told}: {why}", bad)
        pods = self.node.pods if taken.radius == "Node" else radius.holders(self.node, taken.cards)
        pods = tuple(sorted({*pods, *radius.holders(self.node, taken.cards)}))
        return Plan("Reset", "CardFault", f"{told}: a reset takes {radius.ids(taken.cards)}", taken.cards, pods, taken)

    def _isolate(self, reason: str, message: str, cards: tuple[int, ...]) -> Plan:
        return Plan("Isolate", reason, message, cards, self.sitting(cards))

    def unfit(self, memory: Memory) -> str:
        """What keeps the node from returning, in words; empty when all is well: health, memory, link (point 9 of the issue)."""
        if not self.node.ready:
            return "the node isn't Ready"
        if self.node.recovering:
            return f"MindCluster is resetting {radius.ids(self.node.recovering)}"
        if self.resetting:
            return self.resetting
        mine = [card for card in self.node.cards if not memory.cards or card.physical in memory.cards]
        if gone := set(memory.cards) - {card.physical for card in mine}:
            return f"{radius.ids(gone)} can't be seen"
        for card in mine:
            if trouble := self._trouble(card, memory):
                return trouble
        return "" if mine else "no card can be seen"

    def _trouble(self, card: CardHealth, memory: Memory) -> str:
        if not card.known and not card.missing:
            return f"card {card.physical} can't be read"
        if self.grade(card.physical) in UNFIT:
            return self.told(*UNFIT)
        if card.physical in memory.linked and card.link_up is not True:
            return f"the RoCE link of card {card.physical} was up before and isn't now"
        measured = self.node.source is Source.AGENT and self.node.product is not Product.ATLAS_310P
        if card.holder or card.pids:
            return ""
        if card.memory_used is None:
            # 310P has no HBM column and MindCluster says nothing of memory: nothing to wait for there.
            return f"the memory in use on card {card.physical} can't be read" if measured else ""
        if card.memory_used > self.policy.idle_memory and self.node.product is not Product.ATLAS_310P:
            return f"card {card.physical} has {card.memory_used} MiB in use and no process"
        return ""


def look(node: NodeHealth, policy: Policy, memory: Memory, room: Room, now: datetime) -> tuple[Situation, Memory]:
    """Grade the cards. The memory comes back with what is hot, and without restarts whose fault is gone and pods that are."""
    memory = _restarting(node, memory, room, now)
    # Heat lasts from one reading to another: what has been as hot since, and what no reading says yet, aren't known.
    measured = node.measured or now
    hot = _hot(node, policy, memory, measured)
    lasting = tuple(entry for entry in hot if measured - entry.since >= _rule(policy, entry).sustain)
    faults = {card.physical: found for card in node.cards if (found := _faults(card, policy, memory, lasting, now))}
    situation = Situation(node, policy, room, now, faults)
    unseen = {card.physical for card in node.cards if not card.known}
    still = tuple(card for card in memory.restarted if card in unseen or situation.grade(card) in UNFIT)
    here = _here(node, room)
    return situation, replace(memory, hot=hot, restarted=still, quieted=tuple(pod for pod in memory.quieted if pod in here))


def _here(node: NodeHealth, room: Room) -> set[str]:
    return {*node.pods, *room.quiet, *(card.holder for card in node.cards)}


def _restarting(node: NodeHealth, memory: Memory, room: Room, now: datetime) -> Memory:
    """Without the pods that have ended; one that only bears such a one's name is another. What it helped is judged from the last end on."""
    here, known = _here(node, room), [tuple(pod.rpartition("/")[::2]) for pod in memory.restarting]
    left = tuple(f"{name}/{uid}" for name, uid in known if name in here and node.uids.get(name, uid) == uid)
    over = bool(memory.restarting) and not left and memory.state == "Suspect"
    return replace(memory, restarting=left, since=now if over else memory.since)


def _faults(card: CardHealth, policy: Policy, memory: Memory, hot: tuple[Hot, ...], now: datetime) -> tuple[Fault, ...]:
    """What counts of a card; `hot` has the cards that have been so for long enough."""
    if card.missing:
        return (Fault("Missing", "it was there and isn't any more", Grade.ISOLATE),)
    if not card.known:
        return ()
    found = [*map(_as_it_counts, card.faults)]
    # Started anew and no better: the fault isn't the engine's. Nobody is sent away for it, but an idle card is reset.
    ready = not memory.restarting and memory.since is not None and now - memory.since > policy.drain
    waited = memory.state not in {"Healthy", "Suspect"} or ready
    overdue = card.physical in memory.restarted and waited
    if overdue:
        found = [replace(fault, grade=Grade.RESET_WHEN_IDLE) if fault.grade is Grade.RESTART_ENGINE else fault for fault in found]
    if (wrong := computing.fault(memory, card.physical)) is not None:
        found.append(wrong)
    for entry in hot:
        if entry.card == card.physical:
            rule = _rule(policy, entry)
            level = f"above {rule.temperature} °C and {rule.utilisation} % for {int(rule.sustain.total_seconds())} s"
            found.append(Fault("Hot", level, Grade.RESET if rule.action == "Reset" else Grade.NOTE))
    return tuple(sorted(found, key=lambda fault: URGENCY.index(fault.grade)))


def _as_it_counts(fault: Fault) -> Fault:
    if fault.network and fault.grade not in {Grade.NOTE, Grade.DEGRADED, Grade.ISOLATE}:
        return replace(fault, grade=Grade.DEGRADED)  # a reset of the card mends no cable or switch
    return fault


def _rule(policy: Policy, entry: Hot) -> Thermal:
    return next(rule for rule in policy.thermal if rule.key == entry.rule)


def _hot(node: NodeHealth, policy: Policy, memory: Memory, measured: datetime) -> tuple[Hot, ...]:
    before = {(entry.card, entry.rule): entry.since for entry in memory.hot}
    return tuple(
        Hot(card.physical, rule.key, before.get((card.physical, rule.key), measured))
        for card in node.cards
        for rule in policy.thermal
        if (_above(card, rule) if card.known else (card.physical, rule.key) in before) or _latched(card, rule, memory, measured)
    )


def _above(card: CardHealth, rule: Thermal) -> bool:
    if card.temperature is None or card.temperature <= rule.temperature:
        return False
    return rule.utilisation == 0 or (card.utilisation is not None and card.utilisation > rule.utilisation)


def _latched(card: CardHealth, rule: Thermal, memory: Memory, measured: datetime) -> bool:
    # A card cools down as soon as its pods are gone. That is no cure: what was asked for is the reset, and only the reset clears it.
    if memory.state not in {"Quiescing", "Draining"} or rule.action != "Reset":
        return False
    return any(entry.card == card.physical and entry.rule == rule.key and measured - entry.since >= rule.sustain for entry in memory.hot)
