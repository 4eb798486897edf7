"""What a row of the tables of CEL rules holds."""

from __future__ import annotations

from dataclasses import dataclass

from tests.api.crd.documents import Json


@dataclass(frozen=True)
class Case:
    """A rule at its edge.

    Attributes:
        rule: Id of the rule.
        accepted: A document that is taken, as near to the edge as can be.
        rejected: A document that differs in what the rule is about.
        says: Part of the message; what a user reads must name what to change.
        before: For rules about changes: the stored document, with its status. The other two are then updates of it.
    """

    rule: str
    accepted: Json
    rejected: Json
    says: str
    before: Json | None = None
