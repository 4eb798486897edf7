"""A client that goes away frees its place within seconds, in every phase (A14).

On real sockets. (d), through a gateway, isn't shown anywhere: there is no gateway of ours yet, and one of the user's closes its
connection to us as these clients do, or keeps the request running until it does.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import closing

import httpx
import pytest

from glm5_runtime.engine.engine import Engine
from glm5_runtime.server.service import Service
from tests.support import serving
from tests.support.serving import MODEL, PING, until

LONG = {"model": MODEL, "prompt": "Tell a story.", "max_tokens": 1900, "ignore_eos": True}
SOON = 1000  # tokens that may still be made of it


@pytest.fixture(scope="module")
def small_engine() -> Iterator[Engine]:
    """One place, and prefill in small steps, so that a request can be met while it computes its prompt."""
    engine = serving.tiny_engine(max_sequences=1, max_batched_tokens=16)
    yield engine
    engine.stop()


@pytest.fixture
async def service(small_engine: Engine) -> Service:
    return serving.make_service(small_engine)


@pytest.fixture
async def client(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    async with serving.on_a_socket(service) as client:
        yield client


def send(client: httpx.AsyncClient, body: dict[str, object], path: str = "/v1/completions") -> socket.socket:
    """Send a request over a socket of its own, so that it can be cut as a killed client's is."""
    connection = socket.create_connection((client.base_url.host, client.base_url.port or 80))
    payload = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    connection.sendall(head.encode() + payload)
    return connection


async def freed(engine: Engine) -> bool:
    """Whether the engine soon holds no request any more, long before `LONG` would have come to its end."""
    produced = engine.stats().generation_tokens
    await until(lambda: engine.stats().running + engine.stats().waiting == 0)
    return engine.stats().kv_usage == 0 and engine.stats().generation_tokens - produced < SOON


async def test_closing_after_the_first_chunk_stops_the_tokens(client: httpx.AsyncClient, small_engine: Engine) -> None:
    async with client.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as reply:
        async for _ in reply.aiter_bytes():
            break

    assert await freed(small_engine)


@pytest.mark.parametrize("stream", [True, False])
async def test_closing_during_prefill_frees_the_place(client: httpx.AsyncClient, small_engine: Engine, stream: bool) -> None:
    with closing(send(client, {"model": MODEL, "prompt": [60] * 1900, "max_tokens": 100, "stream": stream})):
        await until(lambda: small_engine.stats().running == 1)
        produced = small_engine.stats().tokens_since_start

    assert await freed(small_engine)
    assert small_engine.stats().tokens_since_start == produced


async def test_killing_a_client_that_waits_for_a_whole_answer_frees_the_place(client: httpx.AsyncClient, small_engine: Engine) -> None:
    with closing(send(client, LONG)):
        produced = small_engine.stats().generation_tokens
        await until(lambda: small_engine.stats().generation_tokens > produced + 5)

    assert await freed(small_engine)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
async def test_at_most_two_steps_follow_when_the_server_gives_a_request_up(
    client: httpx.AsyncClient, small_engine: Engine, monkeypatch: pytest.MonkeyPatch, phase: str, stream: bool
) -> None:
    """The device is held in a step while the client goes away, so that the request is met in its phase."""
    steps_by_then: list[int] = []
    give_up = small_engine.abort

    def noting(request_id: str) -> None:
        give_up(request_id)
        steps_by_then.append(sum(small_engine.stats().step_tokens))

    monkeypatch.setattr(small_engine, "abort", noting)
    monkeypatch.setattr(small_engine._runner, "run", small_engine._runner.run)  # to be put back after `Device`
    device = serving.Device(small_engine)
    body = LONG | {"stream": stream}
    if phase == "prefill":
        body |= {"prompt": [61] * 1900, "max_tokens": 100}
        device.go_on.clear()
    produced = small_engine.stats().generation_tokens
    try:
        with closing(send(client, body)):
            if phase == "decode":
                await until(lambda: small_engine.stats().generation_tokens > produced)
                device.go_on.clear()
            await until(lambda: small_engine.stats().running == 1)
        await until(lambda: bool(steps_by_then))
    finally:
        device.go_on.set()

    await until(lambda: not small_engine.stats().has_work)
    assert sum(small_engine.stats().step_tokens) - steps_by_then[0] <= 2
    assert small_engine.stats().kv_usage == 0
    assert (small_engine.stats().generation_tokens == produced) == (phase == "prefill")


async def test_the_request_behind_gets_the_place_and_the_log_stays_clean(
    client: httpx.AsyncClient, small_engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    first = send(client, LONG)
    await until(lambda: small_engine.stats().running == 1)
    behind = asyncio.create_task(client.post("/v1/chat/completions", json=PING))
    await until(lambda: small_engine.stats().waiting == 1)
    produced = small_engine.stats().generation_tokens

    first.close()

    assert (await asyncio.wait_for(behind, 30)).status_code == 200
    assert small_engine.stats().generation_tokens - produced < SOON
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING or record.exc_info]


async def test_a_client_that_leaves_while_sending_its_body_starts_nothing(
    client: httpx.AsyncClient, service: Service, small_engine: Engine
) -> None:
    before = small_engine.stats().prompt_tokens
    connection = socket.create_connection((client.base_url.host, client.base_url.port or 80))
    connection.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{"prompt": "x')
    await until(lambda: service.active == 1)

    connection.close()

    await until(lambda: service.active == 0)
    assert small_engine.stats().prompt_tokens == before
    assert (await client.post("/v1/chat/completions", json=PING)).status_code == 200


async def test_a_refusal_that_closes_the_connection_is_read_by_a_client_whose_body_is_still_on_its_way(
    client: httpx.AsyncClient, service: Service
) -> None:
    service.draining = True
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\n")
    await until(lambda: service.active == 1)

    writer.write(b"x" * 500_000)

    assert (await asyncio.wait_for(reader.read(), 30)).startswith(b"HTTP/1.1 503")
    writer.close()


async def test_a_stop_string_ends_the_engines_work_too(client: httpx.AsyncClient, small_engine: Engine) -> None:
    reply = await client.post("/v1/completions", json=LONG | {"stop": ["e"], "temperature": 0})

    assert reply.json()["choices"][0]["stop_reason"] == "e"
    assert await freed(small_engine)
