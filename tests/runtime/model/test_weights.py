"""Weights that are not what they should be (D16) are found before anything is loaded; the message names file, tensor and cause."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

from glm5_runtime.config import ModelConfig
from glm5_runtime.model.checkpoint_files import Checkpoint, WeightsError
from glm5_runtime.model.decoder import Decoder
from glm5_runtime.model.weights import FP32_ISLANDS, load_decoder
from glm5_runtime.ops.interface import operators
from tests.runtime.config.releases import GLM_5, GLM_5_2, write_release

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

BROKEN = Path(__file__).parents[2] / "fixtures" / "weights"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tensors(tiny_dir: Path) -> Mapping[str, Tensor]:
    return load_file(tiny_dir / "model.safetensors")


@pytest.fixture
def folder(tmp_path: Path, tiny_dir: Path) -> Path:
    """The tiny checkpoint's configs, without weights yet."""
    for name in ("config.json", "generation_config.json"):
        shutil.copy(tiny_dir / name, tmp_path)
    return tmp_path


def _load(folder: Path, dtype: torch.dtype = torch.bfloat16, *, check_numbers: bool = False) -> Decoder:
    return load_decoder(ModelConfig.from_dir(folder), folder, operators("cpu"), CPU, dtype, check_numbers=check_numbers)


def _save_shards(folder: Path, tensors: Mapping[str, Tensor], count: int = 3, *, with_index: bool = True) -> list[str]:
    names = [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
    place = {key: names[position % count] for position, key in enumerate(sorted(tensors))}
    for name in names:
        save_file({key: tensor for key, tensor in tensors.items() if place[key] == name}, folder / name)
    if with_index:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))
    return names


def test_every_parameter_holds_its_checkpoint_tensor(tiny_dir: Path, tensors: Mapping[str, Tensor]) -> None:
    decoder = _load(tiny_dir)
    layer = decoder.get_submodule("layers.2")
    inner = 96
    gate_up = layer.get_parameter("mlp.experts.gate_up_proj")
    for expert in range(8):
        prefix = f"model.layers.2.mlp.experts.{expert}"
        assert torch.equal(gate_up[expert, :inner], tensors[f"{prefix}.gate_proj.weight"])
        assert torch.equal(gate_up[expert, inner:], tensors[f"{prefix}.up_proj.weight"])
        assert torch.equal(layer.get_parameter("mlp.experts.down_proj")[expert], tensors[f"{prefix}.down_proj.weight"])
    shared = layer.get_parameter("mlp.shared_experts.gate_up_proj.weight")
    assert torch.equal(shared[inner:], tensors["model.layers.2.mlp.shared_experts.up_proj.weight"])
    assert torch.equal(layer.get_parameter("self_attn.kv_b_proj.weight"), tensors["model.layers.2.self_attn.kv_b_proj.weight"])
    assert torch.equal(decoder.lm_head.weight, tensors["lm_head.weight"])


def test_what_decides_choices_stays_in_fp32_and_the_rest_follows_the_type(tiny_dir: Path) -> None:
    kinds = {name: parameter.dtype for name, parameter in _load(tiny_dir).named_parameters()}
    islands = {name for name, kind in kinds.items() if kind == torch.float32}
    assert islands == {name for name in kinds if name.endswith(FP32_ISLANDS)}
    assert len(islands) == 3 * 2 + 3  # router weight and bias of three sparse layers, indexer weights of three full layers
    assert set(kinds.values()) == {torch.float32, torch.bfloat16}


@pytest.mark.parametrize(("release", "billions"), [(GLM_5, 743.91), (GLM_5_2, 743.38)], ids=["GLM-5", "GLM-5.2"])
def test_the_releases_have_their_known_number_of_parameters(release: Mapping[str, object], billions: float, tmp_path: Path) -> None:
    with torch.device("meta"):
        decoder = Decoder(ModelConfig.from_dir(write_release(tmp_path, release)), operators("cpu"))
    assert sum(parameter.numel() for parameter in decoder.parameters()) / 1e9 == pytest.approx(billions, abs=0.005)


def test_nothing_can_be_trained_by_accident_and_nothing_stays_unfilled(tiny_dir: Path) -> None:
    parameters = list(_load(tiny_dir).parameters())
    assert not any(parameter.requires_grad or parameter.is_meta for parameter in parameters)


@pytest.mark.parametrize("with_index", [True, False], ids=["with an index", "by their names"])
def test_shards_load_like_one_file(with_index: bool, folder: Path, tiny_dir: Path, tensors: Mapping[str, Tensor]) -> None:
    _save_shards(folder, tensors, with_index=with_index)
    whole, sharded = _load(tiny_dir).state_dict(), _load(folder).state_dict()
    assert all(torch.equal(whole[name], sharded[name]) for name in whole)


