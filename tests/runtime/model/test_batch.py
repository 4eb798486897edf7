"""A step's tensors: who is computed together, which cache rows they read and write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from glm5_runtime.config import ModelConfig
from glm5_runtime.model import batch as batches
from glm5_runtime.model.attention import Attention
from glm5_runtime.model.batch import WORKSPACE_BYTES, Chunk, build_batch, workspace_bytes
from glm5_runtime.model.cache import KVCache, bytes_per_token
from glm5_runtime.ops.interface import operators
from tests.runtime.config.releases import GLM_5, GLM_5_2, write_release
from tests.support.peak import Peak

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
    assert group.hidden is not None
    assert (~group.hidden).sum(-1).tolist() == [[2], [6]]


def test_a_query_sees_itself_and_what_came_before(config: ModelConfig) -> None:
    (group,) = build_batch([Chunk([1, 2, 3], 2, [1, 2])], config, page_size=4, device=CPU).groups
    assert group.hidden is not None
    assert group.hidden[0].int().tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]
    assert build_batch([Chunk([3], 4, [1, 2])], config, page_size=4, device=CPU).groups[0].hidden is None


def test_pages_side_by_side_are_read_as_a_slice_and_others_are_gathered_to_the_same_rows(config: ModelConfig) -> None:
    rows = torch.arange(40).unsqueeze(1)
    (beside,) = build_batch([Chunk([3], 9, [2, 3, 4, 7])], config, page_size=4, device=CPU).groups
    (apart,) = build_batch([Chunk([3], 9, [2, 4, 3])], config, page_size=4, device=CPU).groups
    assert beside.read(rows).flatten().tolist() == list(range(8, 18))
    assert beside.read(rows).data_ptr() == rows[8:].data_ptr()
    assert apart.read(rows).flatten().tolist() == [8, 9, 10, 11, 16, 17, 18, 19, 12, 13]


@pytest.mark.parametrize("workspace", [1, 10_000, 60_000, 1 << 30])
def test_blocks_cover_a_long_prompt_once_and_stay_within_the_workspace(workspace: int, config: ModelConfig) -> None:
    length = 300
    batch = build_batch([Chunk(range(length), 0, range(1, 40))], config, 8, CPU, workspace)
    assert torch.cat([group.positions.flatten() for group in batch.groups]).tolist() == list(range(length))
    for group in batch.groups:
        queries = group.positions.shape[1]
        assert queries == 1 or workspace_bytes(group.context, 1, queries, config) <= workspace
        assert group.context == int(group.positions.max()) + 1


@pytest.mark.parametrize("context", [512, 2_048, 2_049, 4_096, 8_192, 8_700, 16_384, 202_752])
def test_a_prompt_of_glm_5_stays_within_the_aim_and_takes_as_many_queries_as_fit(context: int, tmp_path: Path) -> None:
    config = ModelConfig.from_dir(write_release(tmp_path, GLM_5))
    pages = range(1, 2 + context // 128)
    groups = build_batch([Chunk([1] * 512, context - 512, pages)], config, 128, CPU).groups
    queries = groups[0].positions.shape[1]
    assert queries == 1 or workspace_bytes(context, 1, queries, config) <= WORKSPACE_BYTES
    assert queries == 512 or workspace_bytes(context, 1, queries + 1, config) > WORKSPACE_BYTES


def test_many_long_decodes_are_cut_into_groups_that_fit_the_workspace(config: ModelConfig) -> None:
    chunks = [Chunk([1], 500, range(1, 70)) for _ in range(10)]
    groups = build_batch(chunks, config, 8, CPU, workspace=workspace_bytes(501, 3, 3, config)).groups
    assert [group.positions.shape[0] for group in groups] == [3, 3, 3, 1]


SIZES = {"kv_lora_rank": 128, "qk_rope_head_dim": 16, "num_attention_heads": 16, "index_n_heads": 8, "index_head_dim": 32, "index_topk": 64}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(1, 40), (12, 1)], ids=["prompt", "decodes"])
@pytest.mark.parametrize("context", [40, 64, 65, 700, 5000])
@pytest.mark.parametrize("changes", [{}, {"index_n_heads": 1}, {"num_attention_heads": 4, "index_topk": 500}], ids=str)
def test_the_workspace_covers_what_torch_really_allocates_and_is_no_wild_guess(
    config: ModelConfig,
    changes: dict[str, int],
    context: int,
    shape: tuple[int, int],
    *,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "_TOGETHER", 1 << 20)
    sequences, queries = shape
    config = config.model_copy(update=SIZES | changes)
    pages = [range(700 + row * 700, row * 700, -1) for row in range(sequences)]  # to be gathered
    chunks = [Chunk([1] * queries, context - queries, of) for of in pages]
    (group,) = build_batch(chunks, config, 8, CPU, workspace=1 << 40).groups
    attention = Attention(config, 0, operators("cpu"))
    cache = KVCache.allocate(config, sequences * 700, 8, CPU, dtype).layers[0]
    count, heads = sequences * queries, config.num_attention_heads
    latent, rope = (
        torch.zeros(count, heads, config.kv_lora_rank, dtype=dtype),
        torch.zeros(count, heads, config.qk_rope_head_dim, dtype=dtype),
    )
    index = torch.zeros(count, config.index_n_heads, config.index_head_dim, dtype=dtype), torch.zeros(count, config.index_n_heads)
    assert attention.indexer is not None
    assert cache.index is not None

    with torch.inference_mode(), Peak() as peak:
        chosen = attention.indexer._choose(*index, cache, group, None)
        attention.ops.attend(latent, rope, cache, group, chosen, scale=attention.scale)

    bound = workspace_bytes(context, sequences, count, config)
    assert peak.most <= bound
    assert bound <= 3 * peak.most


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
