"""How much better than expected each token of a rollout was: GAE for PPO, group baselines for GRPO, Dr.GRPO and RLOO.

Called by the RL loop once for a batch of rollouts. Whole-tensor operations only, so that a card gets a dozen calls and not one for each
token; nothing here has a gradient. Numbers are those of verl 0.9.1 (`tests/fixtures/rl`).

Legend: B rollouts, T tokens of the longest. A mask is [B, T] bool or numbers 0 and 1, 1 where the policy chose the token; prompts, answers
of tools and padding are 0. A number that isn't finite goes as far as the formula takes it (earlier in its row, its group, by whitening
everywhere), so that the loss shows it. What stands at masked positions reaches nothing but masked positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

_CPU_ROWS = 64
"""Rounds of the recurrence go over all of their numbers: those of so many rollouts stay in a CPU's cache, and turn in half the time."""
_LEAST_VARIANCE = 1e-8
_LEAST_SPREAD = 1e-6
"""Added to a group's standard deviation, as verl does."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """Both [B, T] fp32: `advantages` for the policy, `returns` (advantages + values) for the value head."""

    advantages: Tensor
    returns: Tensor


@torch.no_grad()
def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: Tensor, lam: Tensor) -> Advantages:
    """Generalised advantage estimation, not whitened: rewards, values [B, T]; gamma, lam tensors of one number or of one a row, [] or [B].

    Masked positions pass through: they carry the advantage of the next token that counts, and what a token is followed by is that token.
    """
    _same_shape(rewards, values, mask)
    kind = torch.promote_types(values.dtype, torch.float32)
    found = Advantages(*(torch.empty(values.shape, dtype=kind, device=values.device) for _ in range(2)))
    gamma, lam = (each.to(kind).expand(len(values)) for each in (gamma, lam))
    step = _CPU_ROWS if values.device.type == "cpu" else max(1, len(values))
    for start in range(0, len(values), step):
        rows = slice(start, start + step)
        _gae(*(each[rows] for each in (rewards, values, mask, gamma, lam, found.advantages, found.returns)))
    return found


def _gae(  # noqa: PLR0917 - rows of the same seven tensors
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: Tensor, lam: Tensor, advantages: Tensor, returns: Tensor
) -> None:
    """Fill `advantages` and `returns`.

    [T, B] inside: what a step of the recurrence reads together then lies together. What can be is done in place: on a CPU new memory costs
    more than the arithmetic.
    """
    kind = advantages.dtype
    counts, rewards, values = (_turned(each) for each in (mask.bool(), rewards.to(kind), values.to(kind)))
    following = _solve(torch.where(counts, values, 0.0), (~counts).to(kind))
    rewards[:-1].addcmul_(following[1:], gamma)
    decay = counts.to(kind).mul_(gamma * lam).add_(~counts)
    solved = _solve(torch.where(counts, rewards.sub_(values), 0.0), decay)
    advantages.copy_(solved.t())
    returns.copy_(values.add_(solved).t())


def _turned(values: Tensor) -> Tensor:
    """[T, B] of [B, T], in memory of its own."""
    return values.t().clone(memory_format=torch.contiguous_format)


def _solve(gain: Tensor, decay: Tensor) -> Tensor:
    """A[t] = decay[t] · A[t+1] + gain[t] from the end, [T, B], by recursive doubling in 2 log2 T steps. Both are used up, A is `gain`.

    On the way up every second of the places left takes in its neighbour, so that it knows twice as far; on the way down the neighbours get
    what follows them. (The plain form, all T places at each step, does 4 times the work.)
    """
    length, reach = len(gain), 1
    while reach < length:
        first, second = slice(0, length - reach, 2 * reach), slice(reach, None, 2 * reach)
        gain[first].addcmul_(decay[first], gain[second])
        decay[first].mul_(decay[second])
        reach *= 2
    while reach > 1:
        reach //= 2
        after = gain[2 * reach :: 2 * reach]
        between = slice(reach, 2 * reach * len(after), 2 * reach)
        gain[between].addcmul_(decay[between], after)
    return gain


@torch.no_grad()
def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """Values [B, T] less their mean, divided by their standard deviation, both taken over the mask: [B, T].

    ValueError with fewer than two positions: one has no deviation.
    """
    _same_shape(values, mask)
    counts = mask.bool()
    number = int(counts.sum())
    if number < 2:
        raise ValueError(f"advantages can't be whitened: {number} tokens of the batch count, at least 2 must")
    mean = torch.where(counts, values, 0.0).sum() / number
    centred = values - mean
    variance = torch.where(counts, centred.square(), 0.0).sum() / (number - 1)
    return centred * torch.rsqrt(variance + _LEAST_VARIANCE)


@torch.no_grad()
def grpo(scores: Tensor, mask: Tensor, groups: Tensor, *, divide_by_spread: bool = True) -> Tensor:
    """Outcome scores [B] against those of the same prompt: [B, T] fp32, the same at all positions of the mask, 0 elsewhere.

    `groups` [B] int64: any number for a prompt. Without `divide_by_spread` it is Dr.GRPO. The only rollout of a prompt has nothing to be
    measured by and keeps its score; rollouts that all score the same get exactly 0.
    """
    found = _Groups.of(scores, groups)
    advantages = found.centred
    if divide_by_spread:
        advantages = advantages / (found.spread + _LEAST_SPREAD)
    return _on_tokens(advantages, mask)


@torch.no_grad()
def rloo(scores: Tensor, mask: Tensor, groups: Tensor) -> Tensor:
    """Outcome scores [B] less the mean of the other rollouts of the same prompt; shapes and single rollouts as in `grpo`."""
    found = _Groups.of(scores, groups)
    return _on_tokens(found.centred * (found.sizes / (found.sizes - 1).clamp_min(1)), mask)


@dataclass(frozen=True, slots=True)
class _Groups:
    """Of each rollout [B] fp32: its score less its group's mean, the group's deviation and size. Alone: its score, 1 and 1."""

    centred: Tensor
    spread: Tensor
    sizes: Tensor

    @classmethod
    def of(cls, scores: Tensor, groups: Tensor) -> _Groups:
        if scores.dim() != 1 or scores.shape != groups.shape:
            raise ValueError(f"one score and one group a rollout: scores {list(scores.shape)}, groups {list(groups.shape)}")
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        names, of = torch.unique(groups, return_inverse=True)
        empty = scores.new_zeros(len(names))
        sizes = empty.index_add(0, of, torch.ones_like(scores))[of]
        # Measured from the group's lowest score, equal scores are exactly 0; a mean's last bit, divided by 1e-6, would be an advantage.
        lowest = torch.full_like(empty, torch.inf).scatter_reduce(0, of, scores, "amin")
        above = scores - lowest[of]
        centred = above - empty.index_add(0, of, above)[of] / sizes
        spread = (empty.index_add(0, of, centred.square())[of] / (sizes - 1).clamp_min(1)).sqrt()
        alone = sizes == 1
        return cls(torch.where(alone, scores, centred), torch.where(alone, 1.0, spread), sizes)


def _on_tokens(advantages: Tensor, mask: Tensor) -> Tensor:
    if mask.dim() != 2 or len(mask) != len(advantages):
        raise ValueError(f"the mask must be [{len(advantages)}, T], not {list(mask.shape)}")
    return torch.where(mask.bool(), advantages.unsqueeze(1), 0.0)


def _same_shape(*tensors: Tensor) -> None:
    shapes = [list(each.shape) for each in tensors]
    if len(shapes[0]) != 2 or any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"all must be [B, T] alike: {', '.join(map(str, shapes))}")
