"""Cross entropy of the model's head, without ever holding the logits of all rows.

A row of GLM-5's logits is 620 KB in fp32, and autograd would keep two of them for each token. Here a few rows' logits are made, turned
into their gradient at once, and dropped: the head is computed once, and what stays is the gradient of the hidden states.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx

LOGITS_BYTES = 64 << 20
"""Logits held at a time, fp32."""
_FP16_LARGEST = 1024.0
"""What the largest slope of a chunk is scaled to in fp16: a probability below 6e-8 is zero there, and most of a large vocabulary's are.
Weights stay so far below 65504 / 1024 that products don't overflow."""


def summed_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy summed over rows: hidden [M, hidden], head weight [V, hidden], targets [M] int64 → a number, fp32."""
    if not torch.is_grad_enabled():  # not known inside: there it is off in any case, and the inputs still say that they want gradients
        hidden, weight = hidden.detach(), weight.detach()
    loss: Tensor = _SummedLoss.apply(hidden, weight, targets)  # type: ignore[no-untyped-call] # torch's own
    return loss


def wide(values: Tensor) -> torch.dtype:
    """The type that sums over values are kept in."""
    return torch.promote_types(values.dtype, torch.float32)


class _SummedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:  # noqa: ANN401 - what torch hands in
        wanted = HeadGradients.of(ctx, hidden, weight)
        loss = torch.zeros((), device=hidden.device)
        step = max(1, LOGITS_BYTES // (4 * weight.shape[0]))
        for start in range(0, len(hidden), step):
            rows = slice(start, start + step)
            logits = functional.linear(hidden[rows], weight).float()
            aim = targets[rows].unsqueeze(1)
            right, most = logits.gather(1, aim), logits.amax(dim=-1, keepdim=True)
            shares = logits.sub_(most).exp_()  # one exponential for loss and slope, in place: a pass costs as much as the product
            total = shares.sum(dim=-1, keepdim=True)
            loss += (total.log() + most - right).sum()
            if wanted.any:
                slope = shares.div_(total)
                wanted.add(rows, slope.scatter_add_(1, aim, slope.new_full(aim.shape, -1.0)), hidden[rows], weight)
        ctx.save_for_backward(wanted.hidden, wanted.weight)
        return loss

    @staticmethod
    def backward(ctx: Any, *outside: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # noqa: ANN401 - as above
        hidden, weight = (None if slope is None else outside[0] * slope for slope in ctx.saved_tensors)
        return hidden if hidden is None else hidden.to(ctx.kind), weight if weight is None else weight.to(ctx.kind), None


class HeadGradients:
    """Gradients that somebody asks for: of the hidden states [M, hidden], of the head's weight [V, hidden]; fp32, float64 for float64.

    For losses that know the slope of their logits while they still hold them: this one, and `rl.head`'s.
    """

    def __init__(self, hidden: Tensor | None, weight: Tensor | None) -> None:
        self.hidden, self.weight = hidden, weight

    @classmethod
    def of(cls, ctx: FunctionCtx, hidden: Tensor, weight: Tensor) -> HeadGradients:
        """Empty ones, for the inputs that need them."""
        ctx.kind = hidden.dtype  # type: ignore[attr-defined] # torch's place for one's own
        asked = ctx.needs_input_grad  # type: ignore[attr-defined] # its stubs don't have it
        return cls(*(torch.zeros_like(each, dtype=wide(each)) if ask else None for each, ask in zip((hidden, weight), asked, strict=False)))

    @property
    def any(self) -> bool:
        """Whether a slope is worth working out."""
        return self.hidden is not None or self.weight is not None

    def add(self, rows: slice, slope: Tensor, hidden: Tensor, weight: Tensor) -> None:
        """Slope of the logits [m, V] fp32, which is used up."""
        scale = _FP16_LARGEST / slope.abs().amax().clamp_min(1e-30) if hidden.dtype == torch.float16 else None
        narrow = (slope if scale is None else slope.mul_(scale)).to(hidden.dtype)
        if self.hidden is not None:
            self.hidden[rows] = _unscaled(narrow @ weight, self.hidden.dtype, scale)
        if self.weight is not None:
            self.weight += _unscaled(narrow.t() @ hidden, self.weight.dtype, scale)


def _unscaled(product: Tensor, kind: torch.dtype, scale: Tensor | None) -> Tensor:
    return product.to(kind) if scale is None else product.to(kind) / scale
