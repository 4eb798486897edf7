"""The losses against verl's numbers and slopes, and against what autograd gives on all logits at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch

from glm5_runtime.train import loss as module
from glm5_runtime.train.rl.head import choose, head_loss
from glm5_runtime.train.rl.losses import (
    PolicyBatch,
    PolicySettings,
    aggregate,
    clipped_losses,
    kl_estimate,
    policy_facts,
    policy_loss,
    token_weights,
    value_losses,
)
from tests.runtime.train.rl.vectors import MODES, NAN, same, verl

if TYPE_CHECKING:
    from torch import Tensor

HELD = {"one row": 1, "ten rows": 4 * 80 * 10, "all rows": 64 << 20}


@pytest.mark.parametrize("clip", range(3))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("counted", ["own", "whole"])
def test_clipped_loss_and_its_slope_are_verls(clip: int, mode: str, counted: str) -> None:
    given, wanted = verl("policy"), verl(f"policy/{clip}/{mode}/{counted}")
    settings = PolicySettings(*verl(f"policy/{clip}")["clip"].tolist())
    new = given["new"].requires_grad_()
    step = {} if counted == "own" else {"tokens": 300, "rollouts": 16}

    loss = aggregate(clipped_losses(new, given["old"], given["advantages"], settings), token_weights(given["mask"], mode, **step))

    assert same(loss, wanted["loss"])
    assert same(torch.autograd.grad(loss, new)[0], wanted["slope"])


@pytest.mark.parametrize("clip", range(3))
def test_shares_clipped_and_distance_from_the_old_policy_are_verls(clip: int) -> None:
    given, wanted = verl("policy"), verl(f"policy/{clip}")

    found = policy_facts(given["new"], given["old"], given["advantages"], given["mask"], PolicySettings(*wanted["clip"].tolist()))

    assert same(found.clipped, wanted["pg_clipfrac"])
    assert same(found.clipped_below, wanted["pg_clipfrac_lower"])
    assert same(found.kl, wanted["ppo_kl"])


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_kl_estimates_and_their_slopes_are_verls_clamps_included(kind: str) -> None:
    given, wanted = verl("kl"), verl(f"kl/{kind}")
    new = given["new"].requires_grad_()

    found = kl_estimate(new, given["reference"], kind)

    assert same(found, wanted["value"])
    assert same(torch.autograd.grad(found.sum(), new)[0], wanted["slope"])


@pytest.mark.parametrize("mode", MODES)
def test_value_loss_and_its_slope_are_verls(mode: str) -> None:
    given, wanted = verl("value"), verl(f"value/{mode}")
    new = given["new"].requires_grad_()

    loss = aggregate(value_losses(new, given["old"], given["returns"], 0.3), token_weights(given["mask"], mode))

    assert same(loss, wanted["loss"])
    assert same(torch.autograd.grad(loss, new)[0], wanted["slope"])


@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
@pytest.mark.parametrize("mode", MODES)
def test_one_pass_over_the_head_gives_verls_loss_and_gradients_however_many_rows_are_held(
    monkeypatch: pytest.MonkeyPatch, mode: str, held: int
) -> None:
    """Clipped loss, entropy and k3 to a reference at temperature 0.7, from hidden states to the gradients of them and of the head."""
    monkeypatch.setattr(module, "LOGITS_BYTES", held)
    given, wanted = verl("head"), verl(f"head/{mode}")
    counts = given["mask"].bool()
    hidden, weight = given["hidden"].requires_grad_(), given["weight"].requires_grad_()
    weights = token_weights(counts, mode)
    batch = PolicyBatch(*(each[counts] for each in (given["targets"], given["old"], given["advantages"], weights, given["reference"])))
    settings = PolicySettings(clip_high=0.28, dual_clip=10.0, kl_weight=0.05, entropy_weight=0.01)

    found = policy_loss(hidden[counts], weight, batch, settings, temperature=0.7)
    slopes = torch.autograd.grad(3 * found.loss, (hidden, weight))

    assert same(found.loss, wanted["loss"])
    assert same(found.chosen.log_probs, given["log_probs"][counts])
    assert same(found.chosen.entropy, given["entropy"][counts])
    assert same(slopes[0] / 3, wanted["hidden"])
    assert same(slopes[1] / 3, wanted["weight"])
    without = choose(hidden[counts], weight, batch.targets, 0.7)
    assert torch.equal(without.log_probs, found.chosen.log_probs)
    assert torch.equal(without.entropy, found.chosen.entropy)


def test_micro_batches_add_up_to_the_step() -> None:
    given = verl("policy")
    settings = PolicySettings()
    for mode in MODES:
        weights = token_weights(given["mask"], mode)
        whole = aggregate(clipped_losses(given["new"], given["old"], given["advantages"], settings), weights)
        parts = [
            aggregate(clipped_losses(given["new"][at], given["old"][at], given["advantages"][at], settings), weights[at])
            for at in (slice(0, 2), slice(2, 3), slice(3, None))
        ]
        assert same(torch.stack(parts).sum(), whole)


def wide_head(rows: int = 7, vocabulary: int = 11) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    hidden = torch.randn(rows, 5, generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn(vocabulary, 5, generator=generator, dtype=torch.float64).requires_grad_()
    return hidden, weight, torch.randint(vocabulary, (rows,), generator=generator)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("which", ["log-probabilities", "entropy", "both"])
def test_slopes_are_those_of_small_steps(monkeypatch: pytest.MonkeyPatch, which: str, temperature: float) -> None:
    monkeypatch.setattr(module, "LOGITS_BYTES", 8 * 11 * 3)
    hidden, weight, targets = wide_head()
    share = torch.linspace(-1, 2, 7, dtype=torch.float64)

    def terms(log_probs: Tensor, entropy: Tensor, rows: slice) -> Tensor:
        parts = {"log-probabilities": log_probs.exp(), "entropy": entropy.square(), "both": log_probs * entropy}
        return share[rows] * parts[which]

    def total(hidden: Tensor, weight: Tensor) -> Tensor:
        return head_loss(hidden, weight, targets, terms, temperature).loss

    assert torch.autograd.gradcheck(total, (hidden, weight))


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_the_policy_loss_has_the_slopes_of_small_steps(kind: str) -> None:
    hidden, weight, targets = wide_head()
    old = choose(hidden, weight, targets).log_probs
    shifts = torch.tensor([0.5, -0.5, 0.1, -0.1, 2.0, -2.0, 0.0], dtype=torch.float64) + 0.01  # off the corners
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0, 2.0, 0.5], dtype=torch.float64)
    batch = PolicyBatch(targets, old - shifts, advantages, torch.full_like(old, 1 / 7), old - 0.3)
    settings = PolicySettings(kl=kind, kl_weight=0.2, entropy_weight=0.1)

    assert torch.autograd.gradcheck(lambda hidden, weight: policy_loss(hidden, weight, batch, settings).loss, (hidden, weight))


def small_batch(rows: int = 6, words: int = 64) -> tuple[Tensor, Tensor, PolicyBatch]:
    generator = torch.Generator().manual_seed(6)
    hidden = torch.randn(rows, 32, generator=generator).requires_grad_()
    weight = (0.3 * torch.randn(words, 32, generator=generator)).requires_grad_()
    targets = torch.randint(words, (rows,), generator=generator)
    old = choose(hidden, weight, targets).log_probs
    advantages = torch.randn(rows, generator=generator)
    return hidden, weight, PolicyBatch(targets, old, advantages, torch.full_like(advantages, 1 / rows))


@pytest.mark.parametrize(("kind", "tolerance"), [(torch.bfloat16, 3e-2), (torch.float16, 4e-3)])
def test_small_slopes_are_not_lost_in_short_types(kind: torch.dtype, tolerance: float) -> None:
    """A token among a million: each slope of a logit is below 1e-6 times its probability, where fp16 has nothing left."""
    hidden, weight, batch = small_batch(words=4096)
    batch = PolicyBatch(batch.targets, batch.old_log_probs, batch.advantages, batch.weights * 1e-6)
    expected = torch.autograd.grad(policy_loss(hidden, weight, batch, PolicySettings()).loss * 1e6, (hidden, weight))
    narrow = hidden.detach().to(kind).requires_grad_(), weight.detach().to(kind).requires_grad_()

    found = torch.autograd.grad(policy_loss(*narrow, batch, PolicySettings()).loss * 1e6, narrow)

    for own, other in zip(found, expected, strict=True):
        assert float((own.float() - other).abs().max() / other.abs().max()) < tolerance


def test_logits_of_all_rows_are_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept for the backward pass is no larger than the inputs; nothing larger than a chunk is made on the way."""
    monkeypatch.setattr(module, "LOGITS_BYTES", 4 * 4096 * 2)
    hidden, weight, batch = small_batch(rows=64, words=4096)
    largest, kept = [0], [0]

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # noqa: ANN001, ANN204 - torch's own signature
            result = function(*args, **(kwargs or {}))
            for each in result if isinstance(result, tuple) else (result,):
                if isinstance(each, torch.Tensor) and each.data_ptr() != weight.data_ptr():
                    largest[0] = max(largest[0], each.numel())
            return result

    def keep(each: Tensor) -> Tensor:
        kept[0] += each.numel()
        return each

    with Watch(), torch.autograd.graph.saved_tensors_hooks(keep, lambda each: each):
        found = policy_loss(hidden, weight, batch, PolicySettings(entropy_weight=0.1))

    assert largest[0] <= max(weight.numel(), 4096 * 2)
    assert weight.numel() < 64 * 4096
    assert kept[0] <= hidden.numel() + weight.numel() + 64 * 16  # and some numbers a row while a chunk's terms are worked out
    assert found.loss.requires_grad


