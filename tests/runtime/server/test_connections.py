"""Connections that ask for nothing or never finish asking: they are closed, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx
import pytest

from glm5_runtime.engine.engine import Engine
from glm5_runtime.server import body, connections
from tests.support import serving
from tests.support.serving import PING, until

HALF = b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{"prompt": "x'


@asynccontextmanager
async def opened(client: httpx.AsyncClient, sent: bytes = b"") -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection of its own that has sent some bytes."""
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    writer.write(sent)
    try:
        yield reader, writer
    finally:
        writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET /health HT"], ids=["nothing", "half"])
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_connection_without_a_complete_header_is_closed(
    engine: Engine, sent: bytes, is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    async with serving.on_a_socket(serving.make_service(engine)) as client, opened(client) as (reader, writer):
        if not is_first:
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await asyncio.wait_for(reader.readuntil(b'healthy"}'), 30)
        writer.write(sent)

        if is_first or sent:
            assert await asyncio.wait_for(reader.read(), 30) == b""
        else:  # between two requests uvicorn's own, longer patience counts
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(), 0.8)


async def test_a_request_that_takes_longer_than_a_header_may_is_answered(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.3)
    async with serving.on_a_socket(serving.make_service(engine)) as client:
        long, started = {"prompt": "Tell", "max_tokens": 600, "ignore_eos": True}, time.monotonic()

        assert (await client.post("/v1/completions", json=long)).json()["usage"]["completion_tokens"] == 600
        assert time.monotonic() - started > 0.3, "too fast to show anything: ask for more tokens"


async def test_more_idle_connections_than_there_may_be_leave_health_and_requests_alone(engine: Engine) -> None:
    service = serving.make_service(engine)
    async with serving.on_a_socket(service, most=10) as client:
        async with opened(client, HALF) as (busy, finish):
            await until(lambda: service.active == 1)
            idle = [await asyncio.open_connection(client.base_url.host, client.base_url.port) for _ in range(30)]

            assert (await client.get("/health")).status_code == 200
            assert (await client.post("/v1/chat/completions", json=PING)).status_code == 200
            assert await asyncio.wait_for(idle[0][0].read(), 30) == b""  # the oldest had to go
            finish.write(b" " * (500 - 13))
            assert b"400 Bad Request" in await asyncio.wait_for(busy.readline(), 30)  # the busy one was left alone
        for _, writer in idle:
            writer.close()


def test_connections_leave_descriptors_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    for hard, most in ((1024, 704), (256, 128), (1_048_576, 4096), (resource.RLIM_INFINITY, 4096)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, hard=hard: (64, hard))
        assert connections.raise_limit() == most
        assert asked.pop() == (hard, hard)


async def test_a_body_that_stops_coming_ends_with_408(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "SILENCE_SECONDS", 0.2)
    service = serving.make_service(engine)
    async with serving.on_a_socket(service) as client, opened(client, HALF) as (reader, _):
        reply = await asyncio.wait_for(reader.read(), 30)

    assert reply.startswith(b"HTTP/1.1 408")
    assert b"connection: close" in reply.lower()
    assert service.active == 0


async def test_a_body_that_keeps_coming_is_read(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "SILENCE_SECONDS", 1.0)
    async with serving.on_a_socket(serving.make_service(engine)) as client, opened(client, HALF) as (reader, writer):
        for _ in range(5):
            await asyncio.sleep(0.25)  # together more than the silence that is allowed
            writer.write(b" " * 10)
        writer.write(b" " * (500 - 13 - 50))

        assert b"400 Bad Request" in await asyncio.wait_for(reader.readline(), 30)  # read, and no JSON


async def test_a_half_sent_body_does_not_hold_up_the_drain(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "DRAIN_SECONDS", 0.3)
    service = serving.make_service(engine)
    async with serving.on_a_socket(service) as client, opened(client, HALF) as (reader, writer):
        await until(lambda: service.active == 1)
        service.drain()
        reply = asyncio.create_task(reader.readline())
        for _ in range(4):  # drop by drop doesn't help
            writer.write(b" ")
            await asyncio.wait({reply}, timeout=0.1)
            if reply.done():
                break

        assert (await asyncio.wait_for(reply, 30)).startswith(b"HTTP/1.1 503")
        await until(service.idle.is_set)


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"GET /health HTTP/1.1\r\nx-a: ", b"a"),
        (b"GET /health HTTP/1.1\r\n", b"x-a: a\r\n"),
        (b"GET /", b"a"),
        (b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nx-a: ", b"a"),
    ],
    ids=["value", "headers", "path", "behind the body"],
)
async def test_a_header_without_an_end_is_refused(engine: Engine, start: bytes, more: bytes) -> None:
    async with serving.on_a_socket(serving.make_service(engine)) as client, opened(client, start) as (reader, writer):
        first = b""
        for _ in range(100):  # pieces, so that none is underway when the refusal comes
            writer.write(more * (4_000 // len(more)))
            with suppress(TimeoutError):
                first = await asyncio.wait_for(reader.readline(), 0.05)
                break

        assert b" 400 " in first
        assert (await client.get("/health")).status_code == 200


async def test_a_header_of_usual_length_is_read(engine: Engine) -> None:
    async with serving.on_a_socket(serving.make_service(engine)) as client:
        for _ in range(3):
            assert (await client.get("/health", headers={"x-a": "a" * 30_000})).status_code == 200


async def test_a_client_that_offers_another_protocol_is_served_in_this_one(engine: Engine) -> None:
    body = b'{"prompt": "Hi", "max_tokens": 1}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with serving.on_a_socket(serving.make_service(engine)) as client, opened(client) as (reader, writer):
        for _ in range(2):  # as Java's client does by default
            writer.write(head + body)
            assert b" 200 " in await asyncio.wait_for(reader.readline(), 30)
            assert b"completion_tokens" in await asyncio.wait_for(reader.readuntil(b"}}"), 30)
