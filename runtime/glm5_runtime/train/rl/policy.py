"""The policy that is trained: the decoder with adapters, and for PPO a value head on its last hidden state.

Built by the command; the step asks it for hidden states and values. Its `forward` is the cross entropy of the trainer's own model: what
looks for numbers that aren't finite uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from glm5_runtime.train.build import Trainee, build
from glm5_runtime.train.forward import TrainingModel

if TYPE_CHECKING:
    from glm5_runtime.model.decoder import Decoder
    from glm5_runtime.train.config import TrainConfig
    from glm5_runtime.train.packing import Pack


class ValueHead(nn.Module):
    """A linear layer in fp32 that starts at zero: before it has learned, every state is worth nothing."""

    def __init__(self, size: int, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, size, device=device))
        self.bias = nn.Parameter(torch.zeros(1, device=device))

    def forward(self, hidden: Tensor) -> Tensor:
        """[M, hidden] → [M] fp32."""
        return functional.linear(hidden.float(), self.weight, self.bias).squeeze(1)


class PolicyModel(TrainingModel):
    """A decoder with adapters; `value_head` is None without a critic."""

    def __init__(self, decoder: Decoder, *, recompute: bool = False, has_values: bool = False) -> None:
        super().__init__(decoder, recompute=recompute)
        weight = decoder.embed_tokens.weight
        self.value_head = ValueHead(weight.shape[1], weight.device) if has_values else None

    def hidden(self, part: Pack) -> Tensor:
        """What the head makes logits of, at the tokens before those that were chosen: [M, hidden]."""
        hidden: Tensor = self.decoder.norm(self.stream(part)[part.rows])
        return hidden

    def values(self, hidden: Tensor) -> Tensor:
        """What the value head expects before each of those choices: [M, hidden] → [M] fp32."""
        assert self.value_head is not None, "asked for with ppo alone"
        values: Tensor = self.value_head(hidden)
        return values


def build_policy(config: TrainConfig, device: torch.device) -> Trainee:
    """As `build`, for grpo and ppo. Without dropout: old and new log-probabilities would differ by chance."""
    still = config.model_copy(update={"lora": config.lora.model_copy(update={"dropout": 0.0})})
    trainee = build(still, device)
    model = PolicyModel(trainee.model.decoder, recompute=config.training.activation_checkpointing, has_values=config.method == "ppo")
    return Trainee(model, trainee.places)
