"""LoRA on our own decoder: thin trainable matrices beside frozen ones.

`install` puts a module with adapters in the place of each chosen one. Adapters go by their modules' names in the checkpoint, though some
of those are one matrix here: q_a_proj and kv_a_proj_with_mqa are rows of qkv_a_proj, gate and up of gate_up_proj. They are ordinary
parameters in fp32, of the layer that they belong to, so FSDP shards them with it. `export` writes them in PEFT's format.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from glm5_runtime.config import ConfigError
from glm5_runtime.model.adapter_files import targets
from glm5_runtime.model.layers import Linear, Module
from glm5_runtime.model.moe import Experts
from glm5_runtime.train.config import DENSE, EXPERTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from glm5_runtime.config import ModelConfig
    from glm5_runtime.model.adapter_files import Target
    from glm5_runtime.model.decoder import Decoder
    from glm5_runtime.train.config import LoraConfig


class LowRank(nn.Module):
    """The two matrices of one checkpoint module, fp32: down [rank, in], up [out, rank]; of experts with [E] in front of both.

    Initial values as in PEFT: Kaiming-uniform and zero, so that training starts from the base model.
    """

    def __init__(self, target: Target, rank: int, generator: torch.Generator, device: torch.device) -> None:
        super().__init__()
        experts = (target.experts,) if target.experts else ()
        bound = target.inputs**-0.5
        down = torch.empty(*experts, rank, target.inputs).uniform_(-bound, bound, generator=generator)  # on the CPU: the same on any device
        self.down = nn.Parameter(down.to(device))
        self.up = nn.Parameter(torch.zeros(*experts, target.outputs, rank, device=device))


class LoraModule(Module):
    """A frozen module and its adapters by the checkpoint's names, in the order of the outputs that they raise."""

    def __init__(self, base: Any, parts: Mapping[str, tuple[Target, LowRank]], config: LoraConfig) -> None:  # noqa: ANN401 - Linear or Experts
        super().__init__()
        self.base: Any = base
        ordered = sorted(parts.items(), key=lambda part: part[1][0].start)
        # A ModuleDict, whose types forget what is in it.
        self.adapters = cast("Mapping[str, LowRank]", nn.ModuleDict({name: pair for name, (_, pair) in ordered}))
        self.starts = [target.start for _, (target, _) in ordered]
        self.width = max(target.width or target.outputs for target, _ in parts.values())
        self.scale, self.dropout = config.scale, config.dropout
        self.active = True  # see `without_adapters`

    def drop(self, x: Tensor) -> Tensor:
        """Dropout, while training."""
        return dropout(x, self.dropout) if self.training else x


def dropout(x: Tensor, share: float) -> Tensor:
    """Zero this share of the numbers, rounded to 1/256, and scale up the others.

    A byte of chance decides on each: torch's own draws a double for each, which took a tenth of a step of a small model.
    """
    limit = round(share * 256)
    if limit == 0:
        return x
    words = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=x.device).random_(-(1 << 63), None)
    kept = words.view(torch.uint8)[: x.numel()].view(x.shape) >= limit
    return x * kept.to(x.dtype).mul_(256 / (256 - limit))


class LoraLinear(LoraModule):
    """A linear layer, [N, in] → [N, out]."""

    def forward(self, x: Tensor) -> Tensor:
        """[N, in] → [N, out]."""
        output: Tensor = self.base(x)
        if not self.active:
            return output
        dropped = self.drop(x)
        downs = [pair.down for pair in self.adapters.values()]
        ups = [pair.up.to(x.dtype) for pair in self.adapters.values()]
        narrow = functional.linear(dropped, (downs[0] if len(downs) == 1 else torch.cat(tuple(downs))).to(x.dtype))
        if ups[0].shape[0] == self.width:
            return torch.addmm(output, narrow, ups[0].t(), alpha=self.scale)
        return torch.add(output, torch.cat(list(self._columns(narrow, ups)), dim=1), alpha=self.scale)

    def _columns(self, narrow: Tensor, ups: list[Tensor]) -> Iterator[Tensor]:
        """What adds up to the outputs' width, from left to right, zeros where there is no adapter; narrow [N, all ranks]."""
        done = 0
        for start, own, up in zip(self.starts, narrow.chunk(len(ups), dim=1), ups, strict=True):
            if start > done:
                yield narrow.new_zeros(len(narrow), start - done)
            yield functional.linear(own, up)
            done = start + up.shape[0]
        if done < self.width:
            yield narrow.new_zeros(len(narrow), self.width - done)


