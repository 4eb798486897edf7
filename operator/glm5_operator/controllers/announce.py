"""Which change of a status is worth an Event: trouble that begins, and trouble that is over.

Used by the controllers. A start that goes well sends none: at a thousand services each Event is one more write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glm5_operator.status.service import ORDINARY_REASONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glm5_operator.kube import Events, Resource


def announce(events: Events, resource: Resource, status: Mapping[str, Any]) -> None:
    """Send what changed between the status in `resource` and the new one."""
    before, after = _ready(resource.get("status") or {}), _ready(status)
    was_trouble, is_trouble = _is_trouble(before), _is_trouble(after)
    if is_trouble and after.get("reason") != before.get("reason"):
        events.warning(resource, after["reason"], after["message"])
    elif was_trouble and after.get("status") == "True":
        events.normal(resource, after["reason"], f"{after['message']}; before: {before.get('reason')}")


def _ready(status: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((item for item in status.get("conditions") or () if item.get("type") == "Ready"), {})


def _is_trouble(ready: Mapping[str, Any]) -> bool:
    return ready.get("status") in {"False", "Unknown"} and ready.get("reason") not in ORDINARY_REASONS
