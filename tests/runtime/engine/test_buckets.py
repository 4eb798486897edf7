"""Buckets of shapes from a checkpoint's ascend_config.json: data, read strictly."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from glm5_runtime.config import ConfigError, EngineConfig
from glm5_runtime.engine.buckets import Buckets
from glm5_runtime.engine.load import load_engine
from glm5_runtime.engine.steps import Steps

if TYPE_CHECKING:
    from pathlib import Path


def _read(folder: Path, content: object) -> Buckets:
    (folder / "ascend_config.json").write_text(json.dumps(content))
    return Buckets.from_dir(folder)


def test_without_a_file_batches_go_by_32_and_lengths_by_128(tmp_path: Path) -> None:
    buckets = Buckets.from_dir(tmp_path)
    assert [buckets.shape(*step) for step in ((1, 1), (32, 128), (33, 129), (64, 4000))] == [(32, 128), (32, 128), (64, 256), (64, 4096)]


def test_the_split_shape_of_the_unified_buffer_is_the_hint(tmp_path: Path) -> None:
    assert _read(tmp_path, {"enable_dynamic_ub": True, "ub_split_shape": [1, 16, 256, 128], "other": 1}) == Buckets(16, 256)
    assert _read(tmp_path, {"ub_split_shape": [1, 8, 64, 64]}) == Buckets(8, 64)


def test_a_buffer_that_is_not_split_leaves_shapes_as_they_come(tmp_path: Path) -> None:
    buckets = _read(tmp_path, {"enable_dynamic_ub": False, "ub_split_shape": [1, 32, 128, 128]})
    assert buckets.shape(5, 77) == (5, 77)


def test_the_engine_knows_its_checkpoints_buckets(tiny_dir: Path) -> None:
    engine = load_engine(tiny_dir, EngineConfig(device="cpu", cache_tokens=4096))
    steps = engine._runner._steps
    assert isinstance(steps, Steps)
    assert steps.buckets == Buckets(32, 128)


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ({"ub_split_shape": [32, 128]}, "ub_split_shape"),
        ({"ub_split_shape": [1, 0, 128, 128]}, "ub_split_shape.1"),
        ({"ub_split_shape": "1,32,128,128"}, "ub_split_shape"),
        ({"enable_dynamic_ub": "yes"}, "enable_dynamic_ub"),
        ([1, 32, 128, 128], "not a JSON object"),
    ],
)
def test_a_file_that_says_something_else_is_refused_by_field(content: object, field: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=field) as refused:
        _read(tmp_path, content)
    assert "ascend_config.json" in str(refused.value)
