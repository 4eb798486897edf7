"""Watches the kinds that kopf doesn't: what the cluster writes back, in large numbers.

Run by `app` beside kopf, through a session of `WatchSession`. Not by kopf: it takes several times the CPU for each event, and a cluster
has thousands of pods that aren't ours (docs/decisions/0009). What was there before a watch began is the relist's, which is asked for it.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from glm5_operator.kube.wire import decode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

    from glm5_operator.kube.kinds import Kind
    from glm5_operator.settings import Watch

log = logging.getLogger(__name__)

_PAUSES: Final = (0.5, 1.0, 2.0, 5.0)
_SHORT: Final = 1.0  # s; a watch that ends sooner did so because of some trouble, whatever it says


class _TooOldError(Exception):
    """The API server no longer knows the version to go on from."""


class _StreamError(Exception):
    """The API server ended a watch with some other error."""


@dataclass(slots=True)
class _Place:
    """Where a watch is: what it watches, and the version to go on from; without one it begins at the newest."""

    kind: Kind
    url: str
    version: str = ""

    def query(self, **more: str) -> dict[str, str]:
        return more | ({"labelSelector": self.kind.selector} if self.kind.selector else {})


class Streams:
    """One endless watch of each kind in each of its places: the whole cluster, or for kinds in namespaces those of `namespaces`."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        server: str,
        settings: Watch,
        kinds: Iterable[Kind],
        namespaces: tuple[str, ...],
        *,
        news: Callable[[Kind, str | None, Mapping[str, Any]], None],
        malformed: Callable[[Kind], None] = lambda _: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._session = session
        self._settings = settings
        self._places = [_Place(kind, server + kind.path(namespace)) for kind in kinds for namespace in kind.places(namespaces)]
        self._news = news
        self._malformed = malformed
        self._sleep = sleep
        # A watch that died silently ends by itself.
        self._timeout = aiohttp.ClientTimeout(total=settings.server_timeout + settings.grace)

    async def run(self) -> None:
        """Watch until cancelled; no trouble with the API server ends it."""
        async with asyncio.TaskGroup() as group:
            for place in self._places:
                group.create_task(self._follow(place), name=f"watch {place.url}")

    async def _follow(self, place: _Place) -> None:
        failures, loop = 0, asyncio.get_running_loop()
        while True:
            began = loop.time()
            if await self._watched(place) and loop.time() - began >= _SHORT:
                failures = 0
                continue
            await self._sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
            failures += 1
            if failures == len(_PAUSES):
                place.version = ""  # perhaps it is this version that can't be gone on from

    async def _watched(self, place: _Place) -> bool:
        """One watch, to its end; False after an end that isn't the server's usual one."""
        try:
            await self._stream(place)
        except _TooOldError:
            place.version = ""
            log.info("the watch of %s lagged behind and begins anew", place.kind.plural)
        except TimeoutError:
            log.info("the watch of %s was silent for too long and is opened anew", place.kind.plural)
        except (_StreamError, aiohttp.ClientError, OSError, ValueError) as error:
            log.warning("%s can't be watched: %s", place.kind.plural, error)
        except Exception:  # whatever an object holds, it ends no process; one that is in the way for long is left to the relist
            log.exception("an event of %s can't be read; the watch is opened anew", place.kind.plural)
            self._malformed(place.kind)
        else:
            return True
        return False

    async def _newest(self, place: _Place) -> str:
        """The version as of now. `WatchSession` sees a list and asks for a relist, which brings what is there already."""
        async with self._session.get(place.url, params=place.query(limit="1"), timeout=self._timeout, raise_for_status=True) as answer:
            return str((await answer.json())["metadata"]["resourceVersion"])

    async def _stream(self, place: _Place) -> None:
        """Hand on what happens until the server ends the watch. `place` moves on with each event: no end makes us hear one twice."""
        place.version = place.version or await self._newest(place)
        query = place.query(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=place.version,
            timeoutSeconds=str(self._settings.server_timeout),
        )
        async with self._session.get(place.url, params=query, timeout=self._timeout) as answer:
            if answer.status == 410:
                raise _TooOldError
            answer.raise_for_status()
            async for line in _lines(answer.content):
                event = decode(line)
                if event["type"] == "ERROR":
                    raise _TooOldError if event["object"].get("code") == 410 else _StreamError(event["object"].get("message"))
                if event["type"] != "BOOKMARK":
                    self._news(place.kind, event["type"], event["object"])
                place.version = event["object"]["metadata"]["resourceVersion"]


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Complete lines of any length. aiohttp's own end at its buffer, and a pod of 1.5 MB is a line of 9 MB when it is full of `<`."""
    parts: list[bytes] = []
    async for chunk in content.iter_any():
        *complete, rest = chunk.split(b"\n")
        for line in complete:
            yield b"".join((*parts, line))
            parts.clear()
        parts.append(rest)
