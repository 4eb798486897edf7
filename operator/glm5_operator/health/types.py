"""What the remedy knows of a node: frozen values, made by `view` from whichever source is to be believed.

Parsers have types of their own beside them; these are what all sources come together in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from glm5_operator.plan.facts import Product

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

LAST_ID: Final = 1023
"""The highest physical id that is believed: requests and reports of the API take no other."""

__all__ = ["LAST_ID", "CardHealth", "Fault", "Grade", "NodeHealth", "Product", "Source", "Trust"]


class Grade(StrEnum):
    """What a fault asks for, from least to most. `worst` compares by this order."""

    NOTE = "Note"
    """Written down, nothing is done: NotHandleFault, npu-smi's Warning."""
    DEGRADED = "Degraded"
    """SubHealthFault, or a network fault: told; multi-card work avoids it."""
    RESTART_ENGINE = "RestartEngine"
    """RestartRequest, RestartBusiness: the pods on the card start anew."""
    RESET_WHEN_IDLE = "ResetWhenIdle"
    """FreeRestartNPU: nobody is sent away; reset once the card is idle."""
    RESET = "Reset"
    """RestartNPU, npu-smi's Alarm and Critical: out of traffic, drained, reset."""
    NO_NEW_PODS = "NoNewPods"
    """PreSeparateNPU: pods go on, new ones stay away."""
    ISOLATE = "Isolate"
    """SeparateNPU, ManuallySeparateNPU, a level that nobody knows: drained and kept away; no reset helps."""


GRADES = tuple(Grade)


def worst(*grades: Grade) -> Grade | None:
    """The one that asks for most; None of none."""
    return max(grades, key=GRADES.index, default=None)


class Source(StrEnum):
    """Where a node's health comes from. Never two for one node."""

    MIND_CLUSTER = "MindCluster"
    AGENT = "Agent"
    NONE = "None"


class Trust(StrEnum):
    """Whether the source can be believed now. Only of Fresh facts anything is done to a card or a pod."""

    FRESH = "Fresh"
    STALE = "Stale"
    UNAVAILABLE = "Unavailable"
    CONTRADICTORY = "Contradictory"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a card.

    Attributes:
        code: as the source writes it, for example 80E01801; the health word where there is no code.
        level: MindCluster's level or npu-smi's word, as written.
        grade: what it asks for.
        network: of the card's network, not of the card.
        since: when it began, where the source says so.
    """

    code: str
    level: str
    grade: Grade
    network: bool = False
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class CardHealth:
    """One card (die on A3) as the remedy sees it.

    Attributes:
        physical: physical id.
        npu: NPU id of npu-smi.
        chip: chip on that NPU.
        known: its state could be read; of an unknown card nothing is concluded.
        missing: it was there and isn't any more.
        faults: worst first.
        holder: `namespace/pod` of the pod that was given it; empty for none.
        pids: processes on it; None when that couldn't be read.
        memory_used: MiB of HBM; None when unknown.
        temperature: °C; None when unknown.
        utilisation: percent; None when unknown.
        link_up: the RoCE port's link; None when unknown or without one.
    """

    physical: int
    npu: int
    chip: int = 0
    known: bool = True
    missing: bool = False
    faults: tuple[Fault, ...] = ()
    holder: str = ""
    pids: tuple[int, ...] | None = ()
    memory_used: int | None = None
    temperature: int | None = None
    utilisation: int | None = None
    link_up: bool | None = None

    @property
    def grade(self) -> Grade | None:
        """What its worst fault asks for; None when it has none."""
        return worst(*(fault.grade for fault in self.faults))


@dataclass(frozen=True, slots=True)
class ResetResult:
    """What the agent says of the newest reset; `state` and `reason` as in api.node.ResetReport."""

    id: str
    state: str
    reason: str = ""
    message: str = ""
    ended: datetime | None = None


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """One node as the remedy sees it.

    Attributes:
        name: the node's name.
        product: None when unknown: then no reset is planned, since its radius can't be.
        cards: by physical id, the missing ones too.
        source: where this comes from.
        trust: whether it can be believed.
        why: what is wrong with the sources, in words; also of a source that is stale or broken while the other one is believed.
        as_of: when the source wrote it.
        measured: when the node agent read the cards' numbers, whichever source is believed of their health; None when nobody knows.
        doubted_since: since when it can't be believed; None when it can, or when nobody knows.
        ready: the node's Ready condition.
        hccs: cards are joined by HCCS; None when unknown, which counts as joined.
        virtual: cards are cut into vNPUs.
        allocations_known: an empty `holder` means free.
        pods: `namespace/pod` of every pod that requests cards on the node and hasn't ended, whichever card it holds.
        uids: of these pods, where they are known: a pod that started anew may bear its old name.
        hot_reset: MindCluster's plugin resets by itself.
        recovering: physical ids that MindCluster is resetting now.
        manual: physical ids that MindCluster asks a person to reset (ResetInfo.ManualResetDevs).
        reset: the agent's word on the newest reset.
    """

    name: str
    product: Product | None
    cards: tuple[CardHealth, ...]
    source: Source = Source.AGENT
    trust: Trust = Trust.FRESH
    why: str = ""
    as_of: datetime | None = None
    measured: datetime | None = None
    doubted_since: datetime | None = None
    ready: bool = True
    hccs: bool | None = None
    virtual: bool = False
    allocations_known: bool = True
    pods: tuple[str, ...] = ()
    uids: Mapping[str, str] = field(default_factory=dict)
    hot_reset: bool = False
    recovering: frozenset[int] = frozenset()
    manual: frozenset[int] = frozenset()
    reset: ResetResult | None = None
