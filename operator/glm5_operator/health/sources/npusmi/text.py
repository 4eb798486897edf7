"""What all of npu-smi's answers have in common: lines, numbers, words for "unknown", and the tool's own error texts.

Used by the parsers beside it and by `hccn`. Texts and codes: npucli's C source in the open CANN driver repository, and pastes in
tests/fixtures/npu-smi.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from glm5_operator.health.sources.reading import ParseProblem, ToolError, ToolErrorKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from glm5_operator.api.node_facts import HealthWord

LONGEST_LINE: Final = 200
MOST_CHARACTERS: Final = 4096
"""Of a line; what is longer is no line of the tool, counts as cut, and can't hold up a pattern."""
MOST_LINES: Final = 10_000
"""Of a text that are looked at; a table of 64 cards has a few hundred. A megabyte of empty lines would keep the agent busy for seconds."""
LEFT_OUT: Final = "..."
"""Stands for the lines beyond: it is no line of the tool, so nobody takes what was read for the whole."""
MOST_PROBLEMS: Final = 64
"""A text that is no answer of the tool at all would give a problem for each line."""

ABSENT: Final = frozenset({"", "-", "--", "NA", "N/A"})
"""The tool's ways to say that it has no value."""

# Without a bar or colon: where standard error and the answer met on one line, the answer isn't to be lost without a word.
_NOISE: Final = (
    re.compile(r"DrvMng\w+ failed\.[^|:]*"),  # the driver's library on standard error, in containers without rights on its log level
    re.compile(r"\[WARNING\][^|]*"),
)
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
_DECIMAL: Final = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?")

PERCENT: Final = (0, 100)
DEGREES: Final = (-60, 200)
"""The tool prints 32765 and the like for a sensor that doesn't answer."""
WATTS: Final = (0, 10_000)
COUNT: Final = (0, 2**32 - 2)
"""2**32 - 1 is how an unread counter looks."""
ID: Final = (0, 65_535)
"""NPU ids are sparse on Duo cards (32896)."""
PID: Final = (0, 2**31 - 1)
MEBIBYTES: Final = (0, 2**31 - 1)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the text.

    Attributes:
        number: from 1.
        text: itself without trailing blanks, tabs as blanks.
        cut: the text ends within it, or it is too long: the tools end every line, so a number on it may have lost digits.
    """

    number: int
    text: str
    cut: bool = False


def split(text: str) -> list[Line]:
    """All lines, the driver library's noise left out."""
    pieces = text.split("\n", MOST_LINES)
    if len(pieces) > MOST_LINES:
        pieces[-1] = LEFT_OUT
    numbered = (
        Line(number, line[:MOST_CHARACTERS].rstrip().expandtabs(8), number == len(pieces) or len(line) > MOST_CHARACTERS)
        for number, line in enumerate(pieces, 1)
    )
    return [line for line in numbered if not any(noise.fullmatch(line.text.lstrip()) for noise in _NOISE)]


@dataclass(slots=True)
class Notes:
    """Collects the problems of one text while it is parsed."""

    found: list[ParseProblem] = field(default_factory=list)

    def add(self, line: Line | None, reason: str) -> None:
        """Note it; past `MOST_PROBLEMS` nothing more is kept."""
        if len(self.found) < MOST_PROBLEMS:
            number, text = (line.number, line.text[:LONGEST_LINE]) if line else (0, "")
            self.found.append(ParseProblem(number, text, reason))

    def whole(self, line: Line) -> bool:
        """Whether the line is all there; a problem if the text ends within it."""
        if line.cut and line.text:
            self.add(line, "the text ends within this line")
        return not line.cut

    def integer(self, line: Line, text: str, what: str, limits: tuple[int, int]) -> int | None:
        """A whole number within limits; None for the tool's words for unknown, and, with a problem, for anything else."""
        if text in ABSENT:
            return None
        if not _INTEGER.fullmatch(text):
            self.add(line, f"{what} is no whole number: {text[:LONGEST_LINE]!r}")
            return None
        return int(text) if self._within(line, int(text), what, limits) else None

    def decimal(self, line: Line, text: str, what: str, limits: tuple[int, int]) -> float | None:
        """The same for a decimal number."""
        if text in ABSENT:
            return None
        if not _DECIMAL.fullmatch(text):
            self.add(line, f"{what} is no number: {text[:LONGEST_LINE]!r}")
            return None
        return float(text) if self._within(line, float(text), what, limits) else None

    def _within(self, line: Line, number: float, what: str, limits: tuple[int, int]) -> bool:
        if limits[0] <= number <= limits[1]:
            return True
        self.add(line, f"{what} can't be {number}")
        return False

    def health(self, line: Line, text: str) -> HealthWord:
        """The documented word; Unknown, with a problem, for a word that isn't documented."""
        match text:
            case "OK" | "Warning" | "Alarm" | "Critical":
                return text
            case "UNKNOWN" | "NA":
                return "Unknown"
        self.add(line, f"{text[:LONGEST_LINE]!r} is none of npu-smi's words for health")
        return "Unknown"

    @property
    def problems(self) -> tuple[ParseProblem, ...]:
        """In the order they were noted."""
        return tuple(self.found)


