"""The model on two ranks by torch's own means. The loop doesn't use them yet; what it trains must not stand in their way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.runtime.train import sharded

if TYPE_CHECKING:
    from pathlib import Path

LORA = {"lora": {"targets": ["q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "kv_b_proj", "o_proj", "experts"], "dropout": 0.0}}
FULL = {"method": "full"}


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
@pytest.mark.parametrize(
    "changes", [LORA, FULL, {**LORA, "training": {"activation_checkpointing": True}}], ids=["lora", "full", "recomputed"]
)
def test_gradients_of_two_ranks_are_those_of_one(tmp_path: Path, way: str, changes: dict[str, Any]) -> None:
    assert sharded.run(tmp_path, way, changes) < 1e-5
