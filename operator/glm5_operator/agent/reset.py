"""Resets of cards, done once each: `npu-smi set -t reset` on the operator's request.

The agent's loop hands over every request that it sees in the AscendNode's spec, as often as it sees it. What is on the node's disk decides
whether a request is new. Nothing here retries: a reset that failed, was refused or was cut off stays so, and the operator decides what is
next. Whether the cards are well afterwards isn't judged here but by the facts that follow.
"""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from glm5_operator.agent.reset_records import Record, Records
from glm5_operator.agent.terminal import Patience, converse
from glm5_operator.api.node import ResetReport
from glm5_operator.health.sources.npusmi import parse_reset
from glm5_operator.health.sources.npusmi.readings import ResetOutcome, ResetRefusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from glm5_operator.agent.terminal import Spoken
    from glm5_operator.api.node import ResetRequest, ResetState
    from glm5_operator.api.node_facts import CardReport, NodeFactsReport
    from glm5_operator.health.sources.npusmi.readings import ResetTranscript

_UNDER_WAY: Final = re.compile(r"resetting\s*(?:\(about|\.\.\.)")
"""npu-smi's "Message : resetting (about 150 seconds) ..."; its questions say "resetting" too."""
_TAKES_ALL: Final = re.compile(r"\ball\s+(?:the\s+)?(?:devices|npus|chips|cards)\b|所有|全部", re.IGNORECASE)
_CHIP_MISSING: Final = "Must input parameter of chip id"
_CHIP_REFUSED: Final = "Error parameter of -c"
"""Of an npu-smi that knows no -c: on 950, which the node's facts may not have told apart."""
_MOST_OUTPUT: Final = 4096
_NOT_STARTED: Final = frozenset({126, 127})
"""Exit codes of chroot, env and shells for a program that isn't there, or may not be executed."""
_log = logging.getLogger(__name__)

_ADVICE: Final[dict[str, str]] = {
    ResetRefusal.NOT_ROOT: "the node agent must run as root",
    ResetRefusal.ANOTHER_RESET: "somebody else is resetting cards of this node; ask again when that is done",
    ResetRefusal.CARDS_BUSY: "something uses the card; ask again when it is gone",
    ResetRefusal.NEEDS_HOST: "this card can't be reset from a container or a virtual machine: run npu-smi set -t reset on the host",
    ResetRefusal.VIRTUAL_NPU: "cards that are cut into vNPUs can't be reset: remove the vNPUs first",
    ResetRefusal.HCCS_ON: "a reset here takes all cards of the node: ask for the node",
    ResetRefusal.NOT_SUPPORTED: "this product, or its firmware, offers no such reset",
    ResetRefusal.WRONG_CARD: "npu-smi knows no such card: look at npu-smi info -l",
    ResetRefusal.ABORTED: "it asked something that isn't known here, and was given no answer: reset the card by hand",
    ResetRefusal.NO_ACCESS: "npu-smi can't reach the driver: look at the agent's mounts and privileges",
}
_SAME_FOR_ALL: Final = frozenset(
    {"TimedOut", "ToolMissing", *(set(_ADVICE) - {ResetRefusal.CARDS_BUSY, ResetRefusal.WRONG_CARD})},
)
"""After these the other cards aren't tried: the next command would end in the same way."""


class _RefusedError(Exception):
    """It must not be begun, or not go on; becomes a report in `Resets`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = str(reason), message


@dataclass(frozen=True, slots=True)
class _Target:
    """What one command resets: npu-smi's -i and -c."""

    npu: int
    chip: int


@dataclass(frozen=True, slots=True)
class _Result:
    """How one command, or all of them together, ended."""

    state: ResetState
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    output: str = ""
    whole_node: bool = False


@dataclass
class _Answers:
    """What is typed to npu-smi's questions: yes, but no where it would reset more than was asked for."""

    radius: str
    product: str | None
    declined: bool = field(default=False, init=False)
    took_all: bool = field(default=False, init=False)

    def __call__(self, question: str) -> str:
        """In the question's own letters: (Y/N) and [y/n] are both asked."""
        letters = ("Y", "N") if "Y" in question[-16:] else ("y", "n")
        if not _TAKES_ALL.search(question):
            return letters[0]
        self.took_all = self._asked_for_all(question)
        self.declined = not self.took_all
        return letters[0] if self.took_all else letters[1]

    def _asked_for_all(self, question: str) -> bool:
        # On a 310P Duo "all devices in this SMP system" are the two chips of the card.
        return self.radius == "Node" or (self.radius == "Card" and self.product == "310P" and "SMP system" in question)