_DCMI: Final = {
    -8001: ToolErrorKind.INVALID_PARAMETER,
    -8002: ToolErrorKind.NOT_PERMITTED,
    -8005: ToolErrorKind.NO_ACCESS,
    -8006: ToolErrorKind.TIMEOUT,
    -8007: ToolErrorKind.CARD_LOST,
    -8008: ToolErrorKind.CARD_LOST,
    -8012: ToolErrorKind.NOT_READY,
    -8013: ToolErrorKind.NOT_SUPPORTED,
    -8017: ToolErrorKind.NOT_READY,
    -8020: ToolErrorKind.IN_USE,
    -8255: ToolErrorKind.NOT_SUPPORTED,
}
_RETURN_CODE: Final = re.compile(
    r"(?:dcmi (?:module|model) initialized? failed|npu get board type failed|Failed to execute npu-smi)\b.*\bret is (-?[0-9]{1,6})"
)
_ERRORS: Final = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (ToolErrorKind.LIBRARY_MISSING, r".*(?:error while loading shared libraries|cannot open shared object file)"),
        (ToolErrorKind.NOT_PERMITTED, r"This command can be executed only by the root user|Operation not permitted"),
        (ToolErrorKind.NOT_SUPPORTED, r".*(?:does not support (?:querying|setting|clearing|get)|cannot be executed on a)"),
        (ToolErrorKind.CARD_LOST, r"Invalid (?:card|chip|phy) id\."),
        (ToolErrorKind.NO_CARDS, r"There is no NPU card on this server\."),
        (ToolErrorKind.UNKNOWN_COMMAND, r"Command or option is not found\."),
        (ToolErrorKind.INVALID_PARAMETER, r"Error parameter (?:of|in)|Input parameter format error|Must input parameter"),
        (ToolErrorKind.INVALID_PARAMETER, r"This command (?:must|does not support) (?:input|entering)"),
        (ToolErrorKind.DRIVER, r"Failed to (?:get|query|alloc|malloc|execute)\b"),
    )
)
_HELP_FOLLOWS: Final = frozenset({ToolErrorKind.UNKNOWN_COMMAND, ToolErrorKind.INVALID_PARAMETER, ToolErrorKind.CARD_LOST})


def take_error(lines: list[Line]) -> tuple[ToolError | None, list[Line]]:
    """The tool's first error, and the lines that aren't about one: whatever follows a wrong command line is help text."""
    if not any(line.text for line in lines):
        return ToolError(ToolErrorKind.EMPTY, "the tool printed nothing"), []
    error: ToolError | None = None
    rest: list[Line] = []
    for line in lines:
        found = _error(line.text.strip())
        if found is None:
            rest.append(line)
            continue
        error = error or found
        if found.kind in _HELP_FOLLOWS:
            break
    return error, rest


def _error(text: str) -> ToolError | None:
    code = _RETURN_CODE.match(text)
    if code:
        number = int(code[1])
        return ToolError(_DCMI.get(number, ToolErrorKind.DRIVER), text[:LONGEST_LINE], number)
    for kind, pattern in _ERRORS:
        if pattern.match(text):
            return ToolError(kind, text[:LONGEST_LINE])
    return None


def note_strangers(notes: Notes, lines: Iterable[Line]) -> None:
    """A problem for each line that nobody expected, blank ones aside."""
    for line in lines:
        if line.text:
            notes.add(line, "no such line is known here")
