"""Adapters on the decoder: where they are, how they begin, what dropout does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from glm5_runtime.config import ConfigError
from glm5_runtime.tools.quantize import quantize
from glm5_runtime.train.build import build
from glm5_runtime.train.config import TARGETS, LoraConfig
from glm5_runtime.train.lora import LoraAbsorbed, dropout, install
from glm5_runtime.train.optimizer import named_trainable
from glm5_runtime.train.packing import pack
from tests.runtime.model.oracle import CPU, ours
from tests.runtime.train.rows import make_rows
from tests.runtime.train.runs import settings

if TYPE_CHECKING:
    from pathlib import Path

    from glm5_runtime.model.decoder import Decoder


@pytest.mark.parametrize("share", [0.1, 0.5, 0.004])
def test_dropout_zeroes_its_share_and_keeps_the_mean(share: float) -> None:
    torch.manual_seed(3)
    x = torch.ones(1001, 999)

    dropped = dropout(x, share)

    kept = round(share * 256) / 256
    assert float((dropped == 0).float().mean()) == pytest.approx(kept, abs=2e-3)
    assert float(dropped.mean()) == pytest.approx(1.0, abs=5e-3)
    assert dropped.unique().tolist() == pytest.approx([0.0, 1 / (1 - kept)])
    columns = (dropped.flatten()[: 8 * 124_000].view(-1, 8) == 0).float().mean(0)  # no byte of a word is special
    assert float((columns - kept).abs().max()) < 5e-3


def test_dropout_follows_the_seed_and_carries_gradients_of_what_is_kept() -> None:
    x = torch.randn(64, 64, requires_grad=True)
    torch.manual_seed(1)
    first = dropout(x, 0.25)
    torch.manual_seed(1)

    assert torch.equal(dropout(x, 0.25), first)
    first.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad != 0, first != 0)
    assert dropout(x, 0.0) is x


def test_adapters_begin_as_nothing_in_fp32_whatever_the_type_of_the_model(tmp_path: Path) -> None:
    config = settings(tmp_path, lora={"targets": TARGETS}, training={"dtype": "bf16"})
    trainee = build(config, CPU)
    rows = make_rows([40, 90])
    plain = build(settings(tmp_path, training={"dtype": "bf16"}), CPU).model.eval()

    assert {parameter.dtype for _, parameter in named_trainable(trainee.model)} == {torch.float32}
    for module, name in trainee.places.values():
        pair = module.adapters[name]
        assert float(pair.up.detach().abs().max()) == 0
        bound = pair.down.shape[-1] ** -0.5
        assert 0.9 * bound < float(pair.down.detach().abs().max()) <= bound
    with torch.no_grad():
        assert torch.equal(trainee.model.eval()(pack(rows, CPU)), plain(pack(rows, CPU)))


def test_every_layer_has_every_adapter_and_the_indexer_none(tmp_path: Path) -> None:
    places = build(settings(tmp_path, lora={"targets": TARGETS}), CPU).places

    attention = ["kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "q_a_proj", "q_b_proj"]
    for layer in range(4):
        own = sorted(path.removeprefix(f"model.layers.{layer}.") for path in places if f".{layer}." in path)
        mlp = ["mlp.down_proj", "mlp.gate_proj", "mlp.up_proj"]
        if layer:
            mlp = [f"mlp.experts.{name}" for name in ("down_proj", "gate_up_proj")] + [
                f"mlp.shared_experts.{name}" for name in ("down_proj", "gate_proj", "up_proj")
            ]
        assert own == mlp + [f"self_attn.{name}" for name in attention]


def test_the_same_seed_gives_the_same_adapters(tmp_path: Path) -> None:
    first, second, other = (dict(named_trainable(build(settings(tmp_path, training={"seed": seed}), CPU).model)) for seed in (4, 4, 5))

    assert all(torch.equal(parameter, second[name]) for name, parameter in first.items())
    assert not all(torch.equal(parameter, other[name]) for name, parameter in first.items())


def test_dropout_of_kv_b_proj_hides_the_same_inputs_from_all_tokens(tmp_path: Path) -> None:
    trainee = build(settings(tmp_path, lora={"targets": ["kv_b_proj"], "dropout": 0.5}), CPU)
    module, name = next(iter(trainee.places.values()))
    assert isinstance(module, LoraAbsorbed)
    module.adapters[name].up.data += 1

    delta = (module.train().weight - module.base.weight).detach()
    whole = (module.eval().weight - module.base.weight).detach()

    hidden = (delta == 0).all(0)
    assert 10 < int(hidden.sum()) < 54
    assert torch.allclose(delta[:, ~hidden], 2 * whole[:, ~hidden], atol=1e-5)


def test_quantised_weights_and_missing_modules_are_refused_by_name(tmp_path: Path, tiny_dir: Path) -> None:
    quantize(tiny_dir, tmp_path / "w8a8", "w8a8")
    with pytest.raises(ConfigError, match="its weights are quantised"):
        build(settings(tmp_path, model=str(tmp_path / "w8a8")), CPU)

    with pytest.raises(ConfigError, match="has none of experts"):
        install(dense_only(tiny_dir), LoraConfig(targets=("experts",)), seed=0)


def dense_only(directory: Path) -> Decoder:
    decoder = ours(directory)
    kinds = tuple("dense" for _ in decoder.config.mlp_layer_types)
    decoder.config = decoder.config.model_copy(update={"mlp_layer_types": kinds})
    return decoder
