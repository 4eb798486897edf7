"""What CEL rules are written with: the rule itself, and the parts that several rules share.

Used by `rules` and `finetune_rules`. Knows no kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .common import DURATION_PATTERN

if TYPE_CHECKING:
    from collections.abc import Iterable

LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN: Final = rf"{LABEL}(\\.{LABEL})*"


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of `x-kubernetes-validations`; `id` is for people and tests and isn't part of the CRD."""

    id: str
    cel: str
    message: str
    path: str | None = None

    def schema(self) -> dict[str, str]:
        """The rule as the CRD carries it."""
        entry = {"rule": self.cel, "message": self.message}
        return entry if self.path is None else {**entry, "fieldPath": self.path}


def quoted(values: Iterable[str]) -> str:
    """A list of strings in CEL."""
    return "[" + ", ".join(f"'{value}'" for value in values) + "]"


def duration(rule_id: str, shortest: str, longest: str) -> Rule:
    """A length of time between two bounds."""
    # The form is checked first: CEL's duration() takes `1.5h` and fails, instead of answering no, for what is no duration.
    return Rule(
        rule_id,
        f"self.matches('{DURATION_PATTERN}') && self != ''"
        f" && duration(self) >= duration('{shortest}') && duration(self) <= duration('{longest}')",
        f"must be whole numbers with units h, m, s or ms, largest first, between {shortest} and {longest}; for example 300s or 1h30m",
    )
