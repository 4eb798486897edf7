"""Putting an engine together: device, type, weights, cache size. Called by the server and tools."""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import TYPE_CHECKING

import torch

from glm5_runtime.config import ConfigError, EngineConfig, ModelConfig, complete_tiers
from glm5_runtime.engine.adapters import adapter_store
from glm5_runtime.engine.blocks import PagePool
from glm5_runtime.engine.draft import MtpDrafter, NgramDrafter
from glm5_runtime.engine.engine import Engine
from glm5_runtime.engine.memory import DeviceMemory, cache_bytes, step_bytes
from glm5_runtime.engine.runner import Runner
from glm5_runtime.engine.scheduler import Scheduler
from glm5_runtime.model.cache import KVCache, bytes_per_token
from glm5_runtime.model.weights import load_decoder
from glm5_runtime.ops.interface import operators

if TYPE_CHECKING:
    from pathlib import Path

    from glm5_runtime.engine.draft import Drafter

log = logging.getLogger(__name__)


def load_engine(model_dir: Path, config: EngineConfig) -> Engine:
    """Read the checkpoint, size the cache, build the engine (not started); raises ConfigError or WeightsError."""
    model_config = ModelConfig.from_dir(model_dir)
    method = speculative_method(config, model_config)
    if method == "mtp":
        model_config = model_config.with_draft_layer()
    device = torch_device(config.device)
    dtype = _dtype(config, model_config, device)
    decoder = load_decoder(model_config, model_dir, operators(device.type), device, dtype)
    adapters = adapter_store(decoder, model_dir, config, device, dtype)
    tokens = _cache_tokens(config, model_config, device, dtype)
    pages = -(-tokens // config.page_size)
    cache = KVCache.allocate(model_config, pages, config.page_size, device, dtype)
    _touch(cache)
    log.info("cache: %d pages of %d tokens, %.1f MB", pages, config.page_size, tokens * bytes_per_token(model_config, dtype) / 1e6)
    tiers = complete_tiers(config.context_tiers, longest_request(config, model_config))
    scheduler = Scheduler(
        PagePool(pages),
        config.page_size,
        config.max_sequences,
        config.max_batched_tokens,
        prefix_cache=config.prefix_cache,
        tiers=tiers,
    )
    drafter: Drafter | None = None
    if method is not None:
        count = config.speculative_tokens
        drafter = NgramDrafter(count) if method == "ngram" else MtpDrafter(decoder, cache, count, device)
    return Engine(model_config, config, Runner(decoder, cache, device, drafter), scheduler, adapters=adapters)


def speculative_method(config: EngineConfig, model_config: ModelConfig) -> str | None:
    """Who drafts tokens: None when nobody shall. Raises ConfigError for a layer that the checkpoint hasn't."""
    method = config.speculative_method
    if config.speculative_tokens == 0:
        return None
    if method == "auto":
        return "mtp" if model_config.num_nextn_predict_layers else "ngram"
    if method == "mtp" and not model_config.num_nextn_predict_layers:
        raise ConfigError("speculative_method mtp: the checkpoint has no such layer (num_nextn_predict_layers is 0); use ngram")
    return method


def longest_request(config: EngineConfig, model_config: ModelConfig) -> int:
    """Longest prompt plus answer, tokens."""
    return min(config.max_model_len or model_config.max_model_len, model_config.max_model_len)


def torch_device(name: str) -> torch.device:
    """`auto` is the accelerator torch knows, else the CPU. Whether a named one works is the caller's to check first."""
    if name != "auto":
        return torch.device(name)
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator if accelerator is not None else torch.device("cpu")


def _dtype(config: EngineConfig, model_config: ModelConfig, device: torch.device) -> torch.dtype:
    name = config.dtype
    if name == "auto":
        name = "float32" if device.type == "cpu" else model_config.dtype
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _cache_tokens(config: EngineConfig, model_config: ModelConfig, device: torch.device, dtype: torch.dtype) -> int:
    """Tokens the cache holds: as configured, else all sequences at full length as far as memory goes; at least one full sequence."""
    longest = longest_request(config, model_config)
    each = bytes_per_token(model_config, dtype)
    memory, workspace = DeviceMemory.of(device), step_bytes(config, model_config)
    affordable = cache_bytes(memory, config, workspace) // each
    tokens = config.cache_tokens or min(config.max_sequences * longest, affordable)
    log.info(
        "memory: %.1f GB, %.1f GB free after loading, %.1f GB for steps; %d tokens of %d bytes fit",
        *(size / 1e9 for size in (memory.total, memory.free, workspace)),
        *(affordable, each),
    )
    if tokens < longest:
        raise ConfigError(
            f"the cache holds {tokens} tokens ({each} bytes each, {affordable} would fit in memory: {memory.free / 1e9:.1f} GB free of"
            f" {memory.total / 1e9:.1f} GB, {workspace / 1e9:.1f} GB of it for steps), one request may need {longest}:"
            " lower --max-model-len or --max-batched-tokens, raise --memory-fraction or ASCEND_MAX_MEM, or give the process more memory"
        )
    return tokens


def _touch(cache: KVCache) -> None:
    """Write every page once: a host promises memory at allocation and looks for it at the first write."""
    for layer in cache.layers:
        for field in fields(layer):
            if isinstance(tensor := getattr(layer, field.name), torch.Tensor):
                tensor.zero_()
