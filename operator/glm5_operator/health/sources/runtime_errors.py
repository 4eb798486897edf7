"""Error codes in the end of a log, classed by a table (`runtime_errors.yaml`): whose fault it is, as far as a code can say.

Used by `status` for what engines and trainers said last. A code is evidence for people and a hint where to try next; it is never a reason
to reset a card, since a kernel's bug or one bad request have given most of them. That is why nothing here reaches the remedy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Final

import yaml
from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MOST_TEXT: Final = 64 * 1024
"""Characters of the end of a log that are looked at: plogs grow to 200 MB."""
MOST_LINE: Final = 240
"""Characters of the line that are shown."""

# Six digits are a code where a word before them says so; of the runtime's own 507xxx any such word in the line will do, since "507033"
# alone may be a step, a port or a loss. A number that the container runtime cut in two lines is put together before.
_NAMED: Final = re.compile(
    r"(?:error[ _-]?code|errcode|retcode|\bret\b|acl\w*|result|error)\s*(?:is|was|=|:|\[|\()*\s*(-8\d{3}|\d{6})(?!\d)", re.IGNORECASE
)
_BARE: Final = re.compile(r"(?<![\d.])507\d{3}(?![\d.]\d|\d)")
_ABOUT_ERRORS: Final = re.compile(r"err|fail|exception|abnormal|\bret\b|result|abort", re.IGNORECASE)
_LETTERS: Final = re.compile(r"\bE(?:[A-Z]\d{4}|[1-9]\d{4})(?!\d)")
_CUT: Final = re.compile(r"(error code(?: is|:) ?\d{1,5})\r?\n(\d{1,5})(?!\d)", re.IGNORECASE)
_UNPRINTABLE: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x1f\x7f]")


class Kind(StrEnum):
    """Whose fault it is; runtime_errors.yaml says what each means."""

    HARDWARE = "Hardware"
    DRIVER = "Driver"
    USER = "User"
    RESOURCE = "Resource"
    PEER = "Peer"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The code that says most among those of a text.

    Attributes:
        code: as written; for texts that mean a code without naming it, that code.
        kind: whose fault it is.
        line: the line that it stands in, clipped.
        known: the table has it.
        general: it says only that something failed.
        elsewhere: another card may do better.
        memory: the card's memory ran out.
        meaning: in words; empty for a code that nobody knows.
        fix: what to do; empty for such a code.
    """

    code: str
    kind: Kind
    line: str
    known: bool = True
    general: bool = False
    elsewhere: bool = False
    memory: bool = False
    meaning: str = ""
    fix: str = ""

    def __str__(self) -> str:
        if not self.known:
            return f"error code {self.code} is unknown here"
        whose = "" if self.kind is Kind.UNKNOWN else f" ({self.kind.lower()})"
        return f"error code {self.code}{whose}: {self.meaning}; {self.fix}"


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    kind: Kind
    meaning: str
    fix: str
    codes: Annotated[tuple[str, ...], Field(strict=False)] = ()
    pattern: re.Pattern[str] | None = None
    says: Annotated[tuple[re.Pattern[str], ...], Field(strict=False)] = ()
    general: bool = False
    elsewhere: bool = False
    memory: bool = False


@dataclass(frozen=True, slots=True)
class _Table:
    by_code: Mapping[str, _Row]
    by_pattern: tuple[tuple[re.Pattern[str], _Row], ...]
    by_text: tuple[tuple[re.Pattern[str], str, _Row], ...]


def evidence(text: str) -> Evidence | None:
    """What the end of a log says by its codes; None when it has none.

    The card's own word comes first, then that its memory ran out, then that this rank waited for another, then the first code that is
    known: what follows an error mostly follows from it. A code that only says that something failed comes last.
    """
    return _evidence(text[-MOST_TEXT:])


@lru_cache(maxsize=128)  # the same last words are looked at with each news of the pod that said them, and take some milliseconds
def _evidence(text: str) -> Evidence | None:
    text = _CUT.sub(_joined, text)
    found = sorted(_found(text), key=lambda item: (_rank(item[1]), item[0]))
    return found[0][1] if found else None


def _rank(item: Evidence) -> int:
    if item.general:
        return 5
    if not item.known:
        return 4
    if item.kind is Kind.HARDWARE:
        return 0
    if item.memory:
        return 1
    return 2 if item.kind is Kind.PEER else 3


def _found(text: str) -> Iterator[tuple[int, Evidence]]:
    table = _table()
    for match in _NAMED.finditer(text):
        yield match.start(1), _of(match[1], table.by_code.get(match[1]), text, match.start(1))
    for match in _BARE.finditer(text):
        row = table.by_code.get(match[0])
        if row is not None and _ABOUT_ERRORS.search(_line(text, match.start())):
            yield match.start(), _of(match[0], row, text, match.start())
    for match in _LETTERS.finditer(text):
        row = table.by_code.get(match[0])
        if row is not None or match[0][1:2].isalpha():
            yield match.start(), _of(match[0], row, text, match.start())
    for pattern, row in table.by_pattern:
        for match in pattern.finditer(text):
            yield match.start(), _of(match[0], row, text, match.start())
    for pattern, code, row in table.by_text:
        for match in pattern.finditer(text):
            yield match.start(), _of(code, row, text, match.start())


def _of(code: str, row: _Row | None, text: str, at: int) -> Evidence:
    line = _UNPRINTABLE.sub("", _line(text, at)).strip()[:MOST_LINE]
    if row is None:
        return Evidence(code, Kind.UNKNOWN, line, known=False)
    return Evidence(code, row.kind, line, general=row.general, elsewhere=row.elsewhere, memory=row.memory, meaning=row.meaning, fix=row.fix)


def _line(text: str, at: int) -> str:
    """The line around a place; of one without end what is near."""
    start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
    return text[max(start, at - MOST_LINE // 2) : min(end if end >= 0 else len(text), at + MOST_LINE)]


def _joined(cut: re.Match[str]) -> str:
    """A known code that was cut by the end of a line, whole; what isn't known stays as it was."""
    whole = cut[1] + cut[2]
    return whole if re.search(r"\d+$", whole)[0] in _table().by_code else cut[0]  # type: ignore[index]  # both parts end in digits


@cache
def _table() -> _Table:
    text = (resources.files("glm5_operator.health.sources") / "runtime_errors.yaml").read_text(encoding="utf-8")
    rows = [_Row.model_validate(row) for row in yaml.safe_load(text)]
    by_code = {code: row for row in rows for written in row.codes for code in _each(written)}
    by_pattern = tuple((re.compile(rf"\b(?:{row.pattern.pattern})\b"), row) for row in rows if row.pattern is not None)
    return _Table(by_code, by_pattern, tuple((says, row.codes[0], row) for row in rows for says in row.says))


def _each(written: str) -> Iterator[str]:
    """The codes of `507014-507018`, or the one that is written."""
    first, dash, last = written.partition("-")
    if not (first and dash):
        yield written
        return
    yield from (str(code) for code in range(int(first), int(last) + 1))
