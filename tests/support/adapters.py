"""Adapters written by hand as PEFT writes them, and what they mean: a second decoder with base + scale · B · A for weights."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

from glm5_runtime.model.layers import settle

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from torch import Tensor

    from glm5_runtime.config import ModelConfig
    from glm5_runtime.model.decoder import Decoder

ATTENTION = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
EXPERTS = ("experts.gate_up_proj", "experts.down_proj")
INDEXER = ("indexer.wq_b", "indexer.wk", "indexer.weights_proj")
EVERYTHING = (*ATTENTION, *MLP, *EXPERTS, *INDEXER)


def sizes(config: ModelConfig, layer: int) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of each module of a layer, by its name in a checkpoint."""
    hidden, heads, lora, latent = config.hidden_size, config.num_attention_heads, config.q_lora_rank, config.kv_lora_rank
    found = {
        "self_attn.q_a_proj": (hidden, lora),
        "self_attn.q_b_proj": (lora, heads * (config.qk_nope_head_dim + config.qk_rope_head_dim)),
        "self_attn.kv_a_proj_with_mqa": (hidden, latent + config.qk_rope_head_dim),
        "self_attn.kv_b_proj": (latent, heads * (config.qk_nope_head_dim + config.v_head_dim)),
        "self_attn.o_proj": (heads * config.v_head_dim, hidden),
    }
    if config.indexer_types[layer] == "full":
        found["self_attn.indexer.wq_b"] = (lora, config.index_n_heads * config.index_head_dim)
        found["self_attn.indexer.wk"] = (hidden, config.index_head_dim)
        found["self_attn.indexer.weights_proj"] = (hidden, config.index_n_heads)
    at, inner = "mlp", config.intermediate_size
    if config.mlp_layer_types[layer] == "sparse":
        inner = config.moe_intermediate_size
        found |= {"mlp.experts.gate_up_proj": (hidden, 2 * inner), "mlp.experts.down_proj": (inner, hidden)}
        at, inner = "mlp.shared_experts", inner * config.n_shared_experts
    return found | {f"{at}.gate_proj": (hidden, inner), f"{at}.up_proj": (hidden, inner), f"{at}.down_proj": (inner, hidden)}


def write_adapter(
    folder: Path,
    config: ModelConfig,
    modules: Iterable[str] = EVERYTHING,
    *,
    rank: int = 4,
    alpha: float = 8,
    seed: int = 0,
    strength: float = 0.1,
    **settings: Any,  # noqa: ANN401 - fields of adapter_config.json
) -> Path:
    """A random adapter; nothing in it is zero, so that no term can be forgotten unseen."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * strength

    tensors = {}
    ends = tuple(f".{module}" for module in modules)
    for layer in range(config.num_hidden_layers):
        for name, (inputs, outputs) in sizes(config, layer).items():
            if not f".{name}".endswith(ends):
                continue
            key, count = f"base_model.model.model.layers.{layer}.{name}", 1
            if ".experts." in name:
                base = ".base_layer" if name.endswith("gate_up_proj") and "experts.down_proj" in modules else ""
                key, count = f"{key.rpartition('.')[0]}{base}", config.n_routed_experts
            tensors[f"{key}.lora_A.weight"] = random(count * rank, inputs)
            tensors[f"{key}.lora_B.weight"] = random(outputs, rank * count)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    kept = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "base_model_name_or_path": "tiny-glm5", "bias": "none"} | settings
    (folder / "adapter_config.json").write_text(json.dumps(kept))
    return folder


def merge(decoder: Decoder, folder: Path) -> Decoder:
    """Add an adapter of one rank to the weights of a decoder, by the definition: scale · B · A."""
    settings = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    rank, config = settings["r"], decoder.config
    scale = settings["lora_alpha"] / (math.sqrt(rank) if settings.get("use_rslora") else rank)
    for name in sorted(tensors):
        if not name.endswith(".lora_A.weight"):
            continue
        a, b = tensors[name].float(), tensors[name.replace("lora_A", "lora_B")].float()
        path = name.removeprefix("base_model.model.model.").removesuffix(".lora_A.weight").removesuffix(".base_layer")
        owner, _, leaf = path.rpartition(".")
        if leaf == "experts":
            count = config.n_routed_experts
            delta = torch.einsum("ore,eri->eoi", b.view(b.shape[0], -1, count), a.view(count, -1, a.shape[1]))
            experts = decoder.get_submodule(path)
            target = experts.gate_up_proj if a.shape[1] == config.hidden_size else experts.down_proj
        else:
            delta = b @ a
            target = _rows(decoder.get_submodule(owner), leaf, config)
        target += scale * delta
    settle(decoder)
    return decoder


def _rows(owner: Any, leaf: str, config: ModelConfig) -> Tensor:  # noqa: ANN401 - a module, whose attributes are what is wanted
    fused = {"q_a_proj": ("qkv_a_proj", True), "kv_a_proj_with_mqa": ("qkv_a_proj", False)}
    fused |= {"gate_proj": ("gate_up_proj", True), "up_proj": ("gate_up_proj", False)}
    if leaf not in fused:
        weight: Tensor = getattr(owner, leaf).weight
        return weight
    name, is_first = fused[leaf]
    whole: Tensor = getattr(owner, name).weight
    cut = config.q_lora_rank if name == "qkv_a_proj" else whole.shape[0] // 2
    return whole[:cut] if is_first else whole[cut:]
