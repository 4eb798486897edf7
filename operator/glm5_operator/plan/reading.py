"""What a pod template says: its engine, and the memory that it gets.

For `guard` and `service`, which read templates that users had a hand in: what is absent or of another shape reads as nothing, and that
lists which merge by a key are lists of objects is the work of `merge`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glm5_operator.api import names
from glm5_operator.api.common import quantity_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glm5_operator.plan.facts import Manifest


def engine_of(pod: Manifest) -> Manifest | None:
    """The engine's container of a pod template."""
    containers = object_at(pod, "spec").get("containers", [])
    return next((entry for entry in containers if entry["name"] == names.ENGINE_CONTAINER), None)


def memory_of(pod: Manifest) -> int | None:
    """Bytes of main memory that the engine may take: its limit, else its request; None when it has neither, or no quantity."""
    engine = engine_of(pod) or {}
    stated = (object_at(engine, "resources", kind).get("memory") for kind in ("limits", "requests"))
    return next((size for amount in stated if (size := bytes_of(amount)) is not None), None)


def shm_of(pod: Manifest) -> int | None:
    """Bytes of /dev/shm; None when it has no limit of its own."""
    volume: Manifest = next((entry for entry in object_at(pod, "spec").get("volumes", []) if entry["name"] == "shm"), {})
    return bytes_of(object_at(volume, "emptyDir").get("sizeLimit"))


def bytes_of(amount: object) -> int | None:
    """A quantity's value; None of what is no quantity."""
    try:
        return quantity_bytes(str(amount))
    except ValueError:
        return None


def object_at(value: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """The object at a path; empty where something else or nothing is there."""
    for key in keys:
        found = value.get(key)
        if not isinstance(found, dict):
            return {}
        value = found
    return dict(value)
