"""Loss and gradients of the decoder with adapters, against transformers with PEFT on the same numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.nn import functional

from glm5_runtime.config import ModelConfig
from glm5_runtime.model.weights import load_decoder
from glm5_runtime.ops import reference
from glm5_runtime.ops.interface import operators
from glm5_runtime.train import packing
from glm5_runtime.train.build import build
from glm5_runtime.train.config import LoraConfig
from glm5_runtime.train.data.example import Example
from glm5_runtime.train.forward import TrainingModel
from glm5_runtime.train.lora import install
from glm5_runtime.train.optimizer import named_trainable
from glm5_runtime.train.packing import pack
from tests.runtime.model.oracle import CPU, _stable, trained
from tests.runtime.train.rows import as_peft, gradients_of_peft, make_rows, peft_loss, share_numbers, with_peft
from tests.runtime.train.runs import settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from tests.runtime.train.rows import Places

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft 0.21 beside transformers 5.24

LENGTHS = [33, 150, 20, 150, 7, 97]  # index_topk is 64: of two rows the indexer chooses among more tokens than that

TOLERANCE = 2e-4
"""Of the largest gradient of a matrix, fp32: sums in another order. Choices with a tie at the last place don't occur in these rows."""


def training_model(directory: Path, config: LoraConfig, *, recompute: bool = False) -> tuple[TrainingModel, Places]:
    decoder = load_decoder(ModelConfig.from_dir(directory), directory, operators("cpu"), CPU, torch.float32, settled=False)
    places = install(decoder, config, seed=0)
    return TrainingModel(decoder, recompute=recompute), places


@pytest.mark.parametrize(
    "targets",
    [
        ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"),
        ("q_a_proj",),
        ("kv_a_proj_with_mqa", "kv_b_proj"),
        ("q", "v", "experts"),
    ],
    ids="+".join,
)
def test_loss_and_all_gradients_are_those_of_peft(tiny_dir: Path, targets: tuple[str, ...]) -> None:
    config = LoraConfig(rank=16, alpha=24, dropout=0.0, targets=targets)
    model, places = training_model(tiny_dir, config)
    oracle = with_peft(tiny_dir, config)
    share_numbers(oracle, places)
    rows = make_rows(LENGTHS)

    with _stable():
        expected = peft_loss(oracle, rows)
        expected.backward()
    loss = model(pack(rows, CPU))
    loss.backward()

    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for path, theirs in gradients_of_peft(oracle, places).items():
        module, name = places[path]
        pair = module.adapters[name]
        for own, other in zip(as_peft(pair.down.grad, pair.up.grad), theirs, strict=True):
            assert float(other.abs().max()) > 1e-2, path
            assert float((own - other).abs().max() / other.abs().max()) < TOLERANCE, path
    assert {name for name, each in model.named_parameters() if each.requires_grad} == {
        name for name, each in model.named_parameters() if each.grad is not None
    }


def gradients(model: TrainingModel, examples: Sequence[Example]) -> dict[str, Tensor]:
    loss = model(pack(examples, CPU))
    names, parameters = zip(*named_trainable(model), strict=True)
    return {"loss": loss.detach(), **dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))}


@pytest.mark.parametrize(("queries", "gather"), [(32, 16), (48, 1), (512, 1)], ids=["blocks", "blocks of own keys", "own keys"])
def test_long_rows_in_blocks_and_with_each_query_s_own_keys_give_the_same_gradients(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch, queries: int, gather: int
) -> None:
    """What rows beyond 512 tokens, and contexts beyond sixteen times index_topk, go through."""
    config = LoraConfig(rank=16, dropout=0.0, targets=("q_a_proj", "kv_a_proj_with_mqa", "kv_b_proj", "experts"))
    model, places = training_model(tiny_dir, config)
    share_numbers(None, places)
    rows = make_rows(LENGTHS)
    expected = gradients(model, rows)

    monkeypatch.setattr(packing, "MOST_QUERIES", queries)
    monkeypatch.setattr(reference, "GATHER_BEYOND", gather)
    found = gradients(model, rows)

    for name, own in found.items():
        assert float((own - expected[name]).abs().max() / expected[name].abs().max()) < TOLERANCE, name


def test_rows_of_a_micro_batch_know_nothing_of_each_other(tiny_dir: Path) -> None:
    model, places = training_model(tiny_dir, LoraConfig(dropout=0.0))
    share_numbers(None, places)
    rows = make_rows(LENGTHS)

    together = model(pack(rows, CPU)).item()

    assert together == pytest.approx(sum(model(pack([row], CPU)).item() for row in rows), rel=1e-5)
    changed = [Example(tuple(reversed(row.tokens)), row.trained, row.line) for row in rows[1:]]
    alone = model(pack(rows[:1], CPU)).item()
    assert model(pack([rows[0], *changed], CPU)).item() - model(pack(changed, CPU)).item() == pytest.approx(alone, rel=1e-3)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_all_adapters_have_gradients_near_those_of_fp32_in_short_types(tmp_path: Path, dtype: str) -> None:
    """Roundings choose other experts and tokens for some; the direction stays."""
    lora = {"targets": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "experts"], "dropout": 0.0}
    rows = make_rows([60, 33, 48])
    found = {}
    for kind in ("fp32", dtype):
        trainee = build(settings(tmp_path, lora=lora, training={"dtype": kind}), CPU)
        share_numbers(None, trainee.places)
        found[kind] = gradients(trainee.model, rows)

    for name, own in found[dtype].items():
        assert own.dtype == torch.float32
        assert float(functional.cosine_similarity(own.flatten(), found["fp32"][name].flatten(), dim=0)) > 0.95, name


@pytest.mark.parametrize("targets", [("up_proj",), ("gate_proj", "down_proj"), ("gate_proj", "up_proj", "down_proj")], ids="+".join)
def test_gradients_of_dense_layers_are_those_of_their_merged_weights(tiny_dir: Path, targets: tuple[str, ...]) -> None:
    """PEFT has no such adapters for this model, so by definition: of W + s · B · A they are s · Bᵀ · dW and s · dW · Aᵀ."""
    config = LoraConfig(rank=16, alpha=24, dropout=0.0, targets=targets)
    model, places = training_model(tiny_dir, config)
    share_numbers(None, places)
    rows = make_rows(LENGTHS)
    oracle = trained(tiny_dir)
    weights = {path: oracle.get_parameter(f"{path}.weight") for path in places}
    pairs = {path: module.adapters[name] for path, (module, name) in places.items()}
    with torch.no_grad():
        for path, pair in pairs.items():
            weights[path].add_(pair.up @ pair.down, alpha=config.scale)
    with _stable():
        expected = peft_loss(oracle, rows)
    slopes = dict(zip(weights, torch.autograd.grad(expected, list(weights.values())), strict=True))

    loss = model(pack(rows, CPU))
    loss.backward()

    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert len(places) == len(targets) * 4
    for path, pair in pairs.items():
        slope = config.scale * slopes[path]
        for own, other in ((pair.down.grad, pair.up.detach().T @ slope), (pair.up.grad, slope @ pair.down.detach().T)):
            assert float((own - other).abs().max() / other.abs().max()) < TOLERANCE, path
