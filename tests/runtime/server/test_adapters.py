"""Adapters over HTTP: loaded and unloaded as vLLM's clients do it, named as models, every refusal with its reason."""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import TYPE_CHECKING

import pytest
from safetensors.torch import load_file, save_file

from tests.support import serving
from tests.support.adapters import ATTENTION, EVERYTHING, write_adapter
from tests.support.serving import MODEL, ask, error_of, joined

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    import httpx

    from glm5_runtime.engine.engine import Engine
    from glm5_runtime.server.service import Service

LOAD, UNLOAD, CHAT = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/chat/completions"


@pytest.fixture(scope="module")
def adapted() -> Iterator[Engine]:
    engine = serving.tiny_engine(max_loras=2, max_lora_rank=8)
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, adapted: Engine) -> Path:
    root, config = tmp_path_factory.mktemp("adapters"), adapted.model_config
    write_adapter(root / "one", config, EVERYTHING, strength=0.12, seed=1)
    write_adapter(root / "two", config, ATTENTION, rank=8, strength=0.25, seed=2)
    write_adapter(root / "elsewhere" / "three", config, seed=3)
    return root


@pytest.fixture
async def client(adapted: Engine, root: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with serving.asgi_client(service_of(adapted, root)) as client:
        yield client
    assert adapted.adapters is not None
    for adapter in adapted.adapters.loaded:
        adapted.adapters.unload(adapter.name)
    await serving.until(lambda: not adapted.adapters._held)  # type: ignore[union-attr]


def service_of(engine: Engine, root: Path | None) -> Service:
    return serving.make_service(engine, lora_dir=root)


async def load(client: httpx.AsyncClient, name: str, path: str, **fields: object) -> httpx.Response:
    return await client.post(LOAD, json={"lora_name": name, "lora_path": path} | fields)


async def answer(client: httpx.AsyncClient, model: str, **fields: object) -> str:
    response = await client.post(CHAT, json=ask("Who are you?", max_tokens=30, ignore_eos=True) | {"model": model} | fields)
    assert response.json()["model"] == model
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


async def test_two_adapters_are_loaded_change_the_answer_and_go_again(client: httpx.AsyncClient, root: Path) -> None:
    plain = await answer(client, MODEL)
    loaded = await load(client, "one", "one")
    assert loaded.status_code == 200
    checksum = hashlib.sha256((root / "one" / "adapter_model.safetensors").read_bytes()).hexdigest()
    assert loaded.text == f"Success: LoRA adapter 'one' added successfully.\nsha256: {checksum}\n"
    assert (await load(client, "team/two", str(root / "two"))).status_code == 200

    answers = [await answer(client, name) for name in (MODEL, "one", "team/two")]

    assert answers[0] == plain
    assert len(set(answers)) == 3
    models = {card["id"]: card for card in (await client.get("/v1/models")).json()["data"]}
    assert list(models) == [MODEL, "one", "team/two"]
    assert (models["one"]["parent"], models["one"]["root"], models["one"]["sha256"]) == (MODEL, str(root / "one"), checksum)
    assert (await client.get("/v1/models/team/two")).json() == models["team/two"]

    gone = await client.post(UNLOAD, json={"lora_name": "one"})
    assert (gone.status_code, gone.text) == (200, "Success: LoRA adapter 'one' removed successfully.\n")
    refused = await client.post(CHAT, json=ask("Hi") | {"model": "one"})
    assert refused.status_code == 404
    assert error_of(refused)["message"] == "the model 'one' does not exist; this server has 'glm-5', 'team/two'"
    assert await answer(client, "team/two") == answers[2]


async def test_every_endpoint_takes_an_adapters_name(client: httpx.AsyncClient) -> None:
    await load(client, "one", "one")
    stream = await client.post(CHAT, json=ask("Who are you?", max_tokens=30, ignore_eos=True, stream=True) | {"model": "one"})
    events = serving.events_of(stream.text)
    assert joined(events) == await answer(client, "one")
    assert {event["model"] for event in events} == {"one"}
    body = {"prompt": "Once", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    texts = [(await client.post("/v1/completions", json=body | {"model": model})).json() for model in (MODEL, "one")]
    assert [text["model"] for text in texts] == [MODEL, "one"]
    assert texts[0]["choices"][0]["text"] != texts[1]["choices"][0]["text"]
    old = [(await client.post("/generate", json=body | {"model": model})).json() for model in (MODEL, "one")]
    assert old[0]["text"] != old[1]["text"]


@pytest.mark.parametrize("path", ["..", ".", "../outside", "/", "one/../../outside", "link", "link/../outside", "a\0b", "circle/one"])
async def test_no_path_leads_out_of_the_adapters_folder(client: httpx.AsyncClient, root: Path, path: str) -> None:
    """Outside there is an adapter that would load."""
    outside = root.parent / "outside"
    if not outside.exists():
        shutil.copytree(root / "one", outside)
        (root / "link").symlink_to(outside)
        (root / "circle").symlink_to(root / "circle")
    for asked in (path, str(outside)):
        response = await load(client, "x", asked)

        assert response.status_code == 400
        assert error_of(response)["message"] == "lora_path must name a folder within the one that the server was given by --lora-dir"
    assert (await load(client, "x", "x" * 900)).status_code == 400


@pytest.mark.parametrize(
    ("body", "status", "param", "message"),
    [
        ({"lora_name": "x"}, 400, "lora_path", "Field required"),
        ({"lora_path": "one"}, 400, "lora_name", "Field required"),
        ({"lora_name": "../x", "lora_path": "one"}, 400, "lora_name", "pattern"),
        ({"lora_name": MODEL, "lora_path": "one"}, 400, "lora_name", "the name of the model itself"),
        ({"lora_name": "x", "lora_path": "nowhere"}, 400, "lora_path", "nowhere: there is no such folder"),
        ({"lora_name": "x", "lora_path": "elsewhere"}, 400, "lora_path", "elsewhere: has no adapter_config.json"),
        ({"lora_name": "x", "lora_path": "one", "sha256": "ab"}, 400, "sha256", "pattern"),
        ({"lora_name": "x", "lora_path": "one", "sha256": "0" * 64}, 400, "lora_path", "not the expected 0000"),
        ({"lora_name": "x", "lora_path": "one", "load_inplace": True}, 400, "load_inplace", "unload the adapter first"),
    ],
)
async def test_a_load_that_is_refused_says_why_and_leaves_the_rest_served(
    client: httpx.AsyncClient, body: dict[str, object], status: int, param: str, message: str
) -> None:
    before = await answer(client, MODEL)
    response = await client.post(LOAD, json=body)

    assert response.status_code == status
    error = error_of(response)
    assert error["param"] == param
    assert message in error["message"]
    assert [card["id"] for card in (await client.get("/v1/models")).json()["data"]] == [MODEL]
    assert await answer(client, MODEL) == before


async def test_the_expected_checksum_is_taken(client: httpx.AsyncClient, root: Path) -> None:
    checksum = hashlib.sha256((root / "one" / "adapter_model.safetensors").read_bytes()).hexdigest()
    assert (await load(client, "one", "one", sha256=checksum.upper())).status_code == 200


async def test_a_name_twice_or_one_adapter_too_many_is_refused(client: httpx.AsyncClient) -> None:
    await load(client, "one", "one")
    again = error_of(await load(client, "one", "two"))
    await load(client, "two", "two")
    more = error_of(await load(client, "three", "elsewhere/three"))

    assert "named 'one' is loaded already" in again["message"]
    assert "2 adapters are loaded, the most this server takes (--max-loras)" in more["message"]


async def test_unknown_names_are_not_unloaded(client: httpx.AsyncClient) -> None:
    response = await client.post(UNLOAD, json={"lora_name": "one"})
    assert response.status_code == 404
    assert "'one' is not loaded" in error_of(response)["message"]


async def test_an_adapter_whose_keys_lack_the_prefix_is_refused_with_examples_and_their_count(
    client: httpx.AsyncClient, root: Path, adapted: Engine
) -> None:
    folder = root / "short"
    write_adapter(folder, adapted.model_config, ATTENTION)
    file = folder / "adapter_model.safetensors"
    save_file({name.replace("model.model.", "model."): tensor for name, tensor in load_file(file).items()}, file)
    response = await load(client, "short", "short")
    shutil.rmtree(folder)

    message = error_of(response)["message"]
    assert "40 of 40 tensors belong to no module" in message
    assert "such as base_model.model.layers.0.self_attn.kv_a_proj_with_mqa.lora_A.weight" in message
    assert "expected names such as base_model.model.model.layers.0.self_attn.q_a_proj.lora_A.weight" in message


async def test_a_server_without_adapters_or_without_their_folder_says_how_to_start_it(engine: Engine, adapted: Engine) -> None:
    async with serving.asgi_client(serving.make_service(engine)) as client:
        refused = [await load(client, "x", "x"), await client.post(UNLOAD, json={"lora_name": "x"})]
    assert [response.status_code for response in refused] == [404, 404]
    assert all("--enable-lora" in error_of(response)["message"] for response in refused)
    async with serving.asgi_client(serving.make_service(adapted)) as client:
        response = await load(client, "x", "x")
    assert response.status_code == 403
    assert "--lora-dir" in error_of(response)["message"]


async def test_vllms_metric_names_adapters_with_requests_and_the_account_names_them_too(adapted: Engine, root: Path) -> None:
    service = service_of(adapted, root)
    records = []

    class Listener:
        def tell(self, account: object) -> None:
            records.append(account)

    service.listeners.append(Listener())  # type: ignore[arg-type]  # it is only told
    async with serving.asgi_client(service) as client:
        await load(client, "one", "one")
        series = 'vllm:lora_requests_info{max_lora="2",running_lora_adapters="",waiting_lora_adapters=""} 1.'
        assert series in (await client.get("/metrics")).text
        await answer(client, "one")
        await client.post(UNLOAD, json={"lora_name": "one"})
    assert [json.loads(json.dumps(record.record()))["model"] for record in records[:2]] == [MODEL, "one"]
