"""A checkpoint's own files decide everything; what they leave open or say wrongly is refused with file, field and remedy."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from glm5_runtime.config import ConfigError, EngineConfig, ModelConfig
from tests.runtime.config.releases import ABSENT, GLM_5, GLM_5_2, write_release

if TYPE_CHECKING:
    from pathlib import Path


def _read(directory: Path, content: dict[str, object], **changes: object) -> ModelConfig:
    return ModelConfig.from_dir(write_release(directory, {**content, **changes}))


def test_glm_5_has_an_indexer_on_every_layer_and_three_dense_layers(tmp_path: Path) -> None:
    config = _read(tmp_path, GLM_5)
    assert config.indexer_types == ("full",) * 78
    assert config.mlp_layer_types == ("dense",) * 3 + ("sparse",) * 75
    assert (config.rope_theta, config.max_model_len) == (1e6, 202_752)
    assert config.eos_token_ids == {154820, 154827, 154829}
    assert (config.rms_norm_eps, config.latent_norm_eps) == (1e-5, 1e-6)


def test_glm_5_2_shares_the_choice_of_21_layers(tmp_path: Path) -> None:
    config = _read(tmp_path, GLM_5_2)
    full = [layer for layer, kind in enumerate(config.indexer_types) if kind == "full"]
    assert full == [0, 1, 2, *range(6, 78, 4)]
    assert len(full) == 21
    assert (config.rope_theta, config.max_model_len) == (8e6, 1_048_576)


def test_an_explicit_list_wins_over_pattern_and_frequency(tmp_path: Path) -> None:
    types = ["full", "shared"] * 39
    assert _read(tmp_path, GLM_5_2, indexer_types=types, index_topk_pattern="F" * 78).indexer_types == tuple(types)


@pytest.mark.parametrize("pattern", ["FS" * 39, ["full", "shared"] * 39])
def test_a_pattern_wins_over_the_frequency(pattern: object, tmp_path: Path) -> None:
    assert _read(tmp_path, GLM_5_2, index_topk_pattern=pattern).indexer_types == ("full", "shared") * 39


def test_the_rotary_base_is_read_from_either_place(tmp_path: Path) -> None:
    assert _read(tmp_path, GLM_5, rope_parameters=ABSENT, rope_theta=5e5).rope_theta == 5e5


def test_the_generation_config_decides_the_stop_ids(tmp_path: Path) -> None:
    directory = write_release(tmp_path, GLM_5, {"eos_token_id": [1, 2], "temperature": 1.0})
    assert ModelConfig.from_dir(directory).eos_token_ids == {1, 2}


def test_a_single_stop_id_is_a_set_of_one(tmp_path: Path) -> None:
    assert _read(tmp_path, GLM_5, eos_token_id=7).eos_token_ids == {7}


def test_the_epsilon_of_the_latent_norms_can_be_set(tmp_path: Path) -> None:
    assert _read(tmp_path, GLM_5, latent_norm_eps=1e-5).latent_norm_eps == 1e-5


def test_the_older_name_of_the_type_is_read(tmp_path: Path) -> None:
    assert _read(tmp_path, GLM_5, dtype=ABSENT, torch_dtype="float16").dtype == "float16"


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "a missing size": ({"hidden_size": ABSENT}, "hidden_size: missing"),
    "no rotary base": ({"rope_parameters": ABSENT}, "rope_parameters.rope_theta: missing"),
    "no stop id": ({"eos_token_id": ABSENT}, "eos_token_id: missing"),
    "no dense layers said": ({"first_k_dense_replace": ABSENT}, "mlp_layer_types: missing"),
    "a size in quotes": ({"hidden_size": "6144"}, "hidden_size"),
    "a negative size": ({"kv_lora_rank": -1}, "kv_lora_rank"),
    "a size beyond reason": ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
    "an odd rotary size": ({"qk_rope_head_dim": 63}, "qk_rope_head_dim"),
    "a fraction of a layer": ({"num_hidden_layers": 78.5}, "num_hidden_layers"),
    "another rotary kind": (
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4}},
        "rope_parameters.rope_type: 'yarn'",
    ),
    "a rotary text": ({"rope_parameters": "default"}, "rope_parameters: is 'default'"),
    "halves instead of pairs": ({"rope_interleave": False}, "rope_interleave: is False"),
    "halves in the indexer": ({"indexer_rope_interleave": False}, "indexer_rope_interleave: is False"),
    "biases in attention": ({"attention_bias": True}, "attention_bias: is True"),
    "grouped keys": ({"num_key_value_heads": 8}, "num_key_value_heads: is 8"),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act: is 'gelu'"),
    "softmax routing": ({"scoring_func": "softmax"}, "scoring_func: is 'softmax'"),
    "quantised weights": ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config: weights quantised by 'fp8'"),
    "quantised weights without a method": ({"quantization_config": {}}, "quantization_config: weights quantised by"),
    "a frequency without offset": ({"index_topk_freq": 4}, "index_skip_topk_offset"),
    "a negative frequency": ({"index_topk_freq": -4, "index_skip_topk_offset": 3}, "index_topk_freq -4"),
    "a pattern of unknown letters": ({"index_topk_pattern": "FX" * 39}, "indexer_types"),
    "a pattern that is a number": ({"index_topk_pattern": 5}, "index_topk_pattern: is 5"),
    "a pattern of lists": ({"index_topk_pattern": [["F"]] * 78}, "index_topk_pattern: is [['F'], "),
    "a pattern too short": ({"index_topk_pattern": "FS"}, "indexer_types has 2 entries for 78 layers"),
    "a first layer without indexer": ({"index_topk_pattern": "SF" * 39}, "the first of indexer_types"),
    "every second layer sparse": ({"moe_layer_freq": 2}, "moe_layer_freq: is 2"),
    "more experts than there are": ({"num_experts_per_tok": 300}, "num_experts_per_tok 300"),
    "groups that don't divide": ({"n_group": 3, "topk_group": 2}, "n_routed_experts 256"),
    "more groups kept than there are": ({"topk_group": 2}, "topk_group 2"),
    "a stop id outside the vocabulary": ({"eos_token_id": [154880]}, "eos_token_id"),
    "a stop id in words": ({"eos_token_id": ["</s>"]}, "eos_token_id"),
    "no stop id in the list": ({"eos_token_id": []}, "eos_token_id"),
    "an epsilon of nothing": ({"rms_norm_eps": 0.0}, "rms_norm_eps"),
    "an epsilon that leaves nothing of the numbers": ({"rms_norm_eps": 1e300}, "rms_norm_eps"),
    "a factor beyond fp32": ({"routed_scaling_factor": 1e308}, "routed_scaling_factor"),
    "an eight-bit type": ({"dtype": "float8_e4m3fn"}, "dtype"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_config_is_refused_with_file_and_field(case: str, tmp_path: Path) -> None:
    changes, expected = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        _read(tmp_path, GLM_5, **changes)
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: ")
    assert expected in str(caught.value)


def test_all_faults_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        _read(tmp_path, GLM_5, hidden_size=0, v_head_dim=ABSENT, hidden_act="relu")
    assert all(name in str(caught.value) for name in ("hidden_size", "v_head_dim", "hidden_act"))


@pytest.mark.parametrize("kind", ["llama", "glm4_moe", "glm5_next", None, 5])
def test_another_architecture_is_named(kind: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model_type: is .*glm_moe_dsa.*--model"):
        _read(tmp_path, GLM_5, model_type=kind)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b"null", b"\xff\xfe", b"version https://git-lfs.github.com/spec/v1", b"[" * 100_000]
)
def test_a_file_that_is_no_json_object_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.json: .*download"):
        ModelConfig.from_dir(tmp_path)


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: not found; model must name"):
        ModelConfig.from_dir(tmp_path / "nothing")


def test_a_broken_generation_config_is_named(tmp_path: Path) -> None:
    directory = write_release(tmp_path, GLM_5)
    (directory / "generation_config.json").write_text("{]")
    with pytest.raises(ConfigError, match=r"generation_config\.json"):
        ModelConfig.from_dir(directory)


def test_a_config_never_changes(tmp_path: Path) -> None:
    config = _read(tmp_path, GLM_5)
    with pytest.raises(ValueError, match="frozen"):
        config.hidden_size = 1  # type: ignore[misc]


def test_unknown_engine_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="max_sequence"):
        EngineConfig.model_validate({"max_sequence": 4})


def test_a_step_must_have_room_for_every_sequence() -> None:
    with pytest.raises(ValueError, match=r"max_batched_tokens 8 is less than what max_sequences take \(16\)"):
        EngineConfig(max_batched_tokens=8)


def test_reading_a_config_imports_no_torch() -> None:
    modules = ", ".join(f"glm5_runtime.{name}" for name in ("config", "engine.request", "engine.stats", "engine.errors"))
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"
