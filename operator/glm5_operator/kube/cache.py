"""What the watches have seen, kept small: the only place controllers read from.

Fed by the watch handlers in `app` and by the relist; read by controllers. Does no I/O and knows no controller.
Objects are kept as JSON bytes and decoded on demand: a thousand services with children cost tens of megabytes as
Python dicts and a tenth of that as bytes, while each is read a few times in its life.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glm5_operator.kube.types import Key, Resource

if TYPE_CHECKING:
    from collections.abc import Iterator

Resources = list[Resource]  # a name of its own: inside the class `list` is the method


class Cache:
    """Objects by key, with the lookups that controllers need."""

    def get(self, kind: str, namespace: str, name: str) -> Resource | None:
        """The object as last seen, or None. `namespace` is "" for kinds of the cluster."""
        raise NotImplementedError

    def list(self, kind: str, namespace: str | None = None) -> Resources:
        """All objects of a kind, in one namespace or everywhere, ordered by key."""
        raise NotImplementedError

    def keys(self, kind: str) -> Iterator[Key]:
        """The keys of a kind, without decoding anything."""
        raise NotImplementedError

    def children(self, owner_uid: str) -> Resources:
        """Objects (of any watched kind but Pod) whose controller reference names this uid, ordered by key."""
        raise NotImplementedError

    def pods(self, service: Key) -> Resources:
        """The pods of one GLM5Service, found by namespace and the `glm5.dev/service` label, ordered by name."""
        raise NotImplementedError

    def nodes(self, pool: str) -> Resources:
        """The nodes that carry `glm5.dev/pool=<pool>`, ordered by name."""
        raise NotImplementedError
