"""What the remedy remembers of a node between two looks, as a value and as AscendNode's `status.remedy`.

Everything that a decision needs beside the facts is here, so an operator that starts anew goes on where the last one was. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from glm5_operator.api.node import MOST_REMEDIES, CheckState, ComputeCheckReport, HotCard, Radius, RemedyEntry, RemedyReport, RemedyState

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECKED_STATES: Final = frozenset({"Verifying", "Draining", "Resetting", "WaitingMindCluster"})
"""Where a compute check counts: while it runs, and when it has failed until the next reset is over."""
MOST_TIMES: Final = 64
MOST_TEXT: Final = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    """One step that was taken: from `time` on the remedy was in `state` for `reason`."""

    time: datetime
    state: str
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Hot:
    """A card that has been above a thermal rule since then."""

    card: int
    rule: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Checked:
    """How the compute check of this remedy stands."""

    state: CheckState
    since: datetime
    message: str = ""


@dataclass(frozen=True, slots=True)
class Memory:
    """`api.node.RemedyReport` with times as times; that says what each field means."""

    state: RemedyState = "Healthy"
    since: datetime | None = None
    reason: str = ""
    message: str = ""
    dry_run: bool = False
    id: str = ""
    radius: Radius | None = None
    cards: tuple[int, ...] = ()
    faulty: tuple[int, ...] = ()
    restarted: tuple[int, ...] = ()
    restarting: tuple[str, ...] = ()
    linked: tuple[int, ...] = ()
    resets: tuple[datetime, ...] = ()
    remedies: tuple[datetime, ...] = ()
    quieted: tuple[str, ...] = ()
    cordoned: bool = False
    healthy_since: datetime | None = None
    hot: tuple[Hot, ...] = ()
    check: Checked | None = None
    history: tuple[Entry, ...] = ()

    @property
    def reason_since(self) -> datetime | None:
        """When state and reason became what they are."""
        return self.history[-1].time if self.history else self.since

    def within(self, window: timedelta, now: datetime) -> Memory:
        """Without resets and remedies that the window has left behind: a rare fault doesn't add up."""
        return replace(
            self,
            resets=tuple(time for time in self.resets if now - time < window),
            remedies=tuple(time for time in self.remedies if now - time < window),
        )

    def to(self, now: datetime, state: RemedyState, reason: str, message: str = "") -> Memory:
        """In this state from now on; `since` and the history move only when something did."""
        message = message[:MOST_TEXT]
        moved = state != self.state or self.since is None
        history = self.history
        if moved or reason != self.reason:
            history = (*history, Entry(now, state, reason, message))[-MOST_REMEDIES:]
        since = now if moved else self.since
        check = self.check if state in CHECKED_STATES else None
        return replace(self, state=state, since=since, reason=reason, message=message, check=check, history=history)


def read(remedy: Mapping[str, Any] | None) -> RemedyReport | None:
    """`status.remedy` as a report; None for none, and for one that can't be read: it is as good as lost."""
    try:
        return RemedyReport.model_validate(remedy, by_alias=True, by_name=False) if remedy else None
    except ValidationError:
        return None


def load(report: RemedyReport | None) -> Memory:
    """What the status says; an empty memory for none. Times that can't be read are as if they weren't there."""
    if report is None:
        return Memory()
    return Memory(
        state=report.state,
        since=_time(report.since),
        reason=report.reason,
        message=report.message,
        dry_run=bool(report.dry_run),
        id=report.id or "",
        radius=report.radius,
        cards=report.cards or (),
        faulty=report.faulty or (),
        restarted=report.restarted or (),
        restarting=report.restarting or (),
        linked=report.linked or (),
        resets=_times(report.resets),
        remedies=_times(report.remedies),
        quieted=report.quieted or (),
        cordoned=bool(report.cordoned),
        healthy_since=_time(report.healthy_since),
        hot=tuple(Hot(hot.card, hot.rule, since) for hot in report.hot or () if (since := _time(hot.since))),
        check=_check(report.check),
        history=tuple(
            Entry(time, entry.state, entry.reason, entry.message) for entry in report.history or () if (time := _time(entry.time))
        ),
    )


def quarantined_by_taint(now: datetime) -> Memory:
    """Of a node of which nothing is remembered, while its taint says that it is in quarantine: why it came there isn't known any more."""
    message = "taint glm5.dev/health says so, and nothing else is remembered; a person must look; `glm5 node release` brings it back"
    return replace(Memory().to(now, "Quarantined", "MemoryLost", message), cordoned=True)


def dump(memory: Memory) -> RemedyReport:
    """What the status is to say. `load` gives the same memory back, for times in whole seconds."""
    return RemedyReport(
        state=memory.state,
        since=_text(memory.since) or "",
        reason=memory.reason,
        message=memory.message,
        dry_run=memory.dry_run or None,
        id=memory.id or None,
        radius=memory.radius,
        cards=memory.cards or None,
        faulty=memory.faulty or None,
        restarted=memory.restarted or None,
        restarting=memory.restarting[:128] or None,
        linked=memory.linked or None,
        resets=tuple(map(_stamp, memory.resets[-MOST_TIMES:])) or None,
        remedies=tuple(map(_stamp, memory.remedies[-MOST_TIMES:])) or None,
        quieted=memory.quieted[:128] or None,
        cordoned=memory.cordoned or None,
        healthy_since=_text(memory.healthy_since),
        hot=tuple(HotCard(card=hot.card, rule=hot.rule, since=_stamp(hot.since)) for hot in memory.hot[:MOST_TIMES]) or None,
        check=None
        if memory.check is None
        else ComputeCheckReport(state=memory.check.state, since=_stamp(memory.check.since), message=memory.check.message),
        history=tuple(
            RemedyEntry(time=_stamp(entry.time), state=entry.state, reason=entry.reason, message=entry.message) for entry in memory.history
        )
        or None,
    )


def _check(report: ComputeCheckReport | None) -> Checked | None:
    since = _time(report.since) if report is not None else None
    return None if report is None or since is None else Checked(report.state, since, report.message)


def _stamp(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _text(time: datetime | None) -> str | None:
    return None if time is None else _stamp(time)


def _time(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        return None
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def _times(texts: tuple[str, ...] | None) -> tuple[datetime, ...]:
    return tuple(time for text in texts or () if (time := _time(text)))
