"""The smallest layers: a module that is cheap to call, linear and embedding without initial values, norms over the operator set.

The decoder is built on the meta device and filled from a checkpoint. Torch's own initialisers would do nothing there, but
importing what they need on that device takes 4 s and 220 MB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from glm5_runtime.model.parallel import Ranks
    from glm5_runtime.ops.interface import OperatorSet


class Module(nn.Module):
    """A module whose call costs little: a decode step of a small model makes 70, and torch's own way takes 5 µs of each.

    Hooks work as ever, both those of FSDP and those of tracers; only global hooks don't reach it.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's own signature
        """Forward, by torch's way where somebody has hooked in."""
        if self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks:
            return super().__call__(*args, **kwargs)
        return self.forward(*args, **kwargs)

    def settle(self) -> None:
        """The parameters have their values and keep them."""


def settle(module: nn.Module) -> None:
    """Put parameters and submodules where Python finds attributes at once; torch's own lookup takes 1 µs. For models that only run.

    A part with a `settle` of its own works out what depends on its parameters alone.
    """
    for part in module.modules():
        if isinstance(part, Module):
            part.settle()
        vars(part).update({name: value for name, value in (part._parameters | part._modules).items() if value is not None})


class Linear(Module):
    """[N, inputs] → [N, outputs], no bias, weight [outputs, inputs] to be filled."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, dtype=dtype))
        self.turned: Tensor | None = None

    def settle(self) -> None:
        """Turn the weight once (a view): torch's own function for linear layers makes four calls more of each."""
        self.turned = self.weight.t()

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs] → [N, outputs]."""
        return functional.linear(x, self.weight) if self.turned is None else torch.mm(x, self.turned)


class Embedding(Module):
    """Token ids [...] → [..., size], weight to be filled; of a tensor rank the rows of its part of the vocabulary."""

    def __init__(self, count: int, size: int, ranks: Ranks) -> None:
        super().__init__()
        self.ranks, self.count = ranks, count // ranks.tensor_size
        self.weight = nn.Parameter(torch.empty(self.count, size))

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids [...] int64 → [..., size]."""
        if self.ranks.tensor_size == 1:
            return functional.embedding(tokens, self.weight)
        own = tokens - self.ranks.tensor_rank * self.count
        foreign = (own < 0) | (own >= self.count)
        x = functional.embedding(own.masked_fill(foreign, 0), self.weight)
        return self.ranks.sum(x.masked_fill(foreign.unsqueeze(-1), 0.0))


class RMSNorm(Module):
    """Root-mean-square norm over the last axis."""

    def __init__(self, size: int, eps: float, ops: OperatorSet) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps, self.ops = eps, ops

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] → [..., size]."""
        return self.ops.rms_norm(x, self.weight, self.eps)


class LayerNorm(Module):
    """Layer norm with bias over the last axis; only the indexer's keys use it."""

    def __init__(self, size: int, eps: float, ops: OperatorSet) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))
        self.eps, self.ops = eps, ops

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] → [..., size]."""
        return self.ops.layer_norm(x, self.weight, self.bias, self.eps)
