"""A LoRA adapter in PEFT's format: read from its folder and checked against the model before anything of it is used.

Called by `engine.adapter_parts`. Everything is either honoured or refused with its name: settings of adapter_config.json, tensors, shapes.
PEFT (0.21) keeps adapters of fused experts stacked: lora_A [E · r, in] expert after expert, lora_B [out, r · E] with experts innermost.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from glm5_runtime.config import ConfigError, read_object
from glm5_runtime.model.checkpoint_files import Checkpoint, WeightsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    from glm5_runtime.config import ModelConfig
    from glm5_runtime.model.parallel import Ranks

log = logging.getLogger(__name__)

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MULTIPLE = 8
"""Ranks are filled up with zeros to a multiple of it: 16 bytes in 16-bit types, which torch's grouped product asks for."""

_PREFIX = "base_model.model."
_SHOWN = 3
_FLOATS = frozenset({"F32", "F16", "BF16"})
_PAIR = ("lora_A", "lora_B")
_HONOURED = frozenset({"peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "base_model_name_or_path"})
_HARMLESS = _HONOURED | {
    *("task_type", "peft_version", "auto_mapping", "inference_mode", "revision", "target_modules", "target_parameters", "exclude_modules"),
    *("layers_to_transform", "layers_pattern", "lora_dropout", "megatron_core", "qalora_group_size", "eva_config", "runtime_config"),
}
_OFF = {"bias": "none"}
_OWN_INITIAL_WEIGHTS = frozenset({"gaussian", "eva", "orthogonal", "true", "false"})
_SIMPLE_PATTERN = re.compile(r"\^?(\.\*)?(\w|\\?\.|-)+\$?")  # nothing that takes time to match


class AdapterError(Exception):
    """An adapter can't be used; the message names the file, what is wrong with it and the remedy."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where the adapter of one checkpoint module acts: rows `start` to `start + outputs` of the `width` that `module` gives."""

    module: str
    inputs: int
    outputs: int
    start: int = 0
    width: int = 0  # 0: all outputs
    experts: int = 0  # 0: an ordinary module
    heads: int = 0  # of kv_b_proj, which attention takes apart; 0: not by heads
    pieces: int = 1  # of its outputs, each of which is cut among ranks: gate and up are two


@dataclass(frozen=True, slots=True)
class Pair:
    """Two thin matrices of a module: down [R, in], up [R, width]; x · downᵀ · up is added to its output.

    Of experts both have these in front; of kv_b_proj up is [H, R, width / H]. The scale is in `up`. R is a multiple of `MULTIPLE`.
    """

    down: Tensor
    up: Tensor


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """What a folder holds: matrices by module of the decoder, the SHA-256 of the tensors' file, the largest rank, adapter_config.json."""

    pairs: dict[str, Pair]
    sha256: str
    rank: int
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of each adapter a rank has: `shapes` are those of its part of the modules, [out, in] or [E, out, in].

    An adapter is cut as the module is: what reads a part of the inputs has those of `down`, what gives a part of the outputs those of `up`.
    """

    ranks: Ranks
    shapes: Mapping[str, tuple[int, ...]]

    def of(self, target: Target, down: Tensor, up: Tensor) -> tuple[Target, Tensor, Tensor]:
        """The rank's part of a module's adapter, as views: down [E, r, in], up [out, r, E], E 1 where there are no experts."""
        *experts, outputs, inputs = self.shapes[target.module]
        if experts and experts[0] < target.experts:
            at = slice(self.ranks.rank * experts[0], (self.ranks.rank + 1) * experts[0])
            down, up = down[at], up[..., at]
        if inputs < target.inputs:
            down = down.narrow(-1, self.ranks.tensor_rank * inputs, inputs)
        parts = (target.width or target.outputs) // outputs
        if parts > 1:
            size = target.outputs // target.pieces // parts
            up = up.view(target.pieces, -1, *up.shape[1:]).narrow(1, self.ranks.tensor_rank * size, size).flatten(0, 1)
        start, width, heads = (number // parts for number in (target.start, target.width, target.heads))
        held = experts[0] if experts else 0
        own = replace(target, inputs=inputs, outputs=target.outputs // parts, start=start, width=width, experts=held, heads=heads)
        return own, down, up


def targets(config: ModelConfig) -> dict[str, Target]:
    """All modules that an adapter may have matrices for, by their names in a checkpoint."""
    return {f"model.{path}": target for layer in range(config.num_hidden_layers) for path, target in _layer_targets(config, layer)}


def _layer_targets(config: ModelConfig, layer: int) -> Iterator[tuple[str, Target]]:
    at, hidden, heads = f"layers.{layer}.self_attn", config.hidden_size, config.num_attention_heads
    lora, latent, rope, nope = config.q_lora_rank, config.kv_lora_rank, config.qk_rope_head_dim, config.qk_nope_head_dim
    width = lora + latent + rope
    yield f"{at}.q_a_proj", Target(f"{at}.qkv_a_proj", hidden, lora, 0, width)
    yield f"{at}.kv_a_proj_with_mqa", Target(f"{at}.qkv_a_proj", hidden, latent + rope, lora, width)
    plain = {
        "q_b_proj": (lora, heads * (nope + rope)),
        "o_proj": (heads * config.v_head_dim, hidden),
    }
    yield f"{at}.kv_b_proj", Target(f"{at}.kv_b_proj", latent, heads * (nope + config.v_head_dim), heads=heads)
    if config.indexer_types[layer] == "full":
        plain["indexer.wq_b"] = (lora, config.index_n_heads * config.index_head_dim)
        plain["indexer.wk"] = (hidden, config.index_head_dim)
        plain["indexer.weights_proj"] = (hidden, config.index_n_heads)
    for name, (inputs, outputs) in plain.items():
        yield f"{at}.{name}", Target(f"{at}.{name}", inputs, outputs)
    at, inner = f"layers.{layer}.mlp", config.intermediate_size
    if config.mlp_layer_types[layer] == "sparse":
        inner, experts = config.moe_intermediate_size, config.n_routed_experts
        yield f"{at}.experts.gate_up_proj", Target(f"{at}.experts.gate_up_proj", hidden, 2 * inner, experts=experts, pieces=2)
        yield f"{at}.experts.down_proj", Target(f"{at}.experts.down_proj", inner, hidden, experts=experts)
        at, inner = f"{at}.shared_experts", inner * config.n_shared_experts
    yield f"{at}.gate_proj", Target(f"{at}.gate_up_proj", hidden, inner, 0, 2 * inner)
    yield f"{at}.up_proj", Target(f"{at}.gate_up_proj", hidden, inner, inner, 2 * inner)
    yield f"{at}.down_proj", Target(f"{at}.down_proj", inner, hidden)


def read_adapter(
    folder: Path,
    config: ModelConfig,
    base_names: Iterable[str],
    max_rank: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
    part: Part | None = None,
) -> AdapterFile:
    """Read and check an adapter folder; raises AdapterError.

    `base_names`: what its base may be called, empty: anything; `part`: a rank's, None: all.
    """
    if not folder.is_dir():
        raise AdapterError(f"{folder}: there is no such folder")
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            hint = "; save it as safetensors" if (folder / "adapter_model.bin").exists() and name == WEIGHTS else ""
            raise AdapterError(f"{folder}: has no {name}{hint}; name a folder as PEFT's save_pretrained writes it")
    try:
        settings = read_object(folder / CONFIG)
        checkpoint = Checkpoint(folder, WEIGHTS)
    except (ConfigError, WeightsError) as error:
        raise AdapterError(str(error)) from error
    _check_settings(folder / CONFIG, settings, list(base_names), max_rank)
    with (folder / WEIGHTS).open("rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    found = _match(folder / WEIGHTS, checkpoint, targets(config))
    by_module: dict[str, list[tuple[Target, Tensor, Tensor]]] = {}
    largest = 0
    for path, (target, names) in found.items():
        rank = _rank(folder / WEIGHTS, checkpoint, path, target, names)
        if rank > max_rank:
            raise AdapterError(f"{folder / WEIGHTS}: {names[0]} has rank {rank}, more than this server's {max_rank} (--max-lora-rank)")
        wanted = _by_pattern(settings.get("rank_pattern") or {}, path, settings["r"])
        if rank != wanted:
            raise AdapterError(f"{folder}: {names[0]} has rank {rank}, {CONFIG} says {wanted}; they are of different adapters")
        alpha = _by_pattern(settings.get("alpha_pattern") or {}, path, settings["lora_alpha"])
        scale = alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)
        down, up = (checkpoint.read(name) for name in names)
        count = max(1, target.experts)
        down, up = down.view(count, rank, -1), up.view(-1, rank, count)
        if part is not None:
            target, down, up = part.of(target, down, up)  # noqa: PLW2901 - the rank's part of it
        by_module.setdefault(target.module, []).append((target, down.float(), up.float() * scale))
        largest = max(largest, rank)
    pairs = {}
    for module, parts in by_module.items():
        kind = torch.float32 if module.endswith("weights_proj") else dtype
        pair = _join(parts)
        pairs[module] = Pair(pair.down.to(device, kind), pair.up.to(device, kind))
        if not all(bool(tensor.isfinite().all()) for tensor in (pairs[module].down, pairs[module].up)):
            raise AdapterError(f"{folder / WEIGHTS}: the tensors of {module} hold NaN or infinity, or numbers too large for {kind}")
    return AdapterFile(pairs, checksum, largest, settings)


def _check_settings(path: Path, settings: dict[str, Any], base_names: list[str], max_rank: int) -> None:
    """Everything that would change the arithmetic is honoured or refused."""
    if settings.get("peft_type") != "LORA":
        raise AdapterError(f"{path}: peft_type is {settings.get('peft_type')!r}; only LORA adapters are served")
    for key, value in settings.items():
        if key == "init_lora_weights":
            if str(value).lower() not in _OWN_INITIAL_WEIGHTS:
                raise AdapterError(f"{path}: init_lora_weights {value!r} changes the base's weights; convert the adapter to a plain one")
        elif key not in _HARMLESS and value and value != _OFF.get(key):
            raise AdapterError(f"{path}: {key} is set, which this server doesn't honour; train or export the adapter without it")
    rank, alpha = settings.get("r"), settings.get("lora_alpha")
    if type(rank) is not int or not 1 <= rank <= max_rank:
        raise AdapterError(f"{path}: r is {rank!r}; this server takes ranks from 1 to {max_rank} (--max-lora-rank)")
    for key in ("rank_pattern", "alpha_pattern"):
        patterns = settings.get(key) or {}
        if not isinstance(patterns, dict) or not all(_SIMPLE_PATTERN.fullmatch(pattern) for pattern in patterns):
            raise AdapterError(f"{path}: {key} must name modules by their ends, such as o_proj or layers.3.self_attn.o_proj")
        if patterns and settings.get("use_rslora"):
            raise AdapterError(f"{path}: {key} together with use_rslora is not defined (PEFT refuses it too)")
        for value in patterns.values():
            _number(path, key, value)
    _number(path, "lora_alpha", alpha)
    base = settings.get("base_model_name_or_path")
    if base and base_names and not any(is_same_model(str(base), name) for name in base_names):
        raise AdapterError(
            f"{path}: base_model_name_or_path is {str(base)[:80]!r}, expected {' = '.join(map(repr, base_names))};"
            " if that is the same model under another name, correct the field"
        )


def _number(path: Path, key: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
        raise AdapterError(f"{path}: {key} holds {str(value)[:40]}; use a number above 0 and below a million")


def is_same_model(base: str, name: str) -> bool:
    """Last parts of paths are compared; a form of a model (`GLM-5.1-w8a8` of `GLM-5.1`) takes its adapters."""
    first, second = (text.rstrip("/").rsplit("/", 1)[-1].lower() for text in (base, name))
    return first == second or second.startswith(f"{first}-") or first.startswith(f"{second}-")


def _match(path: Path, checkpoint: Checkpoint, known: Mapping[str, Target]) -> dict[str, tuple[Target, tuple[str, str]]]:
    """Checkpoint module → target and names of its two tensors; every tensor has its place, or none is used."""
    found: dict[str, tuple[Target, tuple[str, str]]] = {}
    strange = []
    for name in sorted(checkpoint.names):
        module, _, kind = name.removesuffix(".weight").rpartition(".")
        if not name.startswith(_PREFIX) or kind not in _PAIR or not name.endswith(".weight"):
            strange.append(name)
            continue
        names = (f"{module}.lora_A.weight", f"{module}.lora_B.weight")
        if missing := [each for each in names if each not in checkpoint.names]:
            raise AdapterError(f"{path}: {name} has no {missing[0]} beside it; save the adapter again")
        place = _place(checkpoint, module.removeprefix(_PREFIX), names, known)
        if place is None:
            strange.append(name)
        else:
            found[place] = (known[place], names)
    if strange:
        raise AdapterError(
            f"{path}: {len(strange)} of {len(checkpoint.names)} tensors belong to no module that takes an adapter in this model, such as"
            f" {', '.join(strange[:_SHOWN])}; expected names such as {_PREFIX}{next(iter(known))}.lora_A.weight"
        )
    if not found:
        raise AdapterError(f"{path}: holds no tensors")
    return found


def _place(checkpoint: Checkpoint, module: str, names: tuple[str, str], known: Mapping[str, Target]) -> str | None:
    """The name in `known`. Which of the fused experts' two matrices is meant shows in the shapes: names tell only the order of wrapping."""
    experts = module.removesuffix(".base_layer")
    if not experts.endswith(".mlp.experts"):
        return module if module in known else None
    (_, inputs), (outputs, _) = (_matrix(checkpoint, name) for name in names)
    for place in (f"{experts}.gate_up_proj", f"{experts}.down_proj"):
        if place in known and (known[place].inputs, known[place].outputs) == (inputs, outputs):
            return place
    if f"{experts}.down_proj" in known:
        raise AdapterError(f"{names[0]} takes {inputs} and gives {outputs} numbers, as no experts of this model: it is for another base")
    return None


def _matrix(checkpoint: Checkpoint, name: str) -> tuple[int, int]:
    shape, _ = checkpoint.form(name)
    return (shape[0], shape[1]) if len(shape) == 2 else (0, 0)


def _rank(path: Path, checkpoint: Checkpoint, place: str, target: Target, names: tuple[str, str]) -> int:
    """The rank, if both tensors have it and fit the module."""
    count = max(1, target.experts)
    rank = _matrix(checkpoint, names[0])[0] // count
    for name, expected in zip(names, ([rank * count, target.inputs], [target.outputs, rank * count]), strict=True):
        shape, kind = checkpoint.form(name)
        if list(shape) != expected or not rank:
            raise AdapterError(
                f"{path}: {name} has shape {list(shape)}, {place} of this model takes {expected}: the adapter is for another base"
            )
        if kind not in _FLOATS:
            raise AdapterError(f"{path}: {name} is {kind}; save the adapter in bf16, fp16 or fp32")
    return rank


def _by_pattern(patterns: Mapping[str, float], path: str, default: float) -> float:
    """As PEFT looks it up: the first pattern that the module's name ends with."""
    return next((value for pattern, value in patterns.items() if re.match(rf"(.*\.)?({pattern})$", path)), default)


def _join(parts: list[tuple[Target, Tensor, Tensor]]) -> Pair:
    """One pair for a module that is several in the checkpoint: ranks one after the other, each raising only its own outputs.

    Parts are down [E, r, in] and up [out, r, E].
    """
    downs, ups = [], []
    for target, down, up in parts:
        downs.append(down)
        wide = up.new_zeros(*down.shape[:2], target.width or target.outputs)
        wide[..., target.start : target.start + target.outputs] = up.permute(2, 1, 0)
        ups.append(wide)
    down, up = (torch.cat(each, dim=1) for each in (downs, ups))
    missing = -down.shape[1] % MULTIPLE
    down, up = (torch.nn.functional.pad(each, (0, 0, 0, missing)) for each in (down, up))
    first = parts[0][0]
    if first.experts:
        return Pair(down, up)
    return Pair(down[0], up.view(up.shape[1], first.heads, -1).transpose(0, 1).contiguous() if first.heads else up[0])