class Resets:
    """The node's resets, one at a time.

    Args:
        folder: on the node's disk, kept over restarts of the agent and the node; `resets` in it is this class's own.
        look: reads all cards anew: holders, processes, health.
        command: npu-smi, as the agent calls it; words that find it on the host may stand before it.
        now: the clock, with a time zone.
        patience: how long is waited for npu-smi.
        changed: called whenever `reports` has something new.
    """

    def __init__(
        self,
        folder: Path,
        look: Callable[[], Awaitable[NodeFactsReport]],
        *,
        command: Sequence[str] = ("npu-smi",),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        patience: Patience | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._records = Records(folder / "resets")
        self._look, self._command, self._now, self._changed = look, tuple(command), now, changed
        self._patience = patience or Patience()
        self._tasks: dict[str, asyncio.Task[ResetReport]] = {}

    async def handle(self, request: ResetRequest) -> ResetReport:
        """Do what is asked, once; an id that was taken up before is answered with what became of it.

        Returns at the end, minutes later: call it in a task of its own. Ending that task doesn't end the reset.
        """
        task = self._tasks.get(request.id)
        if task is None:
            task = asyncio.create_task(self._take(request), name=f"reset {request.id}")
            self._tasks[request.id] = task
            task.add_done_callback(lambda _: self._tasks.pop(request.id, None))
        return await asyncio.shield(task)

    def reports(self) -> tuple[ResetReport, ...]:
        """The newest resets, oldest first."""
        try:
            return self._records.newest()
        except OSError as error:
            _log.warning("The records of resets can't be read: %s", error)
            return ()

    @property
    def running(self) -> bool:
        """Whether a reset of this process is under way: it should be let finish before the agent ends."""
        return bool(self._tasks)

    async def finished(self) -> None:
        """Wait until nothing is under way."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks.values()))

    async def _take(self, request: ResetRequest) -> ResetReport:
        try:
            if (known := self._records.find(request.id)) is not None:
                return known
            with self._records.locked() as lock:
                return await self._begin(request, lock)
        except _RefusedError as refusal:
            return self._refuse(request, refusal)
        except OSError as error:
            # Of the time before the command: `_end` catches what comes after it.
            return self._refuse(request, _RefusedError("NoRecord", f"without a record on the node's disk no reset is begun: {error}"))

    async def _begin(self, request: ResetRequest, lock: int | None) -> ResetReport:
        """Check, write down that it begins, do it, write down how it ended."""
        if lock is None:
            raise _RefusedError(ResetRefusal.ANOTHER_RESET, "another reset of this node is still running")
        self._in_time(request)
        facts = await self._checked(request)
        self._in_time(request)
        begun = ResetReport(id=request.id, state="Running", started=self._text(), message=f"resetting {_cards(request.cards)}")
        if not self._records.claim(self._record(request, begun)):
            return self._records.find(request.id) or begun
        self._changed()
        _log.warning("Reset %s begins: %s, radius %s", request.id, _cards(request.cards), request.radius)
        try:
            result = await self._carry_out(request, facts, lock)
        except Exception as error:  # noqa: BLE001  a reset that was begun ends in a report, whatever happens
            _log.exception("Reset %s", request.id)
            result = _Result("Failed", "AgentError", f"the node agent failed while the reset ran: {error!r}")
        return self._end(request, begun, result)

    async def _checked(self, request: ResetRequest) -> NodeFactsReport:
        """The cards as they are now, when they may be reset."""
        try:
            async with asyncio.timeout(self._patience.limit):
                facts = await self._look()
        except Exception as error:
            message = f"the cards can't be read, so nobody knows whether they are idle: {error!r}"
            raise _RefusedError("CardsUnknown", message) from error
        facts = _present(facts)
        _must_be_idle(request, facts)
        return facts

    async def _carry_out(self, request: ResetRequest, facts: NodeFactsReport, lock: int) -> _Result:
        """Command after command; a card that fails doesn't keep the others from it."""
        done: list[tuple[_Target, _Result]] = []
        begun = asyncio.get_running_loop().time()
        for target in _targets(request, facts):
            if asyncio.get_running_loop().time() - begun > self._patience.limit:
                done.append((target, _Result("Failed", "TimedOut", "not begun: the cards before it took too long")))
                break
            try:
                if done:
                    facts = await self._checked(request)  # minutes have passed since the first look
                result = await self._run(request, facts, target, lock)
            except _RefusedError as refusal:
                done.append((target, _Result("Refused", refusal.reason, refusal.message)))
                break
            done.append((target, result))
            if result.whole_node or result.reason in _SAME_FOR_ALL:
                break
        return _together(done)

    async def _run(self, request: ResetRequest, facts: NodeFactsReport, target: _Target, lock: int) -> _Result:
        """One target: with -c where the product wants it, and the other way round where npu-smi says so."""
        with_chip = facts.product != "950"
        result = await self._speak(request, facts, target, with_chip=with_chip, lock=lock)
        complaint = _CHIP_REFUSED if with_chip else _CHIP_MISSING
        if complaint not in result.output:
            return result
        alone = sum(card.npu == target.npu for card in facts.cards) == 1
        if with_chip and request.radius == "Device" and not alone:
            return result  # without -c all chips of the card would be reset
        return await self._speak(request, facts, target, with_chip=not with_chip, lock=lock)

    async def _speak(self, request: ResetRequest, facts: NodeFactsReport, target: _Target, *, with_chip: bool, lock: int) -> _Result:
        """Run npu-smi once."""
        chip = ("-c", str(target.chip)) if with_chip else ()
        command = (*self._command, "set", "-t", "reset", "-i", str(target.npu), *chip, "-m", "1")
        answers = _Answers(request.radius, facts.product)
        try:
            spoken = await converse(command, answers, _UNDER_WAY, keeps=(lock,), patience=self._patience)
        except OSError as error:
            return _Result("Refused", "ToolMissing", f"npu-smi can't be started: {error}")
        shown = " ".join(command[len(self._command) - 1 :])  # without the words that find the tool on the host
        return _judged(spoken, shown, answers)

    def _in_time(self, request: ResetRequest) -> None:
        try:
            deadline = _moment(request.deadline)
        except ValueError as error:
            raise _RefusedError("BadDeadline", f"the deadline {request.deadline!r} is no time") from error
        if self._now() > deadline:
            raise _RefusedError("TooLate", f"it is past the deadline {request.deadline}")

    def _refuse(self, request: ResetRequest, refusal: _RefusedError) -> ResetReport:
        """Written down like a begun one, so that the answer stays the same; an id that another agent has taken stays that agent's."""
        report = ResetReport(id=request.id, state="Refused", reason=refusal.reason, message=refusal.message[:1024])
        record = self._record(request, report)
        try:
            if not self._records.claim(record):
                return self._records.find(request.id) or report
        except OSError as error:
            _log.warning("The refusal of reset %s can't be written down: %s", request.id, error)
            self._records.remember(record)
        _log.warning("Reset %s refused: %s: %s", request.id, report.reason, report.message)
        self._changed()
        return report

    def _end(self, request: ResetRequest, begun: ResetReport, result: _Result) -> ResetReport:
        report = begun.model_copy(
            update={
                "state": result.state,
                "reason": str(result.reason),
                "message": result.message[:1024],
                "exit_code": result.exit_code,
                "output": result.output[-_MOST_OUTPUT:],
                "ended": self._text(),
            }
        )
        _log.warning("Reset %s ended: %s %s %s", report.id, report.state, report.reason, report.message)
        record = self._record(request, report)
        try:
            self._records.write(record)
            self._records.prune(self._now())
        except OSError as error:
            _log.warning("The end of reset %s can't be written down; after a restart it will be Unknown: %s", report.id, error)
            self._records.remember(record)
        self._changed()
        return report

    def _record(self, request: ResetRequest, report: ResetReport) -> Record:
        now = self._now()
        try:
            deadline = _moment(request.deadline)
        except ValueError:
            deadline = now
        return Record(report, deadline, now)

    def _text(self) -> str:
        return self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _present(facts: NodeFactsReport) -> NodeFactsReport:
    """Without the cards that npu-smi no longer shows, but for those that a pod still holds: nobody knows what it does with them."""
    missing = set(facts.missing or ())
    return facts.model_copy(update={"cards": tuple(card for card in facts.cards if card.physical not in missing or card.holder)})


def _must_be_idle(request: ResetRequest, facts: NodeFactsReport) -> None:
    """Raise _RefusedError where the cards must not be reset as they are, or where that can't be told."""
    if facts.tool.state != "Working":
        message = f"npu-smi is {facts.tool.state}, so nobody knows whether the cards are idle: {facts.tool.message}"
        raise _RefusedError("CardsUnknown", message)
    if facts.virtual:
        raise _RefusedError(ResetRefusal.VIRTUAL_NPU, _ADVICE[ResetRefusal.VIRTUAL_NPU])
    if facts.hccs and request.radius != "Node":
        raise _RefusedError(ResetRefusal.HCCS_ON, f"HCCS is on: {_ADVICE[ResetRefusal.HCCS_ON]}")
    there = {card.physical for card in facts.cards}
    absent = sorted(set(request.cards) - there)
    if not there.intersection(request.cards) or (absent and request.radius != "Node"):
        raise _RefusedError(ResetRefusal.WRONG_CARD, f"npu-smi shows no {_cards(absent) if absent else 'card that was asked for'}")
    touched = _touched(request, facts)
    if not facts.allocations_known:
        raise _RefusedError("CardsUnknown", "kubelet doesn't say which pods hold cards, so nobody knows whether they are idle")
    if unread := [card.physical for card in touched if card.stale or card.pids is None]:
        raise _RefusedError("CardsUnknown", f"whether processes are on {_cards(unread)} can't be read")
    if busy := [f"card {card.physical} {_use(card)}" for card in touched if card.holder or card.pids]:
        message = f"{'; '.join(busy)}; a reset here takes {_cards([card.physical for card in touched])}"
        raise _RefusedError(ResetRefusal.CARDS_BUSY, message)


def _touched(request: ResetRequest, facts: NodeFactsReport) -> list[CardReport]:
    """All cards that the reset takes, whether the operator knew of them or not."""
    if request.radius == "Node":
        return list(facts.cards)
    npus = {card.npu for card in facts.cards if card.physical in request.cards} if request.radius == "Card" else set()
    return [card for card in facts.cards if card.physical in request.cards or card.npu in npus]


def _targets(request: ResetRequest, facts: NodeFactsReport) -> list[_Target]:
    """What to tell npu-smi, command after command; where one takes all, the others aren't needed."""
    found = {_Target(card.npu, 0 if facts.product == "310P" else card.chip) for card in _touched(request, facts)}
    return sorted(found, key=lambda target: (target.npu, target.chip))


def _judged(spoken: Spoken, command: str, answers: _Answers) -> _Result:
    """Success is what text and exit status agree on. A refusal is known by its text, whatever the status is."""
    text, code = parse_reset(spoken.output), spoken.exit_code
    state, reason, message = _verdict(text, spoken, declined=answers.declined)
    words = ": ".join(part for part in (message or text.message, _ADVICE.get(reason)) if part)
    return _Result(state, reason, words, code, f"$ {command}\n{spoken.output.rstrip()}\n", answers.took_all)


def _verdict(text: ResetTranscript, spoken: Spoken, *, declined: bool) -> tuple[ResetState, str, str]:
    """State, reason, and what to say where npu-smi's own words don't."""
    code = spoken.exit_code
    if declined:
        return "Refused", ResetRefusal.HCCS_ON, "it asked whether to reset all devices, and was told no"
    if spoken.timed_out:
        return "Failed", "TimedOut", f"npu-smi didn't end in time and {'was killed' if code is not None else 'cannot be killed'}"
    if text.outcome is ResetOutcome.SUCCEEDED and code == 0:
        return "Succeeded", "", ""
    if text.outcome is ResetOutcome.SUCCEEDED:
        return "Failed", "ExitStatus", f"npu-smi said that it went well, and ended with status {code}"
    if text.refusal is not None:
        return "Refused", text.refusal, ""
    if code in _NOT_STARTED and not text.asked:
        return "Refused", "ToolMissing", ""
    if text.outcome is ResetOutcome.FAILED:
        return "Failed", "ToolFailed", ""
    return "Failed", "NoResult", f"npu-smi ended with status {code} without saying how it went"


def _together(done: list[tuple[_Target, _Result]]) -> _Result:
    """One result of all commands: success only when each was one."""
    output = "".join(result.output for _, result in done)
    bad = [result for _, result in done if result.state != "Succeeded"]
    if not bad:
        return _Result("Succeeded", message=done[-1][1].message, exit_code=0, output=output)
    first = bad[0]
    if len(done) == 1:
        return first
    words = "; ".join(f"NPU {target.npu} chip {target.chip}: {result.message or result.state}" for target, result in done)
    state: ResetState = "Refused" if all(result.state == "Refused" for _, result in done) else "Failed"
    return _Result(state, first.reason, words, first.exit_code, output)


def _moment(text: str) -> datetime:
    read = datetime.fromisoformat(text)
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def _use(card: CardReport) -> str:
    if card.holder:
        return f"is held by pod {card.holder.namespace}/{card.holder.pod}"
    return f"has process {', '.join(map(str, card.pids or ()))}"


def _cards(physical: Sequence[int]) -> str:
    return f"card{'s' if len(physical) != 1 else ''} {', '.join(map(str, physical))}"
