"""Adapters on the real engine: answers equal those of merged weights however requests are computed; loading and unloading beside them."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest
import torch

from glm5_runtime.config import ConfigError, EngineConfig
from glm5_runtime.engine.adapter_parts import AdapterPart
from glm5_runtime.engine.adapters import AdapterStore, UnknownAdapter
from glm5_runtime.engine.load import load_engine
from glm5_runtime.engine.request import FinishReason, Request
from glm5_runtime.model.adapter_files import AdapterError
from glm5_runtime.tools.quantize import quantize
from tests.runtime.engine.client import TINY, Client, ask, encode, greedy, poll, question
from tests.runtime.model.oracle import logits_of, ours
from tests.support.adapters import ATTENTION, EVERYTHING, EXPERTS, merge, write_adapter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from glm5_runtime.engine.engine import Engine

PROMPT = encode("The river was wide and slow. " * 10)
ANSWER = 24


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    config, root = ours(TINY).config, tmp_path_factory.mktemp("adapters")
    return {
        "one": write_adapter(root / "one", config, EVERYTHING, rank=4, strength=0.06, seed=1),
        "two": write_adapter(root / "two", config, ATTENTION, rank=8, strength=0.1, seed=2),
        "three": write_adapter(root / "three", config, EXPERTS, rank=2, strength=0.2, seed=3),
    }


@pytest.fixture(scope="module")
def truth(folders: dict[str, Path]) -> dict[str, list[int]]:
    """Greedy answers of the model and of each adapter's merged weights, without a cache."""
    found = {}
    with torch.inference_mode():
        for name in ("", *folders):
            decoder = merge(ours(TINY), folders[name]) if name else ours(TINY)
            tokens = list(PROMPT)
            for _ in range(ANSWER):
                tokens.append(int(logits_of(decoder, tokens)[-1].argmax()))
            found[name] = tokens[len(PROMPT) :]
    assert len({tuple(answer) for answer in found.values()}) == len(found)
    return found


def start(folders: dict[str, Path], names: Sequence[str] = (), **settings: object) -> Engine:
    given = {"max_sequences": 8, "max_batched_tokens": 64, "cache_tokens": 4096, "max_loras": 3, "max_lora_rank": 8}
    modules = tuple((name, folders[name]) for name in names)
    engine = load_engine(TINY, EngineConfig.model_validate(given | settings | {"lora_modules": modules}))
    engine.start()
    poll(lambda: engine.stats().tokens_since_start > 0, "the engine is warm")
    return engine


@pytest.fixture
def engine(folders: dict[str, Path]) -> Iterator[Engine]:
    engine = start(folders, ["one", "two", "three"])
    yield engine
    engine.stop()


def store(engine: Engine) -> AdapterStore:
    assert engine.adapters is not None
    return engine.adapters


def parts(engine: Engine) -> AdapterPart:
    found = store(engine)._parts
    assert isinstance(found, AdapterPart)
    return found


def on(adapter: str, prompt: tuple[int, ...] = PROMPT, tokens: int = ANSWER) -> Request:
    plain = ask(prompt, greedy(tokens, ignore_eos=True))
    return Request(plain.id, prompt, plain.params, adapter=adapter)


