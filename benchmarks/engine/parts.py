"""What is measured, one function a part; each runs in a process of its own and returns figures as lists, one value a repetition."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache

from benchmarks.engine import adapters, scheduler, serving
from benchmarks.engine.sides import TINY, Ours, Theirs, best_threads, peak_bytes, prompt, random_checkpoint
from glm5_runtime.config import ModelConfig
from glm5_runtime.model.cache import INT4, bytes_per_token
from tests.runtime.config.releases import GLM_5_2, write_release

if TYPE_CHECKING:
    from collections.abc import Callable

Figures = dict[str, list[float]]
NEW, PAGE = 256, 16
REPEATS = 5


def _fastest(folder: Path, work: Callable[[Theirs], object]) -> tuple[Theirs, int]:
    """Transformers with the attention and the thread count that are best for the work."""
    found = []
    for attention in ("eager", "sdpa"):
        side = Theirs(folder, attention)
        threads = best_threads(lambda side=side: work(side))
        begin = time.perf_counter()
        work(side)
        found.append((time.perf_counter() - begin, side, threads))
    _, side, threads = min(found, key=lambda each: each[0])
    return side, threads


def decode(count: int) -> Figures:
    """`count` sequences of 32 prompt and 256 new tokens, greedy; ours also with guesses for one sequence."""
    prompts = [prompt(32)] * count
    theirs, their_threads = _fastest(TINY, lambda side: side.generate(prompts, 16))
    ours = Ours(TINY, max_sequences=count, max_batched_tokens=max(2048, count))
    our_threads = best_threads(lambda: ours.generate(prompts, 16))
    guessing = {}
    if count == 1:
        guessing = {f"{name}{n}": Ours(TINY, speculative_tokens=n, speculative_method=name) for name, n in (("mtp", 1), ("ngram", 4))}
    figures: Figures = {f"decode{count}_x": [], "ours_tokens_s": [], "theirs_tokens_s": []} | {f"decode1_{name}_x": [] for name in guessing}
    for _ in range(REPEATS if count < 64 else 3):
        torch.set_num_threads(their_threads)
        slow = theirs.generate(prompts, NEW)
        torch.set_num_threads(our_threads)
        fast = ours.generate(prompts, NEW)
        figures[f"decode{count}_x"].append(slow / fast)
        figures["ours_tokens_s"].append(count * NEW / fast)
        figures["theirs_tokens_s"].append(count * NEW / slow)
        for name, side in guessing.items():
            figures[f"decode1_{name}_x"].append(slow / side.generate(prompts, NEW))
    return figures


def long_context() -> Figures:
    """Time of a token behind 4K, 8K and 32K of context whose cache rows are random on both sides: values change no time."""
    figures: Figures = {"long_8k_x": [], "long_32k_x": [], "long_growth": [], "ours_4k_ms": [], "ours_8k_ms": [], "ours_32k_ms": []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = random_checkpoint(Path(scratch), 34_000)
        ours = Ours(folder, cache_tokens=40_000, max_sequences=1)
        best_threads(lambda: our_token_seconds(ours, 8192, 8))
        our_threads = torch.get_num_threads()
        theirs, their_threads = _fastest(folder, lambda side: their_token_seconds(side, 8192, 2))
        for _ in range(3):
            torch.set_num_threads(our_threads)
            fast = {size: our_token_seconds(ours, size << 10, 40) for size in (4, 8, 32)}
            torch.set_num_threads(their_threads)
            for size in (8, 32):
                figures[f"long_{size}k_x"].append(their_token_seconds(theirs, size << 10, 4) / fast[size])
            figures["long_growth"].append(fast[32] / fast[4])
            for size, seconds in fast.items():
                figures[f"ours_{size}k_ms"].append(seconds * 1e3)
    return figures


def our_token_seconds(ours: Ours, context: int, tokens: int) -> float:
    """Median seconds of a decode step behind so much context."""
    engine, took = ours.engine, []
    ours.submit(prompt(context), tokens + 2)
    engine._take_commands()
    (sequence,) = engine._scheduler.alive
    for rows in engine._runner._steps.cache.tensors():
        rows[PAGE:].normal_()  # page 0 stays zero
    with torch.inference_mode():
        while sequence.running or sequence in engine._scheduler.alive:
            if sequence.running and sequence.pending > 1 and sequence.computed:
                sequence.computed = len(sequence.tokens) - 1  # the rest of the prompt counts as read
                sequence.reading = False
                sequence.tier.reading.clear()
            begin = time.perf_counter()
            engine._step()
            took.append(time.perf_counter() - begin)
    return statistics.median(took[3:])


def their_token_seconds(theirs: Theirs, context: int, tokens: int) -> float:
    """Median seconds of a decode step behind so much context."""
    cache = DynamicCache(config=theirs.model.config)
    took = []
    with torch.inference_mode():
        theirs.model(torch.tensor([prompt(16)]), cache=cache, use_cache=True)
        for layer in cache.layers:
            layer.keys = torch.randn(1, 1, context, layer.keys.shape[-1])
            layer.values = torch.randn(1, 1, context, layer.values.shape[-1])
            if getattr(layer, "indexer_keys", None) is not None:
                layer.indexer_keys = torch.randn(1, context, layer.indexer_keys.shape[-1])
        for token in prompt(tokens + 1):
            begin = time.perf_counter()
            theirs.model(torch.tensor([[token]]), cache=cache, use_cache=True, logits_to_keep=1)
            took.append(time.perf_counter() - begin)
    return statistics.median(took[1:])


def prefill() -> Figures:
    """A prompt of 4096 tokens to its first token: seconds, and resident memory at the peak beyond the loaded model."""
    tokens = prompt(4096)
    figures: Figures = {"prefill_x": [], "prefill_mem": [], "ours_s": [], "theirs_s": [], "ours_peak_mb": [], "theirs_peak_mb": []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = random_checkpoint(Path(scratch), 8192)
        ours = Ours(folder, cache_tokens=8192, max_sequences=1, max_batched_tokens=2048)
        best_threads(lambda: ours.generate([tokens], 1))
        our_threads = torch.get_num_threads()
        theirs, their_threads = _fastest(folder, lambda side: side.generate([tokens], 1))
        for _ in range(3):
            torch.set_num_threads(their_threads)
            slow = theirs.generate([tokens], 1)
            torch.set_num_threads(our_threads)
            fast = ours.generate([tokens], 1)
            peaks = []
            for side in ("ours", theirs.attention):
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                    peaks.append(process.submit(prefill_peak, side, folder).result() / 1e6)
            found = {"prefill_x": slow / fast, "prefill_mem": peaks[0] / peaks[1], "ours_s": fast, "theirs_s": slow}
            for name, value in {**found, "ours_peak_mb": peaks[0], "theirs_peak_mb": peaks[1]}.items():
                figures[name].append(value)
    return figures


def prefill_peak(side: str, folder: Path) -> int:
    """Resident bytes that one prompt of 4096 tokens takes at its peak; in a new process, since memory once freed is not given back."""
    torch.set_num_threads(2)
    engine = Ours(folder, cache_tokens=8192, max_sequences=1, max_batched_tokens=2048) if side == "ours" else Theirs(folder, side)
    engine.generate([prompt(16)], 1)
    return peak_bytes(lambda: engine.generate([prompt(4096)], 1))


def prefix() -> Figures:
    """First token of a 1K prompt of which 90 % were seen before, against the same without the prefix cache."""
    torch.set_num_threads(1)
    sides = {name: Ours(TINY, prefix_cache=name == "with", max_sequences=4) for name in ("with", "without")}
    shared, figures = prompt(920), {"prefix_ttft": [], "with_ms": [], "without_ms": []}
    for round_ in range(REPEATS + 1):
        took = {}
        for name, side in sides.items():
            own = torch.randint(20, 2000, (104,), generator=torch.Generator().manual_seed(round_)).tolist()
            took[name] = side.generate([shared + own], 1)
        if round_:  # the first fills the cache
            figures["prefix_ttft"].append(took["with"] / took["without"])
            figures["with_ms"].append(took["with"] * 1e3)
            figures["without_ms"].append(took["without"] * 1e3)
    return figures


def kv_formats() -> Figures:
    """Pages per GB of the quantised caches against bf16, counted, for GLM-5.2's sizes."""
    with tempfile.TemporaryDirectory() as scratch:
        config = ModelConfig.from_dir(write_release(Path(scratch), GLM_5_2))
    plain = bytes_per_token(config, torch.bfloat16)
    return {f"kv_{name}_x": [plain / bytes_per_token(config, dtype)] for name, dtype in (("int8", torch.int8), ("int4", INT4))}


def adapters_share() -> Figures:
    """64 sequences over 8 adapters against 64 on the base model."""
    torch.set_num_threads(1)
    share = adapters.adapters_share()
    return {"adapters_share": share.shares, "base_ms": share.base_ms, "adapters_ms": share.adapters_ms}


def scheduling() -> Figures:
    """Scheduler and block manager with 256 decoding sequences, ms a step; and the whole step but for the model."""
    return {"scheduler_ms": scheduler.scheduler_ms(256), "engine_step_ms": scheduler.engine_ms(256)}


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "decode1": lambda: decode(1),
    "decode16": lambda: decode(16),
    "decode64": lambda: decode(64),
    "long_context": long_context,
    "prefill": prefill,
    "http": serving.http_share,
    "prefix": prefix,
    "kv_formats": kv_formats,
    "adapters": adapters_share,
    "scheduling": scheduling,
}

if __name__ == "__main__":
    print(json.dumps(PARTS[sys.argv[1]]()))
