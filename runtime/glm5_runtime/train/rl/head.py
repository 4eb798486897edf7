"""The model's head for losses over log-probabilities and entropies: one pass, and never the logits of all rows.

A chunk of rows gets its logits, they give each row's log-probability and entropy, the loss's terms and (while the logits are still there)
the slope of the loss, which goes into the gradients of the hidden states and of the head at once. The backward pass then only multiplies.
What stays is the size of the hidden states; autograd over [B, T, V] would keep three times the logits.

Called by `losses`. Legend: M tokens whose choice counts, V words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from glm5_runtime.train import loss as plain
from glm5_runtime.train.loss import HeadGradients, wide

if TYPE_CHECKING:
    from collections.abc import Iterator

Terms = Callable[[Tensor, Tensor, slice], Tensor]
"""Log-probabilities [m], entropies [m], which of the M rows they are → what each adds to the loss [m]. Differentiable, row by row."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Of each token that was chosen, [M] fp32: its log-probability and the entropy (nats) of what it was chosen from."""

    log_probs: Tensor
    entropy: Tensor


@dataclass(frozen=True, slots=True)
class HeadLoss:
    """The `loss`, a number with a gradient, and what it was worked out from, without."""

    loss: Tensor
    chosen: Chosen


@torch.no_grad()
def choose(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float = 1.0) -> Chosen:
    """Without gradients, for the policy before its update and for the reference.

    hidden [M, hidden], head weight [V, hidden], targets [M] int64; `temperature` is that of the rollout, which logits are divided by.
    """
    _check(hidden, weight, targets, temperature)
    log_probs, entropy = _room(hidden), _room(hidden)
    for rows in _chunks(hidden, weight):
        log_probs[rows], entropy[rows] = _chunk(hidden[rows], weight, targets[rows], temperature)[2:]
    return Chosen(log_probs, entropy)


def head_loss(hidden: Tensor, weight: Tensor, targets: Tensor, terms: Terms, temperature: float = 1.0) -> HeadLoss:
    """The sum of `terms` over all rows, with gradients for hidden and weight; shapes as in `choose`.

    A row's term may depend on that row alone: others are not there when it is worked out. Weights of rows (1 / number of tokens and the
    like) belong into `terms`.
    """
    _check(hidden, weight, targets, temperature)
    if not torch.is_grad_enabled():
        hidden, weight = hidden.detach(), weight.detach()  # a Function would work out gradients all the same
    loss, *chosen = _HeadLoss.apply(hidden, weight, targets, terms, temperature)  # type: ignore[no-untyped-call] # torch's own
    return HeadLoss(loss, Chosen(*chosen))


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - apply() takes no names
        ctx: Any,  # noqa: ANN401 - what torch hands in
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        terms: Terms,
        temperature: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        wanted = HeadGradients.of(ctx, hidden, weight)
        loss, log_probs, entropy = hidden.new_zeros((), dtype=wide(hidden)), _room(hidden), _room(hidden)
        for rows in _chunks(hidden, weight):
            logs, probs, log_probs[rows], entropy[rows] = _chunk(hidden[rows], weight, targets[rows], temperature)
            amount, by_choice, by_entropy = _slopes(terms, log_probs[rows], entropy[rows], rows, wanted.any)
            loss += amount
            if wanted.any:
                slope = probs.mul_(_against(logs, entropy[rows], by_choice, by_entropy))
                slope.scatter_add_(1, targets[rows].unsqueeze(1), by_choice.unsqueeze(1)).div_(temperature)
                wanted.add(rows, slope, hidden[rows], weight)
                del slope
            del logs, probs  # or the next chunk would stand beside them
        ctx.save_for_backward(wanted.hidden, wanted.weight)
        ctx.mark_non_differentiable(log_probs, entropy)
        return loss, log_probs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outside: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401 - as above
        hidden, weight = (None if slope is None else (outside[0] * slope).to(ctx.kind) for slope in ctx.saved_tensors)
        return hidden, weight, None, None, None


def _chunk(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of m rows: log-probabilities and probabilities of all words [m, V]; the chosen word's and the entropy [m]."""
    logits = functional.linear(hidden, weight).to(wide(hidden)).div_(temperature)
    logs = logits.sub_(logits.logsumexp(dim=-1, keepdim=True))
    probs = logs.exp()
    return logs, probs, logs.gather(1, targets.unsqueeze(1)).squeeze(1), -torch.linalg.vecdot(probs, logs)


def _slopes(terms: Terms, log_probs: Tensor, entropy: Tensor, rows: slice, wanted: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """The rows' terms summed, and the slopes of that: by the chosen word's log-probability [m], by the entropy [m] (None: not used)."""
    with torch.set_grad_enabled(wanted):
        leaves = [each.clone().requires_grad_(wanted) for each in (log_probs, entropy)]
        amount = terms(leaves[0], leaves[1], rows).sum()
    if not wanted:
        return amount, log_probs, None
    by_choice, by_entropy = torch.autograd.grad(amount, leaves, allow_unused=True)
    return amount.detach(), torch.zeros_like(log_probs) if by_choice is None else by_choice, by_entropy


def _against(logs: Tensor, entropy: Tensor, by_choice: Tensor, by_entropy: Tensor | None) -> Tensor:
    """What each word's probability is multiplied with to give its part of the slope: [m, V] or [m, 1]. Uses up `logs`.

    d log p[chosen] / d logit[w] = (w is chosen) - p[w]; d entropy / d logit[w] = -p[w] (log p[w] + entropy).
    """
    choice = by_choice.unsqueeze(1)
    if by_entropy is None:
        return -choice
    return logs.add_(entropy.unsqueeze(1)).mul_(-by_entropy.unsqueeze(1)).sub_(choice)


def _chunks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    step = max(1, plain.LOGITS_BYTES // (wide(hidden).itemsize * weight.shape[0]))
    return (slice(start, start + step) for start in range(0, len(hidden), step))


def _room(hidden: Tensor) -> Tensor:
    return hidden.new_empty(len(hidden), dtype=wide(hidden))


def _check(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> None:
    if hidden.dim() != 2 or targets.shape != hidden.shape[:1] or weight.dim() != 2 or weight.shape[1] != hidden.shape[1]:
        shapes = f"hidden {list(hidden.shape)}, weight {list(weight.shape)}, targets {list(targets.shape)}"
        raise ValueError(f"they must be [M, hidden], [V, hidden] and [M], not {shapes}")
    if not 0 < temperature < torch.inf:
        raise ValueError(f"the temperature must be a number above 0, not {temperature}")
