"""The serving process as a kubelet sees it: port at once, ready later, SIGTERM drains, a failed load ends it, bodies leave no memory.

Each test is a process of its own, whose import of torch takes three CPU seconds: few of them, with long deadlines.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.support.served import ANSWER, TEXT, served
from tests.support.serving import PING, TINY, ask, error_of, events_of, joined

CHAT = "/v1/chat/completions"
COUNT = "one, two, three, four, five, six, seven, eight, nine, ten"


def slow_model(folder: Path) -> Path:
    """The tiny model on storage that gives no byte of the weights: a named pipe stands for their file."""
    shutil.copytree(TINY, folder, ignore=shutil.ignore_patterns("train", "model.safetensors"))
    os.mkfifo(folder / "model.safetensors")
    return folder


async def test_from_start_to_sigterm_no_request_is_lost(tmp_path: Path) -> None:
    audit, hooked = tmp_path / "audit", tmp_path / "hooked"
    telling = ("--audit-log", str(audit), "--post-inference-hook", f"tee -a {hooked}")
    async with served(tmp_path, "--drain-timeout", "30s", *telling) as server:
        await server.until("/health", 200)
        loading = await server.client.get("/health/ready")
        assert (loading.status_code, loading.json()["reason"]) == (503, "Loading")  # the port is open before the model is there
        assert error_of(await server.client.post(CHAT, json=PING))["code"] == "loading"
        await server.until("/health/ready", 200)  # without any request: the engine's own token

        slow = {"model": "glm-5", "prompt": "Tell", "max_tokens": 1000, "ignore_eos": True}
        whole = asyncio.create_task(server.client.post("/v1/completions", json=slow))
        await server.until_running(1)
        async with server.client.stream("POST", CHAT, json=ask("Count to ten.", stream=True)) as running:
            server.process.send_signal(signal.SIGTERM)  # both are under way

            draining = await server.until("/health/ready", 503)
            assert draining.json()["reason"] == "Draining"
            refused = await server.client.post(CHAT, json=PING)
            assert (refused.status_code, error_of(refused)["code"]) == (503, "draining")
            assert (await server.client.get("/health")).status_code == 200
            assert joined(events_of((await running.aread()).decode())) == COUNT
        assert (await whole).json()["usage"]["completion_tokens"] == 1000
        assert await server.ended() == 0
        log = server.log.read_text()
        assert "Traceback" not in log
        assert COUNT not in log
    begins, *lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert (begins["event"], begins["model"]) == ("start", "glm-5")
    assert sorted(line["status"] for line in lines) == [200, 200, 503, 503]  # answered while draining; refused while loading and draining
    records = re.findall(r"\{.*?\}", hooked.read_text())  # two programs may write at once
    assert sorted(json.loads(record)["completion_tokens"] for record in records)[1:] == [1000]


async def test_requests_that_outlive_the_drain_timeout_are_told_and_the_process_ends_in_time(tmp_path: Path) -> None:
    async with served(tmp_path, "--drain-timeout", "300ms") as server:
        await server.until("/health/ready", 200)
        long = {"model": "glm-5", "prompt": "Tell", "max_tokens": 2000, "ignore_eos": True}
        async with server.client.stream("POST", "/v1/completions", json=long | {"stream": True}) as reply:
            text, signalled = "", False
            async for chunk in reply.aiter_text():
                text += chunk
                if not signalled:
                    signalled = True
                    server.process.send_signal(signal.SIGTERM)

        assert events_of(text)[-1]["error"]["code"] == "aborted"
        assert await server.ended() == 0


async def test_a_second_signal_ends_the_drain(tmp_path: Path) -> None:
    async with served(tmp_path, "--drain-timeout", "1h") as server:
        await server.until("/health/ready", 200)
        long = {"model": "glm-5", "prompt": "Tell", "max_tokens": 2000, "ignore_eos": True}
        running = asyncio.create_task(server.client.post("/v1/completions", json=long))
        server.process.send_signal(signal.SIGTERM)
        await server.until("/health/ready", 503)

        server.process.send_signal(signal.SIGINT)

        assert await server.ended() == 0
        with suppress(httpx.TransportError):
            assert (await running).status_code == 503


async def test_sigterm_while_loading_ends_at_once(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await server.until("/health", 200)

        server.process.send_signal(signal.SIGTERM)

        assert await server.ended() == 0


async def test_a_model_that_cannot_be_loaded_ends_the_process_with_the_reason_in_the_log(tmp_path: Path) -> None:
    broken = tmp_path / "model"
    shutil.copytree(TINY, broken, ignore=shutil.ignore_patterns("train"))
    (broken / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")

    async with served(tmp_path, model=broken) as server:
        assert await server.ended() == 1
        assert "the model can't be loaded" in server.log.read_text()
        assert "Traceback" not in server.log.read_text()


async def test_two_hundred_megabytes_are_refused_without_being_kept_and_the_key_from_the_environment_guards(tmp_path: Path) -> None:
    size, chunk = 200_000_000, b"x" * 1_000_000
    key = {"authorization": "Bearer from-a-secret"}

    async def body() -> AsyncIterator[bytes]:
        for _ in range(size // len(chunk)):
            yield chunk

    async with served(tmp_path, GLM5_API_KEY="from-a-secret\n") as server:
        await server.until("/health/ready", 200)
        assert (await server.client.post(CHAT, json=PING)).status_code == 401
        assert (await server.client.post(CHAT, json=PING, headers=key)).status_code == 200
        before = server.rss()

        chunked = await server.client.post(CHAT, content=body(), headers=key)
        declared = await server.client.post(CHAT, content=body(), headers=key | {"content-length": str(size)})

        assert (chunked.status_code, declared.status_code) == (413, 413)
        assert error_of(declared)["code"] == "request_too_large"
        assert server.rss() - before < 40_000_000
        assert (await server.client.post(CHAT, json=PING, headers=key)).status_code == 200
        assert "from-a-secret" not in server.log.read_text()


async def test_an_audit_log_on_a_full_disk_ends_the_process_at_the_start(tmp_path: Path) -> None:
    async with served(tmp_path, "--audit-log", "/dev/full") as server:
        assert await server.ended() == 1
        assert "--audit-log: /dev/full can't be written: No space left on device" in server.log.read_text()


async def test_a_port_in_use_ends_the_process_with_code_1(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with served(tmp_path, port=taken.getsockname()[1]) as server:
            assert await server.ended() == 1
            assert "Address already in use" in server.log.read_text()


async def test_a_process_killed_while_it_reads_weights_or_answers_leaves_nothing_that_hinders_the_next(tmp_path: Path) -> None:
    async with served(tmp_path, model=slow_model(tmp_path / "slow")) as server:
        with await server.reading_weights():
            refused = await server.client.post("/v1/completions", json=TEXT)
            assert (refused.status_code, error_of(refused)["code"]) == (503, "loading")
            server.process.kill()
            assert await server.ended() == -signal.SIGKILL
    port = server.client.base_url.port or 0

    async with served(tmp_path, port=port) as second:
        await second.until("/health/ready", 200)
        assert await second.completes() == ANSWER
        long = {"model": "glm-5", "prompt": "Tell", "max_tokens": 2000, "ignore_eos": True, "stream": True}
        async with second.client.stream("POST", "/v1/completions", json=long) as reply:
            chunks = reply.aiter_text()
            await anext(chunks)
            second.process.kill()
            with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):  # cut: not to be taken for the end of the answer
                async for _ in chunks:
                    pass
        assert await second.ended() == -signal.SIGKILL
        with pytest.raises(httpx.ConnectError):
            await second.client.get("/health")

    async with served(tmp_path, port=port) as third:
        await third.until("/health/ready", 200)
        assert await third.completes() == ANSWER
