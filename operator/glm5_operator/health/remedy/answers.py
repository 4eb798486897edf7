"""How a decision is put together from a memory: what follows from the state alone, and the two answers that many states give. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, TypedDict, Unpack

from glm5_operator.api.node import ResetRequest
from glm5_operator.health.remedy import policy as limits
from glm5_operator.health.remedy.decision import Alert, Decision, Step

if TYPE_CHECKING:
    from datetime import datetime

    from glm5_operator.health.remedy.decision import Taint
    from glm5_operator.health.remedy.memory import Memory


class What(TypedDict, total=False):
    """Fields of a Decision that a state chooses; `decision.Decision` says what each means."""

    quiesce: tuple[str, ...]
    evict: tuple[str, ...]
    return_to_traffic: tuple[str, ...]
    reset: ResetRequest | None
    requeue_after: timedelta | None
    alerts: tuple[Alert, ...]


def answer(memory: Memory, step: Step, **what: Unpack[What]) -> Decision:
    """The decision with this memory. Reason, message, taint and compute check follow from it."""
    taint: Taint = "quarantined" if memory.state == "Quarantined" else "remedy" if memory.cordoned else ""
    return Decision(memory, step, memory.reason, memory.message, taint=taint, check=check_id(memory), **what)


def check_id(memory: Memory) -> str:
    """The compute check that this memory asks for: the same however often; empty for none."""
    asked = memory.state == "Verifying" and memory.check is not None and memory.check.state == "Asked"
    return f"{memory.check.since:%Y%m%dt%H%M%S}" if asked and memory.check is not None else ""


def elapsed(now: datetime, since: datetime | None, limit: timedelta) -> bool:
    """At least that long since then; never where nobody knows since when."""
    return since is not None and now - since >= limit


def left(now: datetime, since: datetime | None, limit: timedelta) -> timedelta:
    """What is left of that time; all of it where nobody knows since when, and never less than a second."""
    return max(timedelta(seconds=1), limit - (now - since)) if since is not None else limit


def seconds(length: timedelta) -> str:
    """A length of time for people."""
    return f"{int(length.total_seconds())} s"


def request(memory: Memory) -> ResetRequest | None:
    """The request of this memory: the same id, cards and deadline however often it is asked for."""
    if memory.state != "Resetting" or memory.since is None or memory.radius is None or not memory.id:
        return None
    deadline = (memory.since + limits.RESET_BEGINS).strftime("%Y-%m-%dT%H:%M:%SZ")
    return ResetRequest(id=memory.id, radius=memory.radius, cards=memory.cards, deadline=deadline)


def quarantine(memory: Memory, now: datetime, reason: str, message: str, faulty: tuple[int, ...] | None = None) -> Decision:
    """Out of service until a person releases the node. Pods elsewhere than on its bad cards go on."""
    help_ = "a person must look; `glm5 node release` brings it back"
    memory = replace(
        memory.to(now, "Quarantined", reason, f"{message}; {help_}"),
        cordoned=True,
        healthy_since=None,
        faulty=memory.faulty if faulty is None else faulty,
    )
    return answer(memory, Step.QUARANTINE, alerts=(Alert("Quarantined", memory.message),))
