"""A broken engine behind a living server (F06): waiting clients get errors, readiness falls at once, liveness when only a restart helps.

The device under a real engine is what breaks here.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
import torch

from glm5_runtime.config import EngineConfig
from glm5_runtime.server.process import _Process
from glm5_runtime.server.service import ServerSettings
from tests.support import serving
from tests.support.serving import MODEL, PING, QUICK, Device, ask, error_of, until

CHAT = "/v1/chat/completions"
DEVICE_FAULT = RuntimeError("vector core exception, error code 507035")


@pytest.fixture
async def rig() -> AsyncIterator[tuple[httpx.AsyncClient, Device]]:
    engine = serving.tiny_engine()
    device = Device(engine)
    async with serving.on_a_socket(serving.make_service(engine, patience=QUICK)) as client:
        await _until_status(client, "/health/ready", 200)
        yield client, device
    device.go_on.set()
    engine.stop()


async def _until_status(client: httpx.AsyncClient, path: str, status: int, seconds: float = 30.0) -> dict[str, str]:
    async with asyncio.timeout(seconds):
        while (reply := await client.get(path)).status_code != status:  # noqa: ASYNC110 - the state is on the other side of HTTP
            await asyncio.sleep(0.02)
    body: dict[str, str] = reply.json()
    return body


async def test_a_device_fault_answers_those_who_wait_and_ends_readiness_and_liveness(rig: tuple[httpx.AsyncClient, Device]) -> None:
    client, device = rig
    waiting = [asyncio.create_task(client.post(CHAT, json=ask("Tell a story.", max_tokens=500, ignore_eos=True))) for _ in range(6)]
    await until(lambda: device.engine.stats().running == 4 and device.engine.stats().waiting == 2)

    device.error = DEVICE_FAULT

    replies = await asyncio.wait_for(asyncio.gather(*waiting), 30)
    assert {reply.status_code for reply in replies} == {500}
    assert error_of(replies[0])["type"] == "server_error"
    assert (await _until_status(client, "/health/ready", 503))["reason"] == "EngineDead"
    assert (await _until_status(client, "/health", 503))["status"] == "unhealthy"
    refused = await client.post(CHAT, json=PING)
    assert (refused.status_code, error_of(refused)["code"]) == (503, "engine_dead")
    assert "retry-after" in refused.headers


async def test_a_stream_cut_by_a_device_fault_ends_with_an_error_event_and_done(rig: tuple[httpx.AsyncClient, Device]) -> None:
    client, device = rig
    body = ask("Tell a story.", max_tokens=500, ignore_eos=True, stream=True)

    async with client.stream("POST", CHAT, json=body) as reply:
        text = ""
        async for chunk in reply.aiter_text():
            text += chunk
            device.error = DEVICE_FAULT

    events = serving.events_of(text)
    assert reply.status_code == 200
    assert set(events[-1]) == {"error"}
    assert "507035" in events[-1]["error"]["message"]


async def test_a_stuck_device_ends_readiness_first_and_liveness_later_and_recovery_brings_both_back(
    rig: tuple[httpx.AsyncClient, Device],
) -> None:
    client, device = rig
    device.go_on.clear()
    waiting = asyncio.create_task(client.post(CHAT, json=PING))

    assert (await _until_status(client, "/health/ready", 503))["reason"] == "Stuck"
    assert (await client.get("/health")).status_code == 200
    assert (await _until_status(client, "/health", 503))["reason"] == "Stuck"

    device.go_on.set()
    assert (await waiting).status_code == 200
    await _until_status(client, "/health/ready", 200)
    assert (await client.get("/health")).json() == {"status": "healthy"}


async def test_lasting_memory_shortage_is_confirmed_by_a_probe_and_a_token_brings_readiness_back(
    rig: tuple[httpx.AsyncClient, Device],
) -> None:
    client, device = rig
    device.error = RuntimeError("NPU out of memory. Tried to allocate 2.00 GiB")

    reply = await client.post(CHAT, json=PING)
    assert (reply.status_code, error_of(reply)["code"]) == (503, "out_of_memory")
    assert int(reply.headers["retry-after"]) > 0
    assert "GiB" not in error_of(reply)["message"]
    assert (await _until_status(client, "/health/ready", 503))["reason"] == "Failing"
    assert (await client.get("/health")).status_code == 200
    assert (await _until_status(client, "/health", 503))["reason"] == "Failing"

    device.error = None
    await _until_status(client, "/health/ready", 200)  # nobody but the probe asked
    assert (await client.get("/health")).status_code == 200


async def test_a_model_without_finite_numbers_is_never_ready_and_health_says_what_to_check() -> None:
    broken = serving.tiny_engine(start=False)
    with torch.inference_mode():
        broken._runner._steps.decoder.embed_tokens.weight[0] = torch.nan
    broken.start()
    async with serving.on_a_socket(serving.make_service(broken, patience=QUICK)) as client:
        seen = [(await client.get("/health/ready")).status_code for _ in range(20)]
        verdict = await _until_status(client, "/health", 503)
        ready = (await client.get("/health/ready")).json()
    broken.stop()

    assert set(seen) == {503}
    assert verdict["reason"] == ready["reason"] == "Failing"
    assert "check the weights, the numbers in config.json and the device" in ready["message"]


async def test_one_failed_request_does_not_take_the_server_out_of_traffic(rig: tuple[httpx.AsyncClient, Device]) -> None:
    client, device = rig
    device.error = RuntimeError("out of memory")
    reply = await client.post(CHAT, json=PING)
    device.error = None

    seen = [(await client.get("/health/ready")).status_code for _ in range(20)]

    assert reply.status_code == 503
    assert set(seen) == {200}
    assert (await client.post(CHAT, json=PING)).status_code == 200


async def test_a_stopped_engine_tells_running_requests_so(rig: tuple[httpx.AsyncClient, Device]) -> None:
    client, device = rig
    body = {"model": MODEL, "prompt": "Tell", "max_tokens": 1500, "ignore_eos": True}
    waiting = asyncio.create_task(client.post("/v1/completions", json=body))
    await until(lambda: device.engine.stats().running == 1)

    await asyncio.to_thread(device.engine.stop)

    reply = await asyncio.wait_for(waiting, 30)
    assert (reply.status_code, error_of(reply)["code"]) == (503, "aborted")
    assert (await client.get("/health")).status_code == 503


async def test_the_process_of_a_dead_engine_answers_everybody_and_ends_with_code_1(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = _Process(ServerSettings(MODEL, serving.TINY, port=port), EngineConfig(device="cpu", max_sequences=4))
    running = asyncio.create_task(process.run())
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        await until(lambda: process.engine is not None and process.engine.stats().tokens_since_start > 0, 60)
        assert process.engine is not None
        device = Device(process.engine)
        body = ask("Tell a story.", max_tokens=500, ignore_eos=True)
        whole = asyncio.create_task(client.post(CHAT, json=body))
        async with client.stream("POST", CHAT, json=body | {"stream": True}) as stream:
            text = ""
            async for chunk in stream.aiter_text():
                text += chunk
                if device.error is None:
                    device.error = DEVICE_FAULT

        assert "507035" in serving.events_of(text)[-1]["error"]["message"]
        assert (await whole).status_code == 500
        assert (await client.get("/health/ready")).json()["reason"] == "EngineDead"  # at once, before the process ends
        refused = await client.post(CHAT, json=PING)
        assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
    assert await asyncio.wait_for(running, 60) == 1
    assert "507035" in caplog.text
    assert "the process ends for a restart" in caplog.text
