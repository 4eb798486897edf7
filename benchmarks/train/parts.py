"""What is measured, one function a part; each runs in a process of its own and returns figures as lists, one value a repetition.

`Size` says how much of it: the full one for figures, the tiny one for the test that every part runs.
"""

from __future__ import annotations

import json
import logging
import statistics
import sys
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import torch

from benchmarks.engine.sides import best_threads, peak_bytes, random_checkpoint
from benchmarks.train.sides import Clock, Ours, Peft, full_checkpoints, settings
from benchmarks.train.text import TINY as TINY_MODEL
from benchmarks.train.text import dataset
from benchmarks.train.trl_sides import TrlGrpo, TrlSft, tokenizer
from benchmarks.train.verl_formula import gae_loop
from glm5_runtime.train.data.batches import BatchConfig, filled, plan_epoch
from glm5_runtime.train.data.example import Example
from glm5_runtime.train.rl.advantages import gae
from glm5_runtime.train.rl.rollout import Prompt
from glm5_runtime.train.rl.run import run
from glm5_runtime.train.source import by_length

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.train.sides import Batches
    from glm5_runtime.train.data.dataset import Dataset
    from glm5_runtime.train.rl.rollout import Answer

Figures = dict[str, list[float]]


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    rounds: int = 5
    batches: int = 7
    """Steps of fine-tuning in a round, the first of which doesn't count."""
    rows: int = 8
    """Of a batch."""
    max_length: int = 512
    gae: tuple[int, int] = (256, 8192)
    prompts: int = 4
    group: int = 8
    new: int = 64
    rl_steps: int = 4
    tail_rows: int = 100
    tail_longest: int = 1024
    tail_tokens: int = 4096
    checkpoint_steps: int = 16
    checkpoint_rows: tuple[int, int] = (4, 256)
    """Rows, and tokens of each."""
    tune: bool = True
    """Look for the attention and the number of threads that suit each side best; else sdpa, and one thread."""


FULL = Size()
TINY = Size(
    rounds=1, batches=2, rows=2, max_length=32, gae=(4, 32), prompts=1, group=2, new=4, rl_steps=2, tail_rows=8, tail_longest=64,
    tail_tokens=128, checkpoint_steps=5, checkpoint_rows=(1, 16), tune=False,
)  # fmt: skip
CHECKPOINT_EVERY = 4


def texts(size: Size) -> Dataset:
    """The rows."""
    with tempfile.TemporaryDirectory() as folder:
        return dataset(Path(folder), size.max_length)


def sft_batches(size: Size) -> Batches:
    """The same for all sides: rows of about one length, in random order."""
    data = texts(size)
    plan = [rows for rows in by_length(data.lengths, size.rows, Random(0)) if len(rows) == size.rows]
    return [[data[row] for row in rows] for rows in plan[: size.batches]]


def tuned(work: Callable[[], object], size: Size) -> int:
    """The number of threads for some work; it is set afterwards."""
    if size.tune:
        return best_threads(work)
    torch.set_num_threads(1)
    return 1


def fastest(kind: type[Peft | TrlSft], batches: Batches, size: Size) -> tuple[Peft | TrlSft, int]:
    """A side on transformers with the attention and the thread count that are best for it."""
    if not size.tune:
        return kind(), 1
    found = []
    for attention in ("sdpa", "eager"):
        side = kind(attention)
        threads = best_threads(lambda side=side: side.train(batches))
        found.append((side.train(batches), attention, threads, side))
    _, _, threads, side = min(found, key=lambda each: each[0])
    return side, threads


def sft(size: Size) -> Figures:
    """Adapters on real text, rows a second of our loop by those of the others."""
    batches = sft_batches(size)
    short = batches[:2]
    ours = Ours()
    our_threads = tuned(lambda: ours.train(short), size)
    sides = {"peft": fastest(Peft, short, size), "trl": fastest(TrlSft, short, size)}
    rows = sum(map(len, batches[1:]))
    figures: Figures = {name: [] for name in ("sft_x_peft", "sft_x_trl", "ours_rows_s", "peft_rows_s", "trl_rows_s")}
    for _ in range(size.rounds):
        torch.set_num_threads(our_threads)
        fast = ours.train(batches)
        figures["ours_rows_s"].append(rows / fast)
        for name, (side, threads) in sides.items():
            torch.set_num_threads(threads)
            slow = side.train(batches)
            figures[f"{name}_rows_s"].append(rows / slow)
            figures[f"sft_x_{name}"].append(slow / fast)
    return figures


