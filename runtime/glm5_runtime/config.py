"""What the runtime is told: the checkpoint's own facts (ModelConfig) and this process's settings (EngineConfig).

Read by every layer above; imports no torch, so a wrong file is reported before anything heavy loads. Strict: what a
checkpoint says and this code does not know is an error with the file, the field and what to do, never a guess.
"""

from __future__ import annotations

import json
import os
import re
from itertools import pairwise
from pathlib import Path  # noqa: TC003 - pydantic resolves annotations at run time
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

ARCHITECTURE = "glm_moe_dsa"
MAX_RANKS = 64
"""Cards of the largest machine, with room; ranks are processes on one machine."""
LEAST_SAMPLE = 0.2
"""Smallest share of old tokens that `sparse_kv` may keep: with less, most of what a prompt said is out of sight. A choice, not measured."""
MAX_DRAFTS = 16
"""More are hardly ever right to the end."""
LFS_MAGIC = b"version https://git-lfs"
_NATIVE_ONLY = (
    "the native engine reads bf16, fp16 and fp32 weights, and W8A8 and W4A8 ones in ModelSlim's layout (quant_model_description.json);"
    " use such a checkpoint or `engine: {name: vllm}`"
)

_WRITTEN_AS = {"eos_token_ids": "eos_token_id", "rope_theta": "rope_parameters.rope_theta"}
"""Derived fields and where a file has them."""

Size = Annotated[int, Field(ge=1, le=1 << 24)]
Positive = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Epsilon = Annotated[float, Field(gt=0, le=0.1)]
"""More would make zeros of every norm's output, and the same token of everything."""


class ConfigError(ValueError):
    """A checkpoint's config can't be served; the message names file, field and remedy."""


