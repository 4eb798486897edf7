"""Brings live objects to their desired state with as few writes as possible.

Called by controllers. Decides nothing about what is wanted; turns every refusal into a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from glm5_operator.kube.types import ApiFailure, Applied, Manifest, Resource


class Applier:
    """Server-side apply with field manager `glm5-operator`, skipped where the live object already says so."""

    async def converge(self, owner: Resource, desired: Sequence[Manifest], live: Sequence[Resource]) -> Applied:
        """Make the owner's children equal `desired`; `live` is `Cache.children(owner uid)`.

        Children without a place in `desired` are removed (PersistentVolumeClaims excepted). One failure doesn't keep the
        rest from being tried. A desired object that exists and isn't the owner's is a NameConflict failure and left alone.
        """
        raise NotImplementedError

    async def write_status(self, resource: Resource, status: Mapping[str, Any]) -> ApiFailure | None:
        """Write the whole `.status` if it differs from the one in `resource`; an object that is gone is no failure."""
        raise NotImplementedError

    async def patch_node(
        self, node: Resource, *, labels: Mapping[str, str | None], taints: Sequence[Mapping[str, Any]] | None = None
    ) -> ApiFailure | None:
        """Set (or with None remove) labels of a node, and replace its taints when given; no write when nothing differs.

        Taints are one atomic list that others write too, so a patch with taints carries the node's resourceVersion
        and a concurrent change is a retryable Conflict.
        """
        raise NotImplementedError
