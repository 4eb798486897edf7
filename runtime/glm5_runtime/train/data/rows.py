"""A data file → its JSON objects one by one, each with its physical line; or what is wrong with a line, or with the whole file.

Called by `reading`. Holds one row at a time (of an array: a window of the file), however large the file. Decides nothing about formats.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, TextIO

import pydantic_core

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_ROW_BYTES = 16 << 20
"""A longer row is refused unread: a million words are more than any context, and one line must not fill the memory."""
_CHUNK = 1 << 20
_BOM = b"\xef\xbb\xbf"
_BLANKS = b" \t\r\n"
_BEGINNINGS = (  # what files that aren't text in UTF-8 begin with: bytes, name, remedy; UTF-32 before UTF-16, whose mark it begins with
    (b"\xff\xfe\0\0", "UTF-32", "iconv -f UTF-32 -t UTF-8"),
    (b"\0\0\xfe\xff", "UTF-32", "iconv -f UTF-32 -t UTF-8"),
    (b"\xff\xfe", "UTF-16", "iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "UTF-16", "iconv -f UTF-16 -t UTF-8"),
    (b"\x1f\x8b", "gzip", "gunzip"),
    (b"PK\x03\x04", "a zip archive or a spreadsheet", "unzip or export it"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
    (b"PAR1", "Parquet", "export it as JSON lines"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One JSON object; `line` is where it begins, 1-based."""

    line: int
    value: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """One row that can't be used: `reason` is a short name that is counted, `message` says what to change. Never repeats the row's text."""

    line: int
    reason: str
    message: str


class FileError(Exception):
    """A file that is no data at all, or breaks where nothing behind can be read."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"line {fault.line}: {fault.message}")
        self.fault = fault


def read_rows(path: Path) -> Iterator[Row | Fault]:
    """All rows in order, blank lines left out; raises FileError, OSError."""
    with path.open("rb") as file:
        head = file.read(4096)
        if fault := _no_text(head):
            raise FileError(Fault(1, *fault))
        file.seek(0)
        if head.removeprefix(_BOM).lstrip(_BLANKS).startswith(b"["):
            with path.open(encoding="utf-8-sig", newline="") as text:
                yield from _Array(text).rows()
        else:
            yield from _lines(file)


def _no_text(head: bytes) -> tuple[str, str] | None:
    """Reason and message for a file that begins as no JSON in UTF-8 does."""
    for beginning, name, remedy in _BEGINNINGS:
        if head.startswith(beginning):
            return "encoding", f"the file is {name}, expected JSON lines in UTF-8; convert it: {remedy}"
    first = head[:8]
    if len(first) >= 4 and any(first) and (not any(first[0::2]) or not any(first[1::2])):
        return "encoding", "the file is UTF-16 without a byte-order mark; convert it: iconv -f UTF-16LE (or UTF-16BE) -t UTF-8"
    text = head.removeprefix(_BOM).lstrip(_BLANKS)
    if text.startswith(b"<"):
        return "html", "the file is an HTML or XML page, not JSON: most likely an error page that was saved in its place; download it again"
    if text.startswith(b"version https://git-lfs"):
        return "lfs-pointer", "the file is a Git LFS pointer, not the data: git lfs pull"
    return None


def _lines(file: IO[bytes]) -> Iterator[Row | Fault]:
    reader = _Lines(file)
    for line, content in reader:
        if content is None:
            yield Fault(line, "too-large", f"the row is larger than {MAX_ROW_BYTES >> 20} MiB; divide it")
            continue
        found = parse(content, line)
        if isinstance(found, Fault):
            found = _judge(found, content, reader)
        elif not content.isascii():
            reader.utf8 = True
        yield found


class _Lines:
    """(line, content) of lines that aren't blank; content None: too large. Knows whether text beyond ASCII has been seen in UTF-8."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._line = 0
        self._returned: tuple[int, bytes | None] | None = None
        self.first: int | None = None
        self.utf8 = False

    def __iter__(self) -> Iterator[tuple[int, bytes | None]]:
        while (found := self.next()) is not None:
            yield found

    def next(self) -> tuple[int, bytes | None] | None:
        """The next line, None at the end."""
        if self._returned is not None:
            found, self._returned = self._returned, None
            return found
        while content := self._file.readline(MAX_ROW_BYTES + 1):
            self._line += 1
            if len(content) > MAX_ROW_BYTES and not content.endswith(b"\n"):
                while (rest := self._file.readline(_CHUNK)) and not rest.endswith(b"\n"):
                    pass
                return self._line, None
            content = content.removeprefix(_BOM).strip(_BLANKS)  # also where files with marks were joined
            if content:
                self.first = self.first or self._line
                return self._line, content
        return None

    def peek(self) -> bytes:
        """Content of the next line without taking it."""
        self._returned = self.next()
        return (self._returned[1] or b"") if self._returned else b""


def parse(content: bytes, line: int) -> Row | Fault:
    """One row's JSON; a Fault says what kind of mistake it is, as far as that can be told from the row alone."""
    try:
        value = pydantic_core.from_json(content, allow_inf_nan=False)
    except ValueError as error:
        return _why_not(content, line, str(error))
    if not isinstance(value, dict):
        kinds = {list: "an array", str: "a text", bool: "true or false", type(None): "null"}
        return Fault(line, "not-object", f"the row is {kinds.get(type(value), 'a number')}, expected a JSON object")
    return Row(line, value)


