"""What the checks of `on_npu` are made of: small models with GLM-5's widths, fakes on the device, a count of the kernels called."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from glm5_runtime.config import ModelConfig
from glm5_runtime.model.batch import Chunk, build_batch
from glm5_runtime.model.decoder import Decoder
from glm5_runtime.ops import kernels
from glm5_runtime.ops.packing import Weights
from glm5_runtime.ops.paging import LayerCache, Queries

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from glm5_runtime.ops.interface import OperatorSet

T = TypeVar("T")

BF16, CPU = torch.bfloat16, torch.device("cpu")
LATENT, ROPE, INDEX, PAGE = 512, 64, 128, 16
THETA = 1e6


checks: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    """Run this in the process of `on_npu`."""
    checks.append(function)
    return function


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def expect(got: object, wanted: object, what: str) -> None:
    assert got == wanted, f"{what}: {got}, expected {wanted}"


def close(got: Tensor, wanted: Tensor, what: str, tolerance: float = 2e-2) -> None:
    """Apart by at most this share of the largest number: two roundings to bf16."""
    apart = (got.float() - wanted.float()).abs().max() / wanted.float().abs().max()
    assert apart <= tolerance, f"{what}: apart by {float(apart):.4f} of the largest"


def facts(x: object) -> object:
    """Shape and type; the bare type name of anything else."""
    return (tuple(x.shape), str(x.dtype)) if isinstance(x, Tensor) else type(x).__name__


def queries_of(chunks: Sequence[Chunk], page: int = PAGE) -> tuple[Queries, Tensor]:
    """One group of chunks with equally many tokens, and the slots of their tokens."""
    batch = build_batch(chunks, config(), page, CPU)
    assert len(batch.groups) == 1
    return batch.groups[0], batch.slots


def config(**changes: object) -> ModelConfig:
    """GLM-5's widths where kernels depend on them, few layers and experts."""
    sizes: dict[str, object] = {
        "vocab_size": 512,
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "q_lora_rank": 128,
        "kv_lora_rank": LATENT,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": ROPE,
        "v_head_dim": 256,
        "index_topk": 32,
        "index_n_heads": 8,
        "index_head_dim": INDEX,
        "indexer_types": ("full", "shared", "full", "shared"),
        "intermediate_size": 512,
        "moe_intermediate_size": 128,
        "mlp_layer_types": ("dense", "sparse", "sparse", "sparse"),
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "rope_theta": THETA,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "max_position_embeddings": 202_752,
        "eos_token_ids": frozenset({1}),
    }
    return ModelConfig(**sizes | changes)


GLM_5_2 = {  # the release's own, cut to the first layers of each kind
    "vocab_size": 154_880,
    "hidden_size": 6144,
    "num_attention_heads": 64,
    "q_lora_rank": 2048,
    "index_topk": 2048,
    "index_n_heads": 32,
    "intermediate_size": 12_288,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
}


def new_decoder(ops: OperatorSet, settings: ModelConfig, device: str, dtype: torch.dtype) -> Decoder:
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return Decoder(settings, ops).eval()
    finally:
        torch.set_default_dtype(usual)


def fill(decoder: Decoder) -> None:
    for number, (name, tensor) in enumerate(sorted(decoder.named_parameters())):
        center = 1.0 if "norm.weight" in name or "layernorm" in name else 0.0
        spread = 0.2 if tensor.dim() == 1 else tensor.shape[-1] ** -0.5
        tensor.copy_(randn(*tensor.shape, seed=number, dtype=torch.float32) * spread + center)


class Calls(TorchDispatchMode):
    """Counts the kernels that are called; keeps torch's own operators, and the size of the largest tensor that was copied on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()
        self.largest_copy = 0
        self.aten: set[str] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # noqa: ANN001, ANN204 - torch's own signature, untyped
        if function.namespace == "aten":
            self.aten.add(function.name())
        if function.namespace == "npu":
            self.count[function.__name__.partition(".")[0]] += 1
        result = function(*args, **(kwargs or {}))
        if function.__name__.partition(".")[0] in {"clone", "contiguous", "to", "_to_copy"}:
            given = args[0]
            if (given.dtype, given.stride()) != (result.dtype, result.stride()):
                self.largest_copy = max(self.largest_copy, given.numel())
        return result


def fallbacks(before: dict[str, int]) -> dict[str, int]:
    return {name: count - before[name] for name, count in kernels.fallbacks.items() if count != before[name]}


def on_npu(value: T) -> T:
    """A fake of the same shape, type and strides on the device."""
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="npu")
    if isinstance(value, Weights):
        return Weights(on_npu(value.values), on_npu(value.scale))
    if isinstance(value, LayerCache):
        return LayerCache(*(on_npu(x) for x in (value.latent, value.rope, value.index)))
    if isinstance(value, Queries):
        moved = replace(value, positions=on_npu(value.positions))
        vars(moved)["pages"] = on_npu(value.pages)  # worked out from lists, which fake tensors can't be made of
        return moved
    return value


def is_on_device(name: str) -> bool:
    """Whether torch_npu computes an operator of torch itself, or torch composes it of others."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if any(has(name, key) for key in ("PrivateUse1", "CompositeExplicitAutograd", "CompositeImplicitAutograd")):
        return True
    base = name.partition(".")[0].removesuffix("_")  # a structured one: its form with `out` does the work
    forms = (other for other in torch._C._dispatch_get_all_op_names() if other.partition(".")[0] == base and other.endswith("out"))
    return any(has(form, "PrivateUse1") for form in forms)