def test_the_mtp_layer_is_skipped_with_a_line_in_the_log(tiny_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        _load(tiny_dir)
    assert any("not used, such as model.layers.4." in message for message in caplog.messages)


def test_indexers_of_layers_that_share_are_skipped(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    save_file({**tensors, "model.layers.2.self_attn.indexer.wk.weight": torch.zeros(32, 128)}, folder / "model.safetensors")
    assert "layers.2.self_attn.indexer.wk.weight" not in _load(folder).state_dict()


def test_a_tied_head_is_the_embedding(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    save_file({key: value for key, value in tensors.items() if key != "lm_head.weight"}, folder / "model.safetensors")
    decoder = _load(folder)
    assert torch.equal(decoder.lm_head.weight, tensors["model.embed_tokens.weight"])


def test_a_copy_of_the_embedding_as_a_tied_head_is_fine_and_a_head_of_its_own_is_a_contradiction(
    folder: Path, tensors: Mapping[str, Tensor]
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, folder / "model.safetensors")
    _load(folder)
    save_file(dict(tensors), folder / "model.safetensors")
    with pytest.raises(WeightsError, match=r"'lm_head\.weight' is not 'model\.embed_tokens\.weight', though .* tie_word_embeddings"):
        _load(folder)


@pytest.mark.parametrize(
    ("fixture", "file", "cause"),
    [
        ("lfs_pointer", "model-00001-of-00002.safetensors", "Git LFS pointer"),
        ("short_header", "model.safetensors", "header truncated"),
        ("missing_shard", "model-00002-of-00002.safetensors", "shard 2 of 2 missing"),
    ],
)
def test_broken_files_are_named_with_their_cause(fixture: str, file: str, cause: str) -> None:
    with pytest.raises(WeightsError) as caught:
        Checkpoint(BROKEN / fixture)
    assert str(caught.value).startswith(f"{BROKEN / fixture / file}: ")
    assert cause in str(caught.value)


def test_a_missing_shard_beside_an_interrupted_download_says_so(tmp_path: Path) -> None:
    shutil.copytree(BROKEN / "missing_shard", tmp_path, dirs_exist_ok=True)
    (tmp_path / "model-00002-of-00002.safetensors.incomplete").write_bytes(b"")
    with pytest.raises(WeightsError, match=r"shard 2 of 2 missing \(an \.incomplete file"):
        Checkpoint(tmp_path)


def test_a_leftover_of_a_download_beside_complete_files_is_only_mentioned(
    folder: Path, tensors: Mapping[str, Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    save_file(dict(tensors), folder / "model.safetensors")
    (folder / "model.safetensors.incomplete").write_bytes(b"")
    assert "lm_head.weight" in Checkpoint(folder).names
    assert any("interrupted" in message for message in caplog.messages)


def test_a_missing_shard_is_found_from_the_names_alone(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    names = _save_shards(folder, tensors, with_index=False)
    (folder / names[1]).unlink()
    with pytest.raises(WeightsError, match="shard 2 of 3 missing"):
        Checkpoint(folder)


@pytest.mark.parametrize("size", [0, 5])
def test_a_file_shorter_than_its_length_field_is_truncated(size: int, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x08" * size)
    with pytest.raises(WeightsError, match="header truncated"):
        Checkpoint(tmp_path)


def test_a_file_cut_in_its_data_is_refused(folder: Path, tiny_dir: Path) -> None:
    whole = (tiny_dir / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-1000])
    with pytest.raises(WeightsError, match="not a complete safetensors file"):
        Checkpoint(folder)


def test_a_header_of_exactly_100_000_bytes_is_fine(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode().ljust(100_000)
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0\0\0")
    assert Checkpoint(tmp_path).read("a").tolist() == [0.0]


def _described(dtype: str = "F32", shape: tuple[int, ...] = (1,), offsets: tuple[int, int] = (0, 4)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


LIES: list[tuple[str, object, int | None, int]] = [  # what it is, header, the length that the file says (None: the true one), bytes of data
    ("longer than any memory", {"a": _described()}, 2**40, 4),
    ("the longest of all", {"a": _described()}, 2**64 - 1, 4),
    ("overlapping offsets", {"a": _described(), "b": _described(offsets=(2, 6))}, None, 6),
    ("the same offsets twice", {"a": _described(), "b": _described()}, None, 4),
    ("offsets with a gap", {"a": _described(offsets=(4, 8))}, None, 8),
    ("offsets backwards", {"a": _described(offsets=(4, 0))}, None, 4),
    ("negative offsets", {"a": _described(offsets=(-4, 0))}, None, 4),
    ("offsets past the end of the file", {"a": _described(), "b": _described(shape=(99,), offsets=(4, 400))}, None, 8),
    ("data that nothing describes", {"a": _described()}, None, 8),
    ("a shape larger than its offsets", {"a": _described(shape=(2,))}, None, 4),
    ("a type larger than its offsets", {"a": _described("F64")}, None, 4),
    ("a shape beyond 64 bits", {"a": _described(shape=(2**62, 2**62), offsets=(0, 0))}, None, 0),
    ("an unknown type", {"a": _described("F31")}, None, 4),
    ("a list", [], None, 0),
    ("a number", 7, None, 0),
]


@pytest.mark.parametrize(("header", "length", "data"), [lie[1:] for lie in LIES], ids=[lie[0] for lie in LIES])
def test_a_header_that_lies_is_refused_with_its_file(header: object, length: int | None, data: int, tmp_path: Path) -> None:
    path, text = tmp_path / "model.safetensors", json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + b"\0" * data)

    with pytest.raises(WeightsError, match=rf"^{re.escape(str(path))}: (header truncated|not a complete safetensors file)"):
        Checkpoint(tmp_path)


def test_a_folder_in_a_files_place_is_named_with_the_user_who_reads(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(WeightsError, match=r"model\.safetensors: not readable \(Is a directory\); .* uid \d+"):
        Checkpoint(tmp_path)


def test_an_empty_folder_says_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no model\.safetensors and no model\.safetensors\.index\.json"):
        Checkpoint(tmp_path)


def test_an_index_that_names_a_tensor_twice_is_refused(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    names = _save_shards(folder, tensors)
    (folder / "model.safetensors.index.json").write_text(
        f'{{"weight_map": {{"lm_head.weight": "{names[0]}", "lm_head.weight": "{names[1]}"}}}}'
    )
    with pytest.raises(WeightsError, match=r"index\.json: names 'lm_head\.weight' twice"):
        Checkpoint(folder)


def test_an_index_that_points_to_the_wrong_shard_is_refused(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    _save_shards(folder, tensors)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    right = index["weight_map"]["lm_head.weight"]
    index["weight_map"]["lm_head.weight"] = wrong = next(name for name in index["weight_map"].values() if name != right)
    path.write_text(json.dumps(index))
    with pytest.raises(WeightsError, match=rf"{wrong}: tensor 'lm_head\.weight' is not in it"):
        Checkpoint(folder)


@pytest.mark.parametrize("place", ["../model.safetensors", "/etc/passwd", "model.bin", 7])
def test_an_index_may_only_name_files_of_its_folder(place: object, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": place}}))
    with pytest.raises(WeightsError, match="no safetensors file of this folder"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": 3}'])
def test_an_index_without_a_map_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(WeightsError, match=r"index\.json: (has no weight_map|not readable)"):
        Checkpoint(tmp_path)


def test_a_tensor_in_two_files_is_refused(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    names = _save_shards(folder, tensors, with_index=False)
    save_file(
        {"lm_head.weight": tensors["lm_head.weight"], **load_file(folder / names[0]), **load_file(folder / names[1])}, folder / names[1]
    )
    with pytest.raises(WeightsError, match=r"is also in model-00001-of-00003\.safetensors"):
        Checkpoint(folder)


def test_missing_tensors_are_listed_and_counted(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    kept = {key: value for key, value in tensors.items() if ".mlp.experts.3." not in key}
    save_file(kept, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=r"missing tensor 'model\.layers\.1\.mlp\.experts\.3\.down_proj\.weight', .* and 6 more"):
        _load(folder)


def test_a_tensor_of_another_shape_is_named_with_both(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    save_file({**tensors, "model.norm.weight": torch.zeros(64)}, folder / "model.safetensors")
    with pytest.raises(
        WeightsError, match=r"model\.safetensors: tensor 'model\.norm\.weight' has shape \[64\], config\.json asks for \[128\]"
    ):
        _load(folder)


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.q_proj.weight", "model.layers.5.eh_proj.weight", "visual.patch.weight"])
def test_an_unknown_tensor_is_refused_not_ignored(name: str, folder: Path, tensors: Mapping[str, Tensor]) -> None:
    save_file({**tensors, name: torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=f"unknown tensor '{name}'"):
        _load(folder)


def test_integers_that_nothing_describes_are_refused_with_their_type(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    key = "model.layers.1.mlp.experts.0.up_proj.weight"
    save_file({**tensors, key: torch.zeros(96, 128, dtype=torch.int8)}, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=r"up_proj\.weight' is I8, and there is no quant_model_description\.json beside it"):
        _load(folder)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "name",
    ["model.embed_tokens.weight", "model.layers.3.mlp.experts.7.up_proj.weight", "model.layers.1.mlp.gate.e_score_correction_bias"],
)
def test_one_number_that_is_not_finite_is_named_with_its_tensor_when_asked_for(
    name: str, number: float, folder: Path, tensors: Mapping[str, Tensor]
) -> None:
    spoilt = tensors[name].clone()
    spoilt.view(-1)[-1] = number
    save_file({**tensors, name: spoilt}, folder / "model.safetensors")

    with pytest.raises(WeightsError, match=rf"model\.safetensors: tensor '{re.escape(name)}' holds NaN or infinite numbers; download it"):
        _load(folder, check_numbers=True)

    _load(folder)  # not by itself: it reads every file


def test_numbers_beyond_the_type_that_weights_are_to_have_are_named_when_asked_for(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    save_file({**tensors, name: tensors[name] * 1e9}, folder / "model.safetensors")

    with pytest.raises(WeightsError, match=rf"'{re.escape(name)}' reaches .*e\+.*, too much for float16; choose another --dtype"):
        _load(folder, torch.float16, check_numbers=True)

    _load(folder, torch.bfloat16, check_numbers=True)
