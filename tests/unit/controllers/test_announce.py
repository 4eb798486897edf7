"""Few Events: one when trouble begins or changes, one when it is over, none for a start that goes well. Faked: the sender of Events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from glm5_operator.controllers.announce import announce
from glm5_operator.kube import Events
from tests.support.objects import a_service


@dataclass
class Sent:
    """Keeps what would have been sent."""

    events: list[tuple[str, str]] = field(default_factory=list)

    def normal(self, _resource: object, reason: str, _message: str) -> None:
        self.events.append(("Normal", reason))

    def warning(self, _resource: object, reason: str, _message: str) -> None:
        self.events.append(("Warning", reason))


def status(value: str, reason: str) -> dict[str, Any]:
    return {"conditions": [{"type": "Ready", "status": value, "reason": reason, "message": "m"}]}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, status("Unknown", "Applying"), []),
        (status("Unknown", "Applying"), status("False", "Loading"), []),
        (status("False", "Loading"), status("True", "Serving"), []),
        (status("True", "Serving"), status("False", "RollingOut"), []),
        (None, status("False", "Checking"), []),
        (status("False", "Checking"), status("False", "Queued"), []),
        (status("False", "Checking"), status("False", "Data"), [("Warning", "Data")]),
        (None, status("False", "PoolNotFound"), [("Warning", "PoolNotFound")]),
        (status("False", "Loading"), status("False", "ImagePullFailed"), [("Warning", "ImagePullFailed")]),
        (status("False", "ImagePullFailed"), status("False", "ImagePullFailed"), []),
        (status("False", "ImagePullFailed"), status("False", "EngineCrashing"), [("Warning", "EngineCrashing")]),
        (status("False", "EngineCrashing"), status("True", "Serving"), [("Normal", "Serving")]),
    ],
)
def test_an_event_is_sent_when_trouble_begins_changes_or_ends(
    before: dict[str, Any] | None, after: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    sent = Sent()

    announce(cast(Events, sent), a_service(status=before), after)

    assert sent.events == expected