def test_adapters_and_the_model_answer_side_by_side_as_their_merged_weights_do_chunked_and_from_the_prefix_cache(
    engine: Engine, truth: dict[str, list[int]]
) -> None:
    client = Client(engine)
    for _ in range(2):  # prompts in pieces of 64 tokens first, then out of the cache
        streams = {name: client.submit(on(name)) for name in truth}
        assert {name: stream.tokens() for name, stream in streams.items()} == truth
    assert engine.stats().prefix_hits >= len(truth) * (len(PROMPT) // 16 * 16)


def test_no_adapter_finds_pages_of_another_one_or_of_the_model(engine: Engine) -> None:
    client = Client(engine)
    for name in ("", "one", "two", "three"):
        client.submit(on(name, tokens=1)).all()

    assert engine.stats().prefix_hits == 0


def test_preempted_requests_give_the_same_answers(folders: dict[str, Path], truth: dict[str, list[int]]) -> None:
    tight = start(folders, ["one", "two", "three"], cache_tokens=len(PROMPT) * 2 + 40, max_model_len=len(PROMPT) + 30)
    client = Client(tight)
    streams = [(name, client.submit(on(name))) for name in [*truth] * 2]

    assert all(stream.tokens() == truth[name] for name, stream in streams)
    assert tight.stats().preemptions > 0
    tight.stop()


@pytest.mark.parametrize("method", ["mtp", "ngram"])
def test_guesses_ahead_change_no_answer_of_an_adapter(folders: dict[str, Path], truth: dict[str, list[int]], method: str) -> None:
    guessing = start(folders, ["one", "two", "three"], speculative_tokens=3, speculative_method=method)
    streams = {name: Client(guessing).submit(on(name)) for name in truth}

    assert {name: stream.tokens() for name, stream in streams.items()} == truth
    guessing.stop()


def test_adapters_come_and_go_while_requests_run(folders: dict[str, Path], truth: dict[str, list[int]]) -> None:
    engine = start(folders, ["one"])
    client, long = Client(engine), on("one", tokens=800)
    running = client.submit(long)
    running.next()
    two = store(engine).load("two", folders["two"])
    assert two.sha256 == hashlib.sha256((folders["two"] / "adapter_model.safetensors").read_bytes()).hexdigest()
    assert client.submit(on("two")).tokens() == truth["two"]

    store(engine).unload("one")

    assert [adapter.name for adapter in store(engine).loaded] == ["two"]
    assert "no adapter 'one'" in (engine.refusal(on("one")) or "")
    last = client.submit(on("one")).last()
    assert (last.finish_reason, last.token) == (FinishReason.ERROR, None)
    assert running.is_silent or running.outputs[-1].finish_reason is None  # it goes on
    engine.abort(long.id)
    assert running.last().finish_reason is FinishReason.ABORT
    stacks = parts(engine).model
    poll(lambda: not any(1 in stack.layout.places for stack in stacks.stacks.values()), "the adapter's memory is free")
    assert {number for stack in stacks.stacks.values() for number in stack.layout.places} == {two.number}
    assert client.submit(on("two")).tokens() == truth["two"]
    store(engine).unload("two")
    assert stacks.stacks == {}
    assert client.submit(on("")).tokens() == truth[""]
    engine.stop()


def test_an_answer_begun_before_the_unload_is_the_adapters_to_its_end(folders: dict[str, Path], truth: dict[str, list[int]]) -> None:
    engine = start(folders, ["one"])
    stream = Client(engine).submit(on("one"))
    store(engine).unload("one")
    store(engine).load("one", folders["two"])

    assert stream.tokens() == truth["one"]
    assert Client(engine).submit(on("one")).tokens() == truth["two"]
    engine.stop()


def test_a_load_that_fails_changes_nothing(engine: Engine, folders: dict[str, Path], truth: dict[str, list[int]], tmp_path: Path) -> None:
    adapters = store(engine)
    before = dict(parts(engine).model.stacks)
    with pytest.raises(AdapterError, match="3 adapters are loaded, the most this server takes"):
        adapters.load("four", folders["one"])
    adapters.unload("three")
    with pytest.raises(AdapterError, match="named 'two' is loaded already"):
        adapters.load("two", folders["one"])
    with pytest.raises(AdapterError, match="not the expected 00"):
        adapters.load("four", folders["three"], sha256="00" * 32)
    wide = write_adapter(tmp_path / "wide", engine.model_config, rank=9)
    with pytest.raises(AdapterError, match=r"takes ranks from 1 to 8"):
        adapters.load("four", wide)
    with pytest.raises(UnknownAdapter):
        adapters.unload("four")

    assert [adapter.name for adapter in adapters.loaded] == ["one", "two"]
    adapters.load("three", folders["three"])
    assert parts(engine).model.stacks.keys() == before.keys()
    assert Client(engine).submit(on("three")).tokens() == truth["three"]


def test_out_of_memory_while_stacks_are_made_changes_nothing(
    engine: Engine, folders: dict[str, Path], truth: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters = store(engine)
    adapters.unload("three")

    def none_left(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("NPU out of memory")

    with monkeypatch.context() as patch:
        patch.setattr("glm5_runtime.engine.adapter_parts.stack", none_left)
        with pytest.raises(AdapterError, match="out of memory; unload another one"):
            adapters.load("three", folders["three"])
    assert Client(engine).submit(on("one")).tokens() == truth["one"]
    assert engine.stats().alive


def test_an_engine_without_adapters_refuses_their_names(folders: dict[str, Path]) -> None:
    plain = start(folders, max_loras=0)
    assert "no adapter 'one'" in (plain.refusal(on("one")) or "")
    assert Client(plain).submit(on("one")).last().finish_reason is FinishReason.ERROR
    plain.stop()


def test_an_adapter_changes_the_answers_of_experts_in_4_bits_and_leaves_those_of_the_model(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    quantize(TINY, tmp_path / "tiny-glm5", "w4a8")
    engine = load_engine(tmp_path / "tiny-glm5", EngineConfig(max_loras=1, cache_tokens=4096))
    engine.start()
    client = Client(engine)
    alone = client.submit(on("")).tokens()
    store(engine).load("three", folders["three"])
    together = [client.submit(on(name)) for name in ("three", "")]

    texts = [stream.tokens() for stream in together]

    assert texts[1] == alone
    assert texts[0] != alone
    engine.stop()


def test_a_bad_adapter_at_start_is_the_configs_fault(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(ConfigError, match=r"--lora-modules: bad: .* has no adapter_model\.safetensors"):
        start({"bad": tmp_path}, ["bad"])


def test_stats_tell_whose_requests_run_and_wait(engine: Engine) -> None:
    client = Client(engine)
    streams = [client.submit(on("one", tokens=300)), client.submit(on("", question(), tokens=300))]
    poll(lambda: engine.stats().running_adapters == ("one",), "the adapter's request runs")
    assert engine.stats().max_adapters == 3
    for stream in streams:
        engine.abort(stream.next().request_id)
        stream.all()
    poll(lambda: not engine.stats().has_work, "all have ended")
    assert engine.stats().running_adapters == engine.stats().waiting_adapters == ()
