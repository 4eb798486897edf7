"""What a reading of data found: counts, reasons, first bad lines, lengths. Filled by `reading`, printed by `check`."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from glm5_runtime.train.data.batches import filled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from glm5_runtime.train.data.example import Example

SHOWN = 20
"""Bad lines that are kept: enough to see a pattern, however many there are."""
_MESSAGE = 300
_STEPS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576)


@dataclass(frozen=True, slots=True)
class BadLine:
    """One row that was not used, or the file that broke there (`whole_file`)."""

    file: str
    line: int
    reason: str
    message: str
    whole_file: bool = False


@dataclass
class Report:
    """Of one or several files. `read` counts rows, blank lines not; `kept` + `skipped` = `read`."""

    lenient: bool
    max_length: int
    switch: str
    """What the caller's users set to be lenient."""
    read: int = 0
    kept: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """Skipped rows by reason."""
    bad_lines: list[BadLine] = field(default_factory=list)
    """The first ones, in the order of files and lines."""
    broken_files: list[BadLine] = field(default_factory=list)
    """Files that could not be read to their end; no lenience helps."""
    formats: Counter[str] = field(default_factory=Counter)
    """Kept rows by format."""
    examples: int = 0
    """What the kept rows are trained as: a row whose answers need contexts of their own gives several."""
    tokens: int = 0
    trained_tokens: int = 0
    too_long: int = 0
    """Rows longer than `max_length`, cut or refused."""
    cut: int = 0
    unanswered: int = 0
    """Rows whose last messages have no answer and were left out."""
    lengths: array[int] = field(default_factory=lambda: array("i"))
    """Tokens of each example."""
    _digests: array[int] = field(default_factory=lambda: array("Q"))

    @property
    def skipped(self) -> int:
        """Rows that were not used."""
        return self.read - self.kept

    @property
    def duplicates(self) -> int:
        """Examples whose tokens were there before. They are kept: a row may be repeated on purpose."""
        return len(self._digests) - len(np.unique(np.frombuffer(self._digests, np.uint64)))

    @property
    def padding(self) -> float:
        """Share of the computed tokens that are padding: training lays rows side by side, each filled up (`batches.filled`)."""
        return 1 - self.tokens / sum(map(filled, self.lengths)) if self.lengths else 0.0

    @property
    def faults(self) -> list[str]:
        """Why the data can't be used, empty when it can."""
        if self.broken_files:
            return [
                f"{bad.file}:{bad.line}: {bad.reason}: {bad.message}" if bad.file else f"{bad.reason}: {bad.message}"
                for bad in self.broken_files
            ]
        if not self.read:
            return ["0 rows: the files are empty or hold only blank lines"]
        if not self.kept:
            return ["no row can be used"]
        if self.skipped and not self.lenient:
            rows, them = ("1 row", "it") if self.skipped == 1 else (f"{self.skipped} rows", "them")
            return [f"{rows} can't be used; correct {them}, or leave {them} out with {self.switch}"]
        return []

    def skip(self, bad: BadLine) -> None:
        """Count a row that is not used."""
        self.reasons[bad.reason] += 1
        if len(self.bad_lines) < SHOWN:
            self.bad_lines.append(BadLine(bad.file, bad.line, bad.reason, bad.message[:_MESSAGE]))

    def add(self, example: Example) -> None:
        """Count an example that is used."""
        self.examples += 1
        self.tokens += len(example.tokens)
        self.trained_tokens += sum(example.trained)
        self.lengths.append(len(example.tokens))
        digest = blake2b(array("i", example.tokens).tobytes(), digest_size=8).digest()
        self._digests.append(int.from_bytes(digest, "little"))

    def histogram(self) -> list[tuple[int, int, int]]:
        """(longest length, examples, tokens) of each step that has any."""
        found: dict[int, list[int]] = {}
        for length in self.lengths:
            step = next((step for step in _STEPS if length <= step), _STEPS[-1])
            found.setdefault(step, []).append(length)
        return [(step, len(lengths), sum(lengths)) for step, lengths in sorted(found.items())]

    def as_json(self) -> dict[str, Any]:
        """For machines; the names are stable."""
        return {
            "ok": not self.faults,
            "faults": self.faults,
            "lenient": self.lenient,
            "rows_read": self.read,
            "rows_kept": self.kept,
            "rows_skipped": self.skipped,
            "reasons": dict(self.reasons),
            "first_bad_lines": [
                {"file": bad.file, "line": bad.line, "reason": bad.reason, "message": bad.message}
                for bad in [*self.bad_lines, *self.broken_files]
            ],
            "formats": dict(self.formats),
            "duplicates": self.duplicates,
            "unanswered": self.unanswered,
            "max_length": self.max_length,
            "too_long": self.too_long,
            "cut": self.cut,
            "examples": self.examples,
            "tokens": self.tokens,
            "trained_tokens": self.trained_tokens,
            "padding": round(self.padding, 4),
            "lengths": [{"up_to": step, "examples": count, "tokens": tokens} for step, count, tokens in self.histogram()],
        }

    def as_table(self) -> str:
        """For people."""
        lines = [f"rows read {self.read}, kept {self.kept}, skipped {self.skipped}"]
        lines += [f"  {count:>7} {reason}" for reason, count in self.reasons.most_common()]
        if self.bad_lines:
            lines += ["first bad lines" if len(self.bad_lines) < self.skipped else "bad lines"]
            lines += [f"  {bad.file}:{bad.line}: {bad.reason}: {bad.message}" for bad in self.bad_lines]
        if self.kept:
            lines += self._use()
        lines += [f"not usable: {fault}" for fault in self.faults] or ["usable"]
        return "\n".join(lines)

    def _use(self) -> Sequence[str]:
        """What the kept rows are."""
        notes = {
            f"rows longer than {self.max_length} tokens: {self.too_long}, cut: {self.cut}": self.too_long,
            f"examples that repeat an earlier one: {self.duplicates}": self.duplicates,
            f"rows that end without an answer, trained up to their last one: {self.unanswered}": self.unanswered,
        }
        formats = ", ".join(f"{name} {count}" for name, count in sorted(self.formats.items()))
        share = self.trained_tokens / self.tokens
        return [
            f"formats: {formats}",
            f"examples {self.examples}, tokens {self.tokens}, of which {self.trained_tokens} ({share:.0%}) are learned;"
            f" padding {self.padding:.1%}",
            *(note for note, there in notes.items() if there),
            f"  {'tokens':>9} {'examples':>9} {'share of tokens':>16}",
            *(f"  {f'≤ {step}':>9} {count:>9} {tokens / self.tokens:>16.1%}" for step, count, tokens in self.histogram()),
        ]