SIDES: dict[str, Callable[[], Ours | Peft | TrlSft]] = {
    "ours": Ours,
    "peft": Peft,
    "peft_eager": lambda: Peft("eager"),
    "trl": TrlSft,
}


def sft_memory(size: Size) -> Figures:
    """Resident memory at the peak beyond the loaded model, ours by the least of the others'."""
    names = list(SIDES) if size.tune else ["ours", "trl"]
    figures: Figures = {"sft_mem": [], **{f"{name}_mb": [] for name in names}}
    for _ in range(min(2, size.rounds)):
        peaks = {}
        for name in names:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                peaks[name] = process.submit(sft_peak, name, size).result() / 1e6
        for name, peak in peaks.items():
            figures[f"{name}_mb"].append(peak)
        figures["sft_mem"].append(peaks["ours"] / min(peak for name, peak in peaks.items() if name != "ours"))
    return figures


def sft_peak(name: str, size: Size) -> int:
    """Bytes; in a new process, since memory once freed is not given back."""
    quieten()
    torch.set_num_threads(1)
    side, batches = SIDES[name](), sft_batches(size)
    shortest = min(batches, key=lambda rows: len(rows[0].tokens))
    side.train([shortest, shortest])
    return peak_bytes(lambda: side.train(batches))


def advantages(size: Size) -> Figures:
    """GAE of 256 rollouts of 8192 tokens against verl's loop."""
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(*size.gae, generator=generator) for _ in range(2))
    mask = (torch.rand(*size.gae, generator=generator) > 0.1).float()
    gamma, lam = torch.tensor(0.99), torch.tensor(0.95)
    ours, theirs = (lambda: gae(rewards, values, mask, gamma, lam)), (lambda: gae_loop(rewards, values, mask, gamma, lam))
    assert float((ours().advantages - theirs()[0])[mask > 0].abs().max()) < 1e-3
    threads = {"ours": tuned(ours, size), "theirs": tuned(theirs, size)}
    figures: Figures = {"gae_x": [], "ours_ms": [], "theirs_ms": []}
    for _ in range(size.rounds):
        took = {}
        for name, work in (("ours", ours), ("theirs", theirs)):
            torch.set_num_threads(threads[name])
            begin = time.perf_counter()
            work()
            took[name] = time.perf_counter() - begin
        figures["gae_x"].append(took["theirs"] / took["ours"])
        for name, seconds in took.items():
            figures[f"{name}_ms"].append(seconds * 1e3)
    return figures


def grpo(size: Size) -> Figures:
    """A step of GRPO, answers and update, against TRL with transformers' generation: seconds for each token of the answers.

    Answers are sampled and end where they end, so those of the two are not equally long.
    """
    data, words = texts(size), tokenizer()
    rows = sorted((row for row in data if sum(row.trained) > 2), key=lambda row: len(row.tokens))[: size.prompts]
    prompts = [words.decode(Prompt.of(row).tokens) for row in rows]

    def score(text: str) -> float:
        return text.count("e") / max(1, len(text))

    figures: Figures = {"grpo_x": [], "ours_ms_token": [], "theirs_ms_token": []}
    theirs = TrlGrpo()
    threads = {
        # With answers as long as those that are measured: short ones chose two threads for us, with which long ones are slower.
        "theirs": tuned(lambda: theirs.train(prompts, 2, size.group, size.new, score), size),
        "ours": tuned(lambda: our_grpo(rows, size, 2, size.new, lambda ids: score(words.decode(ids))), size),
    }
    for _ in range(size.rounds):
        torch.set_num_threads(threads["ours"])
        fast = our_grpo(rows, size, size.rl_steps, size.new, lambda ids: score(words.decode(ids)))
        torch.set_num_threads(threads["theirs"])
        clock = theirs.train(prompts, size.rl_steps, size.group, size.new, score)
        slow = clock.seconds / sum(theirs.lengths[len(prompts) * size.group :])
        figures["grpo_x"].append(slow / fast)
        figures["ours_ms_token"].append(fast * 1e3)
        figures["theirs_ms_token"].append(slow * 1e3)
    return figures


def our_grpo(rows: Sequence[Example], size: Size, steps: int, new: int, score: Callable[[list[int]], float]) -> float:
    """Seconds for each token of the answers, the first step left out."""
    lengths: list[int] = []

    def scorer(answers: Sequence[Answer]) -> list[float]:
        lengths.extend(len(answer.tokens) for answer in answers)
        return [score(answer.text_tokens) for answer in answers]

    with tempfile.TemporaryDirectory() as folder, Clock() as clock:
        config = settings(Path(folder), steps, batch_size=len(rows))
        changed = config.model_dump(exclude_unset=True) | {"method": "grpo", "rl": {"group": size.group, "max_new_tokens": new}}
        changed["lora"].pop("dropout")
        run(type(config).model_validate(changed), rows, clock, scorer)
    return clock.seconds / sum(lengths[len(rows) * size.group :])


