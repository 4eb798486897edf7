"""Checkpoints in ModelSlim's layout: which layers stay integers, how mixed ones load, and what is refused by name."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from glm5_runtime.config import ModelConfig
from glm5_runtime.model.checkpoint_files import WeightsError
from glm5_runtime.model.layers import Linear
from glm5_runtime.model.moe import Experts
from glm5_runtime.model.parallel import ALONE, Ranks
from glm5_runtime.model.quant import DESCRIPTION, QuantExperts, QuantLinear
from glm5_runtime.model.weights import load_decoder
from glm5_runtime.ops.interface import operators
from glm5_runtime.ops.packing import pack, unpack
from glm5_runtime.tools.quantize import quantize
from tests.runtime.model.oracle import logits_of, ours

if TYPE_CHECKING:
    from glm5_runtime.model.decoder import Decoder

WEIGHTS = "model-00001-of-00001.safetensors"
EXPERT = "model.layers.1.mlp.experts.3"


@pytest.fixture(scope="module")
def made(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The tiny checkpoint in both schemes."""
    folder = tmp_path_factory.mktemp("quantised")
    for scheme in ("w8a8", "w4a8"):
        quantize(tiny_dir, folder / scheme, scheme)
    return {scheme: folder / scheme for scheme in ("w8a8", "w4a8")}


