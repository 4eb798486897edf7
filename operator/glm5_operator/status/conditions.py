"""Conditions as kstatus, Argo CD and `kubectl wait` read them, and the one rule for their timestamps.

Used by the status modules of every kind. Knows no kind and no reason by itself.

`Ready` says whether the object serves; `Reconciling` and `Stalled` are abnormal-true and exclude each other: an object that is
not Ready is either on its way (`Reconciling`) or waits for somebody (`Stalled`). All three are always present, with status False when they
don't hold, so that a health script never waits for a missing field.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

READY = "Ready"
RECONCILING = "Reconciling"
STALLED = "Stalled"

MOST_MESSAGE = 1024
"""Characters of a message that are kept. The API's limit is 32,768; `kubectl describe` is what has to stay readable."""


class Truth(StrEnum):
    """The three values of a condition's status."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"

    @classmethod
    def of(cls, value: bool) -> Truth:
        """True or False as the API writes it."""
        return cls.TRUE if value else cls.FALSE


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition without what only its history knows (transition time) or the object knows (generation)."""

    type: str
    status: Truth
    reason: str
    message: str = ""


def settled(reason: str, message: str) -> tuple[Condition, ...]:
    """All is as the spec says."""
    return (
        Condition(READY, Truth.TRUE, reason, message),
        Condition(RECONCILING, Truth.FALSE, reason, ""),
        Condition(STALLED, Truth.FALSE, reason, ""),
    )


def on_its_way(reason: str, message: str, ready: Truth = Truth.FALSE) -> tuple[Condition, ...]:
    """Not there yet, and time or an ordinary retry may do it."""
    return (
        Condition(READY, ready, reason, message),
        Condition(RECONCILING, Truth.TRUE, reason, message),
        Condition(STALLED, Truth.FALSE, reason, ""),
    )


def stuck(reason: str, message: str) -> tuple[Condition, ...]:
    """Somebody has to change something."""
    return (
        Condition(READY, Truth.FALSE, reason, message),
        Condition(RECONCILING, Truth.FALSE, reason, ""),
        Condition(STALLED, Truth.TRUE, reason, message),
    )


def is_stalled(resource: Mapping[str, Any], reason: str = "") -> bool:
    """The object's status says Stalled; with `reason`, for that reason."""
    conditions = (resource.get("status") or {}).get("conditions") or ()
    stalled: Mapping[str, Any] = next((item for item in conditions if item.get("type") == STALLED), {})
    return stalled.get("status") == Truth.TRUE and reason in {"", stalled.get("reason")}


def failing(reason: str, message: str, resource: Mapping[str, Any]) -> tuple[Condition, ...]:
    """What may heal by itself is on its way, until `gave_up` has called it stalled: then it stays so until it is over or another."""
    return stuck(reason, message) if is_stalled(resource, reason) else on_its_way(reason, message)


def gave_up(resource: Mapping[str, Any], reason: str, now: datetime) -> dict[str, Any]:
    """The object's status as it is, but Stalled: it failed too often in a row and is tried again only now and then.

    What the status names as the reason already, with the server's own words, is kept; a pass that ended early could not tell any.
    """
    previous = resource.get("status") or {}
    old = previous.get("conditions") or ()
    told: Mapping[str, Any] = next((item for item in old if item.get("type") == READY), {})
    if told.get("reason") == reason:
        verdict = stuck(reason, str(told.get("message") or ""))
    else:
        verdict = stuck("GaveUp", f"too many failures in a row, tried again only now and then; the last: {reason}")
    types = {condition.type for condition in verdict}
    conditions = dated(verdict, old, resource["metadata"]["generation"], now) + [
        dict(item) for item in old if item.get("type") not in types
    ]
    return {**previous, "conditions": conditions}


def dated(conditions: Iterable[Condition], previous: Sequence[Mapping[str, Any]], generation: int, now: datetime) -> list[dict[str, Any]]:
    """Conditions as JSON in the order given; the transition time moves only when the status flips.

    A rewritten reason or message is no transition: otherwise every restart of a crashing pod would look like news to whoever waits
    on the time, and the time would no longer say how long a thing has been broken.
    """
    before = {str(item.get("type")): item for item in previous}
    return [_dated(condition, before.get(condition.type), generation, now) for condition in conditions]


def _dated(condition: Condition, before: Mapping[str, Any] | None, generation: int, now: datetime) -> dict[str, Any]:
    same = before is not None and before.get("status") == condition.status and before.get("lastTransitionTime")
    return {
        "type": condition.type,
        "status": condition.status.value,
        "reason": condition.reason,
        "message": clipped(condition.message, MOST_MESSAGE),
        "observedGeneration": generation,
        "lastTransitionTime": before["lastTransitionTime"] if before is not None and same else stamp(now),
    }


def clipped(text: str, most: int) -> str:
    """`text` cut to `most` characters, with a mark where something is missing."""
    return text if len(text) <= most else text[: most - 1] + "…"


def stamp(moment: datetime) -> str:
    """A time as Kubernetes writes it: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(text: str | None) -> datetime | None:
    """The time in a Kubernetes timestamp; None for a missing or unreadable one."""
    if not text:
        return None
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        return None
    return read if read.tzinfo else read.replace(tzinfo=UTC)
