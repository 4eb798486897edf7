"""Two and four real processes over gloo give the text of one. Each engine serves all that its test asks, since its start takes a second."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from glm5_runtime.config import EngineConfig
from glm5_runtime.engine.errors import EngineDead
from glm5_runtime.engine.load import load_engine
from glm5_runtime.engine.request import FinishReason, SamplingParams
from tests.runtime.engine.client import TINY, Client, encode, expected_rows, greedy, poll, question
from tests.runtime.parallel.forked import MARK, Forks, out_of_memory_at_the_mark

if TYPE_CHECKING:
    from collections.abc import Iterator

WHO = question()
ANSWER = expected_rows()[0]["tokens"]
KNOWN = [(encode(row["prompt"]), row["tokens"], row["max_tokens"]) for row in expected_rows() if row["kind"] in ("chat", "tool")][::23]
LONG = encode(next(row["prompt"] for row in expected_rows() if row["kind"] == "text"))
LAYOUTS = {
    "tensor 2": {"tensor_parallel_size": 2},
    "tensor 4": {"tensor_parallel_size": 4},
    "experts 2": {"tensor_parallel_size": 2, "enable_expert_parallel": True},
    "experts 4": {"tensor_parallel_size": 4, "enable_expert_parallel": True},
    "data 2, experts 2": {"data_parallel_size": 2, "enable_expert_parallel": True},
    "data 2, tensor 2, experts 4": {"data_parallel_size": 2, "tensor_parallel_size": 2, "enable_expert_parallel": True},
}


@contextmanager
def running(forks: Forks | None = None, **settings: object) -> Iterator[Client]:
    """An engine whose ranks are forks; whatever happens, none of them outlives it."""
    forks = forks or Forks()
    values = {"max_sequences": 4, "max_batched_tokens": 48, "cache_tokens": 2048, "exchange_timeout": 30.0} | settings
    engine = load_engine(TINY, EngineConfig(**values), forks)  # type: ignore[arg-type]  # as named by the test
    engine.start()
    try:
        poll(lambda: engine.stats().tokens_since_start > 0 or not engine.stats().alive, "the engine is warm")
        yield Client(engine)
    finally:
        engine.stop()
        for process in forks.processes:
            process.wait(10)


def answers(client: Client) -> list[list[int]]:
    """Known questions side by side, then a long prompt read in pieces, again from the prefix cache, and drawn with a seed."""
    streams = [client.send(prompt, greedy(limit)) for prompt, _, limit in KNOWN]
    texts = [stream.tokens() for stream in streams]
    long = (LONG * 99)[:200]  # beyond index_topk: the indexer chooses
    texts += [client.send(long, greedy(8, ignore_eos=True)).tokens() for _ in range(2)]
    drawn = SamplingParams(max_tokens=8, temperature=1.0, seed=11, ignore_eos=True)
    texts.append(client.send(WHO, drawn).tokens())
    client.wait_until_idle()
    return texts


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    with running() as client:
        return answers(client)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_ranks_give_the_text_of_one(layout: dict[str, object], alone: list[list[int]]) -> None:
    with running(**layout) as client:
        assert answers(client) == alone
        stats = client.engine.stats()

    assert alone[: len(KNOWN)] == [tokens for _, tokens, _ in KNOWN]
    assert stats.prefix_hits >= 160  # the second time only the last tokens were computed
    assert stats.kv_usage == 0.0


@pytest.mark.parametrize("layout", [LAYOUTS["tensor 2"], LAYOUTS["data 2, experts 2"]], ids=["tensor", "data"])
def test_ranks_preempt_and_guess_ahead_as_one_does(layout: dict[str, object]) -> None:
    """A cache for a little more than one sequence of full length, and the MTP layer divided like the others."""
    settings = {"cache_tokens": 208, "max_model_len": 192, "speculative_tokens": 2, "speculative_method": "mtp"}
    with running(**layout, **settings) as client:
        streams = [client.send(WHO, greedy(100, ignore_eos=True)) for _ in range(5)]
        texts = [stream.tokens() for stream in streams]
        client.wait_until_idle()
        stats = client.engine.stats()

    assert {tuple(text[: len(ANSWER)]) for text in texts} == {tuple(ANSWER)}
    assert len({tuple(text) for text in texts}) == 1
    assert stats.preemptions > 0
    assert sum(stats.accepted_drafts) > 0
    assert stats.kv_usage == 0.0


@pytest.mark.parametrize("rank", [0, 1])
def test_memory_that_runs_out_on_one_rank_fails_the_step_and_all_go_on(rank: int) -> None:
    with running(Forks(out_of_memory_at_the_mark if rank else None), tensor_parallel_size=2) as client:
        if rank == 0:
            out_of_memory_at_the_mark(client.engine._runner._steps._part._steps)  # type: ignore[attr-defined]  # the team's own part
        last = client.send((*WHO, MARK), greedy(5)).last()
        assert last.finish_reason is FinishReason.ERROR
        assert last.out_of_memory
        assert "out of memory: rank" in str(last.error)
        assert client.send(WHO, greedy(100)).tokens() == ANSWER


def test_a_rank_that_is_killed_ends_an_idle_engine_at_once() -> None:
    forks = Forks()
    with running(forks, tensor_parallel_size=2) as client:
        forks.processes[0].kill()
        poll(lambda: not client.engine.stats().alive, "the engine knows")
        with pytest.raises(EngineDead):
            client.send(WHO, greedy(5))


def test_a_rank_that_is_killed_ends_those_who_wait_with_its_exit_code() -> None:
    forks = Forks()
    with running(forks, tensor_parallel_size=2) as client:
        stream = client.send(WHO, greedy(1000, ignore_eos=True))
        stream.next()
        started = time.monotonic()
        forks.processes[0].kill()
        last = stream.last()
        assert time.monotonic() - started < 25  # not by the exchange timeout
        assert last.finish_reason is FinishReason.ERROR
        assert "rank 1 has ended with code -9" in str(last.error)
        poll(lambda: not client.engine.stats().alive, "the engine is dead")


def test_a_rank_that_hangs_ends_the_engine_after_the_exchange_timeout() -> None:
    forks = Forks()
    with running(forks, tensor_parallel_size=2, exchange_timeout=2.0) as client:
        stream = client.send(WHO, greedy(1000, ignore_eos=True))
        stream.next()
        os.kill(forks.processes[0].pid, signal.SIGSTOP)
        started = time.monotonic()
        assert stream.last().finish_reason is FinishReason.ERROR
        assert time.monotonic() - started < 25
