"""`--sparse-kv`: which tokens of a long context are looked at, whatever the steps; checked against a loop over every query."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from glm5_runtime.config import EngineConfig, ModelConfig
from glm5_runtime.engine.load import load_engine
from glm5_runtime.model.decoder import Decoder
from glm5_runtime.model.weights import load_decoder
from glm5_runtime.ops import reference
from glm5_runtime.ops.interface import operators
from glm5_runtime.ops.packing import PackedRows
from glm5_runtime.ops.paging import LayerCache, Queries
from glm5_runtime.ops.thinned import SparseKV, thinned
from tests.runtime.model.oracle import CPU, logits_of

SMALL = SparseKV(0.25, begin=64, window=32)
PAGE, PAGES = 4, 60


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _allowed(sparse: SparseKV, query: int) -> list[int]:
    """The rule as it is written down."""
    everything = range(query + 1)
    if query < sparse.begin:
        return list(everything)
    sampled = sparse.sampled(torch.arange(query + 1)).tolist()
    return [place for place in everything if place > query - sparse.window or sampled[place]]


@pytest.mark.parametrize("k", [16, 60], ids=["few", "more than some see"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("ends", "count"), [([150], 1), ([150, 90, 40], 1), ([150], 30), ([80], 80), ([66], 4), ([150, 97], 5)],
    ids=["decode", "decodes of several lengths", "prompt's end", "prompt", "across the beginning", "drafts"],
)  # fmt: skip
def test_each_query_chooses_the_best_of_its_window_and_its_sample(ends: list[int], count: int, packed: bool, k: int) -> None:
    index = _random(PAGES * PAGE, 6)
    cache = LayerCache(index, index, index)
    if packed:
        rows = PackedRows.allocate(PAGES * PAGE, 6, 8, CPU)
        rows.index_copy_(0, torch.arange(PAGES * PAGE), index)
        cache, index = LayerCache(rows, rows, rows), rows[0 : PAGES * PAGE]
    order = torch.randperm(PAGES - 1, generator=torch.Generator().manual_seed(1)).add(1).tolist()
    pages = [[order[(place + 3 * number) % len(order)] for place in range(-(-end // PAGE))] for number, end in enumerate(ends)]
    positions = torch.tensor([list(range(end - count, end)) for end in ends])
    queries = Queries(slice(0, positions.numel()), positions, ends, pages, PAGE)
    query, weights = _random(positions.numel(), 3, 6, seed=2), torch.rand(positions.numel(), 3, generator=torch.Generator().manual_seed(3))
    chosen = thinned(operators("cpu"), SMALL).choose(query, weights, cache, queries, k=k, select=None).positions
    for row, position in enumerate(positions.flatten().tolist()):
        sequence, place = divmod(row, count)
        allowed = _allowed(SMALL, position) if max(ends) > SMALL.begin else list(range(position + 1))
        slots = [pages[sequence][p // PAGE] * PAGE + p % PAGE for p in allowed]
        scores = ((query[row] @ index[slots].T).relu() * weights[row].unsqueeze(1)).sum(0)
        best = {allowed[at] for at in reference.select_tokens(scores.unsqueeze(0), min(k, SMALL.window))[0].tolist()}
        assert {p for p in chosen[sequence, place].tolist() if p <= position} == best


def test_the_sample_is_as_large_as_asked_everywhere_and_has_no_period() -> None:
    for ratio in (0.2, 0.25, 0.5):
        kept = SparseKV(ratio).sampled(torch.arange(1_000_000))
        shares = kept.view(-1, 1000).float().mean(dim=1)
        assert float((shares - ratio).abs().max()) < 0.01
        for period in (2, 3, 4, 8, 16, 128):
            assert float((kept[::period].float().mean() - ratio).abs()) < 0.01


@pytest.fixture(scope="module")
def text(tiny_dir: Path) -> list[int]:
    rows = json.loads((tiny_dir / "expected.json").read_text())
    return [token for row in rows if row["kind"] == "text" for token in row["tokens"]][:400]


def _decoder(tiny_dir: Path, sparse: SparseKV) -> Decoder:
    return load_decoder(ModelConfig.from_dir(tiny_dir), tiny_dir, thinned(operators("cpu"), sparse), CPU, torch.float32)


def test_chunks_and_steps_change_nothing(tiny_dir: Path, text: list[int]) -> None:
    decoder = _decoder(tiny_dir, SparseKV(0.25, begin=128, window=80))
    whole = logits_of(decoder, text)
    for sizes in ([100, 150, 150], [300, *[1] * 20, 80], [7] * 57 + [1]):
        assert (logits_of(decoder, text, sizes) - whole).abs().max() < 1e-4


def test_it_begins_where_it_says_and_a_whole_sample_is_everything(tiny_dir: Path, text: list[int]) -> None:
    plain = logits_of(load_decoder(ModelConfig.from_dir(tiny_dir), tiny_dir, operators("cpu"), CPU, torch.float32), text)
    some = logits_of(_decoder(tiny_dir, SparseKV(0.25, begin=128, window=80)), text)
    assert (some[:128] - plain[:128]).abs().max() < 1e-4
    assert (some[200:] - plain[200:]).abs().max() > 0.1
    assert (logits_of(_decoder(tiny_dir, SparseKV(1.0, begin=128, window=80)), text) - plain).abs().max() < 1e-4


def test_the_indexer_scores_a_quarter_and_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    scores = reference.index_scores
    monkeypatch.setattr(
        reference, "index_scores", lambda query, weights, keys: (sizes.append(keys.shape[1]), scores(query, weights, keys))[1]
    )
    index = _random(65_536 + 16, 4)
    queries = Queries(slice(0, 1), torch.tensor([[65_535]]), [65_536], [list(range(1, 4097))], 16)
    ops = thinned(operators("cpu"), SparseKV())
    ops.choose(_random(1, 2, 4), torch.ones(1, 2), LayerCache(index, index, index), queries, k=2048, select=None)
    assert sizes == [pytest.approx(4096 + (65_536 - 4096) / 4, abs=2)]


def test_an_engine_is_built_with_it_only_when_asked(tiny_dir: Path) -> None:
    def ops_of(**settings: float) -> object:
        engine = load_engine(tiny_dir, EngineConfig(max_sequences=1, max_model_len=64, **settings))  # type: ignore[arg-type]  # one float
        return engine._runner._steps.decoder.ops  # type: ignore[attr-defined]  # whoever runs the steps in this process

    assert ops_of() is operators("cpu")
    assert ops_of(sparse_kv=0.25) is not operators("cpu")