class ModelConfig(BaseModel):
    """Facts of one GLM-5 checkpoint (5, 5.1, 5.2, 5.3), under the names that its config.json uses.

    Only what changes numbers is here. Derived fields (`rope_theta`, `indexer_types`, `mlp_layer_types`,
    `eos_token_ids`) are worked out by `from_dir`, because the releases write them in different places.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    vocab_size: Size
    hidden_size: Size
    num_hidden_layers: Annotated[int, Field(ge=1, le=1024)]
    num_attention_heads: Size
    q_lora_rank: Size
    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Annotated[int, Field(ge=2, le=1024, multiple_of=2)]
    v_head_dim: Size

    index_topk: Size
    index_n_heads: Size
    index_head_dim: Size
    indexer_types: tuple[Literal["full", "shared"], ...]

    intermediate_size: Size
    moe_intermediate_size: Size
    mlp_layer_types: tuple[Literal["dense", "sparse"], ...]
    n_routed_experts: Annotated[int, Field(ge=1, le=1 << 16)]
    num_experts_per_tok: Size
    n_shared_experts: Size
    n_group: Size
    topk_group: Size
    norm_topk_prob: bool
    routed_scaling_factor: Annotated[float, Field(gt=0, le=1000)]

    rope_theta: Positive
    rms_norm_eps: Epsilon
    latent_norm_eps: Epsilon = 1e-6
    """Epsilon of q_a_layernorm and kv_a_layernorm. No release writes it down; the reference implementation uses 1e-6,
    one training stack rms_norm_eps. Put `latent_norm_eps` into config.json to change it."""

    tie_word_embeddings: bool
    max_position_embeddings: Size
    num_nextn_predict_layers: Annotated[int, Field(ge=0, le=64)] = 0
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    eos_token_ids: frozenset[int]

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus answer the checkpoint was made for, tokens."""
        return self.max_position_embeddings

    @property
    def has_draft_layer(self) -> bool:
        """Whether this is the form `with_draft_layer`."""
        return len(self.indexer_types) > self.num_hidden_layers

    def with_draft_layer(self) -> Self:
        """The same model with the layer behind the last that drafts tokens: it has experts and an indexer of its own."""
        return self.model_copy(
            update={"indexer_types": (*self.indexer_types, "full"), "mlp_layer_types": (*self.mlp_layer_types, "sparse")}
        )

    @classmethod
    def from_dir(cls, model_dir: Path) -> Self:
        """Read config.json and, when present, generation_config.json; raises ConfigError with every fault found."""
        path = model_dir / "config.json"
        raw = read_object(path)
        if raw.get("model_type") != ARCHITECTURE:
            raise ConfigError(
                f"{path}: model_type: is {raw.get('model_type')!r}, this runtime serves {ARCHITECTURE!r} (GLM-5, 5.1, 5.2, 5.3);"
                " point --model at such a checkpoint or choose another engine"
            )
        generation_path = model_dir / "generation_config.json"
        generation = read_object(generation_path) if generation_path.exists() else {}
        faults = _unsupported(raw)
        try:
            config = cls.model_validate(_derive(raw, generation, faults))
        except ValidationError as error:
            faults.extend(_say(fault) for fault in error.errors())
            raise ConfigError(_report(path, faults)) from error
        if faults:
            raise ConfigError(_report(path, faults))
        return config

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """What single fields can't show; all faults in one message."""
        layers = self.num_hidden_layers
        checks = {
            f"indexer_types has {len(self.indexer_types)} entries for {layers} layers": len(self.indexer_types) != layers,
            f"mlp_layer_types has {len(self.mlp_layer_types)} entries for {layers} layers": len(self.mlp_layer_types) != layers,
            "the first of indexer_types must be 'full': a shared layer reuses an earlier layer's choice": self.indexer_types[:1]
            == ("shared",),
            f"index_head_dim {self.index_head_dim} is smaller than qk_rope_head_dim {self.qk_rope_head_dim}": self.index_head_dim
            < self.qk_rope_head_dim,
            f"num_experts_per_tok {self.num_experts_per_tok} is more than the experts of {self.topk_group} groups": (
                self.num_experts_per_tok * self.n_group > self.n_routed_experts * self.topk_group
            ),
            f"n_routed_experts {self.n_routed_experts} can't be split into n_group {self.n_group} groups of two or more": self.n_group > 1
            and (self.n_routed_experts % self.n_group != 0 or self.n_routed_experts < 2 * self.n_group),
            f"topk_group {self.topk_group} is more than n_group {self.n_group}": self.topk_group > self.n_group,
            f"eos_token_id {sorted(self.eos_token_ids)} must name at least one id below vocab_size {self.vocab_size}": (
                not self.eos_token_ids or not all(0 <= token < self.vocab_size for token in self.eos_token_ids)
            ),
        }
        if wrong := [message for message, is_wrong in checks.items() if is_wrong]:
            raise ValueError("; ".join(wrong))
        return self


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file of a checkpoint; raises ConfigError naming the file, what is wrong with it and the remedy."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: not found; model must name a checkpoint folder with config.json and *.safetensors") from error
    except OSError as error:
        raise ConfigError(f"{path}: not readable ({error.strerror}); the files must be readable for uid {os.getuid()}") from error
    if fault := pointer_fault(path, content):
        raise ConfigError(fault)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not readable as JSON ({error}; the file has {len(content)} bytes); download the file again") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: holds a {type(value).__name__}, not a JSON object; download the file again")
    return value


def pointer_fault(path: Path, start: bytes) -> str | None:
    """What to say when `start`, a file's first bytes, are those of a Git LFS pointer: the clone brought no data."""
    if not start.startswith(LFS_MAGIC):
        return None
    return f"{path}: is a Git LFS pointer, not the data; run `git lfs pull` in the checkpoint folder or download it again"


def _unsupported(raw: dict[str, Any]) -> list[str]:
    """Switches that would change the arithmetic and that no GLM-5 release sets: refuse rather than ignore."""
    expected: dict[str, Any] = {
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "rope_interleave": True,
        "indexer_rope_interleave": True,
        "num_key_value_heads": raw.get("num_attention_heads"),
    }
    faults = [
        f"{key}: is {raw[key]!r}, only {value!r} is known for GLM-5; check that this is a GLM-5 checkpoint"
        for key, value in expected.items()
        if raw.get(key, value) != value
    ]
    quantisation = raw.get("quantization_config")
    method = quantisation.get("quant_method") if isinstance(quantisation, dict) else quantisation
    if quantisation is not None and method != "ascend":
        faults.append(f"quantization_config: weights quantised by {str(method)[:40]!r}; {_NATIVE_ONLY}")
    return faults


