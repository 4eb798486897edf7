"""The file that says which adapters a server has: followed as a kubelet changes it, bad content changes nothing, shares are kept.

What is faked: the clock of retries. Files, adapters and the engine are real.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from glm5_runtime.engine.engine import Engine
from glm5_runtime.server import adapters_file
from glm5_runtime.server.adapters_file import LONGEST_PAUSE, AdaptersFile
from glm5_runtime.server.service import Service
from tests.support import serving
from tests.support.adapters import ATTENTION, EVERYTHING, write_adapter
from tests.support.serving import MODEL, Device, ask, error_of, events_of

CHAT, HEALTH = "/v1/chat/completions", "/health/adapters"


@pytest.fixture(scope="module")
def adapted() -> Iterator[Engine]:
    engine = serving.tiny_engine(max_loras=3, max_lora_rank=8)
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, adapted: Engine) -> Path:
    root, config = tmp_path_factory.mktemp("adapters"), adapted.model_config
    write_adapter(root / "one", config, EVERYTHING, strength=0.12, seed=1)
    write_adapter(root / "two", config, ATTENTION, rank=8, strength=0.25, seed=2)
    write_adapter(root / "other-base", config, ATTENTION, strength=0.2, seed=3, base_model_name_or_path="elsewhere/Other-7B")
    return root


@dataclass
class Followed:
    """A server with a file, and a client of it."""

    service: Service
    client: httpx.AsyncClient
    path: Path
    root: Path
    now: float = 0.0

    @property
    def file(self) -> AdaptersFile:
        assert self.service.adapters_file is not None
        return self.service.adapters_file

    async def says(self, *entries: object) -> None:
        """Write the file whole, as a mounted ConfigMap changes, and follow it once."""
        await self.text(json.dumps({"adapters": entries}))

    async def text(self, text: str) -> None:
        fresh = self.path.with_name("fresh")
        fresh.write_text(text)
        fresh.replace(self.path)
        await self.follow()

    async def follow(self) -> None:
        await self.file.look()
        await self.file.settle(self.now)

    def entry(self, name: str, folder: str | None = None, **fields: object) -> dict[str, object]:
        return {"name": name, "path": str(self.root / (folder or name))} | fields

    async def states(self) -> dict[str, dict[str, Any]]:
        reply = (await self.client.get(HEALTH)).json()
        assert reply["model"] == MODEL
        return {adapter["name"]: adapter for adapter in reply["adapters"]}

    async def answered_by(self, **fields: object) -> str:
        reply = await self.client.post(CHAT, json=ask("Hi", max_tokens=1) | fields)
        assert reply.status_code == 200, reply.text
        model: str = reply.json()["model"]
        return model


def sha256(folder: Path) -> str:
    return hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()


@asynccontextmanager
async def following(engine: Engine, root: Path, path: Path) -> AsyncIterator[Followed]:
    service = serving.make_service(engine, adapters_file=path, lora_dir=root)
    assert service.adapters_file is not None
    assert engine.adapters is not None
    await service.adapters_file.start(engine.adapters)
    async with serving.asgi_client(service) as client:
        yield Followed(service, client, path, root)
    for adapter in engine.adapters.loaded:
        engine.adapters.unload(adapter.name)
    await serving.until(lambda: not engine.adapters._held)  # type: ignore[union-attr]


@pytest.fixture
async def server(adapted: Engine, root: Path, tmp_path: Path) -> AsyncIterator[Followed]:
    async with following(adapted, root, tmp_path / "adapters.json") as server:
        yield server


async def test_what_the_file_names_is_loaded_and_what_it_no_longer_names_goes(server: Followed) -> None:
    assert await server.states() == {}
    await server.says(server.entry("one", sha256=sha256(server.root / "one"), share=0.25), server.entry("two"))

    states = await server.states()
    assert states["one"] == {
        "name": "one",
        "sha256": sha256(server.root / "one"),
        "state": "Loaded",
        "message": "",
        "share": 0.25,
        "requests": 0,
        "failures": 0,
    }
    assert states["two"]["state"] == "Loaded"
    assert await server.answered_by(model="two") == "two"

    await server.says(server.entry("one"))
    assert list(await server.states()) == ["one"]
    assert (await server.client.post(CHAT, json=ask("Hi") | {"model": "two"})).status_code == 404


async def test_adapters_are_there_when_the_server_is_ready_and_a_bad_one_does_not_keep_it(
    adapted: Engine, root: Path, tmp_path: Path
) -> None:
    path = tmp_path / "adapters.json"
    entries = [{"name": "one", "path": "one"}, {"name": "gone", "path": str(root / "nowhere")}]
    path.write_text(json.dumps({"adapters": entries}))
    async with following(adapted, root, path) as server:
        states = await server.states()
    assert states["one"]["state"] == "Loaded"
    assert states["gone"]["state"] == "Failed"
    assert "there is no such folder" in states["gone"]["message"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"adapters": [{"name": "two", "pa',
        "[]",
        '{"adapters": {}}',
        '{"adapters": [], "version": 2}',
        '{"adapters": [{"name": "one", "path": "one", "share": 0.6}, {"name": "two", "path": "two", "share": 0.5}]}',
        " " * (1 << 20) + "{}",
        '{"adapters": [' + ", ".join("5" * 1001) + "]}",
        '{"adapters": ' + "[" * 500_000,
    ],
    ids=["empty", "half written", "a list", "no list", "another key", "shares above 1", "too large", "too many", "too deep"],
)
async def test_a_file_that_can_not_be_understood_is_told_once_and_changes_nothing(
    server: Followed, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    await server.says(server.entry("one", share=0.5))
    before = await server.states()
    caplog.clear()
    await server.text(text)
    await server.follow()

    assert await server.states() == before
    assert len([record for record in caplog.records if "adapters stay as they are" in record.message]) == 1


async def test_a_file_that_is_gone_or_no_file_changes_nothing_and_its_return_is_followed(server: Followed) -> None:
    await server.says(server.entry("one"))
    server.path.unlink()
    await server.follow()
    assert (await server.states())["one"]["state"] == "Loaded"
    server.path.mkdir()
    await server.follow()
    assert (await server.states())["one"]["state"] == "Loaded"
    server.path.rmdir()
    await server.says()
    assert await server.states() == {}


async def test_the_swap_of_a_mounted_folder_is_followed(adapted: Engine, root: Path, tmp_path: Path) -> None:
    """As a kubelet does it: the file is a link into a folder that is a link itself, which is replaced."""
    for name, entries in (("v1", [{"name": "one", "path": "one"}]), ("v2", [{"name": "two", "path": "two"}])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapters.json").write_text(json.dumps({"adapters": entries}))
    data = tmp_path / "..data"
    data.symlink_to("v1")
    (tmp_path / "adapters.json").symlink_to("..data/adapters.json")
    async with following(adapted, root, tmp_path / "adapters.json") as server:
        assert list(await server.states()) == ["one"]
        fresh = tmp_path / "..data_tmp"
        fresh.symlink_to("v2")
        fresh.replace(data)
        await server.follow()
        assert list(await server.states()) == ["two"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"share": 1.5}, "share: Input should be less than or equal to 1"),
        ({"share": "much"}, "share: Input should be a valid number"),
        ({"sha256": "ab"}, "sha256: "),
        ({"url": "http://x"}, "url: Extra inputs are not permitted"),
        ({"path": None}, "path: Field required"),
    ],
)
async def test_a_bad_entry_is_told_and_leaves_the_others_and_its_own_adapter_alone(
    server: Followed, change: dict[str, object], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    await server.says(server.entry("one", share=0.5), server.entry("new", "nowhere"))
    await server.says(server.entry("one") | change, server.entry("two"), {"path": "/x"}, 5, {"name": MODEL, "path": "one"})

    states = await server.states()
    assert states["two"]["state"] == "Loaded"
    assert states["one"]["state"] == "Failed"
    assert message in states["one"]["message"]
    assert "what was loaded before answers" in states["one"]["message"]
    assert await server.answered_by(model="one") == "one"
    assert set(states) == {"one", "two"}
    caplog.clear()
    await server.follow()
    assert caplog.records == []  # told once


async def test_one_name_twice_is_none_of_both(server: Followed) -> None:
    await server.says(server.entry("one"), server.entry("one", "two"), server.entry("two"))
    states = await server.states()
    assert [(name, state["state"]) for name, state in states.items()] == [("two", "Loaded"), ("one", "Failed")]
    assert "the name is there twice" in states["one"]["message"]


async def test_another_checksum_replaces_the_adapter_and_one_that_is_not_there_yet_leaves_the_former(
    server: Followed, adapted: Engine, tmp_path: Path
) -> None:
    folder = server.root / "moving"
    write_adapter(folder, adapted.model_config, ATTENTION, strength=0.25, seed=5)
    first = sha256(folder)
    await server.says(server.entry("moving", sha256=first))
    fresh = write_adapter(tmp_path / "moved", adapted.model_config, ATTENTION, strength=0.25, seed=6)
    second = sha256(fresh)

    await server.says(server.entry("moving", sha256=second))
    state = (await server.states())["moving"]
    assert (state["state"], state["sha256"]) == ("Failed", first)
    assert f"not the expected {second}" in state["message"]
    assert await server.answered_by(model="moving") == "moving"

    shutil.rmtree(folder)
    shutil.move(fresh, folder)
    server.now += LONGEST_PAUSE
    await server.follow()
    state = (await server.states())["moving"]
    assert (state["state"], state["sha256"], state["message"]) == ("Loaded", second, "")
    shutil.rmtree(folder)


async def test_without_room_for_both_the_former_adapter_makes_room(server: Followed) -> None:
    await server.says(*(server.entry(name, "two") for name in ("a", "b", "c")))
    await server.says(server.entry("a", "one"), server.entry("b", "two"), server.entry("c", "two"))
    assert "made room" in (await server.states())["a"]["message"]
    server.now += 1
    await server.follow()
    assert {name: state["state"] for name, state in (await server.states()).items()} == dict.fromkeys("abc", "Loaded")
    assert (await server.states())["a"]["sha256"] == sha256(server.root / "one")


async def test_what_can_not_be_loaded_is_tried_again_with_growing_pauses_and_told_once(
    server: Followed, adapted: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    await server.says(server.entry("late"), server.entry("two"))
    tried = [server.now]
    for _ in range(100):
        before = server.file._failed["late"].again
        server.now += 1
        await server.follow()
        if server.file._failed["late"].again != before:
            tried.append(server.now)
    assert [later - earlier for earlier, later in pairwise(tried)] == [1, 2, 4, 8, 16, 30, 30]
    assert len([record for record in caplog.records if "it is tried again" in record.message]) == 1

    write_adapter(server.root / "late", adapted.model_config, ATTENTION)
    server.now += LONGEST_PAUSE
    await server.follow()
    assert (await server.states())["late"]["state"] == "Loaded"
    shutil.rmtree(server.root / "late")


async def test_names_of_the_file_and_of_the_endpoints_are_not_taken_from_each_other(server: Followed) -> None:
    load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    await server.client.post(load, json={"lora_name": "by-hand", "lora_path": "two"})
    await server.says(server.entry("one"), server.entry("by-hand", "one"))
    states = await server.states()
    assert states["by-hand"]["state"] == "Failed"
    assert "loaded already, by --lora-modules or /v1/load_lora_adapter" in states["by-hand"]["message"]

    for path, body in ((load, {"lora_name": "one", "lora_path": "two"}), (unload, {"lora_name": "one"})):
        refused = await server.client.post(path, json=body)
        assert refused.status_code == 400
        assert "'one' belongs to the file of --adapters-file" in error_of(refused)["message"]
    assert await server.answered_by(model="one") == "one"
    await server.says(server.entry("one"))
    assert await server.answered_by(model="by-hand") == "by-hand"
    assert (await server.states())["by-hand"]["state"] == "Loaded"  # not the file's, and seen all the same

    await server.says(server.entry("one"), server.entry("by-hand", "one"))
    assert (await server.client.post(unload, json={"lora_name": "by-hand"})).status_code == 200
    server.now += LONGEST_PAUSE
    await server.follow()
    assert (await server.states())["by-hand"]["sha256"] == sha256(server.root / "one")


async def test_an_adapter_of_another_base_is_told_and_with_a_stated_base_refused(server: Followed) -> None:
    await server.says(server.entry("told", "other-base"), server.entry("kept", "other-base", base="GLM-5"))
    states = await server.states()
    assert states["told"]["state"] == "Loaded"
    assert "names 'elsewhere/Other-7B' as its base, this server has 'tiny-glm5'" in states["told"]["message"]
    assert states["kept"]["state"] == "Failed"
    assert "base_model_name_or_path is 'elsewhere/Other-7B', expected 'GLM-5'" in states["kept"]["message"]


async def test_no_path_of_the_file_leads_out_of_the_adapters_folder(server: Followed, tmp_path: Path) -> None:
    shutil.copytree(server.root / "one", tmp_path / "outside")
    await server.says({"name": "x", "path": str(tmp_path / "outside")}, {"name": "y", "path": "../one"})
    states = await server.states()
    assert all(state["state"] == "Failed" and "is not within --lora-dir" in state["message"] for state in states.values())


async def test_a_share_of_the_models_requests_is_answered_by_the_adapter_and_the_same_id_by_the_same(server: Followed) -> None:
    await server.says(server.entry("one", share=0.3))
    chosen = [server.file.share_of(str(number)) for number in range(2000)]
    assert chosen.count("one") == pytest.approx(600, abs=80)
    ids = [f"r{number}" for number in range(12)]
    answered = {each: await server.answered_by(request_id=each) for each in ids}
    assert set(answered.values()) == {MODEL, "one"}
    assert answered == {each: await server.answered_by(request_id=each) for each in ids}
    assert answered == {each: server.file.share_of(each) or MODEL for each in ids}

    await server.says(server.entry("one", share=0.7))  # who was led to it stays there
    assert all(server.file.share_of(each) == "one" for each, name in answered.items() if name == "one")
    await server.says(server.entry("one", share=0))
    assert {await server.answered_by(request_id=each) for each in ids} == {MODEL}
    assert await server.answered_by(model="one") == "one"


async def test_the_share_of_an_adapter_that_is_not_there_is_the_models_and_no_other_adapters(server: Followed) -> None:
    await server.says(server.entry("late", "nowhere", share=0.5), server.entry("one", share=0.5))
    chosen = [server.file.share_of(str(number)) for number in range(2000)]
    assert chosen.count(None) == pytest.approx(1000, abs=100)
    assert chosen.count("one") == 2000 - chosen.count(None)
    assert {await server.answered_by(request_id=f"r{number}") for number in range(12)} == {MODEL, "one"}


async def test_every_dialect_names_the_adapter_that_answered_and_canary_false_asks_for_the_model(server: Followed) -> None:
    await server.says(server.entry("one", share=1))
    assert await server.answered_by() == "one"
    assert await server.answered_by(canary=False) == MODEL
    stream = await server.client.post(CHAT, json=ask("Hi", max_tokens=2, stream=True))
    assert {event["model"] for event in events_of(stream.text)} == {"one"}
    body = {"prompt": "Once", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    plain = (await server.client.post("/v1/completions", json=body | {"model": MODEL, "canary": False})).json()
    shared = (await server.client.post("/v1/completions", json=body)).json()  # no model named: the server's
    assert (plain["model"], shared["model"]) == (MODEL, "one")
    assert plain["choices"][0]["text"] != shared["choices"][0]["text"]
    old = (await server.client.post("/generate", json=body)).json()
    assert old["text"] == ["Once" + shared["choices"][0]["text"]]
    said = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
    assert (await server.client.post("/v1/messages", json=said)).json()["model"] == "one"


async def test_requests_finish_on_an_adapter_that_leaves_and_new_ones_go_to_the_model(server: Followed, adapted: Engine) -> None:
    await server.says(server.entry("one", share=1))
    body = ask("Who are you?", max_tokens=40, ignore_eos=True)
    before = (await server.client.post(CHAT, json=body)).json()
    device = Device(adapted)
    device.go_on.clear()
    try:
        running = asyncio.create_task(server.client.post(CHAT, json=body))
        await serving.until(lambda: adapted.adapters is not None and bool(adapted.adapters.in_use()))
        await server.says()
        late = asyncio.create_task(server.client.post(CHAT, json=body))
        await serving.until(lambda: adapted._unfinished == 2)
    finally:
        device.go_on.set()
    assert (await running).json()["choices"] == before["choices"]
    assert (await running).json()["model"] == "one"
    assert (await late).json()["model"] == MODEL


async def test_requests_finish_on_the_former_adapter_of_a_name_whose_memory_is_free_then(server: Followed, adapted: Engine) -> None:
    await server.says(server.entry("x", "one"))
    body = ask("Who are you?", max_tokens=40, ignore_eos=True) | {"model": "x"}
    before = (await server.client.post(CHAT, json=body)).json()
    device, store = Device(adapted), adapted.adapters
    assert store is not None
    device.go_on.clear()
    try:
        running = asyncio.create_task(server.client.post(CHAT, json=body))
        await serving.until(lambda: bool(store.in_use()))
        await server.says(server.entry("x", "two"))
        assert len(store._held) == 2
    finally:
        device.go_on.set()
    assert (await running).json()["choices"] == before["choices"]
    assert (await server.client.post(CHAT, json=body)).json()["choices"] != before["choices"]
    await serving.until(lambda: len(store._held) == 1)


async def test_requests_and_failures_are_counted_by_what_answered(server: Followed, adapted: Engine) -> None:
    await server.says(server.entry("one", share=1))
    await server.answered_by()
    await server.answered_by(model="one")
    await server.answered_by(canary=False)
    assert (await server.client.post(CHAT, json=ask("Hi", max_tokens=9**9))).status_code == 400  # reached no model
    long = ask("Hi", max_tokens=1500, ignore_eos=True, stream=True)
    device = Device(adapted)
    device.error = RuntimeError("out of memory: none left")
    try:
        failed = await server.client.post(CHAT, json=ask("Hi", max_tokens=4))
        device.error = None
        async with serving.on_a_socket(server.service) as client, client.stream("POST", CHAT, json=long) as broken:
            async for _ in broken.aiter_lines():
                device.error = RuntimeError("out of memory: none left")
    finally:
        device.error = None
    assert (failed.status_code, broken.status_code) == (503, 200)

    reply = (await server.client.get(HEALTH)).json()
    assert [(one["requests"], one["failures"]) for one in reply["adapters"]] == [(4, 2)]
    assert reply["base"] == {"requests": 1, "failures": 0}
    metrics = (await server.client.get("/metrics")).text
    assert 'glm5:adapter_requests_total{adapter="one",engine="0",model_name="glm-5"} 4.0' in metrics
    assert 'glm5:adapter_failures_total{adapter="one",engine="0",model_name="glm-5"} 2.0' in metrics
    assert 'glm5:adapter_requests_total{adapter="",engine="0",model_name="glm-5"} 1.0' in metrics


async def test_a_slow_load_holds_up_neither_the_loop_nor_shares(server: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The load waits in its thread for as long as the test wants; everything else goes on."""
    await server.says(server.entry("one"))
    store = server.service.model.adapters
    assert store is not None
    begun, go_on, whole = threading.Event(), threading.Event(), store.replace
    monkeypatch.setattr(store, "replace", lambda *given: (begun.set(), go_on.wait(60), whole(*given))[-1])
    server.path.write_text(json.dumps({"adapters": [server.entry("one", share=1), server.entry("two")]}))
    await server.file.look()
    settling = asyncio.create_task(server.file.settle(server.now))
    try:
        await serving.until(begun.is_set)
        assert await server.answered_by() == "one"
        assert (await server.states())["two"]["state"] == "Loading"
    finally:
        go_on.set()
    await settling
    assert (await server.states())["two"]["state"] == "Loaded"


