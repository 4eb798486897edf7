"""What every parser of a vendor tool's output gives back: the values it understood, and by name what it didn't.

Used by `npusmi`, `hccn` and `versions`. A value that isn't in the text is None, never zero; a parser never raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class ParseProblem:
    """A line that couldn't be read.

    Attributes:
        line_number: counted from 1; 0 when it is about the whole text.
        line: as printed, cut to `LONGEST_LINE` characters.
        reason: what was wrong with it, in words.
    """

    line_number: int
    line: str
    reason: str

    def __str__(self) -> str:
        """One line for AscendNode's `problems`."""
        return f"line {self.line_number}: {self.reason}: {self.line!r}" if self.line_number else self.reason


class ToolErrorKind(StrEnum):
    """Why the tool gave no answer. None of them says anything about a card's health, except CARD_LOST and NO_CARDS about their presence."""

    NO_ACCESS = "NoAccess"
    """dcmi -8005: device nodes can't be opened, or the driver's libraries don't fit."""
    NOT_PERMITTED = "NotPermitted"
    """dcmi -8002, or a command that only root may run."""
    IN_USE = "InUse"
    """dcmi -8020: another container has the device."""
    TIMEOUT = "Timeout"
    """dcmi -8006."""
    NOT_READY = "NotReady"
    """dcmi -8012, -8017: the device is starting or is being upgraded."""
    NOT_SUPPORTED = "NotSupported"
    """dcmi -8013, -8255, or the tool's own words: this product or place can't do that."""
    LIBRARY_MISSING = "LibraryMissing"
    """The dynamic loader didn't find a library of the driver."""
    CARD_LOST = "CardLost"
    """dcmi -8007, -8008, or "Invalid card id.": there is no such card (any more)."""
    INVALID_PARAMETER = "InvalidParameter"
    """dcmi -8001, "Error parameter of -t": this version knows no such type or option."""
    UNKNOWN_COMMAND = "UnknownCommand"
    """"Command or option is not found."."""
    DRIVER = "Driver"
    """Any other dcmi code."""
    NO_CARDS = "NoCards"
    """"There is no NPU card on this server."."""
    EMPTY = "Empty"
    """Nothing was printed."""


@dataclass(frozen=True, slots=True)
class ToolError:
    """The tool's own words for why it gave no answer.

    Attributes:
        kind: which of the known reasons.
        message: the line that says so.
        code: of dcmi, for example -8005; None where it names none.
    """

    kind: ToolErrorKind
    message: str
    code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What all answers have in common.

    Attributes:
        problems: lines that couldn't be read; values of other lines stand.
        error: the tool said why it has no answer.
    """

    problems: tuple[ParseProblem, ...] = ()
    error: ToolError | None = None

    @property
    def complete(self) -> bool:
        """Every line was understood and the tool told of no error."""
        return self.error is None and not self.problems
