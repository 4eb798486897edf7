"""From checkpoint tensors to decoder parameters.

`load_decoder` is called once at start; training over ranks goes part by part (`Loading`). All names, shapes and types are checked against
the model before the first byte of data is read or allocated. Fused parameters (gate and up, all experts of a layer) are filled piece by
piece, so peak memory is the model's own; an unfused tensor of the right type on the CPU stays mapped from its file. What the checkpoint
holds in integers stays so (`quant`).
"""

from __future__ import annotations

import logging
import math
import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from glm5_runtime.model import quant
from glm5_runtime.model.checkpoint_files import Checkpoint, WeightsError
from glm5_runtime.model.decoder import Decoder
from glm5_runtime.model.layers import settle
from glm5_runtime.model.parallel import ALONE
from glm5_runtime.ops.packing import unpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from glm5_runtime.config import ModelConfig
    from glm5_runtime.model.parallel import Ranks
    from glm5_runtime.ops.interface import OperatorSet

log = logging.getLogger(__name__)

FP32_ISLANDS = ("mlp.gate.weight", "mlp.gate.e_score_correction_bias", "indexer.weights_proj.weight")
"""Parameters kept in fp32 whatever the model's type: they decide choices, and a rounded score chooses differently."""

_FUSED = {"gate_up_proj": ("gate_proj", "up_proj"), "qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa")}
_ROWS = ("embed_tokens.weight", "kv_b_proj.weight")  # read row by row, or by head
_STORED = {quant.FLOAT: {"F32", "F16", "BF16"}, quant.STATIC: {"F32", "I64"}}
"""Types of tensors and of static scales; of quantised weights it is always I8."""
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True)
class Target:
    """Where one checkpoint tensor goes: a parameter, or `rows` of it (of expert `expert`).

    `kind` is how the checkpoint holds it; where the parameter doesn't, `scaled` ones become floats and `unpacked` ones a byte a number.
    """

    parameter: str
    shape: tuple[int, ...]
    expert: int | None = None
    rows: tuple[int, int] | None = None
    cut: tuple[int, int, int] | None = None  # of the tensor only this part, as axis, start, size
    kind: str = quant.FLOAT
    scale: tuple[str, ...] = ()  # tensors of its scale
    scaled: bool = False
    unpacked: bool = False

    def view(self, parameter: torch.Tensor) -> torch.Tensor:
        """The part of the parameter that this tensor fills."""
        whole = parameter if self.expert is None else parameter[self.expert]
        return whole if self.rows is None else whole[slice(*self.rows)]

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The tensor's shape in the checkpoint."""
        if self.kind == quant.STATIC:
            return self.shape[:1]
        return (self.shape[0] // 2, *self.shape[1:]) if self.unpacked else self.shape

    @property
    def is_whole(self) -> bool:
        """Whether the tensor is the whole parameter and may be used as it is."""
        return self.expert is None and self.rows is None


def load_decoder(
    config: ModelConfig,
    model_dir: Path,
    ops: OperatorSet,
    device: torch.device,
    dtype: torch.dtype,
    *,
    ranks: Ranks = ALONE,
    check_numbers: bool = False,
    settled: bool = True,
) -> Decoder:
    """Build and fill the decoder, or a rank's part of it; raises WeightsError.

    `check_numbers` looks at every number (`_check_numbers`); `settled`: the model only runs, its parameters and modules stay as they are.
    """
    loading = Loading(config, model_dir, ops, ranks)
    loading.fill(device, dtype, check_numbers=check_numbers)
    if settled:
        settle(loading.decoder)
    return loading.decoder


class Loading:
    """A decoder without gradients on the meta device, and the checkpoint that it is filled from: all at once, or part by part."""

    def __init__(self, config: ModelConfig, model_dir: Path, ops: OperatorSet, ranks: Ranks = ALONE) -> None:
        """Look at names, shapes and types of all tensors; raises WeightsError. `decoder` is a rank's part of the model."""
        self._started = time.monotonic()
        self._checkpoint = checkpoint = Checkpoint(model_dir)
        with torch.device("meta"):
            self.decoder = decoder = Decoder(config, ops, ranks)
            whole = decoder if ranks.size == 1 else Decoder(config, ops)
            if kinds := quant.read_kinds(model_dir, checkpoint.names):
                stored = _stored_kinds(config, whole, kinds)
                for model in {decoder, whole}:
                    quant.swap(model, stored, ops)
        targets = dict(_as_stored(name, target, whole, kinds) for name, target in checkpoint_targets(config, whole))
        _check(checkpoint, targets, config, kinds)
        self._missing = dict(_own_parts(targets, whole, decoder, ranks))
        self._loaded = f"{len(targets)} tensors from {model_dir}"
        decoder.eval().requires_grad_(requires_grad=False)

    def fill(
        self, device: torch.device, dtype: torch.dtype, path: str = "", *, check_numbers: bool = False, contiguous: bool = False
    ) -> list[str]:
        """Read what is still missing of the module at `path` (of all: "") and return its parameters' names; raises WeightsError.

        `contiguous`: matrices as torch has them, not as they are fast (`_empty`).
        """
        prefix = path and f"{path}."
        targets = {name: target for name, target in self._missing.items() if target.parameter.startswith(prefix)}
        filled = _fill(self.decoder, self._checkpoint, targets, device, dtype, check_numbers=check_numbers, contiguous=contiguous)
        self._missing = {name: target for name, target in self._missing.items() if name not in targets}
        if not self._missing:
            log.info("loaded %s in %.1f s", self._loaded, time.monotonic() - self._started)
        return filled


def checkpoint_targets(config: ModelConfig, decoder: Decoder) -> Iterator[tuple[str, Target]]:
    """Checkpoint name → target, for every tensor the decoder needs."""
    for name, parameter in decoder.named_parameters():
        key = _key(config, name)
        shape = tuple(parameter.shape)
        if ".experts." in name:
            yield from _expert_targets(config, name, key, shape)
        elif (fused := name.split(".")[-2]) in _FUSED:
            first = shape[0] // 2 if fused == "gate_up_proj" else config.q_lora_rank
            for part, rows in zip(_FUSED[fused], ((0, first), (first, shape[0])), strict=True):
                yield key.replace(fused, part), Target(name, (rows[1] - rows[0], shape[1]), rows=rows)
        else:
            yield key, Target(name, shape)


def _key(config: ModelConfig, name: str) -> str:
    """A parameter's name in the checkpoint, fused ones under their own."""
    if name.startswith("lm_head."):
        return name
    return f"model.{name}".replace("model.mtp.", f"model.layers.{config.num_hidden_layers}.").replace(".block.", ".")


def _stored_kinds(config: ModelConfig, decoder: Decoder, kinds: Mapping[str, str]) -> dict[str, set[str]]:
    """How the checkpoint holds the tensors of each parameter."""
    stored: dict[str, set[str]] = {}
    for name, target in checkpoint_targets(config, decoder):
        stored.setdefault(target.parameter, set()).add(kinds.get(name, quant.FLOAT))
    return stored


def _as_stored(name: str, target: Target, decoder: Decoder, kinds: Mapping[str, str]) -> tuple[str, Target]:
    """The name and the target of what the checkpoint has for it: where it is quantised, what happens on its way."""
    if kinds.get(weight := name.removesuffix("_scale")) == quant.STATIC and weight != name:
        names = quant.scale_names(weight, kinds)
        return names[0], replace(target, kind=quant.STATIC, scale=names)
    kind = kinds.get(name, quant.FLOAT)
    if kind == quant.FLOAT or not name.endswith(".weight"):
        return name, target
    kind = quant.W8A8 if kind == quant.STATIC else kind
    owner = decoder.get_submodule(target.parameter.rpartition(".")[0])
    unpacked = kind == quant.W4A8 and not (isinstance(owner, quant.QuantExperts) and owner.packed)
    scaled = decoder.get_parameter(target.parameter).dtype != torch.int8
    return name, replace(target, kind=kind, scale=quant.scale_names(name, kinds), scaled=scaled, unpacked=unpacked)


def _expert_targets(config: ModelConfig, name: str, key: str, shape: tuple[int, ...]) -> Iterator[tuple[str, Target]]:
    base, _, kind = key.removesuffix("_scale").rpartition(".")
    leaf = "weight_scale" if key.endswith("_scale") else "weight"
    for expert in range(config.n_routed_experts):
        if kind == "down_proj":
            yield f"{base}.{expert}.down_proj.{leaf}", Target(name, shape[1:], expert)
            continue
        inner = shape[1] // 2
        for part, rows in (("gate_proj", (0, inner)), ("up_proj", (inner, 2 * inner))):
            yield f"{base}.{expert}.{part}.{leaf}", Target(name, (inner, shape[2]), expert, rows)


def _check(checkpoint: Checkpoint, targets: dict[str, Target], config: ModelConfig, kinds: Mapping[str, str]) -> None:
    """Every tensor there, of the right shape, and nothing unknown beside it."""
    needed = targets.keys() | {name for target in targets.values() for name in target.scale}
    if missing := sorted(needed - checkpoint.names):
        raise WeightsError(f"missing {_list(missing)}; config.json and the weights are of different models, or a file is missing")
    for name, target in targets.items():
        shape, kind = checkpoint.form(name)
        if shape != target.stored_shape:
            raise WeightsError(
                f"{checkpoint.where(name)}: tensor {name!r} has shape {list(shape)}, config.json asks for {list(target.stored_shape)}"
            )
        if kind not in _STORED.get(target.kind, {"I8"}):
            told = f"{quant.DESCRIPTION} calls it {target.kind}" if kinds else f"there is no {quant.DESCRIPTION} beside it"
            raise WeightsError(
                f"{checkpoint.where(name)}: tensor {name!r} is {kind}, and {told}; this engine reads bf16, fp16, fp32,"
                " and ModelSlim's W8A8 and W4A8 as that file describes them"
            )
    extra = checkpoint.names - needed
    if unknown := sorted(name for name in extra if not (_is_known_extra(name, config) or quant.is_side_tensor(name, kinds))):
        raise WeightsError(f"{checkpoint.where(unknown[0])}: unknown {_list(unknown)}; this runtime would ignore them")
    if (head := "lm_head.weight") in extra and not torch.equal(
        checkpoint.read(head), checkpoint.read(embed := "model.embed_tokens.weight")
    ):
        raise WeightsError(
            f"{checkpoint.where(head)}: tensor {head!r} is not {embed!r}, though config.json says tie_word_embeddings; make it false"
        )
    if extra:
        log.info("skipped %d tensors of parts that are known and not used, such as %s", len(extra), min(extra))


def _is_known_extra(name: str, config: ModelConfig) -> bool:
    """MTP layers behind the last one, indexers on layers that share (5.1 keeps them), a head that is tied."""
    if name == "lm_head.weight":
        return config.tie_word_embeddings
    match = _LAYER.fullmatch(name)
    if match is None:
        return False
    layer, rest = int(match[1]), match[2]
    if layer < config.num_hidden_layers:
        return config.indexer_types[layer] == "shared" and rest.startswith("self_attn.indexer.")
    return layer < config.num_hidden_layers + config.num_nextn_predict_layers


def _list(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return "tensor " + ", ".join(repr(name) for name in names[:3]) + more


def _own_parts(targets: dict[str, Target], whole: Decoder, decoder: Decoder, ranks: Ranks) -> Iterator[tuple[str, Target]]:
    """What this rank holds. Where its parameter is shorter than the whole model's, it is one of equal parts along that axis."""
    shapes = {name: parameter.shape for name, parameter in whole.named_parameters()}
    own = {name: parameter.shape for name, parameter in decoder.named_parameters()}
    for name, target in targets.items():
        sizes = zip(shapes[target.parameter], own[target.parameter], strict=True)
        axis, parts, held = next(((axis, full // part, part) for axis, (full, part) in enumerate(sizes) if full != part), (0, 1, 0))
        if parts == 1:
            yield name, target
        elif target.expert is None or axis > 0:
            axis -= target.expert is not None
            size = target.shape[axis] // parts
            rows = target.rows if axis or target.rows is None else (target.rows[0] // parts, target.rows[1] // parts)
            yield name, replace(target, rows=rows, cut=(axis, ranks.tensor_rank * size, size))
        elif target.expert // held == ranks.rank:
            yield name, replace(target, expert=target.expert % held)


def _fill(
    decoder: Decoder,
    checkpoint: Checkpoint,
    targets: dict[str, Target],
    device: torch.device,
    dtype: torch.dtype,
    *,
    check_numbers: bool,
    contiguous: bool,
) -> list[str]:
    """Replace meta parameters by real ones; their names."""
    filled: dict[str, torch.Tensor] = {}
    forms = dict(decoder.named_parameters())
    for name, target in targets.items():
        form = forms[target.parameter]
        wanted = form.dtype if form.dtype == torch.int8 or target.parameter.endswith((*FP32_ISLANDS, "_scale")) else dtype
        source = _read(checkpoint, name, target)
        if check_numbers:
            _check_numbers(checkpoint, {**{scale: checkpoint.read(scale) for scale in target.scale}, name: source}, wanted)
        if target.cut is not None:
            source = source.narrow(*target.cut)
        if target.is_whole and (source.dtype == wanted or source.dim() < 2 or name.endswith(_ROWS)):
            filled[target.parameter] = source.to(device, wanted)
            continue
        if target.parameter not in filled:
            empty = torch.empty if contiguous else _empty
            filled[target.parameter] = empty(form.shape, device=device, dtype=wanted)
        target.view(filled[target.parameter]).copy_(source)
    for name, tensor in filled.items():
        owner, _, leaf = name.rpartition(".")
        setattr(decoder.get_submodule(owner), leaf, nn.Parameter(tensor, requires_grad=False))
    if decoder.config.tie_word_embeddings and "embed_tokens.weight" in filled:
        decoder.lm_head.weight = decoder.embed_tokens.weight
    return list(filled)


def _check_numbers(checkpoint: Checkpoint, tensors: Mapping[str, torch.Tensor], wanted: torch.dtype) -> None:
    """Raise WeightsError for a tensor with NaN, infinity or a number beyond the type that it is to have. Takes no memory."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            continue
        least, most = (number.item() for number in torch.aminmax(tensor))
        if not (math.isfinite(least) and math.isfinite(most)):
            why = "holds NaN or infinite numbers; download it again, or ask those who made the checkpoint"
        elif wanted.is_floating_point and max(-least, most) > torch.finfo(wanted).max:
            why = f"reaches {max(-least, most):g}, too much for {str(wanted).removeprefix('torch.')}; choose another --dtype"
        else:
            continue
        raise WeightsError(f"{checkpoint.where(name)}: tensor {name!r} {why}")


def _read(checkpoint: Checkpoint, name: str, target: Target) -> torch.Tensor:
    """The tensor as its parameter takes it; raises WeightsError where its integers don't mean what ModelSlim's do."""
    source = checkpoint.read(name)
    if target.kind == quant.FLOAT:
        return source
    if target.kind == quant.STATIC:
        return quant.read_scale(checkpoint, target.scale)
    offset, bias = (name.removesuffix(".weight") + side for side in (quant.OFFSET, quant.BIAS))
    if offset in checkpoint.names and bool(checkpoint.read(offset).any()):
        raise WeightsError(f"{checkpoint.where(offset)}: {offset!r} is not zero; this engine reads symmetric weights")
    if target.kind == quant.W4A8 and not target.expert and bias in checkpoint.names:
        scale = quant.read_scale(checkpoint, target.scale)
        quant.check_packing(source, scale, checkpoint.read(bias), f"{checkpoint.where(bias)}: {bias!r}")
    if target.unpacked:
        source = unpack(source)
    return source.float() * quant.read_scale(checkpoint, target.scale) if target.scaled else source


def _empty(shape: torch.Size, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Room for matrices, the last two axes stored the other way round: few rows times such a matrix take half the time on CPUs."""
    if dtype == torch.int8:  # integer products are faster without it
        return torch.empty(shape, device=device, dtype=dtype)
    return torch.empty((*shape[:-2], shape[-1], shape[-2]), device=device, dtype=dtype).mT
