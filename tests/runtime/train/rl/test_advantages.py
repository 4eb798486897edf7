"""Advantages against verl's numbers and against loops written from the definitions."""

from __future__ import annotations

import pytest
import torch

from glm5_runtime.train.rl.advantages import Advantages, gae, grpo, rloo, whiten
from tests.runtime.train.rl.vectors import NAN, same, verl

LENGTHS = [*range(1, 18), 31, 32, 33, 100]


def rollouts(rows: int, length: int, kind: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    rewards, values = (torch.randn(rows, length, generator=generator, dtype=kind) for _ in range(2))
    mask = torch.rand(rows, length, generator=generator) > 0.3
    mask[0], mask[1] = True, False
    return rewards, values, mask


def by_definition(rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float, lam: float) -> torch.Tensor:
    """Of the tokens that count, as if there were no others: sum of (gamma lam)^k times the k-th next surprise. 0 elsewhere."""
    found = torch.zeros_like(rewards)
    for row in range(len(rewards)):
        places = mask[row].nonzero().squeeze(1).tolist()
        following = [*(float(values[row, at]) for at in places[1:]), 0.0]
        surprises = [float(rewards[row, at] - values[row, at]) + gamma * after for at, after in zip(places, following, strict=False)]
        for number, at in enumerate(places):
            found[row, at] = sum((gamma * lam) ** k * surprise for k, surprise in enumerate(surprises[number:]))
    return found


def plain(rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float = 0.99, lam: float = 0.95) -> Advantages:
    return gae(rewards, values, mask, torch.tensor(gamma), torch.tensor(lam))


@pytest.mark.parametrize("length", [1, 67])
@pytest.mark.parametrize("discount", range(4))
def test_gae_and_returns_are_verls_at_every_position(length: int, discount: int) -> None:
    given, wanted = verl(f"gae/{length}"), verl(f"gae/{length}/{discount}")

    found = gae(given["rewards"], given["values"], given["mask"], wanted["gamma"], wanted["lam"])

    assert same(found.returns, wanted["returns"])
    assert same(whiten(found.advantages, given["mask"]), wanted["whitened"])


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("gamma", "lam"), [(0.99, 0.95), (1.0, 1.0), (0.9, 0.0), (0.0, 0.5)])
def test_gae_is_the_sum_that_defines_it_at_every_length(length: int, gamma: float, lam: float) -> None:
    rewards, values, mask = rollouts(5, length)
    wanted = by_definition(rewards, values, mask, gamma, lam)

    found = gae(rewards, values, mask, torch.tensor(gamma, dtype=torch.float64), torch.tensor(lam, dtype=torch.float64))

    assert torch.allclose(found.advantages[mask], wanted[mask], rtol=1e-12, atol=1e-12)
    assert torch.allclose(found.returns, found.advantages + values, rtol=0, atol=1e-12)


def test_masked_positions_carry_the_advantage_of_the_next_token_that_counts() -> None:
    rewards, values, mask = rollouts(5, 40)

    found = plain(rewards, values, mask).advantages

    for row in range(5):
        carried = 0.0
        for at in reversed(range(40)):
            carried = float(found[row, at]) if mask[row, at] else carried
            assert float(found[row, at]) == pytest.approx(carried, abs=1e-12)
    assert found[1].eq(0).all()


@pytest.mark.parametrize("rows", [3, 150])
def test_every_row_can_have_its_own_gamma_and_lam(rows: int) -> None:
    """Many rows are worked on some at a time."""
    rewards, values, mask = rollouts(rows, 20)
    gamma, lam = torch.linspace(0.5, 1.0, rows), torch.linspace(1.0, 0.0, rows)

    found = gae(rewards, values, mask, gamma, lam)

    for row in range(rows):
        one = gae(rewards[row : row + 1], values[row : row + 1], mask[row : row + 1], gamma[row], lam[row])
        assert torch.equal(found.advantages[row], one.advantages[0])
        assert torch.equal(found.returns[row], one.returns[0])


@pytest.mark.parametrize("rows", [1, 4])
def test_what_is_given_is_not_written_to(rows: int) -> None:
    given = [each[:rows].clone() for each in rollouts(4, 9, torch.float32)]
    kept = [each.clone() for each in given]

    plain(*given)

    assert all(torch.equal(own, other) for own, other in zip(given, kept, strict=True))


def test_bf16_is_worked_out_in_fp32() -> None:
    rewards, values, mask = rollouts(4, 50, torch.bfloat16)

    found = plain(rewards, values, mask)

    assert found.advantages.dtype == torch.float32
    assert torch.equal(found.advantages, plain(rewards.float(), values.float(), mask).advantages)


