"""Putting an engine together: cache size, type, and what is refused at start with numbers."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

from glm5_runtime.config import ConfigError, EngineConfig, parse_tiers
from glm5_runtime.engine.load import load_engine, torch_device
from glm5_runtime.model.checkpoint_files import WeightsError
from tests.runtime.engine.client import Client, expected_rows, greedy, question

if TYPE_CHECKING:
    from pathlib import Path


def test_the_cache_holds_every_sequence_at_full_length_when_memory_allows(tiny_dir: Path) -> None:
    engine = load_engine(tiny_dir, EngineConfig(max_sequences=3, max_model_len=100, page_size=16))
    assert engine._scheduler.pool.count == 19  # 300 tokens
    assert engine.max_model_len == 100


def test_a_longer_limit_than_the_checkpoints_is_the_checkpoints(tiny_dir: Path) -> None:
    assert load_engine(tiny_dir, EngineConfig(max_sequences=1, max_model_len=10**6)).max_model_len == 2048


def test_a_cache_too_small_for_one_request_is_refused_with_the_numbers(tiny_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds 100 tokens .* one request may need 2048: lower --max-model-len"):
        load_engine(tiny_dir, EngineConfig(cache_tokens=100))


def test_context_tiers_end_with_one_for_the_models_full_length(tiny_dir: Path) -> None:
    tiers = parse_tiers("256:0.5,1k")
    engine = load_engine(tiny_dir, EngineConfig(context_tiers=tiers, max_sequences=8, cache_tokens=8192))
    assert engine.tiers == {"256": 256, "1k": 1024, "2k": 2048}
    assert [tier.share for tier in engine._scheduler.tiers] == [0.5, 0.25, 0.25]
    assert [tier.places for tier in engine._scheduler.tiers] == [3, 2, 2]  # one each, and a share of the other five


def test_a_context_tier_beyond_the_models_length_is_refused(tiny_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"4k \(4096 tokens\) is longer than this model serves, 2048"):
        load_engine(tiny_dir, EngineConfig(context_tiers=parse_tiers("4k")))


def test_a_broken_checkpoint_is_refused_at_load(tiny_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        load_engine(tmp_path, EngineConfig())
    shutil.copy(tiny_dir / "config.json", tmp_path)
    with pytest.raises(WeightsError):
        load_engine(tmp_path, EngineConfig())


def test_weights_that_hold_nan_end_the_load_when_they_are_to_be_checked(tiny_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_dir, tmp_path, dirs_exist_ok=True)
    tensors = load_file(tiny_dir / "model.safetensors")
    tensors["model.layers.4.eh_proj.weight"][0, 0] = float("nan")  # of the layer that drafts
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"model\.safetensors: tensor 'model\.layers\.4\.eh_proj\.weight' holds NaN"):
        load_engine(tmp_path, EngineConfig(check_weights=True, speculative_tokens=1))
    load_engine(tmp_path, EngineConfig(check_weights=True))  # what isn't loaded isn't looked at


def test_auto_is_the_cpu_where_torch_finds_no_accelerator() -> None:
    assert torch.accelerator.is_available() or torch_device("auto") == torch.device("cpu")
    assert torch_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_answers_in_the_same_words(dtype: str, tiny_dir: Path) -> None:
    """Not token for token over every answer, but a wrong cast anywhere would leave no sentence standing."""
    engine = load_engine(tiny_dir, EngineConfig(dtype=dtype, max_sequences=4, max_model_len=256))
    client = Client(engine)
    engine.start()
    rows = expected_rows()[:12]
    streams = [client.send(question(row["question"]), greedy(120)) for row in rows]
    equal = [stream.tokens() == row["tokens"] for stream, row in zip(streams, rows, strict=True)]
    engine.stop()
    assert sum(equal) >= 10
