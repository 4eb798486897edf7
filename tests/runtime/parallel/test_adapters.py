"""Adapters on two and four real processes: the text of one, loads beside steps, and what happens when a rank doesn't follow."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from glm5_runtime.config import ConfigError
from glm5_runtime.engine import load
from glm5_runtime.engine.adapters import AdapterStore
from glm5_runtime.engine.errors import EngineDead
from glm5_runtime.engine.request import Request
from glm5_runtime.model.adapter_files import AdapterError
from glm5_runtime.tools.quantize import quantize
from tests.runtime.engine.client import TINY, Client, ask, encode, greedy, poll
from tests.runtime.model.oracle import ours
from tests.runtime.parallel.forked import Forks, slow_and_broken_adapters
from tests.runtime.parallel.test_ranks import LAYOUTS, running
from tests.support import serving
from tests.support.adapters import ATTENTION, EVERYTHING, EXPERTS, write_adapter

if TYPE_CHECKING:
    from pathlib import Path

    from glm5_runtime.model.adapters import Stacks

PROMPT = encode("The river was wide and slow. " * 10)  # beyond index_topk
NAMES = ("one", "two", "three", "")
SETTINGS = {"max_loras": 3, "max_lora_rank": 8}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    config, root = ours(TINY).config, tmp_path_factory.mktemp("adapters")
    return {
        "one": write_adapter(root / "one", config, EVERYTHING, rank=4, strength=0.06, seed=1),
        "two": write_adapter(root / "two", config, ATTENTION, rank=8, strength=0.1, seed=2),
        "three": write_adapter(root / "three", config, EXPERTS, rank=2, strength=0.2, seed=3),
    }


def store(client: Client) -> AdapterStore:
    assert client.engine.adapters is not None
    return client.engine.adapters


def stacks(client: Client) -> Stacks:
    """Rank 0's."""
    return store(client)._parts._own.model.stacks  # type: ignore[union-attr]  # of all ranks' parts


def on(adapter: str, tokens: int = 24) -> Request:
    plain = ask(PROMPT, greedy(tokens, ignore_eos=True))
    return Request(plain.id, PROMPT, plain.params, adapter=adapter)


def answers(client: Client, folders: dict[str, Path]) -> dict[str, list[int]]:
    """One adapter is there from the start, two come while a request on it runs; then all side by side, and again from the prefix cache."""
    running = on("one", 400)
    stream = client.submit(running)
    stream.next()
    for name in ("two", "three"):
        store(client).load(name, folders[name])
    client.engine.abort(running.id)
    first, second = ({name: stream.tokens() for name, stream in [(name, client.submit(on(name))) for name in NAMES]} for _ in range(2))
    assert first == second
    return first


@pytest.fixture(scope="module")
def alone(folders: dict[str, Path]) -> dict[str, list[int]]:
    with running(lora_modules=(("one", folders["one"]),), **SETTINGS) as client:
        texts = answers(client, folders)
    assert len({tuple(text) for text in texts.values()}) == len(NAMES)
    return texts


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_ranks_give_each_adapters_text_and_the_models_beside_it(
    layout: dict[str, object], folders: dict[str, Path], alone: dict[str, list[int]]
) -> None:
    with running(lora_modules=(("one", folders["one"]),), **SETTINGS, **layout) as client:
        assert answers(client, folders) == alone
        for name in ("one", "three"):
            store(client).unload(name)
        assert {number for each in stacks(client).values() for number in each.layout.places} == {2}
        store(client).load("one", folders["three"])
        assert client.submit(on("one")).tokens() == alone["three"]
        assert client.submit(on("two")).tokens() == alone["two"]


