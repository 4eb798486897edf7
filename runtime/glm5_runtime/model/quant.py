"""Quantised layers, and which layers of a checkpoint are: ModelSlim's `quant_model_description.json`.

`weights` puts these modules in the place of `Linear` and `Experts` before it loads, wherever the checkpoint has integers for them.
Activations are rounded to int8 token by token when a layer runs (W8A8 dynamic, W4A8 for routed experts). ModelSlim's recipe for GLM-5 in
W8A8 has scales from calibration for attention's activations ("W8A8", static): those are left aside, a token's own scale loses less.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from glm5_runtime.config import ConfigError, read_object
from glm5_runtime.model.checkpoint_files import WeightsError
from glm5_runtime.model.layers import Linear, Module
from glm5_runtime.model.moe import Experts
from glm5_runtime.ops.packing import Weights, unpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from glm5_runtime.model.checkpoint_files import Checkpoint
    from glm5_runtime.ops.interface import OperatorSet
    from glm5_runtime.ops.reference import Extra

log = logging.getLogger(__name__)

DESCRIPTION = "quant_model_description.json"
FLOAT, W8A8, W4A8, STATIC = "FLOAT", "W8A8_DYNAMIC", "W4A8_DYNAMIC", "W8A8"
_PLAIN = ("kv_b_proj", "weights_proj")
"""Floats once loaded, however they are stored: attention takes the one apart (`Attention.absorb`), the other decides what is chosen."""
OFFSET, BIAS = ".weight_offset", ".scale_bias"
_SIDE_TENSORS = (".weight_scale", OFFSET, BIAS, ".deq_scale", ".quant_bias", ".input_scale", ".input_offset")
"""Beside quantised weights: scales, and what isn't needed. Offsets of weights are zero, and biases follow from weights and scales."""
_ROTATIONS = (".indexer.q_rot", ".indexer.k_rot")
"""Turn index queries and keys alike before they are rounded: no score depends on it."""
_CACHE_KINDS = frozenset({"C8", "FAQuant"})


class QuantLinear(Module):
    """[N, inputs] → [N, outputs]: weight int8 [outputs, inputs], weight_scale fp32 [outputs, 1]."""

    def __init__(self, like: Linear, ops: OperatorSet) -> None:
        super().__init__()
        self.ops = ops
        outputs, inputs = like.weight.shape
        self.weight = nn.Parameter(torch.empty(outputs, inputs, dtype=torch.int8), requires_grad=False)
        self.weight_scale = nn.Parameter(torch.empty(outputs, 1, dtype=torch.float32), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs] → [N, outputs] of x's type."""
        return self.ops.quantised_linear(*self.ops.quantise(x), self.weight, self.weight_scale.view(-1), x.dtype)


