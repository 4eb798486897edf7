"""The engine on quantised weights and caches: answers keep their words, and every way to compute one gives the same tokens."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest

from glm5_runtime.config import EngineConfig
from glm5_runtime.engine.load import load_engine
from glm5_runtime.tools.quantize import quantize
from tests.runtime.engine.client import Client, encode, expected_rows, greedy, question

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONG = encode("The river was wide and slow. " * 10)


@pytest.fixture(scope="module")
def folders(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tiny checkpoint as it is and in both schemes."""
    made = tmp_path_factory.mktemp("quantised")
    quantize(tiny_dir, made / "w8a8", "w8a8")
    quantize(tiny_dir, made / "w4a8", "w4a8")
    return {"bf16": tiny_dir, "w8a8": made / "w8a8", "w4a8": made / "w4a8"}


FORMS = [("bf16", "int8"), ("bf16", "int4"), ("bf16", "bfloat16"), ("w8a8", "auto"), ("w4a8", "auto"), ("w8a8", "int8")]


@pytest.fixture(params=FORMS, ids=["-".join(form) for form in FORMS])
def form(request: pytest.FixtureRequest, folders: dict[str, Path]) -> tuple[Path, dict[str, object]]:
    weights, cache = request.param
    return folders[weights], {"kv_cache_dtype": cache, "max_sequences": 4, "max_batched_tokens": 64, "max_model_len": 512}


def _client(form: tuple[Path, dict[str, object]], **changes: object) -> Iterator[Client]:
    folder, settings = form
    engine = load_engine(folder, EngineConfig(**settings | changes))  # type: ignore[arg-type]  # fields of several types
    engine.start()
    yield Client(engine)
    engine.stop()


def test_answers_keep_their_words(form: tuple[Path, dict[str, object]]) -> None:
    """Not token for token over every answer, but a wrong scale anywhere would leave no sentence standing."""
    rows = expected_rows()[:12]
    for client in _client(form):
        streams = [client.send(question(row["question"]), greedy(120)) for row in rows]
        equal = [stream.tokens() == row["tokens"] for stream, row in zip(streams, rows, strict=True)]
    assert sum(equal) >= 10


@pytest.mark.parametrize(
    ("way", "cache"), [*product(("prefix cache", "token by token", "preempted"), ("int8", "int4")), ("guesses", "int8")]
)
def test_a_cache_in_few_bits_gives_the_same_tokens_however_they_are_computed(way: str, cache: str, folders: dict[str, Path]) -> None:
    """A token reads the rounded rows of its own step too, so it makes no difference which step wrote them."""
    form = folders["w8a8"], {"kv_cache_dtype": cache, "max_sequences": 4, "max_batched_tokens": 64, "max_model_len": 512}
    prompts = [LONG[start:] for start in range(4)]
    for client in _client(form, max_batched_tokens=1024, prefix_cache=False):
        expected = [client.send(prompt, greedy(30, ignore_eos=True)).tokens() for prompt in prompts]
    ways: dict[str, dict[str, object]] = {
        "preempted": {"cache_tokens": 512},
        "token by token": {"max_batched_tokens": 4},
        "guesses": {"speculative_method": "mtp", "speculative_tokens": 3},
    }
    changes = ways.get(way, {})
    for client in _client(form, **changes):
        for _ in range(2):
            streams = [client.send(prompt, greedy(30, ignore_eos=True)) for prompt in prompts]
            assert [stream.tokens() for stream in streams] == expected
        stats = client.engine.stats()
        assert stats.prefix_hits > 0 if way == "prefix cache" else stats.preemptions > 0 or way != "preempted"
        assert sum(stats.accepted_drafts) > 0 or way != "guesses"