def test_a_frozen_head_gets_no_gradient_and_none_is_worked_out_without_autograd() -> None:
    hidden, weight, batch = small_batch()

    policy_loss(hidden, weight.detach(), batch, PolicySettings()).loss.backward()
    asked: list[bool] = []

    def terms(log_probs: Tensor, _entropy: Tensor, _rows: slice) -> Tensor:
        asked.append(log_probs.requires_grad)
        return log_probs

    with torch.no_grad():
        silent = head_loss(hidden, weight, batch.targets, terms)

    assert asked == [False]
    assert hidden.grad is not None
    assert weight.grad is None
    assert not silent.loss.requires_grad
    assert not silent.chosen.log_probs.requires_grad


def test_a_micro_batch_without_tokens_is_a_loss_of_0_with_gradients_of_0() -> None:
    hidden, weight, _ = small_batch()
    none = torch.zeros(0)

    found = policy_loss(hidden[:0], weight, PolicyBatch(none.long(), none, none, none), PolicySettings())
    found.loss.backward()

    assert found.loss.item() == 0
    assert weight.grad is not None
    assert weight.grad.eq(0).all()


def test_nan_of_an_advantage_shows_in_the_loss() -> None:
    hidden, weight, batch = small_batch()
    batch.advantages[2] = NAN

    assert policy_loss(hidden, weight, batch, PolicySettings()).loss.isnan()


