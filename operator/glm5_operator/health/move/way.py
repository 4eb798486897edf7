"""How far a node is on its way to another pool: a value, and its form in the AscendNode's status. Pure; for `handover` and its caller."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from glm5_operator.api.node import MoveReport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glm5_operator.api.node import MoveState, ResetRequest


@dataclass(frozen=True, slots=True)
class Way:
    """What is remembered of a move, in the AscendNode's status.

    Attributes:
        origin: the pool that has the node until it arrives.
        target: the pool that is to have it.
        state: where it is.
        since: when that state, or the reason in it, began.
        started: when the move was first seen.
        drained: when the state Draining began; None before.
        quiet: since when no pod that is to end is in traffic; None while one is.
        reason: why, in one CamelCase word.
        message: why, in words.
        reset: the one that was asked for last.
    """

    origin: str
    target: str
    state: MoveState
    since: datetime
    started: datetime
    drained: datetime | None = None
    quiet: datetime | None = None
    reason: str = ""
    message: str = ""
    reset: ResetRequest | None = None

    def to(self, state: MoveState, reason: str, message: str, now: datetime) -> Way:
        """The same way in another state, or for another reason; the time moves only when one of them does."""
        same = (self.state, self.reason) == (state, reason)
        return replace(self, state=state, reason=reason, message=message, since=self.since if same else now)


def load(report: Mapping[str, Any] | None) -> Way | None:
    """What the status remembers; one that can't be read is as good as lost, and the move begins anew where the node is."""
    if not report:
        return None
    try:
        read = MoveReport.model_validate(report, by_alias=True, by_name=False)
        since, started = datetime.fromisoformat(read.since), datetime.fromisoformat(read.started)
        drained, quiet = (datetime.fromisoformat(time) if time else None for time in (read.drained, read.quiet))
    except ValueError:  # pydantic's error is one, too
        return None
    if any(time is not None and time.tzinfo is None for time in (since, started, drained, quiet)):
        return None  # not written by us, and no time of ours can be compared with it
    return Way(read.origin, read.target, read.state, since, started, drained, quiet, read.reason, read.message, read.reset)


def dump(way: Way | None) -> dict[str, Any] | None:
    """As the status has it."""
    if way is None:
        return None
    report = MoveReport(
        origin=way.origin,
        target=way.target,
        state=way.state,
        since=_stamp(way.since),
        started=_stamp(way.started),
        drained=_stamp(way.drained) if way.drained else None,
        quiet=_stamp(way.quiet) if way.quiet else None,
        reason=way.reason,
        message=way.message[:1024],
        reset=way.reset,
    )
    found: dict[str, Any] = report.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found


def _stamp(time: datetime) -> str:
    """With its fractions: what is read back must be what was written."""
    return time.astimezone(UTC).isoformat()
