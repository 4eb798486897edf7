"""Putting an engine together: device, type, weights, cache size. Called by the server and tools."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from glm5_runtime.config import ConfigError, EngineConfig, ModelConfig, complete_tiers, parallel_faults
from glm5_runtime.engine.adapter_parts import adapter_part
from glm5_runtime.engine.adapters import AdapterStore
from glm5_runtime.engine.blocks import PagePool
from glm5_runtime.engine.buckets import Buckets
from glm5_runtime.engine.draft import MtpDrafter, NgramDrafter
from glm5_runtime.engine.engine import Engine
from glm5_runtime.engine.memory import DeviceMemory, cache_bytes, step_bytes
from glm5_runtime.engine.replicas import Replicas
from glm5_runtime.engine.runner import Runner
from glm5_runtime.engine.scheduler import Scheduler
from glm5_runtime.engine.steps import RankSteps, Steps
from glm5_runtime.engine.team import Team, join, launch
from glm5_runtime.model.cache import KVCache, bytes_per_token
from glm5_runtime.model.parallel import ALONE, Ranks
from glm5_runtime.model.weights import load_decoder
from glm5_runtime.ops.interface import operators
from glm5_runtime.ops.thinned import SparseKV, thinned

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from glm5_runtime.engine.adapter_parts import AdapterPart, AllParts, Taken
    from glm5_runtime.engine.draft import Drafter
    from glm5_runtime.engine.steps import StepRunner
    from glm5_runtime.engine.team import Member, RankSpec
    from glm5_runtime.model.decoder import Decoder
    from glm5_runtime.ops.interface import OperatorSet

log = logging.getLogger(__name__)

IDLE_PAGES = 1
"""Pages behind those of sequences, for the token that a data rank without work computes."""


def load_engine(model_dir: Path, config: EngineConfig, start_rank: Callable[[RankSpec], Member] = launch) -> Engine:
    """Read the checkpoint, size the cache, build the engine (not started); raises ConfigError or WeightsError.

    With several ranks the others are started with `start_rank`, and each reads its own part.
    """
    model_config = ModelConfig.from_dir(model_dir)
    if config.ranks == 1:
        steps = load_steps(model_dir, config)
        return _engine(steps.decoder.config, config, steps, steps.cache.pages, steps.adapters)
    sizes = config.tensor_parallel_size, config.data_parallel_size
    if faults := parallel_faults(model_config, *sizes, spread_experts=config.enable_expert_parallel):
        raise ConfigError("; ".join(faults))
    team = Team(model_dir, config, start_rank)
    try:
        team.gather()
        steps = load_steps(model_dir, config, 0, team.rendezvous, team.agree)
        parts = None if steps.adapters is None else team.all_parts(steps.adapters)
        engine = _engine(steps.decoder.config, config, team, steps.cache.pages - IDLE_PAGES, parts)
        team.begin(RankSteps(steps), engine.fail)
    except BaseException:
        team.close()
        raise
    return engine


def engine_around(decoder: Decoder, config: EngineConfig) -> Engine:
    """An engine (not started) of a decoder that somebody else has loaded and may change between requests, as training does.

    Whoever changes its parameters gives later requests another `cache_salt`: pages of the old ones would be found. Raises ConfigError.
    """
    device, dtype = decoder.norm.weight.device, decoder.norm.weight.dtype
    tokens = _cache_tokens(config, decoder.config, device, dtype)
    cache = KVCache.allocate(decoder.config, -(-tokens // config.page_size), config.page_size, device, dtype)
    return _engine(decoder.config, config, Steps(decoder, cache, device), cache.pages, None)


def load_steps(
    model_dir: Path,
    config: EngineConfig,
    rank: int = 0,
    rendezvous: Path | None = None,
    agree: Callable[[int, list[Taken]], int] = lambda tokens, _taken: tokens,
) -> Steps:
    """The model and its cache, or a rank's part of both.

    `agree` makes of the tokens that this rank's cache can hold those of all; it is told which adapters this rank has read too.
    """
    model_config = ModelConfig.from_dir(model_dir)
    if speculative_method(config, model_config) == "mtp":
        model_config = model_config.with_draft_layer()
    device, ranks, idle = torch_device(config.device), ALONE, 0
    if rendezvous is not None:
        device = rank_device(device, rank, config.ranks)
        join(rank, config, rendezvous, device)
        ranks, idle = Ranks(rank, config.tensor_parallel_size, config.data_parallel_size, config.enable_expert_parallel), IDLE_PAGES
        ranks.join(config.exchange_timeout, device)
    dtype = _dtype(config, model_config, device)
    ops, check = _operators(config, device), config.check_weights
    decoder = load_decoder(model_config, model_dir, ops, device, dtype, ranks=ranks, check_numbers=check)
    adapters = adapter_part(decoder, model_dir, config, device, dtype)
    cache_dtype = dtype if config.kv_cache_dtype == "auto" else getattr(torch, config.kv_cache_dtype)
    tokens = agree(_cache_tokens(config, model_config, device, cache_dtype), [] if adapters is None else adapters.first)
    pages = -(-tokens // config.page_size)
    cache = KVCache.allocate(model_config, pages + idle, config.page_size, device, cache_dtype)
    log.info("cache: %d pages of %d tokens, %.1f MB", pages, config.page_size, tokens * bytes_per_token(model_config, cache_dtype) / 1e6)
    return Steps(decoder, cache, device, adapters, Buckets.from_dir(model_dir))


def _engine(
    model_config: ModelConfig, config: EngineConfig, steps: StepRunner, pages: int, adapters: AdapterPart | AllParts | None
) -> Engine:
    """`pages`: those of one data rank."""
    tiers = complete_tiers(config.context_tiers, longest_request(config, model_config))
    schedulers = [
        Scheduler(
            PagePool(pages),
            config.page_size,
            config.max_sequences,
            config.max_batched_tokens,
            prefix_cache=config.prefix_cache,
            tiers=tiers,
        )
        for _ in range(config.data_parallel_size)
    ]
    drafter: Drafter | None = None
    if (method := speculative_method(config, model_config)) is not None:
        count = config.speculative_tokens
        drafter = NgramDrafter(count) if method == "ngram" else MtpDrafter(steps, config.page_size, count)
    scheduler = schedulers[0] if len(schedulers) == 1 else Replicas(schedulers)
    store = None if adapters is None else AdapterStore(adapters, config)
    return Engine(model_config, config, Runner(steps, drafter), scheduler, adapters=store)


def rank_device(device: torch.device, rank: int, ranks: int) -> torch.device:
    """A card for each rank; on a CPU all share it. Raises ConfigError where there are too few."""
    if device.type == "cpu":
        return device
    if (cards := torch.accelerator.device_count()) < ranks:
        raise ConfigError(f"--tensor-parallel-size times --data-parallel-size is {ranks}, and this process has {cards} cards")
    return torch.device(device.type, rank)


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


def _operators(config: EngineConfig, device: torch.device) -> OperatorSet:
    ops = operators(device.type)
    return ops if config.sparse_kv is None else thinned(ops, SparseKV(config.sparse_kv))


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
    sharing = config.ranks if device.type == "cpu" else 1
    affordable = cache_bytes(memory, config, workspace) // each // sharing
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
