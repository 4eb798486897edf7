"""Adapter folders that must not be used (D14): each is refused with what is wrong and what to do, by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from glm5_runtime.config import ModelConfig
from glm5_runtime.model.adapter_files import CONFIG, WEIGHTS, AdapterError, AdapterFile, read_adapter
from tests.runtime.model.conftest import TINY
from tests.support.adapters import ATTENTION, EXPERTS, write_adapter

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

MODEL = ModelConfig.from_dir(TINY)
LAYER = "base_model.model.model.layers.1"


def read(folder: Path, bases: tuple[str, ...] = ("tiny-glm5", "chat"), dtype: torch.dtype = torch.float32) -> AdapterFile:
    return read_adapter(folder, MODEL, bases, 16, device=torch.device("cpu"), dtype=dtype)


def refusal(folder: Path, **kinds: Any) -> str:  # noqa: ANN401 - of read
    with pytest.raises(AdapterError) as refused:
        read(folder, **kinds)
    return str(refused.value)


def configured(folder: Path, **settings: object) -> Path:
    """An adapter whose adapter_config.json has these fields, None: hasn't this field."""
    write_adapter(folder, MODEL, ("o_proj",))
    kept = json.loads((folder / CONFIG).read_text()) | settings
    (folder / CONFIG).write_text(json.dumps({key: value for key, value in kept.items() if value is not None}))
    return folder


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; only LORA adapters are served"),
        ({"use_dora": True}, "use_dora is set, which this server doesn't honour"),
        ({"bias": "all"}, "bias is set"),
        ({"lora_bias": True}, "lora_bias is set"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is set"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is set"),
        ({"layer_replication": [[0, 2], [1, 3]]}, "layer_replication is set"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices is set"),
        ({"a_switch_of_tomorrow": 3}, "a_switch_of_tomorrow is set"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights 'pissa' changes the base's weights"),
        ({"r": 17}, "r is 17; this server takes ranks from 1 to 16 (--max-lora-rank)"),
        ({"r": 0}, "r is 0"),
        ({"r": "4"}, "r is '4'"),
        ({"r": None}, "r is None"),
        ({"r": 2}, "has rank 4, adapter_config.json says 2; they are of different adapters"),
        ({"rank_pattern": {"o_proj": 8}}, "has rank 4, adapter_config.json says 8"),
        ({"lora_alpha": None}, "lora_alpha holds None"),
        ({"lora_alpha": -1}, "lora_alpha holds -1; use a number above 0"),
        ({"lora_alpha": True}, "lora_alpha holds True"),
        ({"alpha_pattern": {"o_proj": "x"}}, "alpha_pattern holds x"),
        ({"alpha_pattern": {"(a+)+$": 2}}, "alpha_pattern must name modules by their ends"),
        ({"alpha_pattern": {"o_proj": 2}, "use_rslora": True}, "alpha_pattern together with use_rslora is not defined"),
        ({"base_model_name_or_path": "zai-org/GLM-5"}, "'zai-org/GLM-5', expected 'tiny-glm5' = 'chat'; if that is the same model"),
    ],
    ids=str,
)
def test_settings_that_would_change_the_arithmetic_are_refused_by_name(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    assert message in refusal(configured(tmp_path, **settings))


@pytest.mark.parametrize("base", ["tiny-glm5", "me/Tiny-GLM5", "/data/tiny-glm5/", "tiny-glm5-w8a8", "chat", None, ""])
def test_the_base_may_be_called_by_any_of_its_names_or_by_none(tmp_path: Path, base: str | None) -> None:
    assert read(configured(tmp_path, base_model_name_or_path=base)).rank == 4


def test_glm_5_is_not_the_base_of_an_adapter_of_glm_5_1(tmp_path: Path) -> None:
    folder = configured(tmp_path, base_model_name_or_path="zai-org/GLM-5.1")
    assert "is 'zai-org/GLM-5.1'" in refusal(folder, bases=("GLM-5",))
    assert read(folder, bases=("GLM-5.1-w8a8",)).rank == 4


O_A, O_B = f"{LAYER}.self_attn.o_proj.lora_A.weight", f"{LAYER}.self_attn.o_proj.lora_B.weight"
GATE_A = f"{LAYER}.mlp.experts.base_layer.lora_A.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda all_of: all_of.update(x=torch.ones(1)),
            "1 of 51 tensors belong to no module that takes an adapter in this model, such as x",
        ),
        (lambda all_of: all_of.pop(O_B), f"{O_A} has no {O_B} beside it"),
        (lambda all_of: all_of.update({O_A: torch.ones(4, 64)}), f"{O_A} has shape [4, 64], model.layers.1.self_attn.o_proj of this model"),
        (lambda all_of: all_of.update({O_B: torch.ones(128, 5)}), f"{O_B} has shape [128, 5]"),
        (lambda all_of: all_of.update({O_A: torch.ones(4)}), f"{O_A} has shape [4]"),
        (lambda all_of: all_of.update({O_A: torch.ones(())}), f"{O_A} has shape []"),
        (lambda all_of: all_of.update({O_A: torch.ones(4, 128, dtype=torch.int8)}), f"{O_A} is I8; save the adapter in bf16, fp16 or fp32"),
        (lambda all_of: all_of.update({GATE_A: torch.ones(31, 128)}), f"{GATE_A} has shape [31, 128]"),
        (
            lambda all_of: all_of.update({GATE_A: torch.ones(32, 90)}),
            f"{GATE_A} takes 90 and gives 192 numbers, as no experts of this model: it is for another base",
        ),
        (lambda all_of: all_of[O_A].fill_(torch.nan), "the tensors of layers.1.self_attn.o_proj hold NaN or infinity"),
        (lambda all_of: all_of[O_B].fill_(torch.inf), "the tensors of layers.1.self_attn.o_proj hold NaN or infinity"),
        (
            lambda all_of: all_of.update({key.replace("layers.1", "layers.9"): all_of.pop(key) for key in (O_A, O_B)}),
            "2 of 50 tensors belong to no module that takes an adapter in this model, such as base_model.model.model.layers.9.",
        ),
        (
            lambda all_of: all_of.update({key.replace("self_attn.o_proj", "mlp.gate"): all_of.pop(key) for key in (O_A, O_B)}),
            "layers.1.mlp.gate.lora_A.weight",
        ),
        (lambda all_of: all_of.clear(), "holds no tensors"),
    ],
)
def test_tensors_without_their_place_are_refused_by_name(tmp_path: Path, change: Any, message: str) -> None:  # noqa: ANN401 - a lambda
    write_adapter(tmp_path, MODEL, (*(name for name in ATTENTION if name != "kv_b_proj"), *EXPERTS, "shared_experts.up_proj"))
    tensors = load_file(tmp_path / WEIGHTS)
    change(tensors)
    save_file(tensors, tmp_path / WEIGHTS)

    said = refusal(tmp_path)
    assert message in said, said