class Changed:
    """A quantised checkpoint's tensors and kinds, to be changed and saved."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.folder = folder
        self.tensors = load_file(source / WEIGHTS)
        self.kinds = json.loads((source / DESCRIPTION).read_text())
        for name in ("config.json", "generation_config.json"):
            (folder / name).write_bytes((source / name).read_bytes())

    def to_float(self, base: str, weight: Tensor) -> None:
        """A sensitive layer rolled back."""
        for side in ("weight_scale", "weight_offset", "scale_bias"):
            self.tensors.pop(f"{base}.{side}", None)
            self.kinds.pop(f"{base}.{side}", None)
        self.tensors[f"{base}.weight"], self.kinds[f"{base}.weight"] = weight, "FLOAT"

    def load(self) -> Decoder:
        save_file(self.tensors, self.folder / "model.safetensors")
        (self.folder / DESCRIPTION).write_text(json.dumps(self.kinds))
        return ours(self.folder)


@pytest.fixture
def w8a8(made: Mapping[str, Path], tmp_path: Path) -> Changed:
    return Changed(made["w8a8"], tmp_path)


@pytest.fixture
def w4a8(made: Mapping[str, Path], tmp_path: Path) -> Changed:
    return Changed(made["w4a8"], tmp_path)


def _kinds(decoder: Decoder) -> Iterator[tuple[str, str]]:
    for name, module in decoder.named_modules():
        if isinstance(module, Linear | QuantLinear | QuantExperts | Experts):
            yield name, type(module).__name__ + ("4" if isinstance(module, QuantExperts) and module.packed else "")


@pytest.mark.parametrize(("scheme", "experts"), [("w8a8", "QuantExperts"), ("w4a8", "QuantExperts4")])
def test_layers_are_integers_where_the_description_says_so_and_floats_elsewhere(
    scheme: str, experts: str, made: Mapping[str, Path]
) -> None:
    kinds = dict(_kinds(ours(made[scheme])))
    assert {kind for name, kind in kinds.items() if name.endswith(".experts")} == {experts}
    floats = {name.split(".")[-1] for name, kind in kinds.items() if kind == "Linear"}
    assert floats == {"kv_b_proj", "weights_proj", "wk", "lm_head"}
    assert kinds["layers.0.self_attn.qkv_a_proj"] == kinds["layers.1.self_attn.indexer.wq_b"] == "QuantLinear"


def test_parameters_hold_the_files_integers_and_scales(made: Mapping[str, Path]) -> None:
    tensors = load_file(made["w4a8"] / WEIGHTS)
    layer = ours(made["w4a8"]).get_submodule("layers.1")
    experts = layer.get_submodule("mlp.experts")
    assert isinstance(experts, QuantExperts)
    gate, up, down = (tensors[f"{EXPERT}.{part}_proj.weight"] for part in ("gate", "up", "down"))
    assert torch.equal(experts.gate_up_proj[3], torch.cat((gate, up)))
    assert torch.equal(experts.down_proj[3], down)
    assert torch.equal(experts.down_proj_scale[3], tensors[f"{EXPERT}.down_proj.weight_scale"])
    assert torch.equal(experts.gate_up_proj_scale[3, 96:], tensors[f"{EXPERT}.up_proj.weight_scale"])
    fused = layer.get_submodule("self_attn.qkv_a_proj")
    assert isinstance(fused, QuantLinear)
    parts = [tensors[f"model.layers.1.self_attn.{part}.weight"] for part in ("q_a_proj", "kv_a_proj_with_mqa")]
    assert torch.equal(fused.weight, torch.cat(parts))
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.int8, torch.float32}


def test_weights_take_half_and_a_quarter_of_bf16(tiny_dir: Path, made: Mapping[str, Path]) -> None:
    def size(folder: Path) -> int:
        decoder = load_decoder(ModelConfig.from_dir(folder), folder, operators("cpu"), torch.device("cpu"), torch.bfloat16)
        return sum(tensor.nbytes for name, tensor in decoder.named_parameters() if "experts." in name and not name.endswith("_scale"))

    assert size(made["w8a8"]) == size(tiny_dir) / 2
    assert size(made["w4a8"]) < size(tiny_dir) * 0.3  # the shared expert stays int8


def test_a_fused_parameter_of_which_one_part_was_rolled_back_is_a_float_one(
    w8a8: Changed, tiny_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base = "model.layers.1.self_attn"
    scaled = w8a8.tensors[f"{base}.q_a_proj.weight"] * w8a8.tensors[f"{base}.q_a_proj.weight_scale"]
    original = load_file(tiny_dir / "model.safetensors")[f"{base}.kv_a_proj_with_mqa.weight"]
    w8a8.to_float(f"{base}.kv_a_proj_with_mqa", original)
    decoder = w8a8.load()
    fused = decoder.get_submodule("layers.1.self_attn.qkv_a_proj")
    assert isinstance(fused, Linear)
    assert torch.allclose(fused.weight[:64], scaled)
    assert torch.equal(fused.weight[64:], original.float())
    assert isinstance(decoder.get_submodule("layers.0.self_attn.qkv_a_proj"), QuantLinear)
    assert any("layers.1.self_attn.qkv_a_proj: some of its tensors are quantised" in message for message in caplog.messages)
    assert logits_of(decoder, range(20, 50)).isfinite().all()


def test_a_layer_rolled_back_as_a_whole_is_a_float_layer_without_a_word(
    w8a8: Changed, tiny_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    original = load_file(tiny_dir / "model.safetensors")
    for name in [name for name in w8a8.tensors if name.startswith("model.layers.2.") and f"{name}_scale" in w8a8.tensors]:
        w8a8.to_float(name.removesuffix(".weight"), original[name])
    with caplog.at_level(logging.WARNING):
        decoder = w8a8.load()
    kinds = dict(_kinds(decoder))
    assert {kind for name, kind in kinds.items() if name.startswith("layers.2.")} == {"Linear", "Experts"}
    assert {kind for name, kind in kinds.items() if name.startswith("layers.3.mlp")} == {"QuantExperts", "QuantLinear"}
    assert not caplog.messages


def test_what_attention_absorbs_is_a_float_matrix_once_loaded(w8a8: Changed) -> None:
    name = "model.layers.0.self_attn.kv_b_proj"
    weight = w8a8.tensors[f"{name}.weight"].float()
    scale = weight.abs().amax(1, keepdim=True) / 127
    integers = (weight / scale).round().to(torch.int8)
    w8a8.tensors |= {f"{name}.weight": integers, f"{name}.weight_scale": scale, f"{name}.weight_offset": torch.zeros_like(scale)}
    w8a8.kinds |= dict.fromkeys((f"{name}.weight", f"{name}.weight_scale", f"{name}.weight_offset"), "W8A8_DYNAMIC")
    matrix = w8a8.load().get_submodule("layers.0.self_attn.kv_b_proj")
    assert isinstance(matrix, Linear)
    assert torch.allclose(matrix.weight, integers * scale)


def test_4_bits_in_one_expert_among_8_bit_ones_become_bytes_of_the_same_value(w8a8: Changed, made: Mapping[str, Path]) -> None:
    other = load_file(made["w4a8"] / WEIGHTS)
    replaced = {name: other[name] for name in other if name.startswith(f"{EXPERT}.")}
    w8a8.tensors |= replaced
    w8a8.kinds |= dict.fromkeys(replaced, "W4A8_DYNAMIC")
    experts = w8a8.load().get_submodule("layers.1.mlp.experts")
    assert isinstance(experts, QuantExperts)
    assert not experts.packed
    assert torch.equal(experts.down_proj[3], unpack(other[f"{EXPERT}.down_proj.weight"]))
    assert torch.equal(experts.down_proj[2], w8a8.tensors["model.layers.1.mlp.experts.2.down_proj.weight"])


@pytest.mark.parametrize("is_bits", [False, True], ids=["scales in fp32", "scales as bits in int64"])
def test_static_scales_of_activations_are_left_aside_and_the_weights_keep_theirs(
    is_bits: bool, w8a8: Changed, made: Mapping[str, Path]
) -> None:
    """As ModelSlim's recipe for GLM-5 in W8A8 writes all of attention; experts stay dynamic there."""
    tensors, kinds = w8a8.tensors, w8a8.kinds
    for name in [name for name in tensors if ".self_attn." in name and name.endswith(".weight_scale")]:
        base = name.removesuffix(".weight_scale")
        product = (tensors.pop(name) * 0.037).flatten()
        del tensors[f"{base}.weight_offset"], kinds[f"{base}.weight_offset"], kinds[name]
        side = {
            "deq_scale": product.view(torch.int32).to(torch.int64) if is_bits else product,
            "input_scale": torch.tensor([0.037]),
            "input_offset": torch.tensor([5.0]),
            "quant_bias": torch.ones(len(product), dtype=torch.int32),
        }
        tensors |= {f"{base}.{leaf}": tensor for leaf, tensor in side.items()}
        kinds |= dict.fromkeys((f"{base}.{leaf}" for leaf in ("weight", *side)), "W8A8")
    static, dynamic = w8a8.load(), ours(made["w8a8"])
    tokens = range(20, 120)
    assert torch.allclose(logits_of(static, tokens), logits_of(dynamic, tokens), atol=1e-2)
    layer = static.get_submodule("layers.1.self_attn.qkv_a_proj")
    assert isinstance(layer, QuantLinear)
    assert torch.allclose(layer.weight_scale, dynamic.get_parameter("layers.1.self_attn.qkv_a_proj.weight_scale"), rtol=1e-5)


