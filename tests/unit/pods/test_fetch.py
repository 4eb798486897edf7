"""What reading from pods makes of slow, long, foreign and absent answers. Real: client and server on loopback. Nothing is faked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from glm5_operator.pods import PodReader

LIMIT = 200
NEVER = web.AppKey("never", asyncio.Event)


async def _answer(request: web.Request) -> web.StreamResponse:
    match request.path:
        case "/good":
            return web.json_response({"adapters": []})
        case "/slow":
            await request.app[NEVER].wait()
        case "/long":
            return web.json_response({"text": "x" * LIMIT})
        case "/padded":  # what was read of it is an object
            return web.Response(text="{}" + " " * LIMIT)
        case "/list":
            return web.json_response([1])
        case "/text":
            return web.Response(text="{")
        case "/elsewhere":
            raise web.HTTPFound("/good")
    return web.Response(status=503)


@pytest.fixture
async def port() -> AsyncIterator[int]:
    application = web.Application()
    application[NEVER] = asyncio.Event()
    application.router.add_get("/{path}", _answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1]
    application[NEVER].set()
    await runner.cleanup()


@pytest.fixture
def reader() -> PodReader:
    return PodReader(seconds=0.5, most_bytes=LIMIT)


async def test_an_object_is_returned_by_its_host(reader: PodReader, port: int) -> None:
    assert await reader.read(["127.0.0.1"], port, "/good") == {"127.0.0.1": {"adapters": []}}


@pytest.mark.parametrize("path", ["/slow", "/long", "/padded", "/list", "/text", "/elsewhere", "/absent"])
async def test_anything_else_is_no_answer(reader: PodReader, port: int, path: str) -> None:
    assert await reader.read(["127.0.0.1"], port, path) == {}


async def test_a_host_that_is_gone_keeps_nobody_from_answering(reader: PodReader, port: int) -> None:
    assert await reader.read(["127.0.0.1", "127.0.0.2", "::1", "no address"], port, "/good") == {"127.0.0.1": {"adapters": []}}
