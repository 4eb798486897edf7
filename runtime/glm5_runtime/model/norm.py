"""Norm layers: a weight and an operator of the set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from glm5_runtime.ops.interface import OperatorSet


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
