"""Each reference operator against the same sum written as loops, and the properties that the model relies on."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from glm5_runtime.ops import reference
from glm5_runtime.ops.paging import LayerCache, Queries, Selection
from glm5_runtime.ops.reference import Routing


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_rms_norm_divides_by_the_root_mean_square_and_rounds_before_the_weight() -> None:
    x, weight = _random(3, 8).bfloat16(), _random(8, seed=1).bfloat16()
    wide = x.float() / (x.float().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert torch.equal(reference.rms_norm(x, weight, 1e-5), weight * wide.bfloat16())


def test_layer_norm_has_mean_bias_and_spread_weight() -> None:
    x = _random(4, 64) * 3 + 2
    normed = reference.layer_norm(x, torch.full((64,), 2.0), torch.full((64,), 0.5), 1e-6)
    assert torch.allclose(normed.mean(-1), torch.full((4,), 0.5), atol=1e-5)
    assert torch.allclose(normed.std(-1, correction=0), torch.full((4,), 2.0), atol=1e-4)


def _rotated(x: Tensor, position: int, theta: float) -> Tensor:
    x = x.clone()
    reference.rotate(x, reference.rotary(torch.tensor([position]), theta, x.shape[-1]))
    return x


def test_rotation_turns_each_interleaved_pair_by_its_angle() -> None:
    x = _random(1, 1, 4)
    a, b = 3 * 1.0, 3 * 0.1  # 100 ** (-0/4), 100 ** (-2/4)
    p, q, r, s = x.flatten().tolist()
    expected = [
        p * math.cos(a) - q * math.sin(a),
        q * math.cos(a) + p * math.sin(a),
        r * math.cos(b) - s * math.sin(b),
        s * math.cos(b) + r * math.sin(b),
    ]
    assert _rotated(x, 3, 100.0).flatten().tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_rotation_changes_its_part_of_a_larger_tensor_and_nothing_else(start: int, dtype: torch.dtype) -> None:
    whole = _random(3, 2, 11).to(dtype)
    alone, before = whole[..., start : start + 6].clone(), whole.clone()
    angles = reference.rotary(torch.tensor([4, 5, 6]), 100.0, 6)
    reference.rotate(alone, angles)
    reference.rotate(whole[..., start : start + 6], angles)
    assert torch.equal(whole[..., start : start + 6], alone)
    assert torch.equal(whole[..., :start], before[..., :start])
    assert torch.equal(whole[..., start + 6 :], before[..., start + 6 :])


def test_rotated_products_depend_on_the_distance_only() -> None:
    query, key = _random(1, 1, 16), _random(1, 1, 16, seed=1)

    def product(at: int, seen: int) -> float:
        return float((_rotated(query, at, 1e4) * _rotated(key, seen, 1e4)).sum())

    assert product(7, 2) == pytest.approx(product(1007, 1002), abs=1e-3)
    assert product(7, 2) != pytest.approx(product(7, 3), abs=1e-3)


def test_a_position_of_a_million_keeps_its_angle_exact() -> None:
    angle = reference.rotary(torch.tensor([1_048_575]), theta=8e6, size=64)[0, 0, 0]
    assert float(angle.real) == pytest.approx(math.cos(1_048_575), abs=1e-6)
    assert float(angle.imag) == pytest.approx(math.sin(1_048_575), abs=1e-6)


@pytest.mark.parametrize("products", [1, 200, 320, 8 << 20], ids=["one query", "one", "two of three", "all"])
def test_index_scores_are_the_weighted_sum_of_positive_products(products: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "INDEX_BYTES", products)
    query, weights, keys = _random(2, 3, 4, 8), _random(2, 3, 4, seed=1), _random(2, 5, 8, seed=2)
    scores = reference.index_scores(query, weights, keys)
    for b, q, t in ((b, q, t) for b in range(2) for q in range(3) for t in range(5)):
        terms = [max(0.0, float(query[b, q, h] @ keys[b, t])) * float(weights[b, q, h]) for h in range(4)]
        assert float(scores[b, q, t]) == pytest.approx(sum(terms), abs=1e-5)


def test_selection_takes_the_best_and_of_equals_the_first() -> None:
    scores = torch.tensor([[0.0, 2.0, 0.0, 0.0, 2.0, -math.inf], [0.0] * 6, [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]])
    assert reference.select_tokens(scores, 4).sort().values.tolist() == [[0, 1, 2, 4], [0, 1, 2, 3], [0, 1, 2, 3]]


def test_selection_of_many_equals_does_not_depend_on_what_stands_behind_them() -> None:
    longer = torch.cat((torch.zeros(1, 5000), torch.full((1, 3000), -math.inf)), dim=1)
    assert reference.select_tokens(longer, 64).sort().values.tolist() == [list(range(64))]


def test_selection_of_fewer_tokens_than_asked_for_returns_them_all() -> None:
    assert reference.select_tokens(torch.tensor([[1.0, 3.0, 2.0]]), 8).tolist() == [[0, 1, 2]]


PAGE = 4


def _paged(rows: int) -> LayerCache:
    return LayerCache(_random(rows, 8, seed=2), _random(rows, 4, seed=3), _random(rows, 6, seed=4))


def _queries(ends: list[int], count: int, pages: list[list[int]]) -> Queries:
    positions = torch.tensor([list(range(end - count, end)) for end in ends])
    return Queries(slice(1, 1 + positions.numel()), positions, ends, pages, PAGE)


def _attend_by_loops(query: Tensor, rope: Tensor, cache: LayerCache, queries: Queries, chosen: Tensor | None) -> Tensor:
    """One query, one head at a time, on the positions it may see; row 0 of the step belongs to somebody else."""
    output = []
    for row, position in enumerate(queries.positions.flatten().tolist(), start=1):
        sequence, place = divmod(row - 1, queries.positions.shape[1])
        seen = range(position + 1) if chosen is None else [p for p in chosen[sequence, place].tolist() if p <= position]
        slots = [queries.page_lists[sequence][p // PAGE] * PAGE + p % PAGE for p in seen]
        logits = (query[row] @ cache.latent[slots].T + rope[row] @ cache.rope[slots].T) * 0.3
        output.append(logits.softmax(-1) @ cache.latent[slots])
    return torch.stack(output)


@pytest.mark.parametrize("gather_beyond", [0, 16], ids=["gathered", "masked"])
@pytest.mark.parametrize("selected", [False, True])
@pytest.mark.parametrize(
    ("ends", "count", "pages"),
    [
        ([9], 1, [[2, 3, 4]]),
        ([9], 1, [[4, 2, 3]]),
        ([9, 3, 12], 1, [[2, 9, 4], [5], [6, 7, 8]]),
        ([9], 5, [[2, 3, 4]]),
        ([9], 5, [[4, 2, 3]]),
        ([9], 9, [[2, 3, 4]]),
    ],
    ids=["decode side by side", "decode paged", "decodes of several lengths", "prompt's end side by side", "prompt's end paged", "prompt"],
)
def test_attention_weighs_what_a_query_may_see_by_softmax(
    ends: list[int], count: int, pages: list[list[int]], *, selected: bool, gather_beyond: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "GATHER_BEYOND", gather_beyond)
    cache, queries = _paged(52), _queries(ends, count, pages)
    rows = 2 + queries.positions.numel()
    query, rope = _random(rows, 3, 8), _random(rows, 3, 4, seed=1)
    selection = None
    if selected:
        order = torch.rand(len(ends), count, max(ends) - 1, generator=torch.Generator().manual_seed(5)).argsort(-1) + 1
        selection = Selection(torch.cat((torch.zeros(len(ends), count, 1, dtype=torch.int64), order[..., :6]), dim=-1))  # all see one
    result = reference.attend(query, rope, cache, queries, selection, scale=0.3)
    expected = _attend_by_loops(query, rope, cache, queries, None if selection is None else selection.positions)
    assert torch.allclose(result, expected, atol=1e-5)


@pytest.mark.parametrize("select", [None, lambda scores, k: torch.arange(k).expand(*scores.shape[:-1], k)])
def test_the_indexer_chooses_among_what_each_query_sees(select: object) -> None:
    cache, queries = _paged(52), _queries([9, 3, 12], 1, [[2, 9, 4], [5], [6, 7, 8]])
    query, weights = _random(5, 2, 6), _random(5, 2, seed=1)
    assert cache.index is not None
    chosen = reference.choose(query, weights, cache, queries, k=4, select=select).positions  # type: ignore[arg-type]  # both are selectors
    for row, (end, pages) in enumerate(zip(queries.ends, queries.page_lists, strict=True)):
        slots = [pages[p // PAGE] * PAGE + p % PAGE for p in range(end)]
        scores = ((query[row + 1] @ cache.index[slots].T).relu() * weights[row + 1].unsqueeze(1)).sum(0)
        best = range(4) if select is not None else scores.topk(min(4, end)).indices.tolist()
        assert {p for p in chosen[row, 0].tolist() if p < end} == {p for p in best if p < end}


def test_what_a_token_leaves_is_its_normed_latent_its_turned_key_and_its_index_key() -> None:
    cache = LayerCache(torch.zeros(20, 8), torch.zeros(20, 4), torch.zeros(20, 6))
    kv, weight, slots = _random(2, 12), _random(8, seed=1), torch.tensor([17, 3])
    angles = reference.rotary(torch.tensor([5, 6]), 100.0, 4)
    key = kv[:, 8:].clone().unsqueeze(1)
    reference.rotate(key, angles)
    latent = reference.rms_norm(kv[:, :8], weight, 1e-5)
    reference.remember(kv, weight, 1e-5, angles, slots=slots, cache=cache)
    reference.remember_index(_random(2, 6), slots, cache)
    assert cache.index is not None
    for tensor, rows in ((cache.latent, latent), (cache.rope, key.squeeze(1)), (cache.index, _random(2, 6))):
        assert torch.equal(tensor[slots], rows)
        assert int((tensor.abs().sum(-1) > 0).sum()) == 2


def test_the_bias_decides_who_is_chosen_but_not_how_much_they_count() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    bias = torch.tensor([0.0, 0.0, 0.0, 5.0])
    chosen, weights = reference.route(logits, bias, Routing(k=2, groups=1, kept_groups=1, normalise=True, scale=2.5))
    scores = logits.sigmoid()[0]
    assert chosen.tolist() == [[3, 0]]
    assert weights[0].tolist() == pytest.approx([2.5 * float(scores[e] / (scores[3] + scores[0])) for e in (3, 0)], abs=1e-6)


def test_only_the_groups_with_the_best_two_experts_are_asked() -> None:
    logits = torch.tensor([[9.0, -9.0, 2.0, 2.0, 1.0, 1.0]])  # the single best expert sits in the worst pair but one
    chosen, _ = reference.route(logits, torch.zeros(6), Routing(k=2, groups=3, kept_groups=1, normalise=True, scale=1.0))
    assert chosen.tolist() == [[2, 3]]


def test_experts_grouped_by_expert_equal_each_token_on_its_own() -> None:
    x, gate_up, down = _random(7, 6), _random(5, 8, 6, seed=1), _random(5, 6, 4, seed=2)
    chosen = torch.tensor([[0, 1], [1, 4], [4, 0], [1, 0], [0, 4], [4, 1], [1, 4]])  # experts 2 and 3 see nobody
    weights = torch.rand(7, 2, generator=torch.Generator().manual_seed(3))
    together = reference.run_experts(x, gate_up, down, chosen, weights)
    assert torch.allclose(reference.run_experts(x[2:3], gate_up, down, chosen[2:3], weights[2:3]), together[2:3], atol=1e-5)
    for token in range(7):
        alone = sum(
            weights[token, slot] * (down[expert] @ reference.swiglu(gate_up[expert] @ x[token]))
            for slot, expert in enumerate(chosen[token].tolist())
        )
        assert torch.allclose(together[token], torch.as_tensor(alone), atol=1e-5)
