"""The result as a whole checkpoint: the base's files with the trained numbers in them. For full fine-tuning, and for merged adapters.

One file of the base is read, changed and written at a time, tensor names, types and cuts stay as they are; what isn't a tensor is copied.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from glm5_runtime.model.decoder import Decoder
from glm5_runtime.model.weights import checkpoint_targets
from glm5_runtime.train.distributed.ranks import ALONE
from glm5_runtime.train.distributed.sharding import whole
from glm5_runtime.train.export import ExportError, publish

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

    from glm5_runtime.train.build import Trainee
    from glm5_runtime.train.distributed.ranks import Ranks
    from glm5_runtime.train.fence import Fence
    from glm5_runtime.train.lora import LoraModule

    Change = Callable[[Tensor], Tensor]


def export_checkpoint(folder: Path, base: Path, trainee: Trainee, *, ranks: Ranks = ALONE, fence: Fence | None = None) -> None:
    """Write the checkpoint; raises ExportError, Superseded, and then `folder` is as it was.

    Every rank asks: rank 0 is given all trained numbers, in main memory, and writes.
    """
    keep = ranks.is_first
    changes = _merged(trainee.places, is_kept=keep) if trainee.places else _trained(trainee.model.decoder, is_kept=keep)
    ranks.agree(lambda: _write(folder, base, changes, fence))


def _write(folder: Path, base: Path, changes: dict[str, Change], fence: Fence | None) -> None:

    def write(temporary: Path) -> None:
        for path in sorted(each for each in base.iterdir() if each.is_file()):
            if path.suffix == ".safetensors":
                _rewrite(path, temporary / path.name, changes)
            else:
                shutil.copyfile(path, temporary / path.name)
        if changes:
            raise ExportError(f"output {folder}: {base} has no tensor {next(iter(changes))}")

    publish(folder, write, fence)


def _rewrite(source: Path, target: Path, changes: dict[str, Change]) -> None:
    """One file; changes that are made are taken out."""
    with safe_open(source, framework="pt", device="cpu") as file:
        tensors = {}
        for name in file.keys():  # noqa: SIM118 - not a mapping
            tensor = file.get_tensor(name)
            if (change := changes.pop(name, None)) is not None:
                changed = change(tensor.float()).to(tensor.dtype)
                if not bool(changed.isfinite().all()):
                    raise ExportError(f"{name} holds NaN or infinity, or numbers too large for {tensor.dtype}; nothing is published")
                tensor = changed.contiguous()
            tensors[name] = tensor
        metadata = file.metadata()
    save_file(tensors, target, metadata=metadata)


def _trained(decoder: Decoder, *, is_kept: bool) -> dict[str, Change]:
    """The decoder's own numbers, by their names in the checkpoint; none of them where nothing is written."""
    with torch.device("meta"):
        plain = Decoder(decoder.config, decoder.ops)
    parameters = {}
    for name, parameter in decoder.named_parameters():
        if parameter.requires_grad:
            full = whole(parameter.detach())
            parameters[name.replace("parametrizations.", "").removesuffix(".original")] = full.cpu() if is_kept else full.new_empty(0)
    if not is_kept:
        return {}
    changes: dict[str, Change] = {}
    for name, target in checkpoint_targets(decoder.config, plain):
        if target.parameter in parameters:
            own = target.view(parameters[target.parameter])
            changes[name] = lambda _base, own=own: own.float()  # type: ignore[misc] # a default keeps this one
    return changes


def _merged(places: Mapping[str, tuple[LoraModule, str]], *, is_kept: bool) -> dict[str, Change]:
    """What adapters add to the base's numbers. Fused experts are one tensor an expert and matrix in the checkpoint."""
    changes: dict[str, Change] = {}

    def add(name: str, delta: Callable[[], Tensor], scale: float) -> None:
        changes[f"{name}.weight"] = lambda base: base.add_(delta().cpu(), alpha=scale)

    for path, (module, name) in places.items():
        pair = module.adapters[name]
        down, up = whole(pair.down.detach()), whole(pair.up.detach())
        if not is_kept:
            continue
        owner, _, leaf = path.rpartition(".")
        if down.dim() == 2:
            add(path, lambda down=down, up=up: up @ down, module.scale)  # type: ignore[misc] # as above
            continue
        halves = {"gate_proj": slice(None, up.shape[1] // 2), "up_proj": slice(up.shape[1] // 2, None)}
        for expert in range(len(down)):
            for part, rows in (halves if leaf == "gate_up_proj" else {"down_proj": slice(None)}).items():
                add(f"{owner}.{expert}.{part}", lambda down=down[expert], up=up[expert, rows]: up @ down, module.scale)  # type: ignore[misc]
    return changes
