"""verl's recorded answers (`tests/fixtures/rl`), and how far from them is too far."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

VERL = load_file(Path(__file__).parents[3] / "fixtures" / "rl" / "verl.safetensors")
MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")
NAN = float("nan")


def verl(prefix: str) -> dict[str, torch.Tensor]:
    """The tensors directly under a name."""
    found = {name.removeprefix(f"{prefix}/"): tensor for name, tensor in VERL.items() if name.startswith(f"{prefix}/")}
    return {name: tensor.clone() for name, tensor in found.items() if "/" not in name}


def same(own: torch.Tensor, other: torch.Tensor) -> bool:
    """Within 1e-5, of the number itself where that is above 1."""
    assert own.shape == other.shape
    return bool(((own - other).abs() <= 1e-5 * other.abs().clamp_min(1)).all())
