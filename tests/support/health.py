"""Nodes as the remedy sees them, in one line each. Everything is the real types; time is `tests.support.clock.at`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from glm5_operator.health.remedy.decision import Decision, Room
from glm5_operator.health.remedy.machine import decide
from glm5_operator.health.remedy.memory import Memory, dump, load
from glm5_operator.health.remedy.policy import Policy
from glm5_operator.health.sources.levels import card_grade
from glm5_operator.health.types import CardHealth, Fault, Grade, NodeHealth, Product, ResetResult, Trust
from tests.support.clock import at

KINDS: Mapping[str, dict[str, Any]] = {
    "a2-hccs": {"product": Product.A2, "hccs": True, "cards": 8},
    "a2-pcie": {"product": Product.A2, "hccs": False, "cards": 8},
    "a3": {"product": Product.A3, "hccs": True, "cards": 16, "chips": 2},
    "310p-duo": {"product": Product.ATLAS_310P, "hccs": None, "cards": 8, "chips": 2},
    "950": {"product": Product.A5, "hccs": None, "cards": 8},
    "unknown": {"product": None, "hccs": None, "cards": 8},
}
IDLE_MEMORY = 3300
AUTO = Policy(mode="Auto")


def policy(**changes: object) -> Policy:
    """The default policy, switched on."""
    return replace(AUTO, **changes)  # type: ignore[arg-type]


def fault(level: str = "RestartNPU", code: str = "80E01801", *, network: bool = False) -> Fault:
    """A fault of one of MindCluster's levels, or one of npu-smi's words."""
    words = {"Warning": Grade.NOTE, "Alarm": Grade.RESET, "Critical": Grade.RESET}
    return Fault(code, level, words.get(level) or card_grade(level, network=network), network)


def a_node(
    kind: str = "a2-hccs",
    faults: Mapping[int, Fault | str] | None = None,
    held_by: Mapping[int, str] | None = None,
    *,
    pids: Mapping[int, tuple[int, ...] | None] | None = None,
    unknown: Iterable[int] = (),
    missing: Iterable[int] = (),
    changed: Mapping[int, Mapping[str, Any]] | None = None,
    **node: object,
) -> NodeHealth:
    """A node of this kind, idle and well but for what is said."""
    shape = KINDS[kind]
    faults, held_by, pids, changed = faults or {}, held_by or {}, pids or {}, changed or {}
    cards = []
    for number in range(shape["cards"]):
        told = faults.get(number)
        card = CardHealth(
            number,
            number // shape.get("chips", 1),
            number % shape.get("chips", 1),
            known=number not in set(unknown),
            missing=number in set(missing),
            faults=() if told is None else (fault(told) if isinstance(told, str) else told,),
            holder=held_by.get(number, ""),
            pids=pids.get(number, ()),
            memory_used=IDLE_MEMORY,
            link_up=True,
        )
        cards.append(replace(card, **changed.get(number, {})))
    pods = tuple(sorted({*held_by.values(), *node.pop("pods", ())}))
    return NodeHealth("node-1", shape["product"], tuple(cards), hccs=shape["hccs"], pods=pods, **node)


def stale(node: NodeHealth, trust: Trust = Trust.STALE) -> NodeHealth:
    """The same node, with facts that can't be believed."""
    return replace(node, trust=trust, why="the agent isn't ready")


def answered(node: NodeHealth, decision: Decision, state: str = "Succeeded", reason: str = "", *, at: datetime | None = None) -> NodeHealth:
    """The same node, with the agent's word on the reset that this decision asks for."""
    assert decision.reset is not None
    return replace(node, reset=ResetResult(decision.reset.id, state, reason, ended=at), as_of=at or node.as_of)


class Watch:
    """A node's remedy over time: each `look` is one decision, kept through AscendNode's status as an operator would."""

    def __init__(self, policy: Policy = AUTO, memory: Memory | None = None) -> None:
        self.policy = policy
        self.memory = memory or Memory()
        self.seconds = 0.0
        self.seen: list[Decision] = []

    @property
    def now(self) -> datetime:
        return at(seconds=self.seconds)

    def look(self, node: NodeHealth, room: Room | None = None, *, after: float = 1, released: bool = False) -> Decision:
        """One decision, `after` seconds after the last one."""
        self.seconds += after
        decision = decide(node, self.policy, self.memory, room or Room(), self.now, released=released)
        self.memory = load(dump(decision.memory))
        self.seen.append(decision)
        return decision

    def until(self, state: str, node: NodeHealth, room: Room | None = None, *, most: timedelta = timedelta(minutes=30)) -> Decision:
        """Look each second until the remedy is in this state."""
        for _ in range(int(most.total_seconds())):
            decision = self.look(node, room)
            if decision.memory.state == state:
                return decision
        raise AssertionError(f"not {state} within {most}: {[(entry.state, entry.reason) for entry in self.memory.history]}")

    @property
    def path(self) -> list[str]:
        """States so far, each named once."""
        states = [decision.memory.state for decision in self.seen]
        return [state for before, state in zip(["", *states], states, strict=False) if before != state]
