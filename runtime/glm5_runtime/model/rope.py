"""Rotary angles of positions."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_angles(positions: Tensor, theta: float, size: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine, each [N, size / 2] fp32, of positions [N] int64.

    Worked out each step rather than looked up: a table for a million positions costs more memory than it saves time.
    """
    exponents = torch.arange(0, size, 2, device=positions.device, dtype=torch.float32) / size
    angles = positions.float().unsqueeze(-1) * (1.0 / theta**exponents)
    return angles.cos(), angles.sin()
