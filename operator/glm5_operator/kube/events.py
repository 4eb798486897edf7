"""Kubernetes Events, few and useful: repeated ones within a window are not sent again, and an object can't flood.

Called by controllers; sending happens in the background and never fails a reconcile.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import uuid
from collections import OrderedDict, deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.kube import errors, kinds

if TYPE_CHECKING:
    from collections.abc import Callable

    from glm5_operator.kube.client import Client
    from glm5_operator.kube.types import Resource
    from glm5_operator.metrics import Metrics

log = logging.getLogger(__name__)

_WINDOW: Final = 600.0  # s; an hour of the same trouble is six Events
_PER_OBJECT: Final = 10  # Events of one object in a window
_REMEMBERED: Final = 5000
_BACKLOG: Final = 1000
_NOTE_LIMIT: Final = 1024  # the API server's, in bytes


class Events:
    """Records Events on objects."""

    def __init__(self, client: Client, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._metrics = metrics
        self._clock = clock
        self._recent: OrderedDict[tuple[str, ...], float] = OrderedDict()
        self._of_object: OrderedDict[str, deque[float]] = OrderedDict()
        self._queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue(_BACKLOG)
        self._instance = socket.gethostname()

    def normal(self, resource: Resource, reason: str, message: str) -> None:
        """Something the user wants to know happened, e.g. `Ready`."""
        self._record(resource, "Normal", reason, message)

    def warning(self, resource: Resource, reason: str, message: str) -> None:
        """Something the user should act on."""
        self._record(resource, "Warning", reason, message)

    async def run(self) -> None:
        """Send until cancelled, one at a time: Events must never crowd out the work."""
        while True:
            body = await self._queue.get()
            try:
                await self._client.create(kinds.EVENT, body)
                self._metrics.events.labels("sent").inc()
            except errors.KubeError as error:
                self._metrics.events.labels("failed").inc()
                log.info("an Event of %s could not be sent: %s", body["regarding"]["name"], error)

    def _record(self, resource: Resource, kind: str, reason: str, message: str) -> None:
        fate = self._admit(resource["metadata"]["uid"], (kind, reason, message))
        if fate == "sent":
            try:
                self._queue.put_nowait(self._body(resource, kind, reason, message))
                return  # counted when it is
            except asyncio.QueueFull:
                fate = "dropped"
        self._metrics.events.labels(fate).inc()

    def _admit(self, uid: str, what: tuple[str, ...]) -> str:
        now, identity = self._clock(), (uid, *what)
        last = self._recent.get(identity)
        if last is not None and now - last < _WINDOW:
            return "repeated"
        times = self._of_object.setdefault(uid, deque())
        self._of_object.move_to_end(uid)
        while times and now - times[0] >= _WINDOW:
            times.popleft()
        if len(times) >= _PER_OBJECT:
            return "limited"
        times.append(now)
        self._recent[identity] = now
        self._recent.move_to_end(identity)
        for memory in (self._recent, self._of_object):
            while len(memory) > _REMEMBERED:
                memory.popitem(last=False)
        return "sent"

    def _body(self, resource: Resource, kind: str, reason: str, message: str) -> dict[str, Any]:
        metadata = resource["metadata"]
        regarding = {"apiVersion": resource["apiVersion"], "kind": resource["kind"], "name": metadata["name"], "uid": metadata["uid"]}
        if metadata.get("namespace"):
            regarding["namespace"] = metadata["namespace"]
        return {
            "apiVersion": kinds.EVENT.api_version,
            "kind": kinds.EVENT.name,
            # Events of cluster-scoped objects go to "default", as everybody's do: kubectl describe looks there.
            "metadata": {
                "name": f"{names.fit(metadata['name'], 200)}.{uuid.uuid4().hex[:16]}",
                "namespace": metadata.get("namespace") or "default",
            },
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": f"{names.GROUP}/{names.FIELD_MANAGER}",
            "reportingInstance": self._instance,
            "action": "Reconcile",
            "reason": reason,
            "type": kind,
            "note": _note(message),
            "regarding": regarding,
        }


def _note(message: str) -> str:
    raw = message.encode(errors="replace")
    if len(raw) <= _NOTE_LIMIT:
        return raw.decode()
    return raw[: _NOTE_LIMIT - len("…".encode())].decode(errors="ignore") + "…"
