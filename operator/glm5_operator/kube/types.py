"""The words that controllers and the I/O layer share: keys, outcomes, and failures as values.

Used by everything in `kube` and by the controllers. Holds data only; it must not do I/O or import a client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from datetime import datetime, timedelta

Resource = Mapping[str, Any]
"""One object as the API server gave it: plain JSON, never changed in place (it may be shared)."""

Manifest = dict[str, Any]
"""One object as we want it: without ownerReferences, hash or status; `kube.apply` adds the first two."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Names one object. `namespace` is "" for kinds of the cluster."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}" if self.namespace else f"{self.kind}/{self.name}"


def key_of(resource: Resource) -> Key:
    """The key of an object that carries its own kind."""
    metadata = resource["metadata"]
    return Key(resource["kind"], metadata.get("namespace") or "", metadata["name"])


class OutcomeKind(StrEnum):
    """What the queue does with a key next."""

    DONE = "done"  # nothing until the next event
    AGAIN = "again"  # in order so far; look again after a known time
    RETRY = "retry"  # something failed that may heal by itself: back off, and count it; when the budget is used up, more slowly
    STALLED = "stalled"  # cannot work until the spec or an input changes; only an event (or `after`) brings it back


@dataclass(frozen=True, slots=True)
class Outcome:
    """A reconcile's answer. The queue, and only the queue, turns it into a time."""

    kind: OutcomeKind
    after: timedelta | None = None
    reason: str = ""

    @classmethod
    def done(cls) -> Outcome:
        """In order, or gone; wait for an event."""
        return cls(OutcomeKind.DONE)

    @classmethod
    def again(cls, after: timedelta) -> Outcome:
        """In order; look again after `after` at the latest. Clears the backoff."""
        return cls(OutcomeKind.AGAIN, after)

    @classmethod
    def retry(cls, reason: str, after: timedelta | None = None) -> Outcome:
        """Failed in a way that may heal. Without `after` the queue's exponential backoff decides; a server's Retry-After goes here."""
        return cls(OutcomeKind.RETRY, after, reason)

    @classmethod
    def stalled(cls, reason: str, after: timedelta | None = None) -> Outcome:
        """Cannot work as it stands. Clears the backoff; events (or `after`) wake it."""
        return cls(OutcomeKind.STALLED, after, reason)


@dataclass(frozen=True, slots=True)
class ApiFailure:
    """One refused or failed call, told as a user can act on it.

    `reason` is CamelCase and fit for a condition: NameConflict, QuotaExceeded, Forbidden, Invalid, FieldConflict, Conflict,
    Unavailable, TooManyRequests, NamespaceTerminating, BeingDeleted, NotFound, ApiError. `message` keeps the server's own words.
    `retryable` says whether trying again may heal it; a NameConflict or Invalid needs somebody to act (look again after minutes).
    """

    reason: str
    message: str
    target: Key
    retryable: bool
    retry_after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Applied:
    """What a converge did. Everything that worked is done even when `errors` isn't empty."""

    changed: tuple[Key, ...] = ()  # created or altered by us just now
    removed: tuple[Key, ...] = ()
    conflicts: tuple[Key, ...] = ()  # another manager had one of our fields and we took it back
    errors: tuple[ApiFailure, ...] = ()

    @property
    def clean(self) -> bool:
        """Nothing was written and nothing failed."""
        return not (self.changed or self.removed or self.errors)


class Reconciler(Protocol):
    """What the queue's workers call. Raises nothing for user faults."""

    async def reconcile(self, key: Key, now: datetime) -> Outcome:
        """Bring `key` to its planned state once. `now` is wall-clock UTC, for timestamps in status."""
        ...
