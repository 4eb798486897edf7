"""What the remedy is told and what it answers: Room in, Decision out. Plain values between `machine` and the node controller."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from datetime import timedelta

    from glm5_operator.api.node import RemedyState, ResetRequest
    from glm5_operator.health.remedy.memory import Memory

OUT_OF_SERVICE: Final[frozenset[RemedyState]] = frozenset({"Draining", "WaitingMindCluster", "Resetting", "Verifying", "Returning"})
"""States that count against `nodes_in_remedy`. A quarantined node doesn't: it would keep all others from being healed for ever."""
Taint = Literal["", "remedy", "quarantined"]
"""Value of the node's taint of names.HEALTH_TAINT; "" for none."""


class Step(StrEnum):
    """What is being done now."""

    NO_ACTION = "NoAction"
    ALERT = "Alert"
    RESTART_ENGINE = "RestartEngine"
    QUIESCE = "Quiesce"
    DRAIN = "Drain"
    RESET = "Reset"
    WAIT_MIND_CLUSTER = "WaitMindCluster"
    VERIFY = "Verify"
    RETURN = "Return"
    QUARANTINE = "Quarantine"
    WAIT = "Wait"


@dataclass(frozen=True, slots=True)
class ComputeCheck:
    """What is known of the pod that checks the node's cards by computing.

    Attributes:
        id: of which check, as `Decision.check` asked for it; empty for none.
        state: Waiting: not there yet, or not ended; CouldNotRun says nothing of the cards.
        message: what it found, or why it couldn't run.
        unavailable: why none can be run on this node now; empty where one can.
    """

    id: str = ""
    state: Literal["Waiting", "Passed", "Failed", "CouldNotRun"] = "Waiting"
    message: str = ""
    unavailable: str = ""


@dataclass(frozen=True, slots=True)
class Room:
    """What the rest of the cluster allows, and what has been done to this node's pods.

    Attributes:
        others: other nodes of the pool whose remedy is in a state of OUT_OF_SERVICE. Count them and decide under one lock, or two nodes
            see the same free place.
        last: `namespace/pod` of pods here that are the last ones of their service in traffic. They are kept in it as long as the policy
            gives pods to end, for a card in alarm may still serve and nobody else does. Count them under that lock too.
        quiet: `namespace/pod` of pods here that are out of traffic by our hand, read from the pods themselves: what a status that was
            lost, or an operator that died between two writes, left behind is put right by it.
        bare: `namespace/pod` of pods here without a controller: nobody makes them anew, so they aren't asked to end for a mere restart.
        check: what became of the compute check that was asked for.
    """

    others: int = 0
    last: frozenset[str] = frozenset()
    quiet: frozenset[str] = frozenset()
    bare: frozenset[str] = frozenset()
    check: ComputeCheck = ComputeCheck()


@dataclass(frozen=True, slots=True)
class Alert:
    """What somebody should be told: an Event, deduplicated by reason."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now. All of it says what should be, not what should change, so doing it twice is doing it once.

    Write `memory` to the status first and do the rest afterwards: a reset that isn't remembered isn't counted. What is left undone by an
    operator that dies in between is asked for again by the next decision.

    Attributes:
        memory: for the status; equal to the last one where nothing moved.
        step: what is being done.
        reason: why, in one CamelCase word; as in the memory.
        message: why, in words; as in the memory.
        quiesce: `namespace/pod` to be out of traffic now.
        evict: to end, by the Eviction API, ranks of training with more than their own grace; they are ours and others'.
        restart: to end so that they start anew: told until they have ended, and not of those that come after them.
        return_to_traffic: to be in traffic again.
        taint: what the node's taint is to be.
        reset: what `spec.reset` is to be; None for none.
        check: the compute check whose pod is to be there; empty for none.
        requeue_after: look again then even when nothing changed; None: only when something does.
        alerts: what to tell.
    """

    memory: Memory
    step: Step
    reason: str = ""
    message: str = ""
    quiesce: tuple[str, ...] = ()
    evict: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    return_to_traffic: tuple[str, ...] = ()
    taint: Taint = ""
    reset: ResetRequest | None = None
    check: str = ""
    requeue_after: timedelta | None = None
    alerts: tuple[Alert, ...] = ()