def test_numbers_too_large_for_the_models_type_are_refused(tmp_path: Path) -> None:
    write_adapter(tmp_path, MODEL, ("o_proj",), strength=1e6)
    assert "numbers too large for torch.float16" in refusal(tmp_path, dtype=torch.float16)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (CONFIG, None, "has no adapter_config.json"),
        (WEIGHTS, None, "has no adapter_model.safetensors; name a folder as PEFT's save_pretrained writes it"),
        (CONFIG, b"{", "not readable as JSON"),
        (CONFIG, b"[]", "holds a list, not a JSON object"),
        (WEIGHTS, b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
        (WEIGHTS, b"\xff" * 7, "header truncated"),
        (WEIGHTS, (1 << 40).to_bytes(8, "little") + b"{}", "header truncated"),
        (WEIGHTS, (2).to_bytes(8, "little") + b"{}", "holds no tensors"),
        (WEIGHTS, (2).to_bytes(8, "little") + b"[]", "not a complete safetensors file"),
    ],
)
def test_files_that_are_not_what_they_are_called(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    write_adapter(tmp_path, MODEL, ("o_proj",))
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert message in refusal(tmp_path)


def test_an_adapter_in_torchs_own_format_is_refused_with_the_remedy(tmp_path: Path) -> None:
    write_adapter(tmp_path, MODEL, ("o_proj",))
    (tmp_path / WEIGHTS).rename(tmp_path / "adapter_model.bin")
    assert "save it as safetensors" in refusal(tmp_path)


def test_ranks_and_scales_follow_the_patterns_and_rslora(tmp_path: Path) -> None:
    def up(folder: Path) -> Tensor:
        return read(folder).pairs["layers.1.self_attn.o_proj"].up

    plain = up(configured(tmp_path / "a"))
    assert torch.allclose(up(configured(tmp_path / "b", lora_alpha=16)), plain * 2)
    assert torch.allclose(up(configured(tmp_path / "c", use_rslora=True)), plain * 2)  # 8 / sqrt(4) instead of 8 / 4
    assert torch.allclose(up(configured(tmp_path / "d", alpha_pattern={"layers.1.self_attn.o_proj": 24, "o_proj": 8})), plain * 3)
    assert torch.allclose(up(configured(tmp_path / "e", alpha_pattern={r".*\.o_proj": 4})), plain / 2)