class LoraAbsorbed(LoraModule):
    """kv_b_proj, which attention never multiplies with: it takes the weight apart. So the weight is what the adapter is added to.

    Dropout then hides inputs of the adapter for a whole micro-batch, not for each token: keys are made of latents that all queries read.
    """

    @property
    def weight(self) -> Tensor:
        """[out, in] in the base's dtype."""
        pair, base = next(iter(self.adapters.values())), cast("Tensor", self.base.weight)
        if not self.active:
            return base
        hidden = self.drop(pair.down.new_ones(pair.down.shape[1]))
        return torch.addmm(base, pair.up.to(base.dtype), (pair.down * hidden).to(base.dtype), alpha=self.scale)


class LoraExperts(LoraModule):
    """The routed experts of a layer, both of whose matrices have an adapter for each expert."""

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """[N, hidden], each token's experts and their weights [N, k] → the weighted sum [N, hidden]."""
        output: Tensor = self.base(x, chosen, weights, extra=self._add if self.active else None)
        return output

    def _add(self, place: int, x: Tensor, output: Tensor, _rows: Tensor, product: Callable[[Tensor, Tensor], Tensor]) -> None:
        """To the outputs of one of the two products, whose rows are sorted by expert (`ops.reference.run_experts`)."""
        pair = self.adapters[("gate_up_proj", "down_proj")[place]]
        narrow = product(self.drop(x), pair.down.to(x.dtype))
        output.add_(product(narrow, pair.up.to(x.dtype)), alpha=self.scale)


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Inside, the model is its frozen base: what reinforcement learning measures its distance from."""
    modules = [module for module in model.modules() if isinstance(module, LoraModule)]
    for module in modules:
        module.active = False
    try:
        yield
    finally:
        for module in modules:
            module.active = True


def install(decoder: Decoder, config: LoraConfig, seed: int) -> dict[str, tuple[LoraModule, str]]:
    """Freeze the decoder and give the chosen modules adapters; raises ConfigError where there is nothing to give one to.

    Returns where each is, by its name in the checkpoint: the module and the adapter's name in it.
    """
    decoder.requires_grad_(requires_grad=False)
    installer = Installer(decoder, config, seed)
    installer.install()
    return installer.places


class Installer:
    """`install`, for a frozen decoder that is filled part by part. The same seed gives the same adapters if layers come in their order."""

    def __init__(self, decoder: Decoder, config: LoraConfig, seed: int) -> None:
        """Choose modules; raises ConfigError."""
        self._decoder, self._config = decoder, config
        self._generator = torch.Generator().manual_seed(seed)
        self._chosen: dict[str, dict[str, Target]] = {}
        for path, target in chosen(decoder.config, config).items():
            module = target.module.rpartition(".")[0] if target.experts else target.module
            self._chosen.setdefault(module, {})[path] = target
        self.places: dict[str, tuple[LoraModule, str]] = {}

    def install(self, path: str = "") -> None:
        """Give those below the module at `path` (of all: "") that have none yet adapters, on the device of their weights."""
        prefix = path and f"{path}."
        for module in [name for name in self._chosen if name.startswith(prefix)]:
            self._install(module, self._chosen.pop(module))

    def _install(self, module: str, parts: Mapping[str, Target]) -> None:
        owner, _, leaf = module.rpartition(".")
        base = self._decoder.get_submodule(module)
        kind, device = _kind(leaf, base), next(base.parameters()).device
        pairs = {
            path.rpartition(".")[2]: (target, LowRank(target, self._config.rank, self._generator, device)) for path, target in parts.items()
        }
        adapted = kind(base, pairs, self._config)
        setattr(self._decoder.get_submodule(owner), leaf, adapted)
        self.places.update({path: (adapted, path.rpartition(".")[2]) for path in parts})


def chosen(model: ModelConfig, config: LoraConfig) -> dict[str, Target]:
    """What gets adapters, by its name in the checkpoint; raises ConfigError where there is nothing to give one to."""
    found = {path: target for path, target in targets(model).items() if _is_chosen(path, config.targets)}
    if not found:
        raise ConfigError(f"lora.targets: this model has none of {', '.join(config.targets)}")
    return found


def _is_chosen(path: str, names: tuple[str, ...]) -> bool:
    owner, _, leaf = path.rpartition(".")
    if owner.endswith(".experts"):
        return EXPERTS in names
    return leaf in names and (leaf in DENSE or owner.endswith(".self_attn"))  # not the indexer: its choice carries no gradient


def _kind(leaf: str, base: nn.Module) -> type[LoraModule]:
    if isinstance(base, Experts):
        return LoraExperts
    if not isinstance(base, Linear):
        raise ConfigError("the checkpoint's weights are quantised; train on bf16, fp16 or fp32 ones")
    return LoraAbsorbed if leaf == "kv_b_proj" else LoraLinear