def test_ranks_with_experts_in_4_bits_give_the_adapters_text_of_one(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole rows on each rank, so that all round as one does."""
    quantize(TINY, tmp_path / "tiny-glm5", "w4a8")
    monkeypatch.setattr("tests.runtime.parallel.test_ranks.TINY", tmp_path / "tiny-glm5")
    texts = []
    for layout in ({}, LAYOUTS["data 2, experts 2"]):
        with running(lora_modules=(("one", folders["one"]),), **SETTINGS, **layout) as client:
            texts.append(answers(client, folders))

    assert texts[1] == texts[0]
    assert len({tuple(text) for text in texts[0].values()}) == len(NAMES)


def test_what_one_rank_cant_read_is_loaded_nowhere(folders: dict[str, Path], alone: dict[str, list[int]], tmp_path: Path) -> None:
    shutil.copytree(folders["one"], tmp_path / "broken")
    with running(Forks(slow_and_broken_adapters), tensor_parallel_size=2, **SETTINGS) as client:
        for _ in range(2):
            with pytest.raises(AdapterError, match=r"rank 1: .*broken: not readable \(Input/output error\)"):
                store(client).load("one", tmp_path / "broken")
            assert (store(client).loaded, stacks(client)) == ([], {})
        store(client).load("one", folders["one"])
        assert client.submit(on("one")).tokens() == alone["one"]


def test_a_load_that_takes_one_rank_too_long_is_given_up(folders: dict[str, Path], alone: dict[str, list[int]], tmp_path: Path) -> None:
    shutil.copytree(folders["one"], tmp_path / "slow")
    with running(Forks(slow_and_broken_adapters), tensor_parallel_size=2, adapter_timeout=1.0, **SETTINGS) as client:
        with pytest.raises(AdapterError, match="rank 1 has not loaded the adapter within 1 s"):
            store(client).load("one", tmp_path / "slow")
        assert stacks(client) == {}
        (tmp_path / "slow" / "go").touch()  # now it answers, to a question that nobody has any more
        poll(lambda: is_loaded(client, folders["two"]), "it has caught up")
        assert client.submit(on("two")).tokens() == alone["two"]


def is_loaded(client: Client, folder: Path) -> bool:
    """Whether it can be loaded now."""
    with suppress(AdapterError):
        store(client).load("two", folder)
    return store(client).has("two")


def test_steps_go_on_beside_a_load_and_ranks_that_read_other_bytes_are_found_out(
    folders: dict[str, Path], alone: dict[str, list[int]], tmp_path: Path
) -> None:
    shutil.copytree(folders["one"], tmp_path / "slow")
    with running(Forks(slow_and_broken_adapters), tensor_parallel_size=2, **SETTINGS) as client, ThreadPoolExecutor(1) as pool:
        loading = pool.submit(store(client).load, "one", tmp_path / "slow")
        poll(lambda: bool(stacks(client)), "rank 0 has its part")
        assert client.submit(on("")).tokens() == alone[""]
        assert not loading.done()
        shutil.copytree(folders["two"], tmp_path / "slow", dirs_exist_ok=True)
        (tmp_path / "slow" / "go").touch()
        with pytest.raises(AdapterError, match="rank 1 has read something else than rank 0"):
            loading.result(60)
        assert (store(client).loaded, stacks(client)) == ([], {})


async def test_over_http_a_killed_rank_ends_a_load_and_the_engine(folders: dict[str, Path], tmp_path: Path) -> None:
    for name, source in (("slow", "one"), ("broken", "one"), ("good", "two")):
        shutil.copytree(folders[source], tmp_path / name)
    forks = Forks(slow_and_broken_adapters)
    with running(forks, tensor_parallel_size=2, **SETTINGS) as client:
        async with serving.asgi_client(serving.make_service(client.engine, lora_dir=tmp_path)) as http:
            replies = {}
            for name in ("broken", "good"):
                replies[name] = await http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": name})
            assert serving.error_of(replies["broken"])["message"] == "rank 1: broken: not readable (Input/output error)"
            assert replies["good"].status_code == 200
            with ThreadPoolExecutor(1) as pool:
                killing = pool.submit(kill_when_loading, client, forks)
                reply = await http.post("/v1/load_lora_adapter", json={"lora_name": "slow", "lora_path": "slow"})
                killing.result(60)
            assert reply.status_code == 503
            assert serving.error_of(reply)["message"] == "the engine has stopped (rank 1 has ended with code -9); a restart follows"
            poll(lambda: not client.engine.stats().alive, "the engine knows")
            with pytest.raises(EngineDead):
                store(client).load("slow", tmp_path / "slow")


def kill_when_loading(client: Client, forks: Forks) -> None:
    poll(lambda: any(3 in each.layout.places for each in stacks(client).values()), "rank 0 has its part")
    forks.processes[0].kill()


def test_a_bad_adapter_at_start_is_the_configs_fault_on_whichever_rank(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forks = Forks()
    with (
        pytest.raises(ConfigError, match=r"--lora-modules: bad: .* has no adapter_config\.json"),
        running(forks, tensor_parallel_size=2, lora_modules=(("bad", tmp_path),), **SETTINGS),
    ):
        pass
    part = load.adapter_part

    def other(*args: object) -> object:
        made = part(*args)  # type: ignore[arg-type]  # what it was called with
        assert made is not None
        made.first.clear()
        return made

    monkeypatch.setattr(load, "adapter_part", other)
    with (
        pytest.raises(ConfigError, match="--lora-modules: rank 1 has read something else"),
        running(forks, tensor_parallel_size=2, lora_modules=(("one", folders["one"]),), **SETTINGS),
    ):
        pass
    for process in forks.processes:
        process.wait(10)
