"""Our decoder against transformers', in fp32.

Logits are compared with the reference's choice of tokens injected: two correct roundings may pick different near-ties, and logits
then part by 1e-3. The choice itself is compared apart: it may differ only between tokens whose scores are within 1e-5.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch

from tests.runtime.model.oracle import Injected, logits_of, ours, reference, seeded_checkpoint, trained

if TYPE_CHECKING:
    from pathlib import Path

    from glm5_runtime.model.decoder import Decoder

_SMALL: dict[str, object] = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 80,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 40,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 20,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "index_topk": 16,
    "index_head_dim": 16,
    "index_n_heads": 4,
    "max_position_embeddings": 512,
}
SHAPES: dict[str, dict[str, object]] = {
    "an indexer on every layer, no dense layer": {"first_k_dense_replace": 0},
    "one head, dense layers only": {"num_attention_heads": 1, "num_key_value_heads": 1, "first_k_dense_replace": 4},
    "the schedule of GLM-5.2": {"num_hidden_layers": 8, "index_topk_freq": 4, "index_skip_topk_offset": 3, "first_k_dense_replace": 3},
    "a pattern of shared layers": {"num_hidden_layers": 5, "index_topk_pattern": "FSSFS"},
    "expert groups": {"n_routed_experts": 12, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4},
    "weights that are not normalised, two shared experts": {"norm_topk_prob": False, "n_shared_experts": 2, "routed_scaling_factor": 1.3},
    "dense and sparse mixed, one indexer head": {"mlp_layer_types": ["sparse", "dense", "sparse", "dense"], "index_n_heads": 1},
    "odd sizes, all experts chosen": {
        "hidden_size": 36,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "v_head_dim": 7,
        "kv_lora_rank": 17,
        "index_head_dim": 11,
        "num_experts_per_tok": 8,
        "index_topk": 5,
    },
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_random_model_agrees_with_the_reference_below_and_above_index_topk(shape: str, tmp_path: Path) -> None:
    changes = {**_SMALL, **SHAPES[shape]}
    model = seeded_checkpoint(tmp_path, seed=list(SHAPES).index(shape), **changes)
    decoder = ours(tmp_path)
    topk = decoder.config.index_topk
    for length in (topk, 90):
        tokens = torch.randint(decoder.config.vocab_size, (length,), generator=torch.Generator().manual_seed(length)).tolist()
        expected = reference(model, tokens)
        injected = Injected(expected.selections)
        difference = (logits_of(decoder, tokens, select=injected) - expected.logits).abs().max()
        assert difference < 1e-4
        assert expected.logits.std() > 0.3  # else small logits alone would pass
        assert injected.worst < 1e-5
        full = {layer for layer, kind in enumerate(decoder.config.indexer_types) if kind == "full"}
        assert injected.layers == (full if length > topk else set())


@pytest.fixture(scope="module")
def tiny(tiny_dir: Path) -> Decoder:
    return ours(tiny_dir)


@pytest.fixture(scope="module")
def long_text(tiny_dir: Path) -> list[int]:
    """Real text of several times index_topk: the known answers after each other."""
    rows = json.loads((tiny_dir / "expected.json").read_text())
    return [token for row in rows if row["kind"] == "text" for token in row["tokens"]][:400]


@pytest.mark.parametrize("length", [60, 400])
def test_the_trained_model_agrees_with_the_reference(length: int, tiny: Decoder, tiny_dir: Path, long_text: list[int]) -> None:
    expected = reference(trained(tiny_dir), long_text[:length])
    injected = Injected(expected.selections)
    assert (logits_of(tiny, long_text[:length], select=injected) - expected.logits).abs().max() < 1e-4
    assert injected.worst < 1e-5
    assert injected.compared == (3 * 400 if length == 400 else 0)


def test_another_selection_changes_the_logits(tiny: Decoder, long_text: list[int]) -> None:
    """The injection is real: attending to the first tokens instead of the best gives another answer."""
    first = logits_of(tiny, long_text, select=lambda layer, group, scores, k: torch.arange(k).expand(*scores.shape[:2], k))
    assert (first - logits_of(tiny, long_text)).abs().max() > 0.1


@pytest.mark.parametrize(
    ("sizes", "workspace"),
    [
        ([1] * 180, 1 << 27),
        ([100, *[1] * 80], 1 << 27),
        ([7] * 25 + [5], 1 << 27),
        ([180], 40_000),
        ([64, 116], 1),
    ],
    ids=["token by token", "prefill then decode", "chunks of 7", "blocks of queries", "one query a block"],
)
def test_steps_and_blocks_change_nothing(sizes: list[int], workspace: int, tiny: Decoder, long_text: list[int]) -> None:
    whole = logits_of(tiny, long_text[:180])
    assert (logits_of(tiny, long_text[:180], sizes, workspace=workspace) - whole).abs().max() < 1e-4
