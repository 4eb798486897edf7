"""Loss and gradients of the decoder with adapters, against transformers with PEFT on the same numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from glm5_runtime.config import ModelConfig
from glm5_runtime.model.weights import load_decoder
from glm5_runtime.ops.interface import operators
from glm5_runtime.train.config import LoraConfig
from glm5_runtime.train.forward import TrainingModel
from glm5_runtime.train.lora import install
from glm5_runtime.train.packing import pack
from tests.runtime.model.oracle import CPU, _stable
from tests.runtime.train.rows import as_peft, gradients_of_peft, make_rows, peft_loss, share_numbers, with_peft

if TYPE_CHECKING:
    from pathlib import Path

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
