"""Several answers to one prompt on the real thread and model: what is computed, what is said, what is freed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from glm5_runtime.config import EngineConfig
from glm5_runtime.engine.load import load_engine
from tests.runtime.engine.client import Client, encode, greedy

if TYPE_CHECKING:
    from pathlib import Path

LONG = encode("The river was wide and slow. " * 12)
ANSWERS = 4


@pytest.mark.parametrize("budget", [64, 1024], ids=["prompt in pieces", "prompt in one step"])
def test_answers_to_one_prompt_compute_its_full_pages_once_and_say_the_same(budget: int, tiny_dir: Path) -> None:
    engine = load_engine(tiny_dir, EngineConfig(max_sequences=8, max_batched_tokens=budget, cache_tokens=4096))
    client = Client(engine)
    streams = [client.send(LONG, greedy(8, ignore_eos=True)) for _ in range(ANSWERS)]  # before the start: all are there in its first step
    engine.start()
    answers = [stream.tokens() for stream in streams]
    stats = engine.stats()
    engine.stop()

    shared = (len(LONG) - 1) // 16 * 16
    decoded = ANSWERS * (8 - 1)
    assert stats.step_tokens_sum == len(LONG) + (ANSWERS - 1) * (len(LONG) - shared) + decoded
    assert shared > 60
    assert answers == [answers[0]] * ANSWERS


def test_aborting_some_of_them_leaves_the_others_their_pages(tiny_dir: Path) -> None:
    engine = load_engine(tiny_dir, EngineConfig(max_sequences=8, max_batched_tokens=256, cache_tokens=4096))
    client = Client(engine)
    engine.start()
    expected = client.send(LONG, greedy(30, ignore_eos=True)).tokens()
    streams = [client.send(LONG, greedy(30, ignore_eos=True)) for _ in range(ANSWERS)]
    first = [stream.next() for stream in streams]
    for output in first[::2]:
        engine.abort(output.request_id)
    kept = [stream.tokens() for stream in streams[1::2]]
    client.wait_until_idle()
    usage = engine.stats().kv_usage
    engine.stop()

    assert kept == [expected, expected]
    assert usage == 0.0
