"""A step's tensors: who is computed together, which cache rows they read and write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from glm5_runtime.config import ModelConfig
from glm5_runtime.model.batch import Chunk, build_batch
from glm5_runtime.model.cache import KVCache, bytes_per_token
from tests.runtime.config.releases import GLM_5, GLM_5_2, write_release

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")


@pytest.fixture
def config(tiny_dir: Path) -> ModelConfig:
    return ModelConfig.from_dir(tiny_dir)


def test_decodes_share_a_group_and_a_prompt_has_its_own(config: ModelConfig) -> None:
    chunks = [Chunk([5], 3, [2]), Chunk([6], 9, [7, 3]), Chunk([1, 2, 3], 0, [4])]
    batch = build_batch(chunks, config, page_size=8, device=CPU)
    assert batch.tokens.tolist() == [5, 6, 1, 2, 3]
    assert batch.positions.tolist() == [3, 9, 0, 1, 2]
    assert batch.slots.tolist() == [2 * 8 + 3, 3 * 8 + 1, 4 * 8, 4 * 8 + 1, 4 * 8 + 2]
    assert [group.rows for group in batch.groups] == [slice(0, 2), slice(2, 5)]
    assert [tuple(group.positions.shape) for group in batch.groups] == [(2, 1), (1, 3)]


def test_a_shorter_context_is_padded_with_page_0_and_sees_none_of_it(config: ModelConfig) -> None:
    (group,) = build_batch([Chunk([5], 1, [2]), Chunk([6], 5, [7, 3])], config, page_size=4, device=CPU).groups
    assert group.slots.tolist() == [[8, 9, 10, 11, 0, 1], [28, 29, 30, 31, 12, 13]]
    assert group.visible.sum(-1).tolist() == [[2], [6]]


def test_a_query_sees_itself_and_what_came_before(config: ModelConfig) -> None:
    (group,) = build_batch([Chunk([1, 2, 3], 2, [1, 2])], config, page_size=4, device=CPU).groups
    assert group.visible[0].int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


@pytest.mark.parametrize("workspace", [1, 10_000, 60_000, 1 << 30])
def test_blocks_cover_a_long_prompt_once_and_stay_within_the_workspace(workspace: int, config: ModelConfig) -> None:
    length = 300
    batch = build_batch([Chunk(range(length), 0, range(1, 40))], config, 8, CPU, workspace)
    assert torch.cat([group.positions.flatten() for group in batch.groups]).tolist() == list(range(length))
    for group in batch.groups:
        queries = group.positions.shape[1]
        assert queries == 1 or 4 * queries * group.context * config.index_n_heads <= workspace
        assert group.context == int(group.positions.max()) + 1


def test_many_long_decodes_are_cut_into_groups_that_fit_the_workspace(config: ModelConfig) -> None:
    chunks = [Chunk([1], 500, range(1, 70)) for _ in range(10)]
    groups = build_batch(chunks, config, 8, CPU, workspace=3 * 4 * 64 * 80).groups
    assert [group.positions.shape[0] for group in groups] == [3, 3, 3, 1]


def test_a_cached_token_of_glm_5_and_5_2_takes_the_known_bytes(tmp_path: Path) -> None:
    for name, content, expected in (("5", GLM_5, 89_856 + 19_968), ("5.2", GLM_5_2, 95_232)):
        release = ModelConfig.from_dir(write_release(tmp_path / name, content))
        assert bytes_per_token(release, torch.bfloat16) == expected


def test_the_cache_has_index_rows_on_full_layers_only_and_a_page_for_padding(config: ModelConfig) -> None:
    cache = KVCache.allocate(config, pages=3, page_size=8, device=CPU, dtype=torch.float32)
    assert [layer.index is not None for layer in cache.layers] == [True, True, False, True]
    assert {layer.latent.shape[0] for layer in cache.layers} == {4 * 8}
    assert sum(t.nbytes for layer in cache.layers for t in (layer.latent, layer.rope, layer.index) if t is not None) == (
        4 * 8 * bytes_per_token(config, torch.float32)
    )
