"""The edge of the HTTP tests: objects by path with resourceVersions, as much of the API server as a Lease and an Event need.

What it can't do (apply, patches, watches, validation) is tested on a real API server in tests/api/kube.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Json = dict[str, Any]


@dataclass
class FakeApi:
    """GET, POST and PUT of single objects. `silent` swallows requests; `answers` overrule by method; `requests` records them."""

    objects: dict[str, Json] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    answers: dict[str, tuple[int, Json, dict[str, str]]] = field(default_factory=dict)
    silent: bool = False
    delay: float = 0.0  # s, before each answer
    url: str = ""
    peers: set[object] = field(default_factory=set)  # one for each TCP connection
    _version: int = 0
    _runner: web.AppRunner | None = None

    async def start(self) -> None:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def edit(self, path: str, **spec: object) -> None:
        """Change an object's spec as somebody else would."""
        self._version += 1
        old = self.objects[path]
        self.objects[path] = {
            **old,
            "metadata": {**old["metadata"], "resourceVersion": str(self._version)},
            "spec": {**old["spec"], **spec},
        }

    async def _handle(self, request: web.Request) -> web.Response:
        self.requests.append((request.method, request.path))
        assert request.transport is not None
        self.peers.add(request.transport.get_extra_info("peername"))
        text = await request.text()  # before the wait: a client that gives up leaves no half-read request behind
        await asyncio.sleep(60 if self.silent else self.delay)
        if request.method in self.answers:
            status, body, headers = self.answers[request.method]
            return web.json_response(body, status=status, headers=headers)
        if request.method == "GET":
            found = self.objects.get(request.path)
            return web.json_response(found) if found else _status(404, "NotFound")
        body = json.loads(text)
        path = request.path if request.method == "PUT" else f"{request.path}/{body['metadata']['name']}"
        old = self.objects.get(path)
        if request.method == "POST" and old:
            return _status(409, "AlreadyExists")
        if request.method == "PUT" and (old is None or old["metadata"]["resourceVersion"] != body["metadata"].get("resourceVersion")):
            return _status(409 if old else 404, "Conflict" if old else "NotFound")
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        self.objects[path] = body
        return web.json_response(body, status=201 if request.method == "POST" else 200)


def _status(code: int, reason: str) -> web.Response:
    return web.json_response({"kind": "Status", "reason": reason, "message": f"{reason}.", "code": code}, status=code)
