"""Which nodes have a device plugin of MindCluster that resets cards by itself: by its flag -hotReset, from the DaemonSets.

Asked by the node controller: two hands must not reset one card. Looked for before the first answer and every minute from then on, since
DaemonSets aren't watched and the flag hardly ever changes.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from glm5_operator.controllers.taints import runs_on
from glm5_operator.health.sources.mindcluster import hot_reset
from glm5_operator.kube import errors

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from glm5_operator.kube import Resource

log = logging.getLogger(__name__)


class Plugins:
    """Looks, remembers, and tells when it changed."""

    def __init__(self, daemon_sets: Callable[[], Awaitable[Sequence[Resource]]], every: float, changed: Callable[[], None]) -> None:
        self._daemon_sets, self._every, self._changed = daemon_sets, every, changed
        self._resetting: list[Mapping[str, Any]] | None = None

    async def resets(self, node: Resource) -> bool:
        """Whether one of them resets on that node. Raises KubeError when the server can't say, and nobody has asked it before."""
        if self._resetting is None:
            self._resetting = await self._look()
        return any(runs_on(daemon_set, node) for daemon_set in self._resetting)

    async def run(self) -> None:
        """Look again and again, until cancelled; a server that can't say changes nothing."""
        while True:
            await asyncio.sleep(self._every)
            try:
                found = await self._look()
            except errors.KubeError as error:
                log.debug("device plugins: %s", error)
                continue
            if found != self._resetting:
                log.info("%d DaemonSets reset cards by themselves", len(found))
                self._resetting = found
                self._changed()

    async def _look(self) -> list[Mapping[str, Any]]:
        """What matters of them: an update of their status is no news."""
        found = [item for item in await self._daemon_sets() if hot_reset(item["spec"]["template"])]
        return [{"spec": {"template": {"spec": {"nodeSelector": item["spec"]["template"]["spec"].get("nodeSelector")}}}} for item in found]
