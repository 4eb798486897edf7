"""The result of LoRA in PEFT's format: adapter_model.safetensors and adapter_config.json, which PEFT and our engine load.

Called once at the end. The folder appears complete or not at all, and is read back by the engine's own reader before it counts as written.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file

from glm5_runtime.config import ConfigError
from glm5_runtime.model.adapter_files import CONFIG, WEIGHTS, read_adapter
from glm5_runtime.train.config import EXPERTS
from glm5_runtime.train.distributed.ranks import ALONE
from glm5_runtime.train.distributed.sharding import whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from glm5_runtime.config import ModelConfig
    from glm5_runtime.model.adapter_files import AdapterFile
    from glm5_runtime.train.config import LoraConfig
    from glm5_runtime.train.distributed.ranks import Ranks
    from glm5_runtime.train.fence import Fence
    from glm5_runtime.train.lora import LoraModule

_PREFIX = "base_model.model."


class ExportError(Exception):
    """The result can't be written or must not be; the message says why."""


def export_adapter(
    folder: Path,
    places: Mapping[str, tuple[LoraModule, str]],
    config: LoraConfig,
    model: ModelConfig,
    base_name: str,
    *,
    ranks: Ranks = ALONE,
    fence: Fence | None = None,
) -> AdapterFile:
    """Write the adapter and read it back; raises ExportError, Superseded, and then `folder` is as it was. All ranks ask, rank 0 writes."""
    tensors = adapter_tensors(places, is_kept=ranks.is_first)
    return ranks.agree(lambda: _write(folder, tensors, config, model, base_name, fence=fence))


def _write(
    folder: Path, tensors: dict[str, Tensor], config: LoraConfig, model: ModelConfig, base_name: str, *, fence: Fence | None
) -> AdapterFile:
    if strange := [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]:
        raise ExportError(f"{strange[0]} holds NaN or infinity; nothing is published. Go on from an earlier checkpoint")

    def write(temporary: Path) -> None:
        save_file(tensors, temporary / WEIGHTS, metadata={"format": "pt"})
        (temporary / CONFIG).write_text(json.dumps(adapter_settings(config, base_name), indent=2))
        read_adapter(temporary, model, [base_name], config.rank, device=torch.device("cpu"), dtype=torch.float32)

    publish(folder, write, fence)
    return read_adapter(folder, model, [base_name], config.rank, device=torch.device("cpu"), dtype=torch.float32)


def adapter_tensors(places: Mapping[str, tuple[LoraModule, str]], *, is_kept: bool = True) -> dict[str, Tensor]:
    """PEFT's names and forms, fp32. Of fused experts: lora_A [E · r, in] expert after expert, lora_B [out, r · E] with experts innermost.

    Of several ranks all must ask; one that writes nothing keeps nothing (`is_kept`).

    PEFT wraps a module of two matrices twice, gate_up first: so that one is `base_layer` of the other.
    """
    tensors = {}
    for path, (module, name) in places.items():
        pair = module.adapters[name]
        down, up = whole(pair.down.detach()).float(), whole(pair.up.detach()).float()
        if not is_kept:
            continue
        if down.dim() == 3:
            down, up = down.flatten(0, 1), up.permute(1, 2, 0).flatten(1)
            path = path.replace(".gate_up_proj", ".base_layer").removesuffix(".down_proj")  # noqa: PLW2901 - PEFT's name of it
        for kind, tensor in (("lora_A", down), ("lora_B", up)):
            tensors[f"{_PREFIX}{path}.{kind}.weight"] = tensor.cpu().contiguous()
    return tensors


def adapter_settings(config: LoraConfig, base_name: str) -> dict[str, object]:
    """adapter_config.json. PEFT refuses dropout with adapters of fused experts, even to run them, so those files have none."""
    experts = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"] if EXPERTS in config.targets else None
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "r": config.rank,
        "lora_alpha": config.alpha or config.rank,
        "lora_dropout": 0.0 if experts else config.dropout,
        "target_modules": [name for name in config.targets if name != EXPERTS],
        "target_parameters": experts,
        "bias": "none",
        "inference_mode": True,
    }


def must_be_free(folder: Path, mark: str) -> None:
    """Find out before a run what would end it when all is done; makes the folder that `folder` will be in.

    Raises ConfigError where something else than a former result, which is known by its file `mark`, stands there; ExportError where
    nothing can be written.
    """
    folder = folder.resolve()
    try:
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"output {folder}: a file has this name; name a folder")
        names = sorted(each.name for each in folder.iterdir() if not each.name.startswith(".")) if folder.exists() else []
        if names and mark not in names:
            raise ConfigError(
                f"output {folder}: holds {names[0]} and no {mark} of a former run; all of it would be lost, name another folder"
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
        Path(tempfile.mkdtemp(prefix=".trying-", dir=folder.parent)).rmdir()
    except OSError as error:
        raise ExportError(f"output {folder}: {error.strerror or error}") from error


def publish(folder: Path, write: Callable[[Path], None], fence: Fence | None = None) -> None:
    """Let `write` fill a folder beside `folder`, force it to the disk, and put it in its place: it is never there in part.

    Raises ExportError when the disk doesn't take it, Superseded when `fence` says so.
    """
    folder = folder.resolve()  # what a link stands for is replaced, not the link
    temporary, old = (folder.with_name(f".{kind}-{folder.name}") for kind in ("writing", "leaving"))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        write(temporary)
        for path in (*temporary.iterdir(), temporary):
            _sync(path)
        if fence is not None:
            fence.check()
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
        temporary.rename(folder)
        _sync(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise ExportError(f"output {folder}: {error.strerror or error}") from error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