@pytest.mark.parametrize("mode", MODES)
def test_weights_are_those_of_rollouts_that_have_tokens_and_nan_behind_the_mask_is_not_read(mode: str) -> None:
    mask = torch.tensor([[1, 1, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0]])
    losses = torch.tensor([[1.0, 2.0, 3.0, 4.0], [NAN, 7.0, NAN, NAN], [NAN] * 4])

    found = float(aggregate(losses, token_weights(mask, mode)))

    wanted = {"token-mean": 17 / 5, "seq-mean-token-sum": (10 + 7) / 2, "seq-mean-token-mean": (2.5 + 7) / 2}
    assert found == pytest.approx(wanted[mode])


@pytest.mark.parametrize("mode", MODES)
def test_a_mask_of_zeros_gives_weights_of_zero(mode: str) -> None:
    assert token_weights(torch.zeros(2, 3), mode).tolist() == [[0.0] * 3] * 2
    nothing = policy_facts(*(torch.ones(2, 3) for _ in range(3)), torch.zeros(2, 3), PolicySettings())
    assert (nothing.clipped.item(), nothing.clipped_below.item(), nothing.kl.item()) == (0, 0, 0)


def test_the_dual_clip_bounds_what_one_unlikely_token_with_a_negative_advantage_counts() -> None:
    old, new, advantages = torch.tensor([-9.0, -9.0]), torch.tensor([-1.0, -1.0]), torch.tensor([-2.0, 2.0])

    held = clipped_losses(new, old, advantages, PolicySettings(dual_clip=3.0))
    free = clipped_losses(new, old, advantages, PolicySettings(dual_clip=math.inf))

    assert held.tolist() == pytest.approx([6.0, -2.4])
    assert free.tolist() == pytest.approx([2 * math.exp(8), -2.4])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip_low": 1.1}, "clip_low must be 0 to 1"),
        ({"clip_high": -0.1}, "clip_high at least 0"),
        ({"clip_high": NAN}, "clip_high at least 0"),
        ({"dual_clip": 1.0}, "dual_clip must be above 1, not 1.0"),
        ({"dual_clip": NAN}, "dual_clip must be above 1"),
        ({"kl": "k4"}, "kl must be one of k1, k2, k3, not 'k4'"),
    ],
)
def test_settings_that_can_not_be_meant_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PolicySettings(**settings)


def test_names_and_shapes_that_do_not_fit_are_refused() -> None:
    hidden, weight, batch = small_batch()
    with pytest.raises(ValueError, match="the aggregation must be one of token-mean, seq-mean-token-sum, seq-mean-token-mean, not 'mean'"):
        token_weights(torch.ones(2, 2), "mean")
    with pytest.raises(ValueError, match="kl must be one of k1, k2, k3, not 'abs'"):
        kl_estimate(torch.ones(2), torch.ones(2), "abs")
    with pytest.raises(ValueError, match="kl_weight needs the reference"):
        policy_loss(hidden, weight, batch, PolicySettings(kl_weight=0.1))
    with pytest.raises(ValueError, match=r"the batch's tensors must be \[6\], one is \[5\]"):
        policy_loss(hidden, weight, PolicyBatch(batch.targets, batch.old_log_probs[:5], batch.advantages, batch.weights), PolicySettings())
    with pytest.raises(ValueError, match=r"not hidden \[5, 32\], weight \[64, 32\], targets \[6\]"):
        policy_loss(hidden[:5], weight, batch, PolicySettings())
    for temperature in (0.0, NAN, math.inf):
        with pytest.raises(ValueError, match="the temperature must be a number above 0"):
            choose(hidden, weight, batch.targets, temperature)
