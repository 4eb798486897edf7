"""Answers of the policy: made by the engine with the weights that are trained, as the training forward sees them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import torch

from glm5_runtime.config import ConfigError
from glm5_runtime.train.faults import NotFinite
from glm5_runtime.train.lora import without_adapters
from glm5_runtime.train.rl import rollout
from glm5_runtime.train.rl.head import choose
from glm5_runtime.train.rl.packing import packs_of
from glm5_runtime.train.rl.rollout import Prompt, RolloutFailed
from tests.runtime.train.rl.runs import QUESTIONS, renderer, rolling, rows_of, settings
from tests.runtime.train.rows import make_rows, share_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from glm5_runtime.train.rl.policy import PolicyModel
    from glm5_runtime.train.rl.rollout import Answer

TOLERANCE = 2e-4
"""fp32, log-probabilities down to -15: a token at a time against all at once, sums in another order."""
ALL = {"rank": 16, "alpha": 32, "targets": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "experts"]}
LONG = {"Tell me a story about rivers. " * 12: "No", "And now? " * 40: "No", "Why?": "No"}
"""Of up to 400 tokens; the indexer chooses 64."""


def prompts(rows: Sequence[object]) -> list[Prompt]:
    return [Prompt.of(row) for row in rows]  # type: ignore[arg-type] # examples


@torch.no_grad()
def by_training(model: PolicyModel, answers: Sequence[Answer], temperature: float) -> list[torch.Tensor]:
    """The log-probabilities of all answers' tokens by the forward pass that is trained."""
    rows = [[*each.prompt.tokens, *each.tokens] for each in answers]
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    places = [(len(each.prompt.tokens), len(row)) for each, row in zip(answers, rows, strict=True)]
    found = torch.zeros(tokens.numel())
    for part, chosen in packs_of(tokens, [each.row for each in answers], 2):
        found[chosen] = choose(model.hidden(part), model.decoder.lm_head.weight, part.targets, temperature).log_probs
    return [row[start:end] for row, (start, end) in zip(found.view_as(tokens), places, strict=True)]


def check_same(answers: Sequence[Answer], expected: Sequence[torch.Tensor]) -> None:
    for answer, own in zip(answers, expected, strict=True):
        torch.testing.assert_close(torch.tensor(answer.log_probs), own, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("questions", [QUESTIONS, LONG], ids=["short", "long"])
def test_log_probabilities_of_the_sampler_are_those_of_the_training_forward(
    tmp_path: Path, temperature: float, questions: dict[str, str]
) -> None:
    rows = rows_of(tmp_path, questions)
    with rolling(settings(tmp_path, rl={"temperature": temperature, "group": 3}, lora=ALL), rows) as made:
        share_numbers(None, made.trainee.places)

        answers = made.rollouts.sample(prompts(rows), 0)

        assert len(answers) == 3 * len(rows)
        assert [each.group for each in answers] == [group for group in range(len(rows)) for _ in range(3)]
        check_same(answers, by_training(made.model, answers, temperature))


def test_the_next_step_is_answered_by_the_weights_as_they_are_then(tmp_path: Path) -> None:
    """Pages of a prompt that older weights have read would be found by the same prompt."""
    rows = rows_of(tmp_path, LONG)
    with rolling(settings(tmp_path, lora=ALL), rows) as made:
        before = made.rollouts.sample(prompts(rows), 0)
        share_numbers(None, made.trainee.places)

        after = made.rollouts.sample(prompts(rows), 1)

        check_same(after, by_training(made.model, after, 1.0))
        with without_adapters(made.model):
            check_same(before, by_training(made.model, before, 1.0))


def test_answers_follow_from_seed_and_step_whatever_was_made_before(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    with rolling(settings(tmp_path), rows) as made:
        asked = prompts(rows)
        third = [each.tokens for each in made.rollouts.sample(asked, 3)]
        made.rollouts.sample(asked, 4)
        again = [each.tokens for each in made.rollouts.sample(asked, 3)]
        fourth = [each.tokens for each in made.rollouts.sample(asked, 4)]
    with rolling(settings(tmp_path, training={"seed": 1}), rows) as made:
        other = [each.tokens for each in made.rollouts.sample(asked, 3)]

    assert third == again
    assert third != fourth
    assert third != other
    assert len(set(map(tuple, third))) > len(third) // 2


def test_an_answer_ends_by_itself_or_at_its_longest(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    with rolling(settings(tmp_path, rl={"max_new_tokens": 5}), rows) as made:
        answers = made.rollouts.sample(prompts(rows), 0)

    stops = made.model.decoder.config.eos_token_ids
    assert {each.ended for each in answers} == {True, False}
    for each in answers:
        assert each.ended == (each.tokens[-1] in stops)
        assert each.ended or len(each.tokens) == 5
        assert each.text_tokens == [token for token in each.tokens if token not in stops]


def test_the_last_answer_is_what_a_row_is_compared_with_and_all_before_it_is_the_prompt(tmp_path: Path) -> None:
    [row] = rows_of(tmp_path, {"Say yes": "Yes, I do"})

    prompt = Prompt.of(row)

    decode = renderer().tokenizer.decode
    assert decode(prompt.tokens).endswith("Say yes<|assistant|>")
    assert decode(prompt.reference) == "</think>Yes, I do"


def test_plain_text_has_no_prompt(tmp_path: Path) -> None:
    [row] = make_rows([20], prompt=0.0)
    row = type(row)(row.tokens, (True,) * 20, 7)

    with pytest.raises(ConfigError, match=r"data\.files: line 7 has no prompt"):
        Prompt.of(row)


def test_an_answer_that_would_not_fit_behind_the_longest_prompt_is_refused_at_the_start(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)

    with (
        pytest.raises(ConfigError, match=r"rl\.max_new_tokens: 2045 behind the longest prompt"),
        rolling(settings(tmp_path, rl={"max_new_tokens": 2045}), rows),
    ):
        pass


def test_weights_that_give_no_numbers_end_the_run_as_such(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    with rolling(settings(tmp_path), rows) as made:
        made.rollouts.sample(prompts(rows), 0)
        module, name = next(iter(made.trainee.places.values()))
        made_of = module.adapters[name]
        with torch.no_grad():
            made_of.up.fill_(torch.nan)

        with pytest.raises(NotFinite, match=r"answer 1/0/0 .*not finite"):
            made.rollouts.sample(prompts(rows), 1)


def test_an_engine_that_has_died_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    with rolling(settings(tmp_path), rows) as made:

        def fail(*_: object) -> None:
            raise ValueError("a fault of the device")

        made.model.decoder.layers[2].register_forward_hook(fail)

        with pytest.raises(RolloutFailed, match="a fault of the device"):
            made.rollouts.sample(prompts(rows), 0)


def test_an_engine_that_stands_still_is_an_error_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, go_on = rows_of(tmp_path), threading.Event()
    with rolling(settings(tmp_path), rows) as made:
        made.rollouts.sample(prompts(rows)[:1], 0)
        monkeypatch.setattr(rollout, "_SILENCE_SECONDS", 0.2)
        hook = made.model.decoder.layers[2].register_forward_hook(lambda *_: go_on.wait(60) and None)
        try:
            with pytest.raises(RolloutFailed, match=r"no token for 0\.2 s"):
                made.rollouts.sample(prompts(rows), 1)
        finally:
            hook.remove()
            go_on.set()