class QuantExperts(Module):
    """All routed experts of a layer in int8, or in 4 bits, two rows in a byte; names and order as in `Experts`, scales fp32 beside them."""

    def __init__(self, like: Experts, *, packed: bool) -> None:
        super().__init__()
        self.ops, self.first, self.packed = like.ops, like.first, packed

        def values(matrices: Tensor) -> nn.Parameter:
            experts, outputs, inputs = matrices.shape
            return nn.Parameter(torch.empty(experts, outputs // 2 if packed else outputs, inputs, dtype=torch.int8), requires_grad=False)

        def scale(matrices: Tensor) -> nn.Parameter:
            return nn.Parameter(torch.empty(*matrices.shape[:2], 1, dtype=torch.float32), requires_grad=False)

        self.gate_up_proj, self.gate_up_proj_scale = values(like.gate_up_proj), scale(like.gate_up_proj)
        self.down_proj, self.down_proj_scale = values(like.down_proj), scale(like.down_proj)

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor, extra: Extra | None = None) -> Tensor:
        """[N, hidden], each token's experts and their weights [N, k] → the weighted sum [N, hidden]."""
        gate_up = Weights(self.gate_up_proj, self.gate_up_proj_scale.squeeze(-1))
        down = Weights(self.down_proj, self.down_proj_scale.squeeze(-1))
        return self.ops.run_quantised_experts(x, gate_up, down, chosen, weights, first=self.first, extra=extra)


def read_kinds(model_dir: Path, names: Iterable[str]) -> dict[str, str]:
    """How the checkpoint holds each of its tensors; empty without a description. Raises WeightsError for kinds this engine can't run."""
    path = model_dir / DESCRIPTION
    if not path.exists():
        return {}
    try:
        described = read_object(path)
    except ConfigError as error:
        raise WeightsError(str(error)) from error
    if isinstance(size := described.get("group_size"), int) and size > 0:
        raise WeightsError(f"{path}: group_size is {size}; this engine reads one scale for each output channel (group_size 0)")
    both = {"W8A8_MIX": W8A8}  # scales for both ways to round activations
    kinds = {name: both.get(kind := str(described.get(name, FLOAT)), kind) for name in names}
    known = {FLOAT, W8A8, W4A8, STATIC} | _CACHE_KINDS
    if strange := sorted(name for name, kind in kinds.items() if kind not in known):
        raise WeightsError(
            f"{path}: tensor {strange[0]!r} is {kinds[strange[0]][:40]!r}; this engine reads {W8A8}, {STATIC}, {W4A8} and {FLOAT}"
        )
    return kinds


def is_side_tensor(name: str, kinds: Mapping[str, str]) -> bool:
    """Whether a tensor belongs to quantisation and isn't needed here: the cache's scales are worked out token by token."""
    kind = kinds.get(name, FLOAT)
    return kind in _CACHE_KINDS or (kind != FLOAT and name.endswith(_SIDE_TENSORS)) or (bool(kinds) and name.endswith(_ROTATIONS))


def scale_names(weight: str, kinds: Mapping[str, str]) -> tuple[str, ...]:
    """Tensors that a quantised matrix' scale comes from."""
    base = weight.removesuffix(".weight")
    return (f"{base}.deq_scale", f"{base}.input_scale") if kinds.get(weight) == STATIC else (f"{base}.weight_scale",)


def read_scale(checkpoint: Checkpoint, names: tuple[str, ...]) -> Tensor:
    """Scale of each output channel, [out, 1] fp32; of static ones the file has its product with the activations' scale."""
    scale = checkpoint.read(names[0])
    if scale.dtype == torch.int64:  # the bits of an fp32 number, as NPUs take it beside fp16
        scale = scale.to(torch.int32).view(torch.float32)
    for divisor in names[1:]:
        scale = scale / checkpoint.read(divisor)
    return scale.float().view(-1, 1)


def swap(decoder: nn.Module, stored: Mapping[str, set[str]], ops: OperatorSet) -> None:
    """Put quantised modules where all of a parameter's tensors are integers: `stored` has their kinds by parameter.

    A parameter made of floats and integers stays a float one; so does what attention absorbs. 4 bits stay packed only in experts that
    are 4 bits throughout; elsewhere they become int8, which is exact.
    """
    for path, module in list(decoder.named_modules()):
        prefix = f"{path}." if path else ""
        kinds = set[str]().union(*(stored.get(prefix + name, set()) for name, _ in module.named_parameters(recurse=False)))
        if not kinds - {FLOAT} or path.endswith(_PLAIN):
            continue
        if FLOAT in kinds:
            log.warning("%s: some of its tensors are quantised and some are not: all are loaded as floats", path)
        elif isinstance(module, Experts):
            decoder.set_submodule(path, QuantExperts(module, packed=kinds == {W4A8}))
        elif type(module) is Linear:
            decoder.set_submodule(path, QuantLinear(module, ops))


def check_packing(packed: Tensor, scale: Tensor, bias: Tensor, where: str) -> None:
    """Raise WeightsError unless the sums over rows that stand in the checkpoint follow from its 4-bit values: else it packs otherwise.

    packed [out / 2, in], scale [out, 1], bias [out, parts] = 8 · sums of value · scale.
    """
    sums = 8 * (unpack(packed).sum(dim=-1, dtype=torch.float32).unsqueeze(-1) * scale.float())
    if not torch.allclose(bias.float().sum(dim=-1, keepdim=True), sums, rtol=1e-2, atol=float(scale.abs().max()) * 8):
        raise WeightsError(f"{where}: scale_bias doesn't follow from the 4-bit values: they are packed in another order than ModelSlim's")
