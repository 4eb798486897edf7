"""Data files → examples, and the report of what was found: the one way data enters training, for the check and for the loop.

Reads top-down: `check` counts, `load` keeps the examples, both go through `examples_of`. Files are read once, a few rows at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from glm5_runtime.train.data.dataset import Dataset, Pairs
from glm5_runtime.train.data.example import Example, Pair
from glm5_runtime.train.data.formats import Document, Format, Preference, RowError, recognise, understand
from glm5_runtime.train.data.report import BadLine, Report
from glm5_runtime.train.data.rows import Fault, FileError, Row, read_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from glm5_runtime.train.data.formats import Record
    from glm5_runtime.train.data.labels import Rendered, Renderer

_BATCH_ROWS = 128
_BATCH_CHARACTERS = 1 << 18


class DataError(Exception):
    """The data can't be trained on; `report` says why."""

    def __init__(self, report: Report) -> None:
        super().__init__("; ".join(report.faults))
        self.report = report


@dataclass(frozen=True)
class ReadingConfig:
    """How files are read."""

    max_length: int
    """Longest example, tokens."""
    format: Format | Literal["auto"] = "auto"
    """auto: each row says its own by its keys; else rows of another one are refused."""
    long_rows: Literal["refuse", "cut"] = "refuse"
    """What becomes of longer rows. Cut: the tokens behind max_length are left out."""
    lenient: bool = False
    """Leave out rows that can't be used, and say so. Else one of them is enough to refuse the data."""
    switch: str = "data.lenient"
    """By what name users know `lenient`: that of the training file and of a GLM5FinetuneJob's spec, or an option."""


def check(
    files: Sequence[Path],
    renderer: Renderer,
    config: ReadingConfig,
    *,
    for_training: bool = False,
    look: Callable[[Example], object] | None = None,
) -> Report:
    """Read everything and keep nothing. `for_training`: what `load` refuses is a fault, preference pairs too. `look` sees each example."""
    report = Report(config.lenient, config.max_length, config.switch)
    examples = 0
    for found in examples_of(files, renderer, config, report):
        if isinstance(found, Example):
            examples += 1
            if look is not None:
                look(found)
    if for_training and report.kept and not examples:
        report.broken_files.append(_PAIRS)
    return report


def load(files: Sequence[Path], renderer: Renderer, config: ReadingConfig) -> tuple[Dataset, Report]:
    """The examples of all files; raises DataError when the data can't be used, or holds preference pairs."""
    report = Report(config.lenient, config.max_length, config.switch)
    data = Dataset()
    reading = _Reading(renderer, config, report)
    for path in files:
        data.begin_file()
        for found in reading.file(path):
            if isinstance(found, Example):
                data.append(found)
    return data, _usable(report, len(data), _PAIRS)


def load_pairs(files: Sequence[Path], renderer: Renderer, config: ReadingConfig) -> tuple[Pairs, Report]:
    """The preference pairs of all files; raises DataError as `load` does."""
    report = Report(config.lenient, config.max_length, config.switch)
    data = Pairs()
    for found in examples_of(files, renderer, config, report):
        if isinstance(found, Pair):
            data.append(found)
    return data, _usable(report, len(data), _NO_PAIRS)


_PAIRS = BadLine("", 0, "mixed", "the rows are preference pairs; this method learns from conversations or text")
_NO_PAIRS = BadLine("", 0, "mixed", "the rows are no preference pairs; this method needs chosen and rejected")


def _usable(report: Report, examples: int, other_kind: BadLine) -> Report:
    if report.kept and not examples:
        report.broken_files.append(other_kind)
    if report.faults:
        raise DataError(report)
    return report


