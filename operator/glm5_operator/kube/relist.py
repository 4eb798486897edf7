"""Lists every kind anew from time to time and repairs the cache where the watch missed something.

Run by `app`. A watch can miss deletions (between a broken stream and the next list) and, behind a silent network fault, anything;
kinds that aren't watched at all are only seen here.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from glm5_operator.kube import errors
from glm5_operator.kube.types import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from glm5_operator.kube.cache import Cache
    from glm5_operator.kube.client import Client
    from glm5_operator.kube.kinds import Kind
    from glm5_operator.kube.types import Resource
    from glm5_operator.metrics import Metrics

log = logging.getLogger(__name__)

_NEWEST = 2**63
"""No resourceVersion is above it."""


class Relist:
    """Compares lists with the cache; tells `changed(resource, deleted)` about each difference."""

    def __init__(
        self,
        client: Client,
        cache: Cache,
        metrics: Metrics,
        *,
        kinds: Iterable[Kind],
        namespaces: tuple[str, ...],
        changed: Callable[[Resource, bool], None],
    ) -> None:
        self._client = client
        self._cache = cache
        self._metrics = metrics
        self._kinds = tuple(kinds)
        self._namespaces = namespaces
        self._changed = changed
        self._pending: set[str] = {kind.name for kind in self._kinds if not kind.watched}  # a watch asks for its kind when it starts
        # What is to be looked for nowhere has no watch that would ask for it, and nothing to be waited for.
        self._never: set[str] = {kind.name for kind in self._kinds if kind.places(namespaces)}
        self._newest: dict[tuple[str, str], int] = {}
        self._wake = asyncio.Event()
        self._wake.set()
        self._warm = asyncio.Event()

    def request(self, kind: str) -> None:
        """Have a kind listed soon: its watch was opened anew from a list, so deletions may have been missed."""
        if any(known.name == kind for known in self._kinds):
            self._pending.add(kind)
            self._wake.set()

    async def warm(self) -> None:
        """Wait until every kind was listed once: before that an absent object means nothing."""
        await self._warm.wait()

    async def run(self, period: float) -> None:
        """List what was requested at once, and everything each `period` seconds, until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time() + period
        while True:
            try:
                async with asyncio.timeout(max(0.0, due - loop.time())):
                    await self._wake.wait()
            except TimeoutError:
                self._pending |= {kind.name for kind in self._kinds}
                due = loop.time() + period
            self._wake.clear()
            if not await self._list_pending():
                await asyncio.sleep(2.0)  # the server has trouble; what failed is still pending
                self._wake.set()

    async def _list_pending(self) -> bool:
        """All of them side by side: while one waits for the server, another is taken in. False when some have to be tried again."""
        pending, self._pending = self._pending, set()
        done = await asyncio.gather(*(self._try(kind) for kind in self._kinds if kind.name in pending))
        if not self._never:
            self._warm.set()
        return all(done)

    async def _try(self, kind: Kind) -> bool:
        try:
            await self._list(kind)
        except errors.NotFoundError as error:
            if not kind.optional:
                return self._failed(kind, error)
            for gone in self._cache.sweep(kind.name, None, set(), _NEWEST):  # whoever had brought the kind is gone, and all of it
                self._changed(gone, True)
        except errors.KubeError as error:
            return self._failed(kind, error)
        self._never.discard(kind.name)
        return True

    def _failed(self, kind: Kind, error: errors.KubeError) -> bool:
        log.warning("%s can't be listed: %s", kind.plural, error)
        self._pending.add(kind.name)
        return False

    async def _list(self, kind: Kind) -> None:
        first = kind.name in self._never
        for namespace in kind.places(self._namespaces):
            seen, version = set(), 0
            async for items, page_version in self._client.pages(kind, namespace):
                if not version:
                    version = page_version
                    self._follow(kind, namespace, version)
                for item in items:
                    seen.add(key_of(item))
                    if self._cache.put(item):
                        self._repaired(kind, item, deleted=False, first=first)
            for gone in self._cache.sweep(kind.name, namespace or None, seen, version):
                self._repaired(kind, gone, deleted=True, first=first)

    def _follow(self, kind: Kind, namespace: str, version: int) -> None:
        """Lists never get older (they aren't asked of the server's cache), unless the server was set back."""
        if 0 < version < self._newest.get((kind.name, namespace), 0):
            log.warning("the API server went back to an earlier state of %s, a backup perhaps; its word is taken", kind.plural)
            self._cache.rewind(kind.name)
        self._newest[kind.name, namespace] = version

    def _repaired(self, kind: Kind, resource: Resource, *, deleted: bool, first: bool) -> None:
        if not first and kind.watched:
            self._metrics.relist_repairs.labels(kind.name).inc()
        self._changed(resource, deleted)
