"""Throughput of a batch in which eight adapters take turns, as a share of the base model's in the same engine.

Both run in one process by turns, so that a busy machine slows both. The offline engine, greedy, prompts read before the clock starts.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from glm5_runtime.config import EngineConfig, ModelConfig
from glm5_runtime.engine.load import load_engine
from glm5_runtime.engine.request import Request, SamplingParams
from tests.support.adapters import ATTENTION, EVERYTHING, write_adapter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from glm5_runtime.engine.engine import Engine

TINY = Path(__file__).parents[2] / "tests" / "fixtures" / "tiny-glm5"
PROMPT = 32
STEPS = 40
ROUNDS = 9


@dataclass(frozen=True, slots=True)
class Share:
    """Of each round: adapters' throughput by the base model's, and milliseconds of a step of each."""

    shares: list[float]
    base_ms: list[float]
    adapters_ms: list[float]


def adapters_share(
    model_dir: Path = TINY,
    sequences: int = 64,
    adapters: int = 8,
    *,
    modules: Iterable[str] = ATTENTION,
    rank: int = 16,
    rounds: int = ROUNDS,
) -> Share:
    """`sequences` decode side by side, the n-th on adapter n mod `adapters`, against as many on the model itself."""
    config = ModelConfig.from_dir(model_dir)
    with tempfile.TemporaryDirectory() as folder:
        names = [f"a{number}" for number in range(adapters)]
        paths = [
            write_adapter(Path(folder) / name, config, tuple(modules), rank=rank, seed=seed, strength=0.01)
            for seed, name in enumerate(names)
        ]
        settings = EngineConfig(
            device="cpu",
            max_sequences=sequences,
            max_batched_tokens=sequences * PROMPT,
            cache_tokens=max(sequences * (PROMPT + STEPS + 32), config.max_model_len),
            prefix_cache=False,
            max_loras=adapters,
            max_lora_rank=rank,
            lora_modules=tuple(zip(names, paths, strict=True)),
        )
        engine = load_engine(model_dir, settings)
    pairs = [(_step_ms(engine, sequences, [""]), _step_ms(engine, sequences, names)) for _ in range(rounds + 1)][1:]
    bases, adapted = (list(side) for side in zip(*pairs, strict=True))
    return Share([base / other for base, other in pairs], bases, adapted)


def _step_ms(engine: Engine, sequences: int, names: list[str]) -> float:
    """Milliseconds of a decode step, mean of a round."""
    params = SamplingParams(max_tokens=STEPS + 1, temperature=0.0, ignore_eos=True)
    for number in range(sequences):
        prompt = tuple(16 + (number * 31 + place * 7) % 1000 for place in range(PROMPT))
        engine.submit(Request(f"r{number}", prompt, params, adapter=names[number % len(names)]), lambda _: None)
    with torch.inference_mode():
        engine._take_commands()
        engine._step()  # reads all prompts
        begin = time.perf_counter()
        for _ in range(STEPS):
            engine._step()
        took = time.perf_counter() - begin
    assert not engine.stats().has_work
    return took * 1000 / STEPS


if __name__ == "__main__":
    torch.set_num_threads(1)
    for what, chosen, rank in (
        ("attention, rank 16", ATTENTION, 16),
        ("everything, rank 8", EVERYTHING, 8),
        ("everything, rank 16", EVERYTHING, 16),
    ):
        print(what, adapters_share(modules=chosen, rank=rank))
