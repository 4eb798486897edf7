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
from glm5_runtime.train.export import ExportError, publish

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

    from glm5_runtime.train.build import Trainee
    from glm5_runtime.train.lora import LoraModule

    Change = Callable[[Tensor], Tensor]


def export_checkpoint(folder: Path, base: Path, trainee: Trainee) -> None:
    """Write the checkpoint; raises ExportError, and then `folder` is as it was."""
    changes = _merged(trainee.places) if trainee.places else _trained(trainee.model.decoder)

    def write(temporary: Path) -> None:
        for path in sorted(each for each in base.iterdir() if each.is_file()):
            if path.suffix == ".safetensors":
                _rewrite(path, temporary / path.name, changes)
            else:
                shutil.copyfile(path, temporary / path.name)
        if changes:
            raise ExportError(f"output {folder}: {base} has no tensor {next(iter(changes))}")

    publish(folder, write)


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


def _trained(decoder: Decoder) -> dict[str, Change]:
    """The decoder's own numbers, by their names in the checkpoint."""
    with torch.device("meta"):
        plain = Decoder(decoder.config, decoder.ops)
    parameters = {name.replace("parametrizations.", "").removesuffix(".original"): each for name, each in decoder.named_parameters()}
    changes: dict[str, Change] = {}
    for name, target in checkpoint_targets(decoder.config, plain):
        if parameters[target.parameter].requires_grad:
            own = target.view(parameters[target.parameter].detach())
            changes[name] = lambda _base, own=own: own.float().cpu()  # type: ignore[misc] # a default keeps this one
    return changes


def _merged(places: Mapping[str, tuple[LoraModule, str]]) -> dict[str, Change]:
    """What adapters add to the base's numbers. Fused experts are one tensor an expert and matrix in the checkpoint."""
    changes: dict[str, Change] = {}

    def add(name: str, delta: Callable[[], Tensor], scale: float) -> None:
        changes[f"{name}.weight"] = lambda base: base.add_(delta().cpu(), alpha=scale)

    for path, (module, name) in places.items():
        pair = module.adapters[name]
        down, up = pair.down.detach(), pair.up.detach()
        owner, _, leaf = path.rpartition(".")
        if down.dim() == 2:
            add(path, lambda down=down, up=up: up @ down, module.scale)  # type: ignore[misc] # as above
            continue
        halves = {"gate_proj": slice(None, up.shape[1] // 2), "up_proj": slice(up.shape[1] // 2, None)}
        for expert in range(len(down)):
            for part, rows in (halves if leaf == "gate_up_proj" else {"down_proj": slice(None)}).items():
                add(f"{owner}.{expert}.{part}", lambda down=down[expert], up=up[expert, rows]: up @ down, module.scale)  # type: ignore[misc]
    return changes