def _derive(raw: dict[str, Any], generation: dict[str, Any], faults: list[str]) -> dict[str, Any]:
    """The checkpoint's keys plus those that releases write in different ways; keys that stay missing are pydantic's to report."""
    values = dict(raw)
    values.pop("eos_token_ids", None)
    values["dtype"] = raw.get("dtype", raw.get("torch_dtype", "bfloat16"))
    if (eos := generation.get("eos_token_id", raw.get("eos_token_id"))) is not None:
        values["eos_token_ids"] = frozenset(eos) if isinstance(eos, list) and all(isinstance(i, int) for i in eos) else eos
        if isinstance(eos, int):
            values["eos_token_ids"] = frozenset({eos})
    values.setdefault("tie_word_embeddings", False)
    values.setdefault("n_group", 1)
    values.setdefault("topk_group", 1)
    _derive_rope(raw, values, faults)
    layers = raw.get("num_hidden_layers")
    if isinstance(layers, int) and 0 < layers <= 1024:
        _derive_layers(raw, values, layers, faults)
    for name in ("indexer_types", "mlp_layer_types"):
        if isinstance(values.get(name), list):
            values[name] = tuple(values[name])
    return values


def _derive_rope(raw: dict[str, Any], values: dict[str, Any], faults: list[str]) -> None:
    """rope_theta stands in rope_parameters (newer files) or at the top; without either any default would be wrong for one release."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        faults.append(f"rope_parameters: is {rope!r}, expected an object with rope_theta")
        return
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        faults.append(f"rope_parameters.rope_type: {kind!r} is not known for GLM-5; remove it or use the checkpoint's original config.json")
    if "rope_theta" in rope:
        values["rope_theta"] = rope["rope_theta"]


def _derive_layers(raw: dict[str, Any], values: dict[str, Any], layers: int, faults: list[str]) -> None:
    """Per-layer lists, from explicit lists, a pattern such as "FFSF", or the frequency rule of GLM-5.2."""
    if raw.get("mlp_layer_types") is None:
        values.pop("mlp_layer_types", None)
        if raw.get("moe_layer_freq", 1) != 1:
            faults.append(f"moe_layer_freq: is {raw['moe_layer_freq']!r}, only 1 is known; add mlp_layer_types to config.json")
        if isinstance(dense := raw.get("first_k_dense_replace"), int):
            values["mlp_layer_types"] = tuple("dense" if layer < dense else "sparse" for layer in range(layers))
    if raw.get("indexer_types") is not None:
        return
    values.pop("indexer_types", None)
    pattern = raw.get("index_topk_pattern")
    if pattern is not None:
        if not isinstance(pattern, str | list) or not all(isinstance(mark, str) for mark in pattern):
            faults.append(f"index_topk_pattern: is {str(pattern)[:40]}, expected a text such as 'FFSF' or a list of such letters")
            return
        values["indexer_types"] = tuple({"F": "full", "S": "shared"}.get(mark, mark) for mark in pattern)
        return
    frequency = raw.get("index_topk_freq", 1) or 1
    offset = raw.get("index_skip_topk_offset", 2 if frequency == 1 else None)
    if not isinstance(frequency, int) or not isinstance(offset, int) or frequency < 1:
        faults.append(
            f"index_skip_topk_offset: index_topk_freq {frequency!r} with offset {offset!r} does not say which layers have an"
            " indexer; add both as integers, or indexer_types"
        )
        return
    values["indexer_types"] = tuple("full" if max(i - offset + 1, 0) % frequency == 0 else "shared" for i in range(layers))


def _say(fault: ErrorDetails) -> str:
    """One pydantic fault with the field as the file names it, and the remedy."""
    field = ".".join(map(str, fault["loc"]))
    for derived, written in _WRITTEN_AS.items():
        field = field.replace(derived, written)
    if fault["type"] == "missing":
        return f"{field}: missing; take config.json and generation_config.json from the checkpoint's own release"
    message = str(fault["msg"]).removeprefix("Value error, ")
    return message if fault["type"] == "value_error" else f"{field}: {message}, is {str(fault['input'])[:80]!r}"


def _report(path: Path, faults: list[str]) -> str:
    return f"{path}: " + "; ".join(faults)


class ContextTier(BaseModel):
    """A class of requests: those of up to `length` tokens, with their part of places, cache pages and step tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    length: int = Field(ge=1)
    share: float | None = Field(None, gt=0, lt=1)

    @property
    def name(self) -> str:
        """What requests call it: `4k` for 4096, the number where it is no multiple of 1024."""
        return str(self.length) if self.length % 1024 else f"{self.length // 1024}k"