def _why_not(content: bytes, line: int, error: str) -> Fault:
    if b"\0" in content:
        return Fault(
            line, "nul-byte", f"there is a NUL byte at byte {content.index(0) + 1}: the file was damaged, or cut while it was written"
        )
    try:
        text = content.decode()
    except UnicodeDecodeError as fault:
        return Fault(line, "not-utf8", f"byte {fault.start + 1} of the row is no UTF-8; save the file as UTF-8")
    try:
        end = json.JSONDecoder().raw_decode(text)[1]
    except (ValueError, RecursionError):
        end = 0
    rest = text[end:].strip()
    if end and rest in (",", "]", ",]"):
        return Fault(
            line, "trailing-comma", f"{rest!r} stands behind the object; JSON lines have one object a line and nothing between them"
        )
    if end and rest.startswith("{") and "\r" in text:
        return Fault(line, "line-ends", "lines end in CR alone; convert them to LF: tr '\\r' '\\n'")
    if end and rest.lstrip(",").lstrip().startswith("{"):
        return Fault(line, "two-rows", "two objects stand on one line; put a line break between them")
    where = error.rpartition(" at line ")
    place = f"column {where[2].rpartition(' ')[2]}" if where[1] else "the row"
    if error.startswith("EOF"):
        return Fault(line, "cut-line", "the line ends in the middle of an object; the file was cut, or the object goes over several lines")
    return Fault(line, "not-json", f"not JSON: {where[0] or error} at {place}")


def _judge(fault: Fault, content: bytes, reader: _Lines) -> Fault:
    """Raise FileError where a row's fault is the whole file's; else the fault as it is."""
    if fault.reason == "not-utf8" and not reader.utf8 and _is_chinese(content):
        raise FileError(Fault(fault.line, "encoding", "the file is GB18030 (GBK), expected UTF-8; convert it: iconv -f GB18030 -t UTF-8"))
    if fault.reason == "cut-line" and reader.first == fault.line:
        following = reader.peek()
        if following and not following.startswith(b"{"):
            why = "one JSON object goes over several lines, expected one object a line; convert it: jq -c . FILE"
            raise FileError(Fault(fault.line, "pretty-printed", why))
    return fault


def _is_chinese(content: bytes) -> bool:
    """Whether bytes that are no UTF-8 are GB18030: they decode, and most pairs are in its area of common characters.

    Nearly any bytes decode as GB18030; texts in Windows-1252 or Shift-JIS rarely have two high bytes in a row in that area.
    """
    try:
        content.decode("gb18030")
    except UnicodeDecodeError:
        return False
    pairs = common = at = 0
    while at < len(content):
        if content[at] < 0x80:
            at += 1
            continue
        pairs += 1
        common += content[at] >= 0xA1 and content[at + 1] >= 0xA1
        at += 2
    return common * 2 > pairs


class _Array:
    """Elements of a JSON array, whatever its line breaks, from a window that moves over the file."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._text = ""
        self._at = 0
        self._line = 1
        self._ended = False
        self._decoder = json.JSONDecoder()

    def rows(self) -> Iterator[Row | Fault]:
        """All elements; raises FileError where the array breaks."""
        self._next()
        self._at += 1  # the bracket
        behind = self._next()
        while behind != "]":
            line = self._line
            yield parse(self._element().encode(), line)
            behind = self._next()
            if behind == ",":
                self._at += 1
                behind = self._next()
                if behind == "]":
                    raise self._broken("a comma stands behind the last element")
            elif behind != "]":
                raise self._broken("the file ends before the array does" if not behind else "a comma or ] is missing behind an element")
        self._at += 1
        if self._next():
            raise self._broken("there is more behind the array's end; expected one array, or one object a line")

    def _element(self) -> str:
        fault = ""
        while True:
            try:
                end = self._decoder.raw_decode(self._text, self._at)[1]
            except (ValueError, RecursionError) as error:
                fault = str(getattr(error, "msg", "nested too deeply"))
                end = -1
            if end >= 0 and (end < len(self._text) or self._ended):
                break
            if self._ended:
                raise self._broken(f"not JSON ({fault})")
            if len(self._text) - self._at > MAX_ROW_BYTES:
                raise self._broken(f"an element is not JSON, or larger than {MAX_ROW_BYTES >> 20} MiB")
            self._more()
        element = self._text[self._at : end]
        self._line += element.count("\n")
        self._at = end
        return element

    def _next(self) -> str:
        """The next character that isn't blank, not taken; empty at the end."""
        while True:
            while self._at < len(self._text):
                character = self._text[self._at]
                if character not in " \t\r\n":
                    return character
                self._line += character == "\n"
                self._at += 1
            if self._ended:
                return ""
            self._more()

    def _more(self) -> None:
        left = self._text[self._at :]
        try:
            read = self._file.read(max(_CHUNK, len(left)))  # as much again: an element over many pieces is tried only a few times
        except UnicodeDecodeError:
            line = self._line + left.count("\n")
            raise FileError(Fault(line, "encoding", "the array is not UTF-8 somewhere behind this line; save the file as UTF-8")) from None
        self._text, self._at, self._ended = left + read, 0, not read

    def _broken(self, why: str) -> FileError:
        return FileError(
            Fault(self._line, "array", f"the file is a JSON array and breaks here: {why}; or write one object a line: jq -c '.[]'")
        )
