"""The sampler on small hand-made logits: which tokens can come out, how often, and that nothing beside a row matters to it."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glm5_runtime.engine.checks import refusal
from glm5_runtime.engine.request import Request, SamplingParams
from glm5_runtime.engine.sampler import sample, token_logprobs
from glm5_runtime.engine.sequence import Sequence

if TYPE_CHECKING:
    from torch import Tensor

STOPS = frozenset({0, 1})


def _row(seed: int = 0, prompt: tuple[int, ...] = (9,), answer: tuple[int, ...] = (), **params: Any) -> Sequence:  # noqa: ANN401 - SamplingParams' fields
    request = Request("r", prompt, SamplingParams(**{"max_tokens": 100, **params}))
    sequence = Sequence(request, lambda _: None, STOPS, seed)
    for token in answer:
        sequence.append(token)
    return sequence


def _logits(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities]).log()


def _counts(logits: Tensor, draws: int = 2000, **params: Any) -> Counter[int]:  # noqa: ANN401 - SamplingParams' fields
    rows = [_row(seed, **params) for seed in range(draws)]
    return Counter(sample(logits.expand(draws, -1), rows))


def test_temperature_zero_takes_the_best_and_of_equals_the_first() -> None:
    assert sample(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), [_row(temperature=0.0)]) == [1]


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 5e-324])
def test_a_vanishing_temperature_is_greedy_and_not_an_overflow(temperature: float) -> None:
    assert sample(torch.tensor([[1.0, 3.0, 2.9]]), [_row(temperature=temperature)]) == [1]


def test_draws_follow_the_probabilities() -> None:
    counts = _counts(_logits(0.5, 0.3, 0.15, 0.05))
    for token, probability in enumerate((0.5, 0.3, 0.15, 0.05)):
        assert counts[token] / 2000 == pytest.approx(probability, abs=0.04)


def test_temperature_sharpens_and_flattens() -> None:
    sharp, flat = _counts(_logits(0.6, 0.4), temperature=0.2), _counts(_logits(0.6, 0.4), temperature=5.0)
    assert sharp[0] / 2000 == pytest.approx(0.6**5 / (0.6**5 + 0.4**5), abs=0.04)
    assert flat[0] / 2000 == pytest.approx(0.52, abs=0.04)


@pytest.mark.parametrize(
    ("params", "possible"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 1}, {0}),
        ({"top_k": 2**31 - 1}, {0, 1, 2, 3}),
        ({"top_p": 0.5}, {0}),
        ({"top_p": 0.51}, {0, 1}),
        ({"top_p": 0.0}, {0}),
        ({"min_p": 0.55}, {0, 1}),
        ({"min_p": 1.0}, {0}),
        ({"top_k": 3, "top_p": 0.85}, {0, 1, 2}),
        ({"top_k": 2, "top_p": 0.6}, {0}),  # of the two kept, the first alone has 0.625
        ({}, {0, 1, 2, 3}),
    ],
)
def test_filters_leave_exactly_the_tokens_they_say(params: dict[str, Any], possible: set[int]) -> None:
    assert set(_counts(_logits(0.5, 0.3, 0.15, 0.05), **params)) == possible


def test_filtered_draws_keep_their_proportions() -> None:
    counts = _counts(_logits(0.5, 0.3, 0.15, 0.05), top_k=2)
    assert counts[0] / 2000 == pytest.approx(0.5 / 0.8, abs=0.04)


def test_a_seed_gives_the_same_tokens_in_any_company_and_position_of_the_batch() -> None:
    logits = torch.randn(1, 500, generator=torch.Generator().manual_seed(1))
    alone = [sample(logits, [_row(7, answer=(2,) * step)])[0] for step in range(20)]
    others = [_row(seed, temperature=0.1 * seed, top_k=seed) for seed in range(1, 6)]
    noise = torch.randn(5, 500, generator=torch.Generator().manual_seed(2))
    for at in (0, 3, 5):
        for step in range(20):
            rows = [*others[:at], _row(7, answer=(2,) * step), *others[at:]]
            assert sample(torch.cat((noise[:at], logits, noise[at:])), rows)[at] == alone[step]
    assert len(set(alone)) > 5  # each position draws anew


def test_other_seeds_draw_other_tokens() -> None:
    assert len({tuple(sample(torch.zeros(8, 500), [_row(seed)] * 8)) for seed in range(5)}) == 5


@pytest.mark.parametrize("seed", [-1, 0, 2**64, -(2**70), 2**64 - 1])
def test_any_integer_is_a_seed(seed: int) -> None:
    assert 0 <= sample(torch.zeros(1, 10), [_row(seed)])[0] < 10


def test_repetition_penalty_weakens_tokens_of_prompt_and_answer() -> None:
    logits = torch.tensor([[-1.0, 2.0, 1.9, 1.5, -1.1]])
    assert sample(logits, [_row(prompt=(1,), answer=(2,), temperature=0.0, repetition_penalty=1.5)]) == [3]
    negative = torch.tensor([[-1.0, -1.4, -9.0]])
    assert sample(negative, [_row(prompt=(0,), temperature=0.0, repetition_penalty=1.5)]) == [1]


def test_presence_and_frequency_penalties_count_the_answer_only() -> None:
    logits = torch.tensor([[2.0, 1.8, 1.5]])
    assert sample(logits, [_row(prompt=(0, 0, 0), temperature=0.0, presence_penalty=1.0, frequency_penalty=1.0)]) == [0]
    assert sample(logits, [_row(answer=(0,), temperature=0.0, presence_penalty=0.3)]) == [1]
    assert sample(logits, [_row(answer=(0, 0), temperature=0.0, frequency_penalty=0.15)]) == [1]
    assert sample(logits, [_row(answer=(0,), temperature=0.0, frequency_penalty=0.15)]) == [0]


def test_bias_is_added_to_its_tokens() -> None:
    assert sample(torch.tensor([[2.0, 1.0, 0.0]]), [_row(temperature=0.0, logit_bias={2: 5.0, 0: -5.0})]) == [2]


def test_stop_tokens_wait_for_min_tokens() -> None:
    logits = torch.tensor([[5.0, 4.0, 1.0, 0.0]])
    assert sample(logits, [_row(temperature=0.0, min_tokens=2, answer=(3,))]) == [2]
    assert sample(logits, [_row(temperature=0.0, min_tokens=2, answer=(3, 3))]) == [0]


def test_one_rows_penalties_leave_the_others_alone_and_the_logits_too() -> None:
    logits = torch.tensor([[2.0, 1.0], [2.0, 1.0]])
    assert sample(logits, [_row(temperature=0.0, logit_bias={0: -5.0}), _row(temperature=0.0)]) == [1, 0]
    assert logits.tolist() == [[2.0, 1.0], [2.0, 1.0]]


def test_logprobs_are_the_models_own_with_rank_and_best() -> None:
    (entry,) = token_logprobs(_logits(0.2, 0.5, 0.3), [0], top=2)
    assert (entry.token, entry.rank) == (0, 3)
    assert entry.logprob == pytest.approx(math.log(0.2), abs=1e-5)
    assert [token for token, _ in entry.top] == [1, 2]
    assert [value for _, value in entry.top] == pytest.approx([math.log(0.5), math.log(0.3)], abs=1e-5)


def test_logprobs_of_zero_name_the_chosen_token_only_and_of_more_than_all_name_all() -> None:
    assert token_logprobs(_logits(0.2, 0.8), [1], top=0)[0].top == ()
    assert len(token_logprobs(_logits(0.2, 0.8), [1], top=50)[0].top) == 2


_wild = st.one_of(st.floats(), st.integers(), st.just(10**400))


def _mostly(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(good, good, good, good, good, good, _wild)


_params = st.fixed_dictionaries(
    {
        "temperature": _mostly(st.floats(0, 1e6)),
        "top_p": _mostly(st.floats(0, 1)),
        "top_k": _mostly(st.integers(0, 2**31 - 1)),
        "min_p": _mostly(st.floats(0, 1)),
        "repetition_penalty": _mostly(st.floats(1e-3, 1e3)),
        "frequency_penalty": _mostly(st.floats(-1e3, 1e3)),
        "presence_penalty": _mostly(st.floats(-1e3, 1e3)),
        "min_tokens": _mostly(st.integers(0, 5)),
        "logit_bias": st.dictionaries(st.one_of(st.integers(0, 5), st.integers(0, 5), st.integers()), _mostly(st.floats(-1e3, 1e3))),
    }
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_params, min_size=1, max_size=3), st.lists(st.floats(-1e4, 1e4, width=32), min_size=6, max_size=6))
def test_any_parameters_are_refused_or_give_a_token_of_the_vocabulary(params: list[dict[str, Any]], logits: list[float]) -> None:
    rows = [_row(seed, prompt=(2, 3), answer=(4, 4), **each) for seed, each in enumerate(params)]
    allowed = [row for row in rows if refusal(row.request, vocab_size=6, max_model_len=1000) is None]
    assert all(0 <= token < 6 for token in sample(torch.tensor([logits] * len(allowed)).view(-1, 6), allowed))


def test_even_when_every_token_is_held_back_one_comes_out() -> None:
    sequence = Sequence(Request("r", (2,), SamplingParams(max_tokens=9, min_tokens=9)), lambda _: None, frozenset(range(4)), seed=0)
    assert 0 <= sample(torch.zeros(1, 4), [sequence])[0] < 4
