"""The kopf side: which watches run, with which timeouts, through which connections.

Built by `app`. kopf watches our own kinds, `stream` the rest. Of kopf only the watch streams with their reconnects are on: no state in
annotations, no finalizers, no peering, no Events, no CRD or namespace watches. Its handlers are one `on.event` for each kind, which hands
the raw object on. kopf's own indices aren't used: they would call a second handler for each event and keep the objects as dicts.
"""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import kopf
from kubernetes.aio.client.rest import RESTClientObject

from glm5_operator.api import names
from glm5_operator.kube.client import uses_proxy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
    from types import SimpleNamespace

    from kubernetes.aio.client.configuration import Configuration

    from glm5_operator.kube.kinds import Kind
    from glm5_operator.metrics import Metrics
    from glm5_operator.settings import Api, Watch

_BACKOFFS: Final = (0.5, 1.0, 2.0, 5.0)
_IDLE_WORKER: Final = 0.5  # s; kopf keeps a task for each object that changed so recently


class _EndlessBackoff:
    """kopf ends the process when its list of delays is used up; a watch must outlive an API server that is away for an hour."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain(_BACKOFFS, itertools.repeat(_BACKOFFS[-1]))


class _NoDiffBase(kopf.DiffBaseStorage):
    """Nothing is remembered and nothing compared: that is the cache's work. kopf's own would deep-copy each object for each event."""

    def build(self, **_: object) -> Any:  # noqa: ANN401 - kopf's type isn't public
        return {}

    def fetch(self, **_: object) -> Any:  # noqa: ANN401 - kopf's type isn't public
        return None

    def store(self, **_: object) -> None:
        """Nothing is written to objects."""


class _NoProgress(kopf.ProgressStorage):
    """There are no handlers with progress."""

    def fetch(self, **_: object) -> None:
        """There is none."""

    def store(self, **_: object) -> None:
        """Nothing is written to objects."""

    def purge(self, **_: object) -> None:
        """Nothing is written to objects."""

    def touch(self, **_: object) -> None:
        """Nothing is written to objects."""

    def clear(self, *, essence: Any) -> Any:  # noqa: ANN401 - kopf's type isn't public
        return essence


def settings_for(api: Api, watch: Watch) -> kopf.OperatorSettings:
    """Kopf's settings. A watch that died silently is noticed after `server_timeout + grace` at the latest."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.posting.level = logging.WARNING
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.persistence.diffbase_storage = _NoDiffBase()
    settings.persistence.progress_storage = _NoProgress()
    settings.queueing.idle_timeout = _IDLE_WORKER
    settings.queueing.exit_timeout = 0.5
    settings.networking.request_timeout = 3 * api.request_timeout  # whole lists
    settings.networking.connect_timeout = api.connect_timeout
    settings.networking.error_backoffs = _EndlessBackoff()
    settings.watching.server_timeout = watch.server_timeout
    settings.watching.client_timeout = watch.server_timeout + watch.grace
    settings.watching.inactivity_timeout = watch.server_timeout + watch.grace
    settings.watching.connect_timeout = api.connect_timeout
    settings.watching.chunk_size = api.page_size
    return settings


def registry_for(
    kinds: Iterable[Kind],
    news: Callable[[Kind, str | None, Mapping[str, Any]], None],
    login: Callable[[], kopf.AiohttpSession],
) -> kopf.OperatorRegistry:
    """Handlers: one for each kind, and the login."""
    registry = kopf.OperatorRegistry()
    for kind in kinds:
        kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=kind.plural)(_handler(kind, news))

    async def log_in(**_: object) -> kopf.AiohttpSession:
        return login()

    kopf.on.login(registry=registry, id="login")(log_in)
    return registry


def _handler(kind: Kind, news: Callable[[Kind, str | None, Mapping[str, Any]], None]) -> Callable[..., Awaitable[None]]:
    async def on_event(event: Mapping[str, Any], **_: object) -> None:
        news(kind, event["type"], event["object"])

    return on_event


class WatchSession:
    """The HTTP session that kopf and `stream` watch through, with eyes on it.

    kopf shows neither bookmarks nor reconnects to handlers, so a quiet kind and a dead watch look the same from there.
    Requests tell them apart: each watch is opened anew after `server_timeout`, and that counts as a sign of life.
    """

    def __init__(
        self,
        configuration: Configuration,
        metrics: Metrics,
        kinds: Collection[Kind],
        opened: Callable[[str, str], None],
        listed: Callable[[str], None],
    ) -> None:
        self._configuration = configuration
        self._metrics = metrics
        self._kinds = {(kind.plural, kind.selector): kind.name for kind in kinds}  # two are ConfigMaps
        self._opened = opened
        self._listed = listed
        self._sessions: list[aiohttp.ClientSession] = []

    def login(self) -> kopf.AiohttpSession:
        """A new session for kopf; called at start and again after each 401."""
        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(self._authorize)
        trace.on_request_end.append(self._answered)
        trace.on_request_exception.append(self._failed)
        rest = RESTClientObject(self._configuration)
        connector = aiohttp.TCPConnector(limit=0, ssl=rest.ssl_context)
        session = aiohttp.ClientSession(
            connector=connector,
            trace_configs=[trace],
            headers={"User-Agent": names.FIELD_MANAGER},
            trust_env=uses_proxy(),
            read_bufsize=2**21,
        )
        self._sessions.append(session)
        return kopf.AiohttpSession(aiohttp_session=session, server=self._configuration.host)

    async def close(self) -> None:
        """Close what kopf left open."""
        for session in self._sessions:
            await session.close()

    async def _authorize(self, _session: aiohttp.ClientSession, _context: SimpleNamespace, params: aiohttp.TraceRequestStartParams) -> None:
        """The service account's token changes every hour, so it is added to each request instead of to the session."""
        for auth in (await self._configuration.auth_settings()).values():
            if auth["in"] == "header" and auth["value"]:
                params.headers[auth["key"]] = auth["value"]

    async def _answered(self, _session: aiohttp.ClientSession, _context: SimpleNamespace, params: aiohttp.TraceRequestEndParams) -> None:
        kind = self._kind(params)
        watch = "watch" in params.url.query
        self._metrics.api_requests.labels("watch" if watch else "list", kind, str(params.response.status)).inc()
        if not kind or params.response.status >= 300:
            return
        self._opened(kind, _namespace_of(params.url.path))
        if not watch and "continue" not in params.url.query:
            self._listed(kind)

    def _kind(self, params: aiohttp.TraceRequestEndParams | aiohttp.TraceRequestExceptionParams) -> str:
        """What a request is about; empty for none of the kinds."""
        return self._kinds.get((params.url.path.rsplit("/", 1)[-1], params.url.query.get("labelSelector", "")), "")

    async def _failed(
        self, _session: aiohttp.ClientSession, _context: SimpleNamespace, params: aiohttp.TraceRequestExceptionParams
    ) -> None:
        kind = self._kind(params)
        self._metrics.api_requests.labels("watch" if "watch" in params.url.query else "list", kind, "error").inc()


def _namespace_of(path: str) -> str:
    """The namespace whose objects a list or watch is about, "" for all: `/api/v1/namespaces/team/pods` → `team`."""
    parts = path.split("/")
    return parts[-2] if len(parts) > 3 and parts[-3] == "namespaces" else ""
