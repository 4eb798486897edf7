"""The model to train, from its checkpoint: adapters on a frozen decoder, or all parameters.

Called by the command and by tests. Autocast is not used: it would round the router and the other fp32 islands too. The types are these:
frozen weights have the computation's, adapters fp32 and are rounded where they are used; of full fine-tuning all weights are fp32 and are
rounded where they are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from glm5_runtime.config import ConfigError, ModelConfig
from glm5_runtime.model.quant import DESCRIPTION
from glm5_runtime.model.weights import FP32_ISLANDS, Loading
from glm5_runtime.ops.interface import operators
from glm5_runtime.train.distributed.ranks import ALONE
from glm5_runtime.train.distributed.sharding import shard
from glm5_runtime.train.forward import TrainingModel
from glm5_runtime.train.lora import Installer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from glm5_runtime.model.decoder import Decoder
    from glm5_runtime.train.config import TrainConfig
    from glm5_runtime.train.distributed.ranks import Ranks
    from glm5_runtime.train.lora import LoraModule

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_WITHOUT_GRADIENT = (".indexer.", "e_score_correction_bias")
"""Parameters that only choose: tokens to attend to, experts. A choice carries no gradient."""


@dataclass(frozen=True, slots=True)
class Trainee:
    """What is trained, and where its adapters are (`lora.install`); none with method full."""

    model: TrainingModel
    places: Mapping[str, tuple[LoraModule, str]]


def build(config: TrainConfig, device: torch.device, ranks: Ranks = ALONE) -> Trainee:
    """Load and prepare the model; raises ConfigError, WeightsError. Every operator is the reference's: the NPU's have no gradients.

    With several ranks and FSDP it is divided meanwhile: a rank has one whole layer in main memory, and its parts of others on `device`.
    """
    if (config.model / DESCRIPTION).exists():
        raise ConfigError(f"model {config.model}: its weights are quantised ({DESCRIPTION}); train on the bf16 checkpoint")
    dtype = DTYPES[config.training.dtype]
    kept = torch.float32 if config.method == "full" else dtype
    loading = Loading(ModelConfig.from_dir(config.model), config.model, operators("cpu"))
    decoder = loading.decoder
    installer = Installer(decoder, config.lora, config.training.seed) if config.has_adapters else None

    def load(path: str, place: torch.device) -> None:
        names = loading.fill(place, kept, path, check_numbers=dtype == torch.float16, contiguous=True)  # as FSDP asks for
        if installer is None:
            _train_everything(decoder, names, dtype)
        else:
            installer.install(path)

    model = TrainingModel(decoder, recompute=config.training.activation_checkpointing)
    if ranks.is_alone or config.training.sharding == "ddp":
        load("", device)
        if installer is None:
            _own_memory(decoder)
    else:
        shard(model, ranks.size, device, lambda path: load(path, torch.device("cpu")))
    return Trainee(model, installer.places if installer else {})


class _Rounded(nn.Module):
    """An fp32 weight as the computation takes it."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, weight: Tensor) -> Tensor:
        """The same numbers in fewer bits; gradients come back in fp32."""
        return weight.to(self.dtype)


def _train_everything(decoder: Decoder, names: Iterable[str], dtype: torch.dtype) -> None:
    """All these parameters, with a gradient where they can have one."""
    for name in names:
        decoder.get_parameter(name).requires_grad_(not any(part in name for part in _WITHOUT_GRADIENT))
        if dtype != torch.float32 and not name.endswith(FP32_ISLANDS):
            owner, _, leaf = name.rpartition(".")
            parametrize.register_parametrization(decoder.get_submodule(owner), leaf, _Rounded(dtype), unsafe=True)


def _own_memory(decoder: Decoder) -> None:
    """Loaded parameters may be mapped from their file. FSDP copies its parts, so they need none."""
    for parameter in decoder.parameters():
        parameter.data = parameter.data.clone()