def buckets(size: Size) -> Figures:
    """Learned-from tokens a second on a set with a long tail: batches of rows of one length, against random ones of as many tokens.

    Random batches are filled up to their longest row, as other trainers do; ours, which lays rows side by side, is told as well.
    """
    data = texts(size)
    text = [token for row in data for token in row.tokens]
    draw = Random(1)
    lengths = [min(size.tail_longest, max(12, int(draw.lognormvariate(5.3, 1.0)))) for _ in range(size.tail_rows)]
    starts = [draw.randrange(max(1, len(text) - length)) for length in lengths]
    rows = [Example(tuple(text[at : at + length]), (True,) * length, 1) for at, length in zip(starts, lengths, strict=True)]
    made: dict[str, Batches] = {}
    for name, mode in (("buckets", "buckets"), ("random", "random"), ("packed", "packed")):
        plan = plan_epoch(lengths, BatchConfig(max(size.tail_tokens, filled(max(lengths))), mode), 0)
        made[name] = [[rows[index] for row in batch.rows for index in row] for batch in plan.batches]
    made["random_side_by_side"] = made["random"]
    made["random"] = [padded_rows(batch) for batch in made["random"]]
    ours = Ours()
    tuned(lambda: ours.train(made["buckets"][:2]), size)
    useful = {name: sum(lengths) for name in made}
    figures: Figures = {"bucket_x": [], **{f"{name}_tokens_s": [] for name in made}}
    for _ in range(min(3, size.rounds)):
        for name, batches in made.items():
            figures[f"{name}_tokens_s"].append(useful[name] / ours.train([batches[0], *batches]))
        figures["bucket_x"].append(figures["buckets_tokens_s"][-1] / figures["random_tokens_s"][-1])
    return figures


def padded_rows(rows: Sequence[Example]) -> list[Example]:
    """Filled up to the longest with tokens that are not learned."""
    width = max(len(row.tokens) for row in rows)
    return [
        Example((*row.tokens, *[0] * (width - len(row.tokens))), (*row.trained, *[False] * (width - len(row.tokens))), 1) for row in rows
    ]


def checkpoint(size: Size) -> Figures:
    """Full training: how much longer a step takes that begins with a checkpoint and has it written meanwhile.

    Of a model of 30 million parameters: of the tiny one's 24 MB most of the time goes into 210 tensors' headers, which no real one shows.
    """
    rows = size.checkpoint_rows
    draw = Random(0)
    batch = [Example(tuple(draw.randrange(2, 2048) for _ in range(rows[1])), (True,) * rows[1], 1) for _ in range(rows[0])]
    torch.set_num_threads(1)  # the writer has the rest, as it has a host's cores beside a card
    figures: Figures = {"checkpoint_overhead": [], "step_ms": [], "step_with_checkpoint_ms": []}
    with tempfile.TemporaryDirectory() as folder:
        model = random_checkpoint(Path(folder), rows[1]) if size.tune else TINY_MODEL
        runs = [full_checkpoints(model, [batch] * size.checkpoint_steps, CHECKPOINT_EVERY) for _ in range(min(3, size.rounds))]
    for times in runs:
        took = {number: after - before for number, (before, after) in enumerate(pairwise(times), start=1)}
        during = [seconds for number, seconds in took.items() if number % CHECKPOINT_EVERY == 0]
        others = [seconds for number, seconds in took.items() if number % CHECKPOINT_EVERY != 0]
        plain, with_one = statistics.median(others), statistics.median(during)
        figures["checkpoint_overhead"].append(with_one / plain - 1)
        figures["step_ms"].append(plain * 1e3)
        figures["step_with_checkpoint_ms"].append(with_one * 1e3)
    return figures


PARTS: dict[str, Callable[[Size], Figures]] = {
    "sft": sft,
    "sft_memory": sft_memory,
    "gae": advantages,
    "grpo": grpo,
    "buckets": buckets,
    "checkpoint": checkpoint,
}


def quieten() -> None:
    """The others' notes and warnings belong in no table."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


if __name__ == "__main__":
    quieten()
    chosen = TINY if "--tiny" in sys.argv else FULL
    for part in (name for name in sys.argv[1:] if name != "--tiny"):
        print(json.dumps(PARTS[part](chosen)))
