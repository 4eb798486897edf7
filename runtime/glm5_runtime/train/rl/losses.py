"""What the policy and the value head are taught: PPO's clipped loss, KL estimators, how tokens' losses become one number.

Called by the RL loop for every micro-batch. Losses of tokens work on any shape; numbers and slopes are those of verl 0.9.1
(`tests/fixtures/rl`). Tokens' losses become one number through weights ([B, T], of the whole step's mask), so that micro-batches and ranks
simply add up.

Legend: B rollouts, T tokens of the longest, M tokens of a micro-batch that count, V words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import torch

from glm5_runtime.train.rl.config import KL, Aggregation
from glm5_runtime.train.rl.head import HeadLoss, head_loss

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST_LOG_RATIO = 20.0
"""e^20 is 5e8: further the policies have nothing in common, and fp32 would overflow at 88."""
_LARGEST_K3 = 10.0


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """How a policy is pulled. ValueError for numbers that can't be meant."""

    clip_low: float = 0.2
    """A token's probability counts down to 1 - clip_low times the old one …"""
    clip_high: float = 0.2
    """… and up to 1 + clip_high times; beyond it pulls no further."""
    dual_clip: float = 3.0
    """The most times its size that a negative advantage may count, above 1; without, one unlikely token outweighs a batch."""
    kl: KL = "k3"
    kl_weight: float = 0.0
    """Of the distance to the reference policy; 0: no reference is needed."""
    entropy_weight: float = 0.0
    """What the entropy is worth; above 0 keeps the policy from narrowing."""

    def __post_init__(self) -> None:
        if not (0 <= self.clip_low <= 1 and 0 <= self.clip_high < torch.inf):
            raise ValueError(f"clip_low must be 0 to 1 and clip_high at least 0, not {self.clip_low} and {self.clip_high}")
        if not self.dual_clip > 1:
            raise ValueError(f"dual_clip must be above 1, not {self.dual_clip}")
        if self.kl not in get_args(KL):
            raise ValueError(f"kl must be one of {', '.join(get_args(KL))}, not {self.kl!r}")


@dataclass(frozen=True, slots=True)
class PolicyBatch:
    """The tokens of a micro-batch that count, each [M]: `targets` int64, the rest fp32."""

    targets: Tensor
    old_log_probs: Tensor
    """Of the policy that made the rollouts."""
    advantages: Tensor
    weights: Tensor
    """What a token's loss counts, from `token_weights`."""
    reference_log_probs: Tensor | None = None


@dataclass(frozen=True, slots=True)
class PolicyFacts:
    """Means over the tokens that count, numbers fp32: shares held by the clip and by the dual clip, k1 of the old policy from the new."""

    clipped: Tensor
    clipped_below: Tensor
    kl: Tensor


def policy_loss(hidden: Tensor, weight: Tensor, batch: PolicyBatch, settings: PolicySettings, temperature: float = 1.0) -> HeadLoss:
    """Clipped loss - entropy_weight · entropy + kl_weight · KL, in one pass over the head: hidden [M, hidden], head weight [V, hidden].

    `temperature` is the rollout's. ValueError when a KL is weighed and there is no reference, or lengths differ.
    """
    reference = batch.reference_log_probs if settings.kl_weight else None
    if settings.kl_weight and reference is None:
        raise ValueError("kl_weight needs the reference policy's log-probabilities")
    for each in (batch.old_log_probs, batch.advantages, batch.weights, reference):
        if each is not None and each.shape != batch.targets.shape:
            raise ValueError(f"the batch's tensors must be {list(batch.targets.shape)}, one is {list(each.shape)}")

    def terms(log_probs: Tensor, entropy: Tensor, rows: slice) -> Tensor:
        losses = clipped_losses(log_probs, batch.old_log_probs[rows], batch.advantages[rows], settings)
        if settings.entropy_weight:
            losses = losses - settings.entropy_weight * entropy
        if reference is not None:
            losses = losses + settings.kl_weight * kl_estimate(log_probs, reference[rows], settings.kl)
        return losses * batch.weights[rows]

    return head_loss(hidden, weight, batch.targets, terms, temperature)


