"""The loss that holds few logits, against torch's own on all of them; and rows packed side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.nn import functional

from glm5_runtime.train import loss as module
from glm5_runtime.train.loss import summed_loss
from glm5_runtime.train.packing import cut, pack, trained_tokens
from tests.runtime.model.oracle import CPU
from tests.runtime.train.rows import make_rows

if TYPE_CHECKING:
    from torch import Tensor


def head(dtype: torch.dtype, rows: int = 37, vocabulary: int = 512) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(rows, 64, generator=generator).to(dtype).requires_grad_()
    weight = (torch.randn(vocabulary, 64, generator=generator) * 0.2).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(vocabulary, (rows,), generator=generator)


@pytest.mark.parametrize("held", [1, 4 * 512 * 10, 64 << 20], ids=["one row", "ten rows", "all rows"])
def test_loss_and_gradients_are_those_of_torch_however_many_rows_are_held(monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    monkeypatch.setattr(module, "LOGITS_BYTES", held)
    hidden, weight, targets = head(torch.float32)
    expected = functional.cross_entropy(hidden @ weight.t(), targets, reduction="sum")
    wanted = torch.autograd.grad(3 * expected, (hidden, weight))

    loss = summed_loss(hidden, weight, targets)
    found = torch.autograd.grad(3 * loss, (hidden, weight))

    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for own, other in zip(found, wanted, strict=True):
        assert float((own - other).abs().max()) < 1e-5


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 5e-2), (torch.float16, 3e-2)])
def test_many_small_probabilities_are_not_lost_in_short_types(dtype: torch.dtype, tolerance: float) -> None:
    """Rows that are learned well: 65,536 other words have about 1e-8 each, zero in fp16, together as much as what the right one lacks."""
    hidden, weight, _ = head(torch.float32, rows=8, vocabulary=1 << 16)
    targets = torch.arange(8)
    weight = (0.02 * weight + 0.5).detach()
    weight[:8] += 0.27 * hidden.detach()
    hidden, weight = hidden.detach().to(dtype).requires_grad_(), weight.to(dtype)
    wide = hidden.detach().float().requires_grad_()
    expected = torch.autograd.grad(functional.cross_entropy(wide @ weight.float().t(), targets, reduction="sum"), wide)[0]

    found = torch.autograd.grad(summed_loss(hidden, weight, targets), hidden)[0]

    assert float((found.float() - expected).norm() / expected.norm()) < tolerance


def test_without_anybody_to_ask_no_gradient_is_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an evaluation of full training, whose weights want gradients otherwise."""
    hidden, weight, targets = head(torch.float32)
    asked = []
    monkeypatch.setattr(module.HeadGradients, "add", lambda *_: asked.append(True))

    with torch.no_grad():
        loss = summed_loss(hidden, weight, targets)

    assert not loss.requires_grad
    assert loss.item() == pytest.approx(functional.cross_entropy(hidden @ weight.t(), targets, reduction="sum").item(), rel=1e-6)
    assert not asked
    summed_loss(hidden, weight, targets)
    assert asked


def test_rows_lie_side_by_side_each_filled_up_to_16_and_equal_ones_are_attended_to_in_one_call() -> None:
    rows = make_rows([33, 20, 48, 16, 17])

    made = pack(rows, CPU)

    assert made.tokens == 48 + 32 + 48 + 16 + 32
    assert [(group.rows.start, tuple(group.positions.shape), group.context) for group in made.batch.groups] == [
        (0, (1, 16), 16),
        (16, (2, 32), 32),
        (80, (2, 48), 48),
    ]
    assert sorted(made.batch.slots.tolist()) == list(range(16, 16 * (1 + made.pages)))
    assert made.lines == (1, 2, 3, 4, 5)


def test_every_learned_token_is_a_target_once_at_the_place_before_it() -> None:
    rows = make_rows([700, 33, 600, 33])

    made = pack(rows, CPU)

    assert len(made.targets) == trained_tokens(rows)
    learned = sorted(token for row in rows for token, trained in zip(row.tokens[1:], row.trained[1:], strict=True) if trained)
    assert sorted(made.targets.tolist()) == learned
    follows = {(row.tokens[at], row.tokens[at + 1]) for row in rows for at in range(len(row.tokens) - 1)}
    before = made.batch.tokens[made.rows].tolist()
    assert set(zip(before, made.targets.tolist(), strict=True)) <= follows


def test_micro_batches_have_about_as_many_tokens_and_none_is_empty() -> None:
    rows = make_rows([500, 20, 20, 480, 30, 10])

    parts = cut(rows, 2)

    assert sorted(len(row.tokens) for part in parts for row in part) == sorted(len(row.tokens) for row in rows)
    sizes = [sum(len(row.tokens) for row in part) for part in parts]
    assert max(sizes) - min(sizes) < 40
    assert [len(part) for part in cut(rows[:2], 4)] == [1, 1]
