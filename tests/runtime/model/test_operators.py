"""Each reference operator against the same sum written as loops, and the properties that the model relies on."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from glm5_runtime.model.rope import rotary_angles
from glm5_runtime.ops import reference
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


def test_rotation_turns_each_interleaved_pair_by_its_angle() -> None:
    x = _random(1, 1, 4)
    cos, sin = rotary_angles(torch.tensor([3]), theta=100.0, size=4)
    a, b = 3 * 1.0, 3 * 0.1  # 100 ** (-0/4), 100 ** (-2/4)
    p, q, r, s = x.flatten().tolist()
    expected = [
        p * math.cos(a) - q * math.sin(a),
        r * math.cos(b) - s * math.sin(b),
        q * math.cos(a) + p * math.sin(a),
        s * math.cos(b) + r * math.sin(b),
    ]
    assert reference.rotate(x, cos, sin).flatten().tolist() == pytest.approx(expected, abs=1e-6)


def test_rotated_products_depend_on_the_distance_only() -> None:
    query, key = _random(1, 1, 16), _random(1, 1, 16, seed=1)

    def product(at: int, seen: int) -> float:
        first, second = (rotary_angles(torch.tensor([p]), 1e4, 16) for p in (at, seen))
        return float((reference.rotate(query, *first) * reference.rotate(key, *second)).sum())

    assert product(7, 2) == pytest.approx(product(1007, 1002), abs=1e-3)
    assert product(7, 2) != pytest.approx(product(7, 3), abs=1e-3)


def test_a_position_of_a_million_keeps_its_angle_exact() -> None:
    cos, sin = rotary_angles(torch.tensor([1_048_575]), theta=8e6, size=64)
    assert float(cos[0, 0]) == pytest.approx(math.cos(1_048_575), abs=1e-6)
    assert float(sin[0, 0]) == pytest.approx(math.sin(1_048_575), abs=1e-6)


def test_index_scores_are_the_weighted_sum_of_positive_products() -> None:
    query, weights, keys = _random(2, 3, 4, 8), _random(2, 3, 4, seed=1), _random(2, 5, 8, seed=2)
    visible = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(3)) > 0.3
    scores = reference.index_scores(query, weights, keys, visible)
    for b, q, t in ((b, q, t) for b in range(2) for q in range(3) for t in range(5)):
        products = [max(0.0, float(query[b, q, h] @ keys[b, t]) / 8**0.5) * float(weights[b, q, h]) / 4**0.5 for h in range(4)]
        assert float(scores[b, q, t]) == (pytest.approx(sum(products), abs=1e-5) if visible[b, q, t] else -math.inf)


def test_selection_takes_the_best_and_of_equals_the_first() -> None:
    scores = torch.tensor([[0.0, 2.0, 0.0, 0.0, 2.0, -math.inf], [0.0] * 6])
    assert reference.select_tokens(scores, 4).tolist() == [[1, 4, 0, 2], [0, 1, 2, 3]]


def test_selection_of_many_equals_does_not_depend_on_what_stands_behind_them() -> None:
    scores = torch.zeros(1, 5000)
    longer = torch.cat((scores, torch.full((1, 3000), -math.inf)), dim=1)
    assert torch.equal(reference.select_tokens(scores, 64), reference.select_tokens(longer, 64))
    assert reference.select_tokens(longer, 64).tolist() == [list(range(64))]


def test_selection_of_fewer_tokens_than_asked_for_returns_them_all() -> None:
    assert reference.select_tokens(torch.tensor([[1.0, 3.0, 2.0]]), 8).tolist() == [[1, 2, 0]]


def _attend_by_loops(query: Tensor, rope: Tensor, latent: Tensor, key_rope: Tensor, *, visible: Tensor, scale: float) -> Tensor:
    output = torch.zeros_like(query)
    for b, q, h in ((b, q, h) for b in range(query.shape[0]) for q in range(query.shape[1]) for h in range(query.shape[2])):
        seen = [k for k in range(latent.shape[2]) if visible[b, q, k]]
        logits = torch.stack([query[b, q, h] @ latent[b, q, k] + rope[b, q, h] @ key_rope[b, q, k] for k in seen]) * scale
        output[b, q, h] = sum(w * latent[b, q, k] for w, k in zip(logits.softmax(0), seen, strict=True))
    return output


def test_attention_weighs_visible_latents_by_softmax() -> None:
    query, rope = _random(2, 3, 2, 8), _random(2, 3, 2, 4, seed=1)
    latent, key_rope = _random(2, 3, 5, 8, seed=2), _random(2, 3, 5, 4, seed=3)
    visible = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(4)) > 0.5
    visible[..., 0] = True
    expected = _attend_by_loops(query, rope, latent, key_rope, visible=visible, scale=0.3)
    assert torch.allclose(reference.attend(query, rope, latent, key_rope, visible=visible, scale=0.3), expected, atol=1e-5)


def test_attention_over_shared_keys_equals_the_same_keys_given_to_each_query() -> None:
    query, rope = _random(2, 3, 2, 8), _random(2, 3, 2, 4, seed=1)
    latent, key_rope = _random(2, 1, 5, 8, seed=2), _random(2, 1, 5, 4, seed=3)
    visible = torch.ones(2, 3, 5, dtype=torch.bool).tril()
    apart = reference.attend(query, rope, latent.expand(-1, 3, -1, -1), key_rope.expand(-1, 3, -1, -1), visible=visible, scale=0.3)
    assert torch.allclose(reference.attend(query, rope, latent, key_rope, visible=visible, scale=0.3), apart, atol=1e-6)


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
    for token in range(7):
        alone = sum(
            weights[token, slot] * (down[expert] @ reference.swiglu(gate_up[expert] @ x[token]))
            for slot, expert in enumerate(chosen[token].tolist())
        )
        assert torch.allclose(together[token], torch.as_tensor(alone), atol=1e-5)
