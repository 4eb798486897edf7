"""How much memory the cache may take: what the device has after loading, less what steps need and what shall stay free.

Called once at start by `load`. Nothing here allocates.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from glm5_runtime.model.adapter_files import targets
from glm5_runtime.model.batch import WORKSPACE_BYTES

if TYPE_CHECKING:
    from glm5_runtime.config import EngineConfig, ModelConfig

_LOGIT_ROWS = 512
"""Rows whose logits a step may hold at a time, a margin included."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A device's memory in bytes: all there is, what is free now, what this process uses of it."""

    total: int
    free: int
    own: int

    @classmethod
    def of(cls, device: torch.device) -> DeviceMemory:
        """Ask the device."""
        if device.type == "cpu":
            return host_memory(Path("/"))
        free, total = torch.accelerator.get_memory_info(device)
        return cls(total, free, torch.accelerator.memory_reserved(device))


def cache_bytes(memory: DeviceMemory, config: EngineConfig, workspace: int) -> int:
    """What the cache may take. All three settings hold at once; never negative."""
    for_all = memory.free - int(memory.total * (1 - config.memory_fraction))
    for_us = for_all if config.memory_limit is None else min(for_all, config.memory_limit - memory.own)
    return max(0, for_us - config.memory_reserve - workspace)


def step_bytes(config: EngineConfig, model: ModelConfig) -> int:
    """About the most that one step's temporaries take: an attention call, the widest layer over all tokens, logits."""
    experts = model.num_experts_per_tok * (model.hidden_size + 2 * model.moe_intermediate_size)
    widest = max(experts, 2 * model.intermediate_size, model.num_attention_heads * (model.kv_lora_rank + model.qk_rope_head_dim))
    tokens = config.max_batched_tokens * config.data_parallel_size * (4 * widest + 16 * model.hidden_size)  # experts see all ranks' tokens
    logits = 8 * model.vocab_size * min(_LOGIT_ROWS, max(config.max_batched_tokens, config.max_sequences))
    return WORKSPACE_BYTES + tokens + logits + _adapter_bytes(config, model)


def _adapter_bytes(config: EngineConfig, model: ModelConfig) -> int:
    """What adapters of the largest rank on everything but routed experts take, in 16 bits, twice: stacks are made anew beside the old."""
    if not config.max_loras:
        return 0
    plain = [target for target in targets(model).values() if not target.experts]
    return 4 * config.max_loras * config.max_lora_rank * sum(target.inputs + (target.width or target.outputs) for target in plain)


def host_memory(root: Path) -> DeviceMemory:
    """The machine's memory, or the container's where that is less.

    File pages count as free, mapped weights too: the kernel drops them when it must.
    """
    total, free = (_number(root / "proc/meminfo", name) * 1024 for name in ("MemTotal:", "MemAvailable:"))
    limit, used = root / "sys/fs/cgroup/memory.max", root / "sys/fs/cgroup/memory.stat"
    if limit.exists() and used.exists() and (text := limit.read_text().strip()).isdigit():
        total, free = min(total, int(text)), min(free, int(text) - _number(used, "anon"))
    return DeviceMemory(total, max(0, free), _number(root / "proc/self/status", "RssAnon:") * 1024)


def _number(path: Path, name: str) -> int:
    """The number behind a name, in the file's own unit."""
    return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith((f"{name} ", f"{name}\t")))
