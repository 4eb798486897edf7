"""One HTTP client for the API server: a request in, plain JSON or an error of our own out.

Used by the rest of `kube`. Knows paths, content types, timeouts and metrics; decides nothing and retries nothing.
Only the REST layer and the config loaders of `kubernetes.aio` are used: its 800 generated model classes would be decoded into and out
of for nothing, since planning works on plain JSON.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode
from urllib.request import getproxies_environment

import aiohttp
import yaml
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from glm5_operator.api import names
from glm5_operator.kube import errors, kinds
from glm5_operator.kube.wire import decode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from glm5_operator.kube.kinds import Kind
    from glm5_operator.kube.types import Key
    from glm5_operator.metrics import Metrics
    from glm5_operator.settings import Api

log = logging.getLogger(__name__)

Json = dict[str, Any]
_APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML
_MERGE: Final = "application/merge-patch+json"
_READS: Final = frozenset({"get", "list"})
_CLOSE_LATER: Final = 60.0
_FOREIGN: Final = "this isn't the answer of a Kubernetes API server"


class CredentialsError(Exception):
    """Neither a kubeconfig nor a service account can be used; the message says which was looked at."""


async def load_configuration(kubeconfig: str | None = None) -> Configuration:
    """Credentials: an explicit kubeconfig, else the pod's service account, else $KUBECONFIG or ~/.kube/config.

    Raises:
        CredentialsError: there are none, or they can't be read.
    """
    configuration = Configuration()
    path = credentials_source(kubeconfig)
    try:
        if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            load_incluster_config(client_configuration=configuration)
        else:
            _check_files(path)
            await load_kube_config(config_file=path, client_configuration=configuration, persist_config=False)
        RESTClientObject(configuration)  # reads CA and certificates; opens no connection
    except ssl.SSLError as error:
        raise CredentialsError(f"no usable credentials in {path}: CA, client certificate or key is no valid PEM ({error})") from error
    except yaml.YAMLError as error:
        raise CredentialsError(f"no usable credentials in {path}: it is no YAML: {error}") from error
    except (ConfigException, OSError, ValueError) as error:
        raise CredentialsError(f"no usable credentials in {path}: {error}") from error
    except (TypeError, AttributeError, LookupError, RecursionError) as error:  # the loader takes the form of a file for granted
        raise CredentialsError(f"no usable credentials in {path}: it doesn't have the form of a kubeconfig") from error
    configuration.api_key = {name: key.strip() for name, key in configuration.api_key.items()}  # a token's file may end with a line break
    # Without a proxy to honour: aiohttp would look for one in a thread, for each request, at half the request's price.
    configuration.client_session_kwargs = {"trust_env": uses_proxy()}
    return configuration


def credentials_source(kubeconfig: str | None = None) -> str:
    """Where `load_configuration` looks, in words that stand in a message."""
    if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        return "the pod's service account"
    return kubeconfig or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")


def _check_files(paths: str) -> None:
    """Of several files those that exist count, as for kubectl; the loader would go on without any."""
    if not any(Path(path).expanduser().exists() for path in paths.split(os.pathsep) if path):
        raise FileNotFoundError("no such file")


def uses_proxy() -> bool:
    """The environment names a proxy that may apply to the API server."""
    return bool(getproxies_environment())


class Client:
    """Requests with metrics, timeouts and a guard before each write."""

    def __init__(self, configuration: Configuration, settings: Api, metrics: Metrics) -> None:
        configuration.connection_pool_maxsize = settings.connections
        self._api = ApiClient(configuration)
        self._api.user_agent = names.FIELD_MANAGER
        self._timeout = aiohttp.ClientTimeout(total=settings.request_timeout, sock_connect=settings.connect_timeout)
        self._page = settings.page_size
        self._metrics = metrics
        self._guard: Callable[[], None] | None = None
        self._retired: list[aiohttp.ClientSession] = []

    @property
    def configuration(self) -> Configuration:
        """Server and credentials, for the watches' own session."""
        return self._api.configuration

    def guard_writes(self, guard: Callable[[], None]) -> None:
        """Ask `guard` immediately before each write is sent; it raises NotLeaderError when this process may no longer write."""
        self._guard = guard

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()
        for session in self._retired:
            await session.close()

    async def get(self, kind: Kind, namespace: str, name: str) -> Json:
        """One object."""
        return _object(await self._request("get", kind.path(namespace, name), kind.name))

    async def events_about(self, namespace: str, uid: str, reason: str) -> list[str]:
        """What Events with that reason say about one object, the newest last."""
        query = urlencode({"fieldSelector": f"regarding.uid={uid},reason={reason}", "limit": str(self._page)})
        answer = await self._request("list", f"{kinds.EVENT.path(namespace)}?{query}", kinds.EVENT.name)
        items: list[Json] = [item for item in answer.get("items") or () if _is_object(item)]
        return [str(item.get("note") or "") for item in sorted(items, key=_last_seen)]

    async def raw_get(self, path: str) -> Json:
        """Any path, e.g. discovery."""
        return await self._request("get", path, "")

    async def pages(self, kind: Kind, namespace: str = "") -> AsyncIterator[tuple[list[Json], int]]:
        """All objects of a kind in pages, with the list's resourceVersion; each gets the kind and apiVersion that lists leave out."""
        query = {"limit": str(self._page)} | ({"labelSelector": kind.selector} if kind.selector else {})
        while True:
            answer = await self._request("list", f"{kind.path(namespace)}?{urlencode(query)}", kind.name)
            items: list[Json] = answer.get("items") or []
            if not isinstance(items, list) or not all(_is_object(item) for item in items):
                raise errors.NotKubernetesError(_FOREIGN)
            for item in items:
                item.setdefault("kind", kind.name)
                item.setdefault("apiVersion", kind.api_version)
            meta = answer.get("metadata") or {}
            yield items, int(meta.get("resourceVersion") or 0)
            if not meta.get("continue"):
                return
            query["continue"] = meta["continue"]

    async def apply(self, manifest: Mapping[str, Any], *, force: bool, subresource: str = "", manager: str = names.FIELD_MANAGER) -> Json:
        """Server-side apply. Without force a field of another manager is a FieldConflictError."""
        kind, meta = kinds.BY_NAME[manifest["kind"]], manifest["metadata"]
        query = urlencode({"fieldManager": manager, "force": "true" if force else "false"})
        path = f"{kind.path(meta.get('namespace', ''), meta['name'], subresource)}?{query}"
        return _object(await self._request("apply", path, kind.name, manifest, content_type=_APPLY))

    async def merge_patch(self, key: Key, patch: Mapping[str, Any]) -> Json:
        """JSON merge patch; with metadata.resourceVersion inside, a concurrent change is a ConflictError."""
        path = kinds.BY_NAME[key.kind].path(key.namespace, key.name)
        return await self._request("patch", f"{path}?fieldManager={names.FIELD_MANAGER}", key.kind, patch, content_type=_MERGE)

    async def create(self, kind: Kind, body: Mapping[str, Any]) -> Json:
        """Create one object."""
        path = f"{kind.path(body['metadata'].get('namespace', ''))}?fieldManager={names.FIELD_MANAGER}"
        return await self._request("create", path, kind.name, body)

    async def replace(self, kind: Kind, body: Mapping[str, Any]) -> Json:
        """Replace one object; its resourceVersion makes a concurrent change a ConflictError."""
        meta = body["metadata"]
        path = f"{kind.path(meta.get('namespace', ''), meta['name'])}?fieldManager={names.FIELD_MANAGER}"
        return await self._request("update", path, kind.name, body)

    async def evict(self, key: Key, uid: str, grace: int | None = None) -> None:
        """Ask a pod to end within `grace` seconds, or its own grace, only if it is still the pod with that uid.

        Raises:
            TooManyRequestsError: a disruption budget doesn't allow it now.
        """
        metadata = {"namespace": key.namespace, "name": key.name}
        options: dict[str, Any] = {"preconditions": {"uid": uid}} | ({} if grace is None else {"gracePeriodSeconds": grace})
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": options}
        await self._request("create", kinds.POD.path(key.namespace, key.name, "eviction"), "Eviction", body)

    async def delete(self, key: Key, uid: str) -> None:
        """Delete in the background, only if it is still the object with that uid."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        await self._request("delete", kinds.BY_NAME[key.kind].path(key.namespace, key.name), key.kind, body)

    async def pod_log(self, namespace: str, pod: str, container: str, lines: int, *, previous: bool = False) -> str:
        """The end of a container's log; `previous` is of the run before its restart. For the command line: the operator has no right."""
        query = urlencode({"container": container, "tailLines": str(lines), "previous": "true" if previous else "false"})
        status, raw, headers = await self._send("get", f"{kinds.POD.path(namespace, pod, 'log')}?{query}", "Pod", accept="*/*")
        if status >= 300:
            raise errors.from_response(status, _decode(raw), headers.get("Retry-After"))
        return raw.decode(errors="replace")

    async def _request(
        self, verb: str, path: str, kind: str, body: Mapping[str, Any] | None = None, content_type: str = "application/json"
    ) -> Json:
        status, raw, headers = await self._send(verb, path, kind, body, content_type=content_type)
        decoded = _decode(raw)
        if status >= 300:
            raise errors.from_response(status, decoded, headers.get("Retry-After"))
        if decoded is None or not isinstance(decoded.get("kind"), str):
            raise errors.NotKubernetesError(_FOREIGN, code=status)
        return decoded

    async def _send(
        self,
        verb: str,
        path: str,
        kind: str,
        body: Mapping[str, Any] | None = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """Status, body and headers of the answer, whatever they are."""
        if self._guard is not None and verb not in _READS:
            try:
                self._guard()
            except errors.NotLeaderError:
                self._metrics.api_requests.labels(verb, kind, "guarded").inc()
                raise
        headers = {"Accept": accept, "Content-Type": content_type, "User-Agent": names.FIELD_MANAGER}
        await self._api.update_params_for_auth(headers, None, ["BearerToken"], path, verb, body)
        started, code = time.monotonic(), "error"
        try:
            response = await self._api.call_api(
                _METHODS[verb], self._api.configuration.host + path, header_params=headers, body=body, _request_timeout=self._timeout
            )
            raw = await response.read()
            code = str(response.status)
        except TimeoutError as error:
            code = "timeout"
            self._drop_connections()
            raise errors.UnavailableError(f"no answer from the API server within {self._timeout.total:g} s") from error
        except aiohttp.ClientError as error:
            raise errors.UnavailableError(f"no connection to the API server: {error}") from error
        finally:
            self._metrics.api_requests.labels(verb, kind, code).inc()
            self._metrics.api_seconds.labels(verb).observe(time.monotonic() - started)
        return response.status, raw, response.headers

    def _drop_connections(self) -> None:
        """Start over with a new pool after a timeout.

        Behind a load balancer that forgot us, all idle connections are dead, and each would cost another timeout.
        Requests in flight finish on the old pool, which is closed later.
        """
        rest = self._api.rest_client
        if rest.pool_manager is not None:
            old, rest.pool_manager = rest.pool_manager, None
            self._retired.append(old)
            asyncio.get_running_loop().call_later(_CLOSE_LATER, lambda: self._retire(old))

    def _retire(self, session: aiohttp.ClientSession) -> None:
        if session in self._retired:
            self._retired.remove(session)
            connector = session.connector
            if connector is not None:
                connector.close()
            session.detach()


_METHODS: Final[Mapping[str, str]] = {
    "get": "GET", "list": "GET", "apply": "PATCH", "patch": "PATCH", "create": "POST", "update": "PUT", "delete": "DELETE",
}  # fmt: skip


def _decode(raw: bytes) -> Json | None:
    try:
        decoded = decode(raw)
    except ValueError:
        return None
    return decoded if isinstance(decoded, dict) else None


def _is_object(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("metadata"), dict)


def _last_seen(event: Json) -> str:
    """When it was seen last, whoever wrote it: all of these are RFC 3339, in UTC."""
    series = (event.get("series") or {}).get("lastObservedTime")
    return str(series or event.get("deprecatedLastTimestamp") or event.get("eventTime") or "")


def _object(answer: Json) -> Json:
    if not _is_object(answer):
        raise errors.NotKubernetesError(_FOREIGN)
    return answer
