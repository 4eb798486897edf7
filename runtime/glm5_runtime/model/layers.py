"""The smallest layers: linear and embedding without initial values, norms over the operator set.

The decoder is built on the meta device and filled from a checkpoint. Torch's own initialisers would do nothing there, but
importing what they need on that device takes 4 s and 220 MB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from glm5_runtime.ops.interface import OperatorSet


class Linear(nn.Linear):
    """[..., inputs] → [..., outputs], no bias, weight [outputs, inputs] to be filled."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype | None = None) -> None:
        super().__init__(inputs, outputs, bias=False, dtype=dtype)

    def reset_parameters(self) -> None:
        """Nothing: the checkpoint fills it."""


class Embedding(nn.Embedding):
    """Token ids [...] → [..., size], weight to be filled."""

    def reset_parameters(self) -> None:
        """Nothing: the checkpoint fills it."""


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis."""

    def __init__(self, size: int, eps: float, ops: OperatorSet) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps, self.ops = eps, ops

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] → [..., size]."""
        return self.ops.rms_norm(x, self.weight, self.eps)


class LayerNorm(nn.Module):
    """Layer norm with bias over the last axis; only the indexer's keys use it."""

    def __init__(self, size: int, eps: float, ops: OperatorSet) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))
        self.eps, self.ops = eps, ops

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] → [..., size]."""
        return self.ops.layer_norm(x, self.weight, self.bias, self.eps)
