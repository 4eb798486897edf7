"""The audit log on real files: what its lines hold, that rotation and full disks cost no client anything. `/dev/full` is the full disk."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from glm5_runtime.engine.engine import Engine
from glm5_runtime.server.account import Account
from glm5_runtime.server.audit import AuditLog
from glm5_runtime.server.service import Service
from tests.support import serving
from tests.support.serving import MODEL, ask, until

START = {"event": "start"}
SECRET = "a secret that no log may hold"


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def account(path: str = "/x") -> Account:
    return Account("10.0.0.1", "POST", path, MODEL, 1_700_000_000.5)


def open_log(path: Path, counts: Counter[str]) -> AuditLog:
    def count(outcome: str) -> None:
        counts[outcome] += 1

    return AuditLog(str(path), count, first=START)


async def test_every_request_but_probes_leaves_one_line_without_content(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "audit"
    service = serving.make_service(engine, api_key="k")
    log = AuditLog(str(path), service.metrics.audited, first=START)
    service.listeners.append(log)
    key = {"authorization": "Bearer k"}
    async with serving.on_a_socket(service) as client:
        chat = await client.post("/v1/chat/completions", json=ask(SECRET, max_tokens=3, request_id="mine"), headers=key)
        await client.post("/v1/completions", json={"prompt": [[1, 2], [3]], "n": 2, "max_tokens": 2, "ignore_eos": True}, headers=key)
        async with client.stream(
            "POST", "/v1/completions", json={"prompt": "x", "stream": True, "ignore_eos": True}, headers=key
        ) as stream:
            async for _ in stream.aiter_bytes():
                break
        await client.post("/v1/chat/completions", json=ask(SECRET))
        await client.post(f"/v1/{SECRET}", headers=key)
        await client.post("/v1/completions", json={"prompt": SECRET, "temperature": 9}, headers=key)
        await client.get("/health")
        await client.get("/metrics")
    await log.close(5)

    assert json.loads(path.read_text().splitlines()[0]) == START
    lines = {(line["path"], line["status"], line["completion_tokens"]): line for line in lines_of(path)[1:]}
    assert len(lines_of(path)) == 1 + 6
    first = lines["/v1/chat/completions", 200, 3]
    assert (first["request_id"], first["client"], first["model"]) == ("chatcmpl-mine", "127.0.0.1", MODEL)
    assert first["finish_reasons"] == ["length"]
    assert first["prompt_tokens"] == chat.json()["usage"]["prompt_tokens"]
    assert 0 <= first["queue_seconds"] <= first["first_token_seconds"] <= first["seconds"]
    several = lines["/v1/completions", 200, 8]
    assert (several["prompt_tokens"], several["finish_reasons"]) == (3, ["length"] * 4)
    left = next(line for line in lines.values() if line["finish_reasons"] == ["abort"])
    assert left["status"] == 200
    assert lines["/v1/chat/completions", 401, 0]["request_id"] is None
    assert lines["/v1/completions", 400, 0]["finish_reasons"] == []
    assert path.read_text().count(SECRET) == 1  # the path that a client asked for
    assert b'glm5:audit_lines_total{engine="0",model_name="glm-5",outcome="written"} 6.0' in service.metrics.render()


@pytest.mark.parametrize("way", ["renamed", "removed", "cut"])
async def test_a_rotated_file_is_written_on(tmp_path: Path, way: str) -> None:
    path, counts = tmp_path / "audit", Counter[str]()
    log = open_log(path, counts)
    log.tell(account("/before"))
    await until(lambda: counts["written"] == 1)

    if way == "renamed":
        path.rename(tmp_path / "audit.1")
    elif way == "removed":
        path.unlink()
    else:
        os.truncate(path, 0)
    log.tell(account("/after"))
    await log.close(5)

    assert [line["path"] for line in lines_of(path)] == ["/after"]
    if way == "renamed":
        assert lines_of(tmp_path / "audit.1")[1]["path"] == "/before"


@pytest.mark.parametrize("path", ["/dev/full", "/nowhere/audit", "/"], ids=["full disk", "no folder", "a folder"])
def test_a_log_that_cannot_be_written_is_refused_at_the_start(path: str) -> None:
    with pytest.raises(OSError, match=r"."):
        open_log(Path(path), Counter())


async def test_a_disk_that_fills_up_costs_lines_and_no_answer_and_is_reported_once(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "audit"
    service = serving.make_service(engine)
    log = AuditLog(str(path), service.metrics.audited, first=START)
    service.listeners.append(log)
    path.unlink()
    path.symlink_to("/dev/full")
    async with serving.asgi_client(service) as client:
        for _ in range(5):
            assert (await client.get("/v1/models")).status_code == 200
        await until(lambda: b'outcome="failed"} 5.0' in service.metrics.render())
        path.unlink()
        assert (await client.get("/v1/models")).status_code == 200
    await log.close(5)

    assert len(lines_of(path)) == 1
    assert caplog.text.count("the audit log can't be written: No space left on device") == 1


async def test_a_line_that_a_full_disk_cut_spoils_none_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, counts, real = tmp_path / "audit", Counter[str](), os.write
    log = open_log(path, counts)

    def short(file: int, data: bytes) -> int:
        if len(data) < 10 or counts["failed"]:
            return real(file, data)
        if data.startswith(b"{"):
            return real(file, data[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", short)
    log.tell(account("/cut"))
    await until(lambda: counts["failed"] == 1)
    log.tell(account("/whole"))
    await log.close(5)

    assert json.loads(path.read_text().splitlines()[-1])["path"] == "/whole"


async def test_a_reader_that_stops_reading_costs_lines_and_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glm5_runtime.server.audit._QUEUED", 10)
    pipe, counts = tmp_path / "pipe", Counter[str]()
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    log = open_log(pipe, counts)

    for _ in range(2_000):  # a pipe holds 64 KiB
        log.tell(account())
    assert counts["dropped"] > 1_000
    closing = asyncio.create_task(log.close(0.2))
    await asyncio.wait_for(closing, 30)

    def all_read() -> bool:
        with suppress(BlockingIOError):
            os.read(reader, 1_000_000)
        return counts["written"] + counts["dropped"] == 2_000

    await until(all_read)
    os.close(reader)


def test_without_the_flag_there_is_no_log(engine: Engine) -> None:
    service: Service = serving.make_service(engine)

    assert service.listeners == []
