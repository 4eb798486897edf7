"""`glm5-runtime quantize`: a W8A8 or W4A8 checkpoint in ModelSlim's layout from one in bf16, fp16 or fp32.

Reads tensor by tensor and writes file by file, so memory holds one output file, however large the model. Works in a folder beside the
output and renames it at the end: a run that is killed leaves nothing under the output's name. Rounding only, no calibration data: each
output channel gets the scale that loses least (`_best_scale`). ModelSlim's own recipes, which also rotate and smooth, lose less at 4 bits.
"""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from safetensors.torch import save_file

from glm5_runtime.config import ModelConfig
from glm5_runtime.model.checkpoint_files import Checkpoint, WeightsError
from glm5_runtime.model.quant import DESCRIPTION, FLOAT, W4A8, W8A8
from glm5_runtime.ops.packing import pack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

Scheme = Literal["w8a8", "w4a8"]

FILE_BYTES = 4 << 30
"""About the size of an output file."""
_LINEAR = re.compile(
    r"model\.layers\.\d+\.(self_attn\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|o_proj|indexer\.wq_b)"
    r"|mlp\.((shared_experts|experts\.\d+)\.)?(gate|up|down)_proj)\.weight"
)
"""What is quantised. kv_b_proj isn't: attention takes it apart, so nothing would be saved. Nor what is small or chooses: indexer keys and
weights, router, norms, what joins the MTP layer's inputs, embedding and head."""
_BIAS_PARTS = 16
"""ModelSlim's layout has the sums of a down projection in as many parts, one for each rank of the largest tensor-parallel group."""
_CLIPS = torch.linspace(0.5, 1.0, 11)
_SIZES = {"F32": 4, "F16": 2, "BF16": 2}


class QuantizeError(Exception):
    """Nothing was written; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which tensors come into which output file, and how: names by file, kinds by name, bytes of all files."""

    files: list[list[str]]
    kinds: dict[str, str]
    size: int


@dataclass(frozen=True, slots=True)
class Job:
    """A run that nothing known beforehand stands against."""

    model_dir: Path
    checkpoint: Checkpoint
    output: Path
    plan: Plan


def quantize(
    model_dir: Path,
    output: Path,
    scheme: Scheme,
    keep: Sequence[str] = (),
    on_tensor: Callable[[int, int], None] = lambda _done, _all: None,
) -> Plan:
    """`prepare` and `run`; returns what was planned. Raises what they raise."""
    job = prepare(model_dir, output, scheme, keep)
    run(job, on_tensor)
    return job.plan


def prepare(model_dir: Path, output: Path, scheme: Scheme, keep: Sequence[str] = ()) -> Job:
    """Check what headers and the disk tell; makes only the output's parent folder. `keep`: patterns of tensors that stay floats.

    Raises QuantizeError, ConfigError or WeightsError.
    """
    if output.exists():
        raise QuantizeError(f"{output} exists already; name a folder that doesn't, or remove it")
    ModelConfig.from_dir(model_dir)
    if (model_dir / DESCRIPTION).exists():
        raise QuantizeError(f"{model_dir} is quantised already ({DESCRIPTION}); start from the checkpoint in bf16")
    checkpoint = Checkpoint(model_dir)
    plan = make_plan(checkpoint, scheme, keep)
    parent = output.resolve().parent
    parent.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(parent).free) < plan.size:
        raise QuantizeError(f"{parent} has {free / 1e9:.1f} GB free, the checkpoint needs {plan.size / 1e9:.1f} GB")
    return Job(model_dir, checkpoint, output, plan)