def parse_tiers(text: str) -> tuple[ContextTier, ...]:
    """`4k:0.5,16k` → tiers of 4096 tokens with half of everything and of 16384 tokens; raises ValueError."""
    tiers = []
    for item in text.split(","):
        match = re.fullmatch(r"(\d{1,8})(k?)(?::(0?\.\d{1,6}))?", item.strip())
        if match is None or not int(match[1]) or (match[3] and not float(match[3])):
            raise ValueError(f"{item.strip()[:40]!r} must be a length and, if wanted, its share: 4k, 4096 or 4k:0.5")
        length = int(match[1]) * (1024 if match[2] else 1)
        tiers.append(ContextTier(length=length, share=float(match[3]) if match[3] else None))
    if any(first.length >= second.length for first, second in pairwise(tiers)):
        raise ValueError("the lengths must grow from tier to tier")
    if sum(tier.share or 0 for tier in tiers) >= 1:
        raise ValueError("the shares must add up to less than 1: what is left is for longer requests")
    return tuple(tiers)


def complete_tiers(tiers: tuple[ContextTier, ...], longest: int) -> tuple[ContextTier, ...]:
    """The tiers, with one for requests up to `longest` tokens at the end and a share for each; no tiers stay no tiers.

    Those without a share divide equally what is left. Raises ConfigError when a tier is longer than the model serves.
    """
    if not tiers:
        return ()
    if tiers[-1].length > longest:
        raise ConfigError(
            f"--context-tiers: {tiers[-1].name} ({tiers[-1].length} tokens) is longer than this model serves, {longest}; leave it out"
        )
    if tiers[-1].length < longest:
        tiers = (*tiers, ContextTier(length=longest))
    left = 1 - sum(tier.share or 0 for tier in tiers)
    without = sum(tier.share is None for tier in tiers)
    return tuple(tier if tier.share else tier.model_copy(update={"share": left / without}) for tier in tiers)


def parallel_faults(model: ModelConfig, tensor: int, data: int, *, spread_experts: bool) -> list[str]:
    """Why the model can't be divided like this, one line for each flag's value that doesn't fit; empty when it can."""
    faults: list[str] = []
    shared = model.moe_intermediate_size * model.n_shared_experts
    sizes = {name: getattr(model, name) for name in ("num_attention_heads", "vocab_size", "intermediate_size")}
    sizes |= (
        {"moe_intermediate_size times n_shared_experts": shared}
        if spread_experts
        else {"moe_intermediate_size": model.moe_intermediate_size}
    )
    faults += [f"--tensor-parallel-size: {name} {size} can't be divided by {tensor}" for name, size in sizes.items() if size % tensor]
    if data > 1 and not spread_experts:
        faults.append(
            f"--data-parallel-size: {data} without --enable-expert-parallel would be {data} whole models; start as many servers instead"
        )
    if spread_experts and model.n_routed_experts % (tensor * data):
        faults.append(f"--enable-expert-parallel: {model.n_routed_experts} experts can't be divided by {tensor * data} ranks")
    return faults