def examples_of(files: Sequence[Path], renderer: Renderer, config: ReadingConfig, report: Report) -> Iterator[Example | Pair]:
    """All examples in the order of the files, everything counted in `report`."""
    reading = _Reading(renderer, config, report)
    for path in files:
        yield from reading.file(path)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A row that is understood and waits for its tokens."""

    line: int
    form: Format
    rendered: list[Rendered]
    unanswered: int


class _Reading:
    """State of one reading over several files: the report, and what kind of rows there are."""

    def __init__(self, renderer: Renderer, config: ReadingConfig, report: Report) -> None:
        self._renderer = renderer
        self._config = config
        self._report = report
        self._first: tuple[bool, str] | None = None  # whether the first good row is a pair, and where it stands

    def file(self, path: Path) -> Iterator[Example | Pair]:
        """The examples of one file; a file that breaks ends its part of the report, not the others'."""
        waiting: list[_Waiting | BadLine] = []
        characters = 0
        for found in self._rows(path):
            waiting.append(found)
            if isinstance(found, _Waiting):
                characters += sum(len(each.text) for each in found.rendered)
            if len(waiting) >= _BATCH_ROWS or characters >= _BATCH_CHARACTERS:
                yield from self._tokens(str(path), waiting)
                waiting, characters = [], 0
        yield from self._tokens(str(path), waiting)

    def _rows(self, path: Path) -> Iterator[_Waiting | BadLine]:
        try:
            for found in read_rows(path):
                self._report.read += 1
                if isinstance(found, Fault):
                    yield BadLine(str(path), found.line, found.reason, found.message)
                    continue
                try:
                    yield self._understood(path, found)
                except RowError as error:
                    yield BadLine(str(path), found.line, error.reason, error.message)
        except FileError as error:
            self._report.broken_files.append(BadLine(str(path), error.fault.line, error.fault.reason, error.fault.message, True))
        except OSError as error:
            self._report.broken_files.append(BadLine(str(path), 0, "unreadable", f"can't be read: {error.strerror or error}", True))

    def _understood(self, path: Path, row: Row) -> _Waiting:
        form = recognise(row.value)
        if self._config.format not in ("auto", form):
            raise RowError("format", f"the row is {form}, and only {self._config.format} is asked for")
        where = f"line {row.line} of {path.name}"
        is_pair = form == "preference"
        if self._first is not None and self._first[0] != is_pair:
            kinds = ("a preference pair", "a conversation or text")
            mine, other = kinds if is_pair else kinds[::-1]
            raise RowError("mixed", f"the row is {mine}, and {self._first[1]} is {other}: no method learns from both; divide the file")
        record = understand(row.value, form)
        rendered = self._rendered(record)
        self._first = self._first or (is_pair, where)
        return _Waiting(row.line, form, rendered, 0 if isinstance(record, Document | Preference) else record.unanswered)

    def _rendered(self, record: Record) -> list[Rendered]:
        if isinstance(record, Document):
            return self._renderer.document(record)
        if isinstance(record, Preference):
            both = [self._renderer.conversation(each) for each in (record.chosen, record.rejected)]
            if any(len(parts) > 1 for parts in both):
                raise RowError("pair", "chosen or rejected holds answers that were made in different contexts; keep one behind the prompt")
            return [part for parts in both for part in parts]
        return self._renderer.conversation(record)

    def _tokens(self, file: str, waiting: Sequence[_Waiting | BadLine]) -> Iterator[Example | Pair]:
        """Rows in order: bad ones into the report, the others with their tokens."""
        rows = [row for row in waiting if isinstance(row, _Waiting)]
        texts = [(each, row.line) for row in rows for each in row.rendered]
        made = iter(self._renderer.examples([each for each, _ in texts], [line for _, line in texts]))
        for row in waiting:
            if isinstance(row, BadLine):
                self._report.skip(row)
                continue
            try:
                examples = self._fitted([next(made) for _ in row.rendered], row.form == "preference")
            except RowError as error:
                self._report.skip(BadLine(file, row.line, error.reason, error.message))
                continue
            yield from self._kept(row, examples)

    def _kept(self, row: _Waiting, examples: list[Example]) -> Iterable[Example | Pair]:
        self._report.kept += 1
        self._report.formats[row.form] += 1
        self._report.unanswered += row.unanswered > 0
        for example in examples:
            self._report.add(example)
        return [Pair(*examples)] if row.form == "preference" else examples

    def _fitted(self, made: Sequence[Example | RowError], is_pair: bool) -> list[Example]:
        """The examples of one row, not longer than allowed; raises RowError when one of them can't be used."""
        limit = self._config.max_length
        faults = [each for each in made if isinstance(each, RowError)]
        if faults:
            raise faults[0]
        examples = [each for each in made if isinstance(each, Example)]
        longest = max(len(example.tokens) for example in examples)
        self._report.too_long += longest > limit
        if longest > limit and self._config.long_rows == "refuse":
            raise RowError(
                "too-long", f"the row has {longest} tokens, more than {limit}; divide it, raise the limit, or have long rows cut"
            )
        short = [Example(each.tokens[:limit], each.trained[:limit], each.line) for each in examples]
        left = [each for each in short if any(each.trained[1:])]  # nothing precedes the first token, so nothing learns it
        if not left or (is_pair and len(left) < 2):
            raise RowError("too-long", f"the prompt alone has {limit} tokens or more: nothing of an answer is left")
        self._report.cut += longest > limit
        return left