def test_a_static_layer_without_its_activations_scale_is_named(w8a8: Changed) -> None:
    base = "model.layers.0.self_attn.o_proj"
    w8a8.tensors[f"{base}.deq_scale"] = w8a8.tensors.pop(f"{base}.weight_scale").flatten()
    w8a8.kinds |= {f"{base}.weight": "W8A8", f"{base}.deq_scale": "W8A8"}
    with pytest.raises(WeightsError, match=r"missing tensor '.*o_proj\.input_scale'"):
        w8a8.load()


def test_layers_with_scales_for_both_ways_use_the_dynamic_one(w8a8: Changed, made: Mapping[str, Path]) -> None:
    base = "model.layers.0.self_attn.o_proj"
    for leaf in ("deq_scale", "input_scale", "input_offset", "quant_bias"):
        w8a8.tensors[f"{base}.{leaf}"] = torch.ones(1)
    w8a8.kinds |= dict.fromkeys((name for name in w8a8.tensors if name.startswith(base)), "W8A8_MIX")
    name = "layers.0.self_attn.o_proj.weight_scale"
    assert torch.equal(w8a8.load().get_parameter(name), ours(made["w8a8"]).get_parameter(name))


def test_scales_and_rotations_of_a_c8_checkpoints_cache_are_left_aside(w8a8: Changed, made: Mapping[str, Path]) -> None:
    base = "model.layers.0.self_attn"
    w8a8.tensors |= {f"{base}.fa_k.scale": torch.ones(1, 1), f"{base}.indexer.q_rot": torch.eye(32), f"{base}.indexer.k_rot": torch.eye(32)}
    w8a8.kinds |= {f"{base}.fa_k.scale": "FAQuant", f"{base}.indexer.q_rot": "FLOAT", f"{base}.indexer.quant_type": "INT8_DYNAMIC"}
    plain = dict(ours(made["w8a8"]).named_parameters())
    loaded = dict(w8a8.load().named_parameters())
    assert loaded.keys() == plain.keys()
    assert all(torch.equal(loaded[name], plain[name]) for name in plain)


