"""From the repetitions of a figure to what tables say of it. Used by `make bench-engine`. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.utilisation import Utilisation

TRIMMED_FROM = 5
"""Repetitions from which on the least and the most are dropped before the spread."""
COLUMNS = ("figure", "median", "least", "most", "runs", "spread", "aim")
BUSY_COLUMNS = ("part", "seconds", "cores busy", "by the benchmark", "by others", "by others, at most")


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure's name, its value in each repetition, and what is aimed at."""

    name: str
    values: Sequence[float]
    aim: str = ""

    @property
    def median(self) -> float:
        """Of all repetitions; without the least and the most it is the same."""
        return statistics.median(self.values)

    @property
    def kept(self) -> list[float]:
        """Values that the spread is of, in ascending order."""
        ordered = sorted(self.values)
        return ordered[1:-1] if len(ordered) >= TRIMMED_FROM else ordered

    @property
    def spread(self) -> float | None:
        """Standard deviation of what is kept by its mean; None of a single value."""
        kept = self.kept
        return statistics.stdev(kept) / abs(statistics.fmean(kept)) if len(kept) > 1 else None

    def row(self) -> tuple[str, ...]:
        """Cells in the order of COLUMNS."""
        numbers = [f"{value:.3g}" for value in (self.median, min(self.values), max(self.values))]
        spread = "–" if self.spread is None else f"± {self.spread:.1%}".replace("%", " %")
        return (self.name, *numbers, str(len(self.values)), spread, self.aim)


def busy_row(part: str, found: Utilisation) -> tuple[str, ...]:
    """Cells in the order of BUSY_COLUMNS."""
    shares = [f"{share * 100:.0f} %" for share in (found.busy, found.own, found.others, found.others_at_most)]
    return (part, f"{found.seconds:.0f}", f"{shares[0]} of {found.cores}", *shares[1:])


def section(title: str, machine: str, figures: Sequence[Figure], parts: Mapping[str, Utilisation]) -> str:
    """A section of docs/benchmarks.md: the figures, then how busy the machine was during each part."""
    lines = [f"\n## {title}\n", f"{machine}\n", *_table(COLUMNS, [figure.row() for figure in figures]), ""]
    lines += _table(BUSY_COLUMNS, [busy_row(part, found) for part, found in parts.items()])
    return "\n".join(lines) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    head, *body = (f"| {' | '.join(cells)} |" for cells in (columns, *rows))
    return [head, "|" + "---|" * len(columns), *body]
