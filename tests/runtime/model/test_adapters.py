"""Adapters on the decoder against a second decoder that has them in its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from glm5_runtime.model.adapter_files import read_adapter
from glm5_runtime.model.adapters import install, stack
from glm5_runtime.model.batch import Chunk, build_batch
from glm5_runtime.tools.quantize import quantize
from tests.runtime.model.oracle import CPU, PAGE, logits_of, new_cache, ours
from tests.support.adapters import ATTENTION, EVERYTHING, EXPERTS, INDEXER, MLP, merge, write_adapter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from glm5_runtime.model.adapters import Stacks
    from glm5_runtime.model.decoder import Decoder
    from glm5_runtime.tools.quantize import Scheme

PEFT = Path(__file__).parents[2] / "fixtures" / "adapters" / "peft"
TOKENS = [3, 4, *range(40, 140), 300]  # more than index_topk, so that the indexer chooses


def with_adapters(directory: Path, *folders: Path) -> Decoder:
    """A decoder with adapters 1, 2, …"""
    decoder = ours(directory)
    adapters = install(decoder)
    for number, folder in enumerate(folders, start=1):
        file = read_adapter(folder, decoder.config, ["tiny-glm5"], 64, device=CPU, dtype=torch.float32)
        adapters.stacks = stack(adapters.stacks, {number: file.pairs}, set(range(number)))
    return decoder


def run(decoder: Decoder, adapter: int, tokens: Sequence[int] = TOKENS, sizes: Sequence[int] = ()) -> Tensor:
    """Logits [N, V] of a prompt under an adapter, in steps of the given sizes."""
    cache, pages, rows, start = new_cache(decoder), range(1, 20), [], 0
    for size in sizes or [len(tokens)]:
        chunk = Chunk(tokens[start : start + size], start, pages, adapter)
        rows.append(decoder.logits(decoder(build_batch([chunk], decoder.config, PAGE, CPU), cache)))
        start += size
    return torch.cat(rows)


def gap(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().max())


def test_an_adapter_that_peft_wrote_gives_the_logits_that_peft_computes(tiny_dir: Path) -> None:
    expected = json.loads((PEFT / "expected.json").read_text())
    logits = run(with_adapters(tiny_dir, PEFT), 1, expected["tokens"])

    assert gap(logits.gather(1, torch.tensor(expected["best"])), torch.tensor(expected["logits"])) < 2e-4
    assert gap(logits, run(ours(tiny_dir), 0, expected["tokens"])) > 1


@pytest.mark.parametrize("modules", [*((name,) for name in EVERYTHING), ATTENTION, MLP, EXPERTS, INDEXER, EVERYTHING], ids="+".join)
def test_an_adapter_computes_what_its_merged_weights_compute(tiny_dir: Path, tmp_path: Path, modules: tuple[str, ...]) -> None:
    decoder = ours(tiny_dir)
    folder = write_adapter(tmp_path, decoder.config, modules, strength=0.05)
    expected = logits_of(merge(decoder, folder), TOKENS)

    logits = run(with_adapters(tiny_dir, folder), 1)

    assert gap(logits, expected) < 1e-4
    assert gap(expected, logits_of(ours(tiny_dir), TOKENS)) > 1e-3


@pytest.mark.parametrize(
    ("scheme", "modules", "strength"),
    [("w8a8", ATTENTION, 0.1), ("w8a8", EXPERTS, 0.1), ("w4a8", EXPERTS, 0.125)],
    ids=["int8 attention", "int8 experts", "4-bit experts"],
)
def test_an_adapter_on_integers_computes_what_it_does_on_floats_but_for_their_rounding(
    tiny_dir: Path, tmp_path: Path, scheme: Scheme, modules: tuple[str, ...], strength: float
) -> None:
    quantize(tiny_dir, tmp_path / scheme, scheme)
    folder = write_adapter(tmp_path / "a", ours(tiny_dir).config, modules, strength=strength)
    tokens = TOKENS[:60]  # beyond index_topk rounding chooses other tokens
    plain, expected = logits_of(ours(tiny_dir), tokens), logits_of(merge(ours(tiny_dir), folder), tokens)
    decoder = with_adapters(tmp_path / scheme, folder)
    rounding = (run(decoder, 0, tokens) - plain).abs().mean()

    difference = (run(decoder, 1, tokens) - expected).abs().mean()

    assert difference < 1.5 * rounding
    assert (plain - expected).abs().mean() > 5 * rounding


def test_three_adapters_and_the_base_in_one_batch_compute_what_each_computes_alone(tiny_dir: Path, tmp_path: Path) -> None:
    config = ours(tiny_dir).config
    folders = [
        write_adapter(tmp_path / "a", config, rank=4, strength=0.05, seed=1),
        write_adapter(tmp_path / "b", config, (*ATTENTION, "up_proj"), rank=16, alpha=3, strength=0.05, seed=2, use_rslora=True),
        write_adapter(tmp_path / "c", config, (*EXPERTS, "o_proj"), rank=3, strength=0.05, seed=3),
    ]
    truths = [logits_of(ours(tiny_dir), TOKENS), *(logits_of(merge(ours(tiny_dir), folder), TOKENS) for folder in folders)]
    decoder = with_adapters(tiny_dir, *folders)
    cache = new_cache(decoder)
    order = [2, 0, 3, 1, 0, 2]
    pages = [range(1 + 10 * place, 11 + 10 * place) for place in range(len(order))]
    done = [0] * len(order)
    for sizes in ([40, 90, 1, 33, 7, 60], [1] * len(order), [1, 2, 101, 1, 1, 3]):  # prompts in pieces, decodes, both
        chunks = [
            Chunk(TOKENS[start : start + size], start, own, adapter)
            for adapter, size, start, own in zip(order, sizes, done, pages, strict=True)
        ]
        logits = decoder.logits(decoder(build_batch(chunks, config, PAGE, CPU), cache))
        for adapter, chunk, part in zip(order, chunks, logits.split([len(chunk.tokens) for chunk in chunks]), strict=True):
            assert gap(part, truths[adapter][chunk.start : chunk.end]) < 1e-4
        done = [start + size for start, size in zip(done, sizes, strict=True)]
    at = [min(start, len(TOKENS) - 1) for start in done]
    chunks = [Chunk(TOKENS[at[row] :][:1], at[row], pages[row], order[row]) for row in (2, 3, 1)]  # adapter 2 has no row
    logits = decoder.logits(decoder(build_batch(chunks, config, PAGE, CPU), cache))
    for chunk, row in zip(chunks, logits, strict=True):
        assert gap(row, truths[chunk.adapter][chunk.start]) < 1e-4


@pytest.mark.parametrize("modules", [ATTENTION, MLP, EXPERTS], ids=" ".join)
def test_an_adapter_whose_numbers_overflow_spoils_no_row_of_another(tiny_dir: Path, tmp_path: Path, modules: tuple[str, ...]) -> None:
    wild = write_adapter(tmp_path / "wild", ours(tiny_dir).config, modules, alpha=4, strength=5e37)
    decoder, alone = with_adapters(tiny_dir, wild), ours(tiny_dir)
    chunks = [Chunk(TOKENS, 0, range(1, 10)), Chunk(TOKENS, 0, range(11, 20), 1)]
    both = decoder(build_batch(chunks, decoder.config, PAGE, CPU), new_cache(decoder))
    plain = alone(
        build_batch([Chunk(TOKENS, 0, pages) for pages in (range(1, 10), range(11, 20))], decoder.config, PAGE, CPU), new_cache(alone)
    )

    assert not both[len(TOKENS) :].isfinite().all()
    assert gap(both[: len(TOKENS)], plain[: len(TOKENS)]) < 1e-4


def test_taking_one_adapter_away_leaves_the_others_and_their_memory_alone(tiny_dir: Path, tmp_path: Path) -> None:
    config = ours(tiny_dir).config
    folders = [write_adapter(tmp_path / str(rank), config, rank=rank, strength=0.05, seed=rank) for rank in (8, 24, 9)]
    decoder = with_adapters(tiny_dir, *folders)
    before = [run(decoder, number) for number in (1, 2, 3)]
    adapters = decoder.adapters
    assert adapters is not None
    assert sizes_of(adapters.stacks, "o_proj") == {(3, 24)}

    adapters.stacks = stack(adapters.stacks, {}, {1, 3})

    assert max(gap(run(decoder, 1), before[0]), gap(run(decoder, 3), before[2])) < 1e-5
    assert sizes_of(adapters.stacks, "o_proj") == {(2, 16)}
    assert stack(adapters.stacks, {}, set()) == {}


def sizes_of(stacks: Stacks, module: str) -> set[tuple[int, int]]:
    """Adapters and ranks that the stacks of a module have room for."""
    return {(each.pair.down.shape[0], each.pair.down.shape[1]) for name, each in stacks.items() if name.endswith(module)}