def test_nan_at_masked_positions_reaches_no_token_that_counts() -> None:
    rewards, values, mask = rollouts(4, 30)
    wanted = plain(rewards, values, mask)

    found = plain(rewards.masked_fill(~mask, NAN), values.masked_fill(~mask, NAN), mask)

    assert torch.equal(found.advantages, wanted.advantages)
    assert torch.equal(found.returns[mask], wanted.returns[mask])
    assert torch.equal(whiten(found.advantages.masked_fill(~mask, NAN), mask)[mask], whiten(wanted.advantages, mask)[mask])


def test_nan_of_a_token_that_counts_shows_in_its_row_up_to_it_and_by_whitening_everywhere() -> None:
    rewards, values, mask = rollouts(4, 30)
    mask[2, 12] = True
    rewards[2, 12] = NAN

    found = plain(rewards, values, mask).advantages

    assert found[2, :13].isnan().all()
    assert found[2, 13:].isfinite().all()
    assert found[[0, 1, 3]].isfinite().all()
    assert whiten(found, mask).isnan().all()


def test_whitened_advantages_have_mean_0_and_deviation_1_over_the_mask() -> None:
    values, _, mask = rollouts(6, 40)

    found = whiten(5 + 3 * values, mask)[mask]

    assert float(found.mean()) == pytest.approx(0, abs=1e-12)
    assert float(found.std()) == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize("number", [0, 1])
def test_fewer_than_two_tokens_are_not_whitened(number: int) -> None:
    mask = torch.zeros(2, 5)
    mask[0, :number] = 1

    with pytest.raises(ValueError, match=f"{number} tokens of the batch count, at least 2 must"):
        whiten(torch.ones(2, 5), mask)


@pytest.mark.parametrize("how", ["grpo", "dr_grpo", "rloo"])
def test_group_advantages_are_verls(how: str) -> None:
    given = verl("outcome")
    scores = given["rewards"].sum(dim=1)

    found = rloo(scores, given["mask"], given["groups"]) if how == "rloo" else None
    if found is None:
        found = grpo(scores, given["mask"], given["groups"], divide_by_spread=how == "grpo")

    assert same(found, given[how])


def test_groups_are_measured_by_their_own_members_whatever_their_numbers_and_order() -> None:
    scores = torch.tensor([1.0, 5.0, 3.0, -2.0, 4.0, 8.0])
    groups = torch.tensor([-7, 1 << 40, -7, 3, 1 << 40, -7])
    mask = torch.tensor([[1, 0, 1]] * 6)

    found, without, others = grpo(scores, mask, groups), grpo(scores, mask, groups, divide_by_spread=False), rloo(scores, mask, groups)

    for at, group in enumerate(groups.tolist()):
        members = scores[groups == group]
        alone = len(members) == 1
        mean, spread = (0.0, 1.0) if alone else (float(members.mean()), float(members.std()))
        rest = 0.0 if alone else float((members.sum() - scores[at]) / (len(members) - 1))
        for own, wanted in ((found, (scores[at] - mean) / (spread + 1e-6)), (without, scores[at] - mean), (others, scores[at] - rest)):
            assert own[at].tolist() == pytest.approx([float(wanted), 0.0, float(wanted)], abs=1e-6)


@pytest.mark.parametrize("score", [0.1, 1 / 3, 1e4, -7.7])
@pytest.mark.parametrize("size", [2, 3, 7, 16])
def test_rollouts_that_all_score_the_same_get_nothing(score: float, size: int) -> None:
    """Their mean in fp32 can differ from them in the last bit, which divided by 1e-6 would be an advantage."""
    scores, groups = torch.full((size,), score), torch.zeros(size, dtype=torch.int64)

    assert grpo(scores, torch.ones(size, 4), groups).eq(0).all()


def test_nan_of_one_score_stays_in_its_group() -> None:
    scores, groups = torch.tensor([1.0, NAN, 3.0, 4.0]), torch.tensor([0, 0, 1, 1])

    for found in (grpo(scores, torch.ones(4, 2), groups), rloo(scores, torch.ones(4, 2), groups)):
        assert found[:2].isnan().all()
        assert found[2:].isfinite().all()


def test_a_rollout_without_a_token_that_counts_still_measures_the_others() -> None:
    found = grpo(torch.tensor([0.0, 2.0]), torch.tensor([[0, 0], [1, 1]]), torch.tensor([4, 4]), divide_by_spread=False)

    assert found.tolist() == [[0.0, 0.0], [1.0, 1.0]]


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"all must be \[B, T\] alike: \[2, 3\], \[2, 4\], \[2, 3\]"):
        plain(torch.zeros(2, 3), torch.zeros(2, 4), torch.ones(2, 3))
    with pytest.raises(ValueError, match="one score and one group a rollout"):
        grpo(torch.zeros(3), torch.ones(3, 2), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"the mask must be \[3, T\], not \[2, 2\]"):
        grpo(torch.zeros(3), torch.ones(2, 2), torch.zeros(3, dtype=torch.int64))
