"""A prompt that is computed once for all of its answers: the same log-probabilities and gradients as rows that are computed apart."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch

from glm5_runtime.train.data.example import Example
from glm5_runtime.train.optimizer import named_trainable
from glm5_runtime.train.packing import pack
from glm5_runtime.train.rl.head import head_loss
from glm5_runtime.train.rl.packing import Row, packs_of
from glm5_runtime.train.rl.policy import PolicyModel, build_policy
from tests.runtime.train.rl.runs import CPU, settings
from tests.runtime.train.rows import share_numbers

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

TOLERANCE = 2e-4
"""Of the largest gradient of a matrix, fp32: sums in another order."""
PROMPTS = [1, 15, 16, 17, 40, 130]
"""Around a page; the indexer chooses 64 tokens of the longest."""


def table(lengths: list[int]) -> tuple[Tensor, list[Row]]:
    """Three answers of up to 40 tokens to each prompt, in a random order."""
    chance = random.Random(3)
    made: list[tuple[list[int], Row]] = []
    for group, length in enumerate(lengths):
        prompt = [chance.randrange(10, 2048) for _ in range(length)]
        for size in (1, 14 + group, 40):
            answer = [chance.randrange(10, 2048) for _ in range(size)]
            made.append((prompt + answer, Row(length, length + size, group, group + 1)))
    chance.shuffle(made)
    width = max(row.end for _, row in made)
    return torch.tensor([tokens + [0] * (width - len(tokens)) for tokens, _ in made]), [row for _, row in made]


def policy(folder: Path) -> PolicyModel:
    made = build_policy(settings(folder, lora={"targets": ["q_a_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "experts"]}), CPU)
    share_numbers(None, dict(made.places))
    assert isinstance(made.model, PolicyModel)
    return made.model


def weighed(log_probs: Tensor, _entropy: Tensor, _rows: slice) -> Tensor:
    return log_probs * log_probs


def gradients(model: PolicyModel) -> dict[str, Tensor]:
    found = {name: each.grad for name, each in named_trainable(model) if each.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_log_probabilities_and_gradients_are_those_of_rows_computed_apart(tmp_path: Path, parts: int) -> None:
    model = policy(tmp_path)
    tokens, rows = table(PROMPTS)
    weight = model.decoder.lm_head.weight
    apart = torch.zeros(tokens.shape)
    for at, row in enumerate(rows):
        trained = tuple(row.start <= place < row.end for place in range(row.end))
        part = pack([Example(tuple(tokens[at, : row.end].tolist()), trained, 1)], CPU)
        found = head_loss(model.hidden(part), weight, part.targets, weighed)
        found.loss.backward()
        apart[at, row.start : row.end] = found.chosen.log_probs
    expected = gradients(model)

    together = torch.zeros(tokens.numel())
    for part, places in packs_of(tokens, rows, parts):
        found = head_loss(model.hidden(part), weight, part.targets, weighed)
        found.loss.backward()
        together[places] = found.chosen.log_probs

    torch.testing.assert_close(together.view_as(tokens), apart, atol=TOLERANCE, rtol=0)
    own = gradients(model)
    assert own.keys() == expected.keys()
    for name, other in expected.items():
        assert float((own[name] - other).abs().max()) < TOLERANCE * float(other.abs().max()), name


def test_a_prompt_is_computed_once_for_its_group() -> None:
    tokens, rows = table([160, 160])

    [(part, places)] = packs_of(tokens, rows, 1)

    assert len(places) == sum(row.end - row.start for row in rows)
    answers = sum(-(-row.end // 16) * 16 - 144 for row in rows)
    assert part.tokens == 2 * 144 + answers


def test_micro_batches_keep_groups_together_while_there_are_enough_of_them() -> None:
    tokens, rows = table([100, 100, 100, 100])

    lines = [set(part.lines) for part, _ in packs_of(tokens, rows, 2)]

    assert sorted(map(len, lines)) == [2, 2]
    assert len([*packs_of(tokens, rows, 6)]) == 6
    assert sum(len(places) for _, places in packs_of(tokens, rows, 6)) == sum(row.end - row.start for row in rows)
