"""The watches that kopf doesn't have. Faked: the API server, as a script of its answers on loopback."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from glm5_operator.kube import kinds, stream
from glm5_operator.kube.kinds import Kind
from glm5_operator.kube.stream import Streams
from glm5_operator.settings import Watch

Json = dict[str, Any]


def event(what: str, name: str, version: int) -> Json:
    return {"type": what, "object": {"kind": "Pod", "metadata": {"name": name, "namespace": "lab", "resourceVersion": str(version)}}}


@dataclass
class Server:
    """Answers each watch with the next of `watches` (a status, or events), and with silence when none is left."""

    watches: list[int | list[Json | str]]
    asked: list[str] = field(default_factory=list)
    selectors: list[str | None] = field(default_factory=list)
    seen: list[tuple[str | None, str]] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    malformed: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.selectors.append(request.query.get("labelSelector"))
        if "watch" not in request.query:
            self.asked.append(f"list limit={request.query['limit']}")
            return web.json_response({"metadata": {"resourceVersion": "100"}, "items": []})
        self.asked.append(f"watch {request.path} from {request.query['resourceVersion']}")
        if not self.watches:
            self.done.set()
            await asyncio.sleep(60)  # the silence of a quiet watch; the test cancels it
        answer = self.watches.pop(0)
        if isinstance(answer, int):
            return web.Response(status=answer)
        response = web.StreamResponse()
        await response.prepare(request)
        for item in answer:
            await response.write((item if isinstance(item, str) else json.dumps(item)).encode() + b"\n")
        return response

    def news(self, kind: Kind, what: str | None, resource: Json) -> None:
        assert kind.name == resource["kind"]
        self.seen.append((what, resource["metadata"]["name"]))

    def count(self, kind: Kind) -> None:
        self.malformed += kind is kinds.POD

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


async def followed(server: Server, *namespaces: str, watched: Kind = kinds.POD) -> Server:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    async with aiohttp.ClientSession() as session:
        address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        watches = Streams(session, address, Watch(), (watched,), namespaces, news=server.news, malformed=server.count, sleep=server.sleep)
        task = asyncio.create_task(watches.run())
        async with asyncio.timeout(10):
            await server.done.wait()
        assert not task.done()
        task.cancel()
        await asyncio.wait({task})
    await runner.cleanup()
    return server


@pytest.fixture
def server() -> Server:
    return Server([])


async def test_events_are_handed_on_and_the_next_watch_goes_on_where_the_last_one_ended(server: Server) -> None:
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "109"}}}
    server.watches = [[event("ADDED", "a", 101), event("MODIFIED", "a", 102), bookmark], [event("DELETED", "a", 110)]]

    await followed(server)

    assert server.seen == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    assert server.asked == ["list limit=1", *(f"watch /api/v1/pods from {version}" for version in (100, 109, 110))]


@pytest.mark.parametrize("lost", [410, [{"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}]])
async def test_a_version_that_is_too_old_leads_to_a_new_list(server: Server, lost: int | list[Json]) -> None:
    server.watches = [[event("ADDED", "a", 101)], lost]

    await followed(server)

    watches = [f"watch /api/v1/pods from {version}" for version in (100, 101, 100)]
    assert server.asked == ["list limit=1", *watches[:2], "list limit=1", watches[2]]


def error(code: int) -> Json:
    return {"type": "ERROR", "object": {"kind": "Status", "code": code, "message": "etcd"}}


@pytest.mark.parametrize("ended", [410, 500, [], [error(410)], [error(500)]])
async def test_a_watch_that_ends_at_once_is_not_opened_at_once(server: Server, ended: int | list[Json]) -> None:
    server.watches = [ended] * 6

    await followed(server)

    assert server.pauses == [0.5, 1.0, 2.0, 5.0, 5.0, 5.0]


async def test_a_watch_that_ended_as_usual_is_opened_at_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_SHORT", 0.0)
    server.watches = [[], 500, [], 500]

    await followed(server)

    assert server.pauses == [0.5, 0.5]


async def test_after_another_error_the_watch_goes_on_where_it_was(server: Server) -> None:
    server.watches = [[event("ADDED", "a", 101), error(500)], [event("MODIFIED", "a", 102), error(410)]]

    await followed(server)

    assert server.seen == [("ADDED", "a"), ("MODIFIED", "a")]
    asked = ["list limit=1", "watch /api/v1/pods from 100", "watch /api/v1/pods from 101", "list limit=1", "watch /api/v1/pods from 100"]
    assert server.asked == asked


async def test_an_error_that_goes_on_leads_to_one_new_list_not_to_many(server: Server) -> None:
    server.watches = [[error(500)]] * 12

    await followed(server)

    assert server.asked.count("list limit=1") == 2


async def test_trouble_of_the_server_ends_nothing(server: Server) -> None:
    server.watches = [500, [event("ADDED", "a", 101)]]

    await followed(server)

    assert server.seen == [("ADDED", "a")]


async def test_an_operator_of_some_namespaces_watches_those(server: Server) -> None:
    await followed(server, "lab")

    assert server.asked == ["list limit=1", "watch /api/v1/namespaces/lab/pods from 100"]


async def test_kinds_of_the_cluster_are_watched_as_a_whole_by_an_operator_of_some_namespaces_too(server: Server) -> None:
    await followed(server, "lab", "prod", watched=kinds.NODE)

    assert server.asked == ["list limit=1", "watch /api/v1/nodes from 100"]


@pytest.mark.parametrize("limited", [(), ("lab", "mindx-dl")], ids=["whole cluster", "some namespaces"])
async def test_a_kind_of_one_namespace_is_watched_there_alone(server: Server, limited: tuple[str, ...]) -> None:
    await followed(server, *limited, watched=kinds.CLUSTER_INFO)

    assert server.asked == ["list limit=1", "watch /api/v1/namespaces/mindx-dl/configmaps from 100"]


def test_a_kind_of_one_namespace_is_not_asked_for_by_an_operator_of_others() -> None:
    assert kinds.CLUSTER_INFO.places(("lab",)) == ()


async def test_of_what_the_operator_makes_only_its_own_is_watched(server: Server) -> None:
    await followed(server, watched=kinds.DEPLOYMENT)

    assert server.selectors == ["app.kubernetes.io/managed-by=glm5-operator,glm5.dev/service"] * 2


async def test_pods_are_watched_whosever_they_are(server: Server) -> None:
    await followed(server)

    assert server.selectors == [None, None]


async def test_a_pod_as_big_as_the_server_takes_is_read(server: Server) -> None:
    """The API server writes `<` as six bytes: 1.2 MB of them in an env value are a line of 7.2 MB."""
    big = event("ADDED", "big", 101)
    big["object"]["spec"] = {"containers": [{"env": [{"name": "A", "value": "<" * 1_200_000}]}]}
    server.watches = [[json.dumps(big).replace("<", "\\u003c"), event("ADDED", "next", 102)]]

    await followed(server)

    assert server.seen == [("ADDED", "big"), ("ADDED", "next")]


@pytest.mark.parametrize("line", ["[]", "null", '{"object": {}}', '{"type": "ADDED", "object": {}}', '{"type": "ERROR", "object": []}'])
async def test_an_event_that_makes_no_sense_ends_nothing_and_is_passed_by_in_the_end(server: Server, line: str) -> None:
    server.watches = [[event("ADDED", "a", 101), line], *[[line]] * 3, [event("ADDED", "b", 103)]]

    await followed(server)

    assert server.seen == [("ADDED", "a"), ("ADDED", "b")]
    assert server.asked.count("list limit=1") == 2
    assert server.malformed == 4


async def test_what_is_no_json_ends_nothing(server: Server) -> None:
    server.watches = [["<html>"], [event("ADDED", "b", 103)]]

    await followed(server)

    assert server.seen == [("ADDED", "b")]