async def test_the_file_is_followed_while_the_server_runs(server: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters_file, "LOOK_SECONDS", 0.01)
    running = asyncio.create_task(server.file.run())
    store = server.service.model.adapters
    assert store is not None
    try:
        for names in ({"one"}, {"two"}, {"one", "two"}, set()):
            server.path.write_text(json.dumps({"adapters": [server.entry(name) for name in names]}))
            await serving.until(lambda names=names: {adapter.name for adapter in store.loaded} == names)  # type: ignore[misc]
    finally:
        running.cancel()


async def test_a_load_that_hangs_keeps_no_server_from_being_ready(
    adapted: Engine, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "adapters.json"
    path.write_text(json.dumps({"adapters": [{"name": "one", "path": "one"}]}))
    monkeypatch.setattr(adapters_file, "START_SECONDS", 0.05)
    go_on = threading.Event()
    assert adapted.adapters is not None
    whole = adapted.adapters.replace
    monkeypatch.setattr(adapted.adapters, "replace", lambda *given: (go_on.wait(60), whole(*given))[-1])
    try:
        async with following(adapted, root, path) as server:
            assert (await server.states())["one"]["state"] == "Loading"
            go_on.set()
            await serving.until(lambda: server.file.states[0].state == "Loaded")
    finally:
        go_on.set()
