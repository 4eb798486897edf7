"""Shared beginnings on the real thread and model: the same answers with less work, and nothing bad handed on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from glm5_runtime.config import EngineConfig
from glm5_runtime.engine.load import load_engine
from glm5_runtime.engine.request import FinishReason, Request
from tests.runtime.engine.client import Client, encode, expected_rows, greedy, poll

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from glm5_runtime.engine.engine import Engine

LONG = encode("The river was wide and slow. " * 12)


@pytest.fixture
def fresh(tiny_dir: Path) -> Iterator[Client]:
    """An engine of its own, whose prefix cache holds nothing yet."""
    engine = load_engine(tiny_dir, EngineConfig(max_sequences=4, max_batched_tokens=64, cache_tokens=4096))
    engine.start()
    poll(lambda: engine.stats().tokens_since_start > 0, "the engine is warm")
    yield Client(engine)
    engine.stop()


def hits(engine: Engine) -> int:
    return engine.stats().prefix_hits


def test_known_answers_come_token_for_token_from_a_warm_cache(fresh: Client) -> None:
    rows = [row for row in expected_rows() if row["kind"] in {"chat", "tool", "think"}][::6]
    for _ in range(2):
        streams = [fresh.send(encode(row["prompt"]), greedy(row["max_tokens"])) for row in rows]
        assert [stream.tokens() for stream in streams] == [row["tokens"] for row in rows]
    assert hits(fresh.engine) > 0.5 * sum(len(encode(row["prompt"])) for row in rows)


def test_the_second_asker_of_a_long_prompt_computes_one_page_and_gets_the_same_answer(fresh: Client) -> None:
    first = fresh.send(LONG, greedy(20, ignore_eos=True)).tokens()
    second = fresh.send(LONG, greedy(20, ignore_eos=True)).tokens()

    assert second == first
    assert hits(fresh.engine) == (len(LONG) - 1) // 16 * 16


def test_a_conversation_goes_on_from_the_answers_own_pages(fresh: Client) -> None:
    answer = fresh.send(LONG, greedy(40, ignore_eos=True)).tokens()
    fresh.send((*LONG, *answer, *encode("And then?")), greedy(1)).all()

    assert hits(fresh.engine) == (len(LONG) + len(answer) - 1) // 16 * 16


def test_requests_of_another_salt_find_nothing(fresh: Client) -> None:
    fresh.send(LONG, greedy(1)).all()
    fresh.submit(Request("salted", LONG, greedy(1), cache_salt="tenant-b")).all()

    assert hits(fresh.engine) == 0


def test_what_a_broken_request_computed_is_not_handed_on(fresh: Client) -> None:
    """A glitch of the device, faked: one step's hidden states are NaN, and so are the rows it writes."""
    decoder = fresh.engine._runner._steps.decoder
    glitch = decoder.embed_tokens.register_forward_hook(lambda _module, _arguments, output: torch.full_like(output, torch.nan))
    last = fresh.send(LONG, greedy(5)).last()
    glitch.remove()
    assert last.finish_reason is FinishReason.ERROR

    again = fresh.send(LONG, greedy(5, ignore_eos=True)).last()

    assert again.finish_reason is FinishReason.LENGTH
    assert hits(fresh.engine) == 0


def test_the_engines_own_first_token_is_in_no_count(fresh: Client) -> None:
    assert fresh.engine.stats().tokens_since_start == 1
    assert fresh.engine.stats().prefix_queries == 0