def _refusals() -> dict[str, tuple[str, object]]:
    down = f"{EXPERT}.down_proj"

    def kind(name: str, value: str) -> object:
        return lambda changed: changed.kinds.update({name: value})

    def tensor(name: str, change: object) -> object:
        return lambda changed: changed.tensors.update({name: change(changed.tensors[name])})  # type: ignore[operator]  # a function

    def gone(name: str) -> object:
        return lambda changed: changed.tensors.pop(name)

    first = "model.layers.1.mlp.experts.0.down_proj"
    return {
        "another scheme": (r"down_proj.weight' is 'W4A4_DYNAMIC'; this engine reads", kind(f"{down}.weight", "W4A4_DYNAMIC")),
        "groups": ("group_size is 256; this engine reads one scale for each output channel", kind("group_size", 256)),  # type: ignore[arg-type]  # a number
        "floats called integers": (r"is F32, and quant_model_description.json calls it", tensor(f"{down}.weight", lambda t: t.float())),
        "no scale": (r"missing tensor '.*down_proj\.weight_scale'", gone(f"{down}.weight_scale")),
        "a scale for groups": ("weight_scale' has shape", tensor(f"{down}.weight_scale", lambda t: t.expand(-1, 2).contiguous())),
        "an offset": ("weight_offset' is not zero", tensor(f"{down}.weight_offset", lambda t: t + 1)),
        "half the rows": ("has shape", tensor(f"{down}.weight", lambda t: t[:8].contiguous())),
        "halves exchanged": ("packed in another order", tensor(f"{first}.weight", lambda t: (t << 4) | ((t >> 4) & 15))),
        "rows in another order": ("packed in another order", tensor(f"{first}.weight", lambda t: pack(unpack(t).flip(0)))),
    }


REFUSALS = _refusals()


@pytest.mark.parametrize("case", REFUSALS)
def test_what_this_engine_would_read_wrongly_is_refused_with_its_name(case: str, w4a8: Changed) -> None:
    message, change = REFUSALS[case]
    change(w4a8)  # type: ignore[operator]  # a function of the checkpoint
    with pytest.raises(WeightsError, match=message):
        w4a8.load()


def test_a_description_that_is_no_json_is_named(w8a8: Changed) -> None:
    save_file(w8a8.tensors, w8a8.folder / "model.safetensors")
    (w8a8.folder / DESCRIPTION).write_text("{")
    with pytest.raises(WeightsError, match=f"{DESCRIPTION}: not readable as JSON"):
        ours(w8a8.folder)


def test_modelslims_file_names_are_found(w8a8: Changed, made: Mapping[str, Path]) -> None:
    names = sorted(w8a8.tensors)
    for number in (1, 2):
        file = w8a8.folder / f"quant_model_weights-{number:05d}-of-00002.safetensors"
        save_file({name: w8a8.tensors[name] for name in names[number - 1 :: 2]}, file)
    (w8a8.folder / "quant_model_weights.safetensors.index.json").write_text("{}")
    (w8a8.folder / DESCRIPTION).write_text(json.dumps(w8a8.kinds))
    expected = ours(made["w8a8"]).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in ours(w8a8.folder).state_dict().items())


@pytest.mark.parametrize("spread", [False, True], ids=["experts cut", "experts dealt out"])
@pytest.mark.parametrize("scheme", ["w8a8", "w4a8"])
def test_two_ranks_hold_the_whole_models_integers_and_scales_between_them(scheme: str, spread: bool, made: Mapping[str, Path]) -> None:
    def parameters(ranks: Ranks) -> dict[str, Tensor]:
        config, device = ModelConfig.from_dir(made[scheme]), torch.device("cpu")
        return dict(load_decoder(config, made[scheme], operators("cpu"), device, torch.float32, ranks=ranks).named_parameters())

    whole, halves = parameters(ALONE), [parameters(Ranks(rank, 2, spread_experts=spread)) for rank in (0, 1)]
    for name, tensor in whole.items():
        parts = [half[name] for half in halves]
        axis = next((axis for axis, (full, part) in enumerate(zip(tensor.shape, parts[0].shape, strict=True)) if full != part), None)
        if axis is None:
            assert all(torch.equal(part, tensor) for part in parts)
            continue
        fused = 2 if "gate_up_proj" in name and axis == tensor.dim() - 2 else 1  # each rank's rows are of the gate, then of up
        pieces = zip(*(part.chunk(fused, axis) for part in parts), strict=True)
        assert torch.equal(torch.cat([torch.cat(piece, axis) for piece in pieces], axis), tensor)


def test_unknown_tensors_beside_quantised_ones_are_still_refused(w8a8: Changed) -> None:
    w8a8.tensors["model.layers.0.self_attn.surprise.weight"] = torch.zeros(1)
    with pytest.raises(WeightsError, match=r"unknown tensor '.*surprise\.weight'"):
        w8a8.load()
