"""Kubernetes Events, few and useful: repeated ones within a window are not sent again.

Called by controllers; sending happens in the background and never fails a reconcile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glm5_operator.kube.types import Resource


class Events:
    """Records Events on objects."""

    def normal(self, resource: Resource, reason: str, message: str) -> None:
        """Something the user wants to know happened, e.g. `Ready`."""
        raise NotImplementedError

    def warning(self, resource: Resource, reason: str, message: str) -> None:
        """Something the user should act on."""
        raise NotImplementedError
