"""Which gang schedulers the cluster has: Kueue and Volcano, known by the kinds that the API server serves.

Asked by the fine-tuning controller. Looked for before the first answer and every minute from then on: one request, which every account may
make, where watching CustomResourceDefinitions would need a right of its own.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from glm5_operator.kube import errors, kinds

if TYPE_CHECKING:
    from collections.abc import Callable

    from glm5_operator.kube.client import Client

log = logging.getLogger(__name__)

_KUEUE: Final = "kueue.x-k8s.io"
_WORKLOADS: Final = "workloads"


@dataclass(frozen=True, slots=True)
class Installed:
    """What is there."""

    kueue: bool = False
    volcano: bool = False


class Gangs:
    """Looks, remembers, and tells when it changed."""

    def __init__(self, client: Client, every: float, changed: Callable[[], None]) -> None:
        self._client, self._every, self._changed = client, every, changed
        self._found: Installed | None = None

    async def installed(self) -> Installed:
        """As last seen; the first time the server is asked. Raises KubeError when it can't say."""
        if self._found is None:
            self._found = await self._look()
        return self._found

    async def run(self) -> None:
        """Look again and again, until cancelled; a server that can't say changes nothing."""
        while True:
            await asyncio.sleep(self._every)
            try:
                found = await self._look()
            except errors.KubeError as error:
                log.debug("gang schedulers: %s", error)
                continue
            if found != self._found:
                log.info("gang schedulers: %s", found)
                self._found = found
                self._changed()

    async def _look(self) -> Installed:
        groups = (await self._client.raw_get("/apis")).get("groups") or ()
        versions = {item.get("name"): (item.get("preferredVersion") or {}).get("groupVersion") for item in groups}
        pod_groups = kinds.POD_GROUP
        return Installed(
            kueue=_KUEUE in versions and await self._serves(str(versions[_KUEUE]), _WORKLOADS),
            volcano=pod_groups.group in versions and await self._serves(pod_groups.api_version, pod_groups.plural),
        )

    async def _serves(self, group_version: str, plural: str) -> bool:
        try:
            resources = (await self._client.raw_get(f"/apis/{group_version}")).get("resources") or ()
        except errors.NotFoundError:
            return False
        return any(item.get("name") == plural for item in resources)
