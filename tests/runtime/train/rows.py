"""Rows to train on, made by hand; and a model with adapters as PEFT has it, with the same numbers as ours."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch
from peft import LoraConfig as PeftConfig
from peft import get_peft_model
from torch.nn import functional

from glm5_runtime.train.data.example import Example
from tests.runtime.model.oracle import trained

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from glm5_runtime.train.config import LoraConfig
    from glm5_runtime.train.lora import LoraModule, LowRank

Places = dict[str, tuple["LoraModule", str]]


def make_rows(lengths: Sequence[int], seed: int = 0, vocabulary: int = 2048, prompt: float = 0.3) -> list[Example]:
    """Rows of random tokens. About the first third of each is a prompt; a piece within it is learned, and one behind it is not."""
    chance = random.Random(seed)
    rows = []
    for line, length in enumerate(lengths, start=1):
        tokens = tuple(chance.randrange(10, vocabulary) for _ in range(length))
        learned = [position >= prompt * length for position in range(length)]
        for position in chance.sample(range(length), length // 10):
            learned[position] = not learned[position]
        rows.append(Example(tokens, tuple(learned), line))
    return rows


def with_peft(directory: Path, config: LoraConfig) -> Any:  # noqa: ANN401 - PEFT's own class
    """The checkpoint in transformers, with PEFT's adapters."""
    modules = [name for name in config.targets if name != "experts"]
    experts = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"] if "experts" in config.targets else None
    settings = PeftConfig(
        r=config.rank, lora_alpha=config.alpha, target_modules=modules, target_parameters=experts, lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    return get_peft_model(trained(directory), settings)


def peft_names(path: str, both: bool = True) -> tuple[str, str]:
    """The two parameters of a checkpoint module's adapter in PEFT's model. Fused experts are wrapped twice: gate_up inside."""
    owner, _, leaf = path.rpartition(".")
    if owner.endswith(".experts"):
        path = f"{owner}.base_layer" if leaf == "gate_up_proj" and both else owner
    return (f"base_model.model.{path}.lora_A.default.weight", f"base_model.model.{path}.lora_B.default.weight")


def as_peft(down: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Our matrices (of experts with [E] in front) in the form of PEFT's: lora_A [E·r, in], lora_B [out, r·E] with experts innermost."""
    if down.dim() == 2:
        return down, up
    return down.flatten(0, 1), up.permute(1, 2, 0).flatten(1)


def share_numbers(model: Any, places: Places, seed: int = 5) -> None:  # noqa: ANN401 - PEFT's own class
    """Random numbers for all adapters, none of them zero, the same in both models; `model` None: in ours alone."""
    generator = torch.Generator().manual_seed(seed)
    theirs = dict(model.named_parameters()) if model is not None else None
    with torch.no_grad():
        for path, (module, name) in places.items():
            pair: LowRank = module.adapters[name]
            for tensor in (pair.down, pair.up):
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.05)
            if theirs is not None:
                for key, own in zip(peft_names(path), as_peft(pair.down, pair.up), strict=True):
                    theirs[key].copy_(own)


def peft_loss(model: Any, examples: Sequence[Example]) -> Tensor:  # noqa: ANN401 - PEFT's own class
    """Cross entropy summed over the learned tokens, row by row."""
    total = torch.zeros(())
    for example in examples:
        logits = model(input_ids=torch.tensor([example.tokens]), use_cache=False).logits[0, :-1].float()
        learned = torch.tensor(example.trained[1:])
        total = total + functional.cross_entropy(logits[learned], torch.tensor(example.tokens[1:])[learned], reduction="sum")
    return total


def gradients_of_peft(model: Any, places: Mapping[str, object]) -> dict[str, tuple[Tensor, Tensor]]:  # noqa: ANN401 - PEFT's own class
    named = dict(model.named_parameters())
    found = {}
    for path in places:
        down, up = (named[name].grad for name in peft_names(path))
        found[path] = (down, up)
    return found
