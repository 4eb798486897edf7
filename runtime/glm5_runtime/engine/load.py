"""Putting an engine together: device, type, weights, cache size. Called by the server and tools."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from glm5_runtime.config import ConfigError, EngineConfig, ModelConfig
from glm5_runtime.engine.blocks import PagePool
from glm5_runtime.engine.engine import Engine
from glm5_runtime.engine.runner import Runner
from glm5_runtime.engine.scheduler import Scheduler
from glm5_runtime.model.cache import KVCache, bytes_per_token
from glm5_runtime.model.weights import load_decoder
from glm5_runtime.ops.interface import operators

log = logging.getLogger(__name__)

CACHE_SHARE = 0.5
"""Share of the memory left after loading that the cache may take; the rest is for the step's temporaries and the server."""


def load_engine(model_dir: Path, config: EngineConfig) -> Engine:
    """Read the checkpoint, size the cache, build the engine (not started); raises ConfigError or WeightsError."""
    model_config = ModelConfig.from_dir(model_dir)
    device = torch_device(config.device)
    dtype = _dtype(config, model_config, device)
    decoder = load_decoder(model_config, model_dir, operators(device.type), device, dtype)
    tokens = _cache_tokens(config, model_config, device, dtype)
    pages = -(-tokens // config.page_size)
    cache = KVCache.allocate(model_config, pages, config.page_size, device, dtype)
    log.info("cache: %d pages of %d tokens, %.1f MB", pages, config.page_size, tokens * bytes_per_token(model_config, dtype) / 1e6)
    scheduler = Scheduler(
        PagePool(pages), config.page_size, config.max_sequences, config.max_batched_tokens, prefix_cache=config.prefix_cache
    )
    return Engine(model_config, config, Runner(decoder, cache, device), scheduler)


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
    longest = min(config.max_model_len or model_config.max_model_len, model_config.max_model_len)
    each = bytes_per_token(model_config, dtype)
    affordable = int(_free_bytes(device) * CACHE_SHARE) // each
    tokens = config.cache_tokens or min(config.max_sequences * longest, affordable)
    if tokens < longest:
        raise ConfigError(
            f"the cache holds {tokens} tokens ({each} bytes each, {affordable} would fit in memory), one request may need {longest}:"
            " lower --max-model-len or give the process more memory"
        )
    return tokens


def _free_bytes(device: torch.device) -> int:
    """Memory left on the device, bytes."""
    return host_free_bytes(Path("/")) if device.type == "cpu" else int(torch.accelerator.get_memory_info(device)[0])


def host_free_bytes(root: Path) -> int:
    """Memory left for this process: the machine's, or what the container's limit leaves.

    File pages count as free, mapped weights too: the kernel drops them when it must.
    """
    free = [_number(root / "proc/meminfo", "MemAvailable:") * 1024]
    limit, used = root / "sys/fs/cgroup/memory.max", root / "sys/fs/cgroup/memory.stat"
    if limit.exists() and used.exists() and (text := limit.read_text().strip()).isdigit():
        free.append(int(text) - _number(used, "anon"))
    return max(0, min(free))


def _number(path: Path, name: str) -> int:
    """The number behind a name, in the file's own unit."""
    return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.split()[0] == name)
