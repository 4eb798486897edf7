"""Generalised advantage estimation as verl 0.9.1 works it out (`core_algos.compute_gae_advantage_return`), token by token from the end.

Written from its formula: verl itself brings Ray and vLLM. `tests/fixtures/rl` holds what verl's own function answers; a test compares both.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def gae_loop(rewards: Tensor, values: Tensor, mask: Tensor, gamma: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    """All [B, T] → advantages before whitening, returns; a token that doesn't count hands on what is behind it."""
    following = torch.zeros_like(values[:, 0])
    last = torch.zeros_like(following)
    found = []
    for at in reversed(range(values.shape[1])):
        counts = mask[:, at]
        error = rewards[:, at] + gamma * following - values[:, at]
        advantage = error + gamma * lam * last
        following = values[:, at] * counts + (1 - counts) * following
        last = advantage * counts + (1 - counts) * last
        found.append(last)
    advantages = torch.stack(found[::-1], dim=1)
    return advantages, advantages + values