def run(job: Job, on_tensor: Callable[[int, int], None]) -> None:
    """Write the checkpoint; `on_tensor` hears how many of how many tensors are done.

    Raises WeightsError or OSError; then there is no output.
    """
    output, parent = job.output, job.output.resolve().parent
    folder = parent / tempfile.mkdtemp(prefix=f".{output.name}.unfinished-", dir=parent)
    try:
        _write(job.checkpoint, job.plan, folder, on_tensor)
        _copy_others(job.model_dir, folder)
        folder.chmod(0o755)
        folder.rename(output)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def make_plan(checkpoint: Checkpoint, scheme: Scheme, keep: Sequence[str]) -> Plan:
    """Decide everything from the files' headers.

    Raises WeightsError for a tensor that isn't made of floats, QuantizeError for a pattern that keeps nothing.
    """
    kept = {pattern: fnmatch.filter(checkpoint.names, pattern) for pattern in keep}
    if idle := [pattern for pattern, names in kept.items() if not any(map(_LINEAR.fullmatch, names))]:
        raise QuantizeError(
            f"--keep: {idle[0]!r} names no tensor that would be quantised; they look like model.layers.0.mlp.down_proj.weight"
        )
    floats = frozenset(name for names in kept.values() for name in names)
    files: list[list[str]] = [[]]
    kinds: dict[str, str] = {}
    total = held = 0
    for name in sorted(checkpoint.names, key=_order):
        shape, dtype = checkpoint.form(name)
        if dtype not in _SIZES:
            raise WeightsError(f"{checkpoint.where(name)}: tensor {name!r} is {dtype}; quantize starts from bf16, fp16 or fp32")
        kind = FLOAT if name in floats else _kind(name, shape, scheme)
        count, outputs = torch.Size(shape).numel(), shape[0] if shape else 1
        size = {FLOAT: count * _SIZES[dtype], W8A8: count + 8 * outputs, W4A8: count // 2 + (8 + 4 * _BIAS_PARTS) * outputs}[kind]
        if files[-1] and held + size > FILE_BYTES:
            files.append([])
            held = 0
        files[-1].append(name)
        kinds[name] = kind
        held, total = held + size, total + size
    return Plan(files, kinds, total)


def _order(name: str) -> list[str | int]:
    """Layers and experts in the order of their numbers."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _kind(name: str, shape: tuple[int, ...], scheme: Scheme) -> str:
    if not _LINEAR.fullmatch(name):
        return FLOAT
    is_packable = shape[0] % 2 == 0 and (shape[1] % _BIAS_PARTS == 0 or ".down_proj." not in name)
    return W4A8 if scheme == "w4a8" and ".experts." in name and is_packable else W8A8


def _write(checkpoint: Checkpoint, plan: Plan, folder: Path, on_tensor: Callable[[int, int], None]) -> None:
    """All output files, the index and the description."""
    place: dict[str, str] = {}
    described: dict[str, str | int] = {
        "model_quant_type": W4A8 if W4A8 in plan.kinds.values() else W8A8,
        "version": "1.0.0",
        "group_size": 0,
    }
    count, done = len(plan.files), 0
    for number, names in enumerate(plan.files, start=1):
        file = f"model-{number:05d}-of-{count:05d}.safetensors"
        tensors: dict[str, Tensor] = {}
        for name in names:
            made = _convert(name, checkpoint.read(name), plan.kinds[name])
            described.update(dict.fromkeys(made, plan.kinds[name]))
            tensors |= made
            done += 1
            on_tensor(done, len(plan.kinds))
        save_file(tensors, folder / file, metadata={"format": "pt"})
        place.update(dict.fromkeys(tensors, file))
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    index = {"metadata": {"total_size": size}, "weight_map": place}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    (folder / DESCRIPTION).write_text(json.dumps(described, indent=2))


def _convert(name: str, weight: Tensor, kind: str) -> Mapping[str, Tensor]:
    """A tensor as the output holds it, with what belongs to it; raises WeightsError for one that isn't finite."""
    if kind == FLOAT:
        return {name: weight}
    if not bool(weight.isfinite().all()):
        raise WeightsError(f"tensor {name!r} holds NaN or infinity; the checkpoint is damaged, download it again")
    bits = 4 if kind == W4A8 else 8
    scale = _best_scale(weight.float(), bits)
    most = 2 ** (bits - 1) - 1
    integers = (weight.float() / scale).round_().clamp_(-most, most)
    base = name.removesuffix(".weight")
    made = {f"{base}.weight_scale": scale, f"{base}.weight_offset": torch.zeros_like(scale)}
    if kind == W8A8:
        return {name: integers.to(torch.int8), **made}
    parts = _BIAS_PARTS if name.endswith("down_proj.weight") else 1
    bias = 8 * (integers * scale).view(weight.shape[0], parts, -1).sum(dim=-1)
    return {name: pack(integers.to(torch.int8)), **made, f"{base}.scale_bias": bias}


def _best_scale(weight: Tensor, bits: int) -> Tensor:
    """Scale of each output channel, [out, 1] fp32. At 4 bits a smaller one, which cuts the largest values, often has less squared error."""
    most = 2 ** (bits - 1) - 1
    full: Tensor = weight.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny * most) / most
    if bits == 8:
        return full
    best, least = full, torch.full_like(full, float("inf"))
    for clip in _CLIPS.tolist():
        scale = full * clip
        lost = ((weight / scale).round_().clamp_(-most, most).mul_(scale) - weight).square_().sum(dim=1, keepdim=True)
        best = torch.where(lost < least, scale, best)
        least = torch.minimum(lost, least)
    return best


def _copy_others(model_dir: Path, folder: Path) -> None:
    """Config, tokenizer, template, licence: everything but weights and their index."""
    for path in sorted(model_dir.iterdir()):
        is_weight = path.suffix in {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".incomplete"} or path.name.endswith(".index.json")
        if path.is_file() and not is_weight and not path.name.startswith("."):
            shutil.copyfile(path, folder / path.name)
