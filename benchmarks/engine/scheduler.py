"""What scheduling and delivery cost a step without any model: the real scheduler and pages, the real engine around no runner.

Each sequence decodes; prompts differ in length by up to a page, so that as many sequences take a new page in each step as in service.
"""

from __future__ import annotations

import statistics
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from glm5_runtime.config import EngineConfig
from glm5_runtime.engine.blocks import PagePool
from glm5_runtime.engine.engine import Engine
from glm5_runtime.engine.request import Request, SamplingParams
from glm5_runtime.engine.runner import Chosen
from glm5_runtime.engine.scheduler import Scheduler, Step

if TYPE_CHECKING:
    from glm5_runtime.engine.runner import Runner

PAGE = 16
PROMPT = 500
STEPS = 400
RUNS = 7


class _NoModel:
    """A runner that computes nothing and always chooses the same token."""

    def run(self, plan: list[Step]) -> list[Chosen]:
        complete = [step.sequence for step in plan if step.completes]
        for step in plan:
            step.sequence.computed += step.count
        return [Chosen(sequence, 1) for sequence in complete]


def scheduler_ms(sequences: int = 256, steps: int = STEPS, runs: int = RUNS) -> list[float]:
    """Milliseconds of `schedule()` alone with so many decoding sequences, the median step of each run."""
    return [_measure(sequences, steps, whole_step=False) for _ in range(runs)]


def engine_ms(sequences: int = 256, steps: int = STEPS, runs: int = RUNS) -> list[float]:
    """The same of a whole step of the engine but for the model: commands, scheduling, delivery to a listener that does nothing."""
    return [_measure(sequences, steps, whole_step=True) for _ in range(runs)]


def _measure(sequences: int, steps: int, *, whole_step: bool) -> float:
    """Median milliseconds of one step."""
    room = PROMPT + 2 * PAGE + steps + sequences
    scheduler = Scheduler(PagePool(sequences * (room // PAGE + 1)), PAGE, sequences, sequences * (PROMPT + PAGE))
    runner = _NoModel()
    model = cast("Any", SimpleNamespace(max_model_len=1 << 20, vocab_size=1 << 20, eos_token_ids=frozenset({0})))
    config = EngineConfig(max_sequences=sequences, max_batched_tokens=sequences * (PROMPT + PAGE))
    engine = Engine(model, config, cast("Runner", runner), scheduler)
    for number in range(sequences):
        prompt = (2 + number, *range(PROMPT - 1 + number % PAGE))
        engine.submit(Request(f"r{number}", prompt, SamplingParams(max_tokens=1 << 18)), lambda _: None)
    engine._take_commands()
    engine._step()  # reads all prompts
    took = []
    for _ in range(steps):
        begin = time.perf_counter()
        if whole_step:
            engine._take_commands()
            engine._step()
            took.append(time.perf_counter() - begin)
        else:
            plan = scheduler.schedule()
            took.append(time.perf_counter() - begin)
            for choice in runner.run(plan):
                choice.sequence.append(choice.token)
    return statistics.median(took) * 1000


if __name__ == "__main__":
    for count in (1, 64, 256):
        print(count, "sequences: schedule", scheduler_ms(count), "whole step", engine_ms(count))