def clipped_losses(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, settings: PolicySettings) -> Tensor:
    """PPO's loss of each token, all of one shape; the gradient goes to `log_probs`."""
    ratio = _log_ratio(log_probs, old_log_probs).exp()
    worse = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high))
    return torch.where(advantages < 0, torch.minimum(worse, -advantages * settings.dual_clip), worse)


@torch.no_grad()
def policy_facts(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, settings: PolicySettings) -> PolicyFacts:
    """Of the same tensors, for metrics; `mask` of that shape says which tokens count. All 0 when none does."""
    log_ratio = _log_ratio(log_probs, old_log_probs)
    ratio = log_ratio.exp()
    free, held = -advantages * ratio, -advantages * ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    below = (advantages < 0) & (torch.maximum(free, held) > -advantages * settings.dual_clip)
    return PolicyFacts(*(_mean(each.to(ratio.dtype), mask) for each in (held > free, below, -log_ratio)))


def kl_estimate(log_probs: Tensor, reference: Tensor, kind: KL) -> Tensor:
    """The distance to the reference policy, token by token, from the chosen tokens' log-probabilities alone.

    k1 has no bias and any sign; k2 is half its square and has a bias; k3 has none, is never negative, and is clamped. Of the slopes only
    k2's is, on average, the divergence's own.
    """
    if kind == "k1":
        return log_probs - reference
    if kind == "k2":
        return 0.5 * (log_probs - reference).square()
    if kind != "k3":
        raise ValueError(f"kl must be one of {', '.join(get_args(KL))}, not {kind!r}")
    away = (reference - log_probs).clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
    return (away.exp() - away - 1).clamp(-_LARGEST_K3, _LARGEST_K3)


def value_losses(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> Tensor:
    """Half the squared error of each token's value, all of one shape; a value may move by `clip` from the old one, further doesn't pay."""
    held = torch.clamp(values, old_values - clip, old_values + clip)
    return 0.5 * torch.maximum((values - returns).square(), (held - returns).square())


def token_weights(mask: Tensor, mode: Aggregation, *, tokens: float | None = None, rollouts: float | None = None) -> Tensor:
    """What each token's loss counts in the step's: [B, T] fp32, 0 where the mask is.

    token-mean: all tokens alike, so long rollouts count more. seq-mean-token-mean: all rollouts alike. seq-mean-token-sum: rollouts' sums,
    averaged (Dr.GRPO, apart from a constant). Rollouts without a token that counts are not among those that are averaged.

    `mask` [B, T] is the whole step's, or the numbers of `tokens` and `rollouts` that count in it are given. A mask of zeros gives zeros
    (verl divides 0 by 0).
    """
    if mask.dim() != 2:
        raise ValueError(f"the mask must be [B, T], not {list(mask.shape)}")
    counts = mask.to(torch.float32)
    lengths = counts.sum(dim=1, keepdim=True)
    if mode == "token-mean":
        return counts / (lengths.sum().clamp_min(1) if tokens is None else tokens)
    whole = (lengths > 0).sum().clamp_min(1) if rollouts is None else rollouts
    if mode == "seq-mean-token-sum":
        return counts / whole
    if mode == "seq-mean-token-mean":
        return counts / lengths.clamp_min(1) / whole
    raise ValueError(f"the aggregation must be one of {', '.join(get_args(Aggregation))}, not {mode!r}")


def aggregate(losses: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum, a number; what stands where the weight is 0 is not read, NaN neither."""
    return torch.where(weights != 0, losses * weights, 0.0).sum()


def _log_ratio(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    return (log_probs - old_log_probs).clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    counts = mask.bool()
    return torch.where(counts, values, 0.0).sum() / counts.sum().clamp_min(1)
