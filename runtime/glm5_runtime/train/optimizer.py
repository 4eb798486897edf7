"""AdamW over what is trainable, the learning rate of each step, and the optimiser's state as named tensors.

Used by the loop. The rate is a function of the step's number, so nothing of it needs to be kept for a resume.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from glm5_runtime.train.config import TrainingConfig

_MOMENTS = ("exp_avg", "exp_avg_sq")


def adamw(model: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """Weight decay acts on leaf parameters that are matrices (or stacks of them). A norm's weight belongs near one, not zero."""
    trainable = [parameter for _, parameter in named_trainable(model)]
    groups = [
        {"params": [each for each in trainable if each.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [each for each in trainable if each.dim() == 1], "weight_decay": 0.0},
    ]
    fused = all(each.device.type in {"cpu", "cuda"} for each in trainable)  # torch_npu has no such kernel behind this name
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=config.learning_rate, betas=config.betas, eps=config.epsilon, fused=fused
    )


def named_trainable(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Leaf parameters with a gradient, in the model's order."""
    return ((name, each) for name, each in model.named_parameters() if each.requires_grad and each.is_leaf)


def rate_factor(step: int, total: int, schedule: Literal["cosine", "linear", "constant"], rising: int) -> float:
    """What the learning rate is multiplied by in step 0, 1, …, total - 1, in the first `rising` of which it rises.

    The first step already learns, and so does the last.
    """
    if step < rising:
        return (step + 1) / rising
    done = (step - rising) / max(1, total - rising)
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    return 1.0 - done if schedule == "linear" else 1.0


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """One rate for all groups."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def training_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """All tensors that training changes, by name: parameters, moments, step counts. They are the live ones: loading into them resumes.

    Moments that don't exist before the first step are made, so that a fresh optimiser has somewhere to load to.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in named_trainable(model):
        state = optimizer.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state.update({moment: torch.zeros_like(parameter, memory_format=torch.preserve_format) for moment in _MOMENTS})
        tensors[f"model.{name}"] = parameter.detach()
        tensors.update({f"optimizer.{name}.{key}": state[key] for key in ("step", *_MOMENTS)})
    return tensors