class EngineConfig(BaseModel):
    """Settings of one engine. Every field is a flag of `glm5-runtime serve` or has a default that no user need change."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: Literal["auto", "cpu", "npu", "cuda"] = Field(
        "auto", description="Where the model runs. auto: the accelerator that torch finds, else the CPU."
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto",
        description="Type of weights and cache. auto: the checkpoint's own on an accelerator, float32 on a CPU, where bf16 is slow.",
    )
    kv_cache_dtype: Literal["auto", "bfloat16", "float16", "float32", "int8", "int4"] = Field(
        "auto",
        description="Type of the cache. auto: dtype. int8 and int4: rows with scales of their own; index keys have 8 bits in both.",
    )
    sparse_kv: float | None = Field(
        None,
        ge=LEAST_SAMPLE,
        le=1,
        description="Beyond 8192 tokens of context, only the last 4096 and this share of the others are looked at. Default: all.",
    )
    max_model_len: int | None = Field(
        None, ge=1, description="Longest prompt plus answer, tokens. Default: the checkpoint's limit. Lower it to save cache."
    )
    max_sequences: int = Field(16, ge=1, description="Requests computed side by side; more raise throughput and latency.")
    max_batched_tokens: int = Field(
        2048, ge=1, description="Tokens of one step, prompts and decodes together. Long prompts are cut to it, so decodes keep flowing."
    )
    max_queue: int = Field(256, ge=0, description="Requests that may wait for a place; one more is refused with 429.")
    page_size: int = Field(16, ge=1, description="Tokens per cache page; Ascend's fused attention likes 16.")
    cache_tokens: int | None = Field(
        None, ge=1, description="Tokens the cache holds. Default: all sequences at full length, or what memory holds."
    )
    memory_fraction: float = Field(
        0.9,
        gt=0,
        le=1,
        description="Share of the device's memory that may be in use, weights and temporaries included; a container's limit counts.",
    )
    memory_reserve: int = Field(0, ge=0, description="Bytes that stay free besides.")
    memory_limit: int | None = Field(None, ge=1, description="Most memory of the device that this process uses, bytes (ASCEND_MAX_MEM).")
    context_tiers: tuple[ContextTier, ...] = Field(
        (), description="Classes of requests by length, so that long ones leave room for short ones. Default: one class."
    )
    prefix_cache: bool = Field(
        default=True, description="Requests that begin alike share the pages of their beginning instead of computing it again."
    )
    speculative_tokens: int = Field(
        0,
        ge=0,
        le=MAX_DRAFTS,
        description="Tokens guessed ahead and checked in one step. 0: none. The text stays the same; it comes faster.",
    )
    speculative_method: Literal["auto", "mtp", "ngram"] = Field(
        "auto",
        description="Who guesses: mtp, the checkpoint's multi-token-prediction layer; ngram, the text itself where it repeats."
        " auto: mtp where the checkpoint has it.",
    )
    check_weights: bool = Field(default=False, description="Look at every number of the weights while they load; the load takes longer.")
    max_loras: int = Field(0, ge=0, le=256, description="Adapters that may be loaded at the same time. 0: the server takes none.")
    max_lora_rank: int = Field(16, ge=1, le=1024, description="Largest rank of an adapter.")
    lora_modules: tuple[tuple[str, Path], ...] = Field((), description="Names and folders of adapters to load at start.")
    served_model_name: str | None = Field(None, description="What clients call the model, which an adapter's base may be called, too.")
    seed: int = Field(0, ge=0, description="Start of the seeds of requests that bring none.")
    tensor_parallel_size: int = Field(
        1, ge=1, le=MAX_RANKS, description="Ranks that hold one model between them: heads, inner sizes and vocabulary are divided."
    )
    data_parallel_size: int = Field(
        1, ge=1, le=MAX_RANKS, description="Groups of ranks with sequences and a cache of their own, which share the experts between them."
    )
    enable_expert_parallel: bool = Field(
        default=False, description="Routed experts are dealt out whole over all ranks, instead of being divided like everything else."
    )
    exchange_timeout: float = Field(60.0, gt=0, description="Seconds that a rank may keep the others waiting before the engine fails.")
    adapter_timeout: float = Field(600.0, gt=0, description="Seconds that other ranks may take to load an adapter before it is given up.")

    @property
    def ranks(self) -> int:
        """Processes that compute one step together, each on a device of its own."""
        return self.tensor_parallel_size * self.data_parallel_size

    @model_validator(mode="after")
    def _every_sequence_can_decode(self) -> Self:
        least = self.max_sequences * (1 + self.speculative_tokens)
        if self.max_batched_tokens < least:
            raise ValueError(
                f"max_batched_tokens {self.max_batched_tokens} is less than what max_sequences take ({least}): some would starve"
            )
        if len(self.context_tiers) >= self.max_sequences:
            raise ValueError(
                f"max_sequences {self.max_sequences} is too few for {len(self.context_tiers)} context_tiers and longer requests"
            )
        return self
