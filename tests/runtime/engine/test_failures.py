"""When the device faults (C15): who fails, who goes on, and that nobody waits for ever. The device is faked, by a decoder that raises."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from glm5_runtime.config import EngineConfig, ModelConfig
from glm5_runtime.engine.blocks import PagePool
from glm5_runtime.engine.engine import Engine
from glm5_runtime.engine.errors import EngineDead
from glm5_runtime.engine.request import FinishReason
from glm5_runtime.engine.runner import Runner
from glm5_runtime.engine.scheduler import Scheduler
from glm5_runtime.engine.steps import Steps
from glm5_runtime.model.cache import KVCache
from glm5_runtime.model.weights import load_decoder
from glm5_runtime.ops.interface import operators
from tests.runtime.engine.client import Client, expected_rows, greedy, poll, question

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from glm5_runtime.model.decoder import Decoder

CPU = torch.device("cpu")
WHO, HELLO = question(), question("Hello")
ANSWER = expected_rows()[0]["tokens"]


class Bench:
    """An engine whose decoder a test can make fail."""

    def __init__(self, tiny_dir: Path) -> None:
        config = ModelConfig.from_dir(tiny_dir)
        self.decoder: Decoder = load_decoder(config, tiny_dir, operators("cpu"), CPU, torch.float32)
        cache = KVCache.allocate(config, 256, 16, CPU, torch.float32)
        scheduler = Scheduler(PagePool(256), 16, max_sequences=4, max_batched_tokens=512)
        self.engine = Engine(config, EngineConfig(max_sequences=4), Runner(Steps(self.decoder, cache, CPU)), scheduler)
        self.client = Client(self.engine)

    def fail(self, error: Exception, when: Callable[[torch.Tensor], bool]) -> None:
        """Raise the error in every step whose tokens meet the condition."""

        def hook(_: object, arguments: tuple[torch.Tensor, ...]) -> None:
            if when(arguments[0]):
                raise error

        self.decoder.embed_tokens.register_forward_pre_hook(hook)


@pytest.fixture
def bench(tiny_dir: Path) -> Iterator[Bench]:
    bench = Bench(tiny_dir)
    bench.engine.start()
    poll(lambda: bench.engine.stats().tokens_since_start > 0, "the engine is warm")
    yield bench
    bench.engine.stop()


MARK = 2000  # a token that no known prompt or answer holds


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("NPU out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        RuntimeError("NPU function error: aclrtMalloc, error code is 207001"),
    ],
    ids=["accelerator", "cpu", "CANN's own code (C15)"],
)
def test_out_of_memory_fails_the_step_and_the_engine_goes_on(error: Exception, bench: Bench) -> None:
    bench.fail(error, lambda tokens: MARK in tokens)
    last = bench.client.send((*WHO, MARK), greedy(5)).last()
    assert last.finish_reason is FinishReason.ERROR
    assert last.error is not None
    assert last.error.startswith("out of memory: ")
    assert "--max-batched-tokens" in last.error
    assert last.out_of_memory
    assert bench.client.send(WHO, greedy(100)).tokens() == ANSWER
    assert bench.engine.stats().alive
    assert bench.engine.stats().kv_usage == 0.0


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("vector core exception, error code is 507035"),
        RuntimeError("rtStreamSynchronize: error code is 507999"),  # never seen before
        RuntimeError("the context is not current, error code is 107002"),
        RuntimeError("vector core exception, error\ncode is 507035"),
        ValueError("our own mistake"),
    ],
    ids=["operator or request", "unknown", "context", "code on two lines", "no code"],
)
def test_any_other_fault_fails_everyone_and_the_engine_says_that_it_is_dead(error: Exception, bench: Bench) -> None:
    running = [bench.client.send(WHO, greedy(1500, ignore_eos=True)) for _ in range(4)]
    for stream in running:
        stream.next()
    waiting = bench.client.send(HELLO, greedy(5))
    bench.fail(error, lambda tokens: True)
    for stream in (*running, waiting):
        last = stream.last()
        assert last.finish_reason is FinishReason.ERROR
        assert last.error is not None
        assert str(error) in last.error
        assert not last.out_of_memory
    poll(lambda: not bench.engine.stats().alive, "health falls")
    with pytest.raises(EngineDead, match="restarted"):
        bench.client.send(WHO, greedy(1))
    assert bench.engine.stats().kv_usage == 0.0
    assert not bench.engine.stats().has_work


def test_a_fault_in_the_warm_up_is_no_silent_start(tiny_dir: Path) -> None:
    bench = Bench(tiny_dir)
    bench.fail(RuntimeError("error code is 507033"), lambda tokens: True)
    stream = bench.client.send(WHO, greedy(1))
    bench.engine.start()
    assert stream.last().finish_reason is FinishReason.ERROR
    poll(lambda: not bench.engine.stats().alive, "health falls")
    assert bench.engine.stats().tokens_since_start == 0


def test_a_warm_up_without_a_token_is_not_counted_as_one(tiny_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(tiny_dir)
    with torch.inference_mode():
        bench.decoder.embed_tokens.weight[0] = torch.nan
    bench.engine.start()
    assert bench.client.send(HELLO, greedy(0)).last().finish_reason is FinishReason.LENGTH  # answered behind the warm-up
    assert bench.engine.stats().tokens_since_start == 0
    assert "check the weights, the numbers in config.json" in caplog.text
    bench.engine.stop()


def test_a_model_that_gives_nan_fails_that_request_and_touches_no_other(bench: Bench) -> None:
    with torch.inference_mode():
        bench.decoder.embed_tokens.weight[MARK] = torch.nan
    good = [bench.client.send(WHO, greedy(100)) for _ in range(2)]
    bad = bench.client.send((*HELLO, MARK, *HELLO), greedy(20))
    assert bad.last().finish_reason is FinishReason.ERROR
    assert "not finite" in (bad.last().error or "")
    assert [stream.tokens() for stream in good] == [ANSWER, ANSWER]
    # Pages that held NaN are reused, and padding is read beside real rows: neither may reach a new owner.
    again = [bench.client.send(prompt, greedy(100)) for prompt in (WHO, HELLO, WHO)]
    assert [stream.tokens() for stream in again][::2] == [ANSWER, ANSWER]
    assert bench.engine.stats().alive


def test_time_since_progress_starts_when_work_reaches_an_idle_engine(tiny_dir: Path) -> None:
    now = [100.0]
    bench = Bench(tiny_dir)
    engine = Engine(bench.engine.model_config, EngineConfig(), bench.engine._runner, bench.engine._scheduler, clock=lambda: now[0])
    assert engine.stats().last_progress == 100.0
    now[0] = 5000.0
    stream = Client(engine).send(WHO, greedy(1))
    assert engine.stats().last_progress == 5000.0
    now[0] = 5100.0
    Client(engine).send(WHO, greedy(1))
    assert engine.stats().last_progress == 5000.0  # nothing has moved since
    engine.stop()
    assert stream.last().finish_reason is FinishReason.ABORT
