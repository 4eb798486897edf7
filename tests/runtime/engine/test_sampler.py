"""The sampler on small hand-made logits: which tokens can come out, how often, and that nothing beside a row matters to it."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from glm5_runtime.engine.checks import refusal
from glm5_runtime.engine.constraint import AfterToken, clear
from glm5_runtime.engine.request import Request, SamplingParams
from glm5_runtime.engine.sampler import sample, token_logprobs, wanted_logprobs
from glm5_runtime.engine.sampling import Sampling, TokenCounts
from glm5_runtime.engine.sequence import Sequence

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

    from glm5_runtime.engine.constraint import TokenConstraint

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


@pytest.mark.parametrize(("params", "possible"), [({"top_k": 3}, {1, 3, 4}), ({"top_p": 0.5}, {1, 3, 4}), ({"top_k": 1}, {3})])
def test_of_equal_tokens_at_the_border_the_first_ones_stay(params: dict[str, Any], possible: set[int]) -> None:
    assert set(_counts(_logits(0.1, 0.15, 0.1, 0.3, 0.15, 0.1, 0.1), draws=300, **params)) == possible
    assert set(_counts(_logits(0.2, 0.2, 0.2, 0.2, 0.2), draws=300, top_k=2)) == {0, 1}


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


def test_rows_that_ask_for_log_probabilities_get_as_many_as_they_ask_for_and_what_they_get_alone() -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(3))
    rows = [_row(logprobs=top) for top in (None, 0, 5, 2)]
    tokens = {0: 7, 1: 8, 2: 9, 3: 10}

    found = wanted_logprobs(logits, tokens, rows)

    assert found == {row: token_logprobs(logits[row : row + 1], [tokens[row]], top)[0] for row, top in ((1, 0), (2, 5), (3, 2))}
    assert wanted_logprobs(logits, tokens, [_row()] * 4) == {}


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


class Only:
    """A constraint with a script: the tokens allowed at each place of the answer; behind it, the end (0) only."""

    def __init__(self, *allowed: set[int], size: int = 6) -> None:
        self._allowed, self._size, self.seen = allowed, size, 0
        self.fault = None

    @property
    def finished(self) -> bool:
        return self.seen >= len(self._allowed)

    def fill(self, mask: NDArray[np.int32]) -> bool:
        allowed = {0} if self.finished else self._allowed[self.seen]
        clear(mask, np.array(sorted(set(range(self._size)) - allowed)))
        return True

    def accept(self, token: int) -> None:
        assert token in ({0} if self.finished else self._allowed[self.seen])
        self.seen += 1

    def rollback(self, count: int) -> None:
        self.seen -= count


def _constrained(factory: Callable[[], TokenConstraint], answer: tuple[int, ...] = (), **params: Any) -> Sequence:  # noqa: ANN401 - SamplingParams' fields
    request = Request("r", (9,), SamplingParams(**{"max_tokens": 100, "temperature": 0.0, **params}), constraint=factory)
    sequence = Sequence(request, lambda _: None, STOPS, 0)
    for token in answer:
        sequence.append(token)
    return sequence


def test_a_constraint_leaves_only_its_tokens_to_greedy_rows_and_to_drawn_ones() -> None:
    logits = torch.tensor([[9.0, 8.0, 7.0, 6.0, 5.0, 4.0]])
    assert sample(logits, [_constrained(lambda: Only({3, 5}))]) == [3]
    rows = [_constrained(lambda: Only({3, 5}), temperature=5.0) for _ in range(50)]
    for seed, row in enumerate(rows):
        row.sampling = Sampling(row.request, seed)
    assert set(sample(logits.expand(50, -1), rows)) == {3, 5}


def test_a_constraint_follows_the_answer_and_knows_what_came_before_it_was_made() -> None:
    logits = torch.zeros(1, 6)
    row = _constrained(lambda: Only({4}, {2}, {5}), answer=(4,))
    for _ in range(2):
        row.append(sample(logits, [row])[0])
    assert row.tokens == [9, 4, 2, 5]
    assert sample(logits, [row]) == [0]


def test_before_min_tokens_a_constrained_row_goes_on_while_it_can_and_ends_when_it_must() -> None:
    logits = torch.tensor([[9.0, 8.0, 7.0, 6.0, 5.0, 4.0]])
    assert sample(logits, [_constrained(lambda: Only({0, 4}), min_tokens=3)]) == [4]
    assert sample(logits, [_constrained(lambda: Only({0, 4}))]) == [0]
    assert sample(logits, [_constrained(lambda: Only({1}), min_tokens=3)]) == [1]


@pytest.mark.parametrize("size", [31, 32, 33, 64, 100])
def test_masks_fit_vocabularies_of_any_size(size: int) -> None:
    logits = torch.arange(size, dtype=torch.float32).unsqueeze(0)
    for token in (0, size // 2, size - 1):
        assert sample(logits, [_constrained(lambda token=token: Only({token}, size=size))]) == [token]


def test_a_gate_lets_all_through_up_to_its_token_but_not_the_end() -> None:
    logits = torch.tensor([[9.0, 8.0, 7.0, 6.0, 5.0, 4.0]])
    row = _constrained(lambda: AfterToken(3, Only({5}), STOPS))
    assert sample(logits, [row]) == [2]  # 0 and 1 would end an answer that hasn't begun
    for token in (2, 3):
        row.append(token)
    assert sample(logits, [row]) == [5]


def test_a_gate_opens_itself_when_the_budget_is_spent() -> None:
    logits = torch.tensor([[0.0, 0.0, 9.0, 0.0, 0.0, 0.0]])
    row = _constrained(lambda: AfterToken(3, None, budget=2))
    for _ in range(4):
        row.append(sample(logits, [row])[0])
    assert row.tokens[1:] == [2, 2, 3, 2]


@given(st.lists(st.integers(2, 5), max_size=6), st.integers(0, 6))
def test_a_gate_rolled_back_is_as_if_the_tokens_had_never_come(drafts: list[int], kept: int) -> None:
    kept = min(kept, len(drafts))

    def gate() -> AfterToken:
        return AfterToken(3, Only(*[{2, 3, 4, 5}] * 9), STOPS, budget=4)

    def mask_of(constraint: TokenConstraint) -> list[int]:
        mask = np.full(1, -1, np.int32)
        return mask.tolist() if constraint.fill(mask) else []

    rolled, straight = gate(), gate()
    for token in drafts:
        rolled.accept(token)
    rolled.rollback(len(drafts) - kept)
    for token in drafts[:kept]:
        straight.accept(token)
    assert mask_of(rolled) == mask_of(straight)
    assert rolled.finished == straight.finished


_sane = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.0]),
        "top_p": st.sampled_from([1.0, 0.9, 0.3]),
        "top_k": st.sampled_from([0, 1, 5, 40]),
        "min_p": st.sampled_from([0.0, 0.1]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "frequency_penalty": st.sampled_from([0.0, 0.4]),
        "presence_penalty": st.sampled_from([0.0, -0.4]),
        "min_tokens": st.sampled_from([0, 9]),
        "logit_bias": st.dictionaries(st.integers(0, 69), st.floats(-9, 9), max_size=3),
    }
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(_sane, st.booleans()), min_size=2, max_size=6), st.integers(0, 2**32))
def test_each_row_of_a_mixed_batch_gets_what_it_gets_alone(params: list[tuple[dict[str, Any], bool]], seed: int) -> None:
    logits = torch.randn(len(params), 70, generator=torch.Generator().manual_seed(seed)).mul(3).round(decimals=1)  # with ties

    def rows() -> list[Sequence]:
        made = []
        for at, (each, constrained) in enumerate(params):
            factory = (lambda: Only({0, 1, 7, 8}, {2, 3, 60}, {5}, size=70)) if constrained else None
            request = Request("r", (2, 3, 3), SamplingParams(**{"max_tokens": 100, **each}), constraint=factory)
            made.append(Sequence(request, lambda _: None, STOPS, seed + at))
        return made

    together, alone = rows(), rows()
    for _ in range(3):
        tokens = sample(logits, together)
        assert tokens == [sample(logits[at : at + 1], [row])[0] for at, row in enumerate(alone)]
        for row, token in zip(together + alone, tokens + tokens, strict=True):
            row.append(token)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=200), st.lists(st.integers(0, 9), max_size=200), st.integers(0, 200))
def test_counts_kept_from_step_to_step_equal_counts_made_anew(prompt: list[int], answer: list[int], known: int) -> None:
    counts = TokenCounts(prompt, answer[:known])
    for token in answer[known:]:
        counts.add(token)
    expected = {token: answer.count(token) for token in {*prompt, *answer}}
    assert dict(zip(counts.ids.tolist(), counts.answer_counts.tolist(), strict=True)) == expected


def test_a_batch_of_greedy_rows_is_one_argmax_and_nothing_else() -> None:
    rows = [_row(temperature=0.0) for _ in range(3)]
    logits = torch.zeros(3, 8)
    with _Operations() as operations:
        sample(logits, rows)
    assert operations.names == ["numpy"]  # whose argmax it is on a CPU


def test_penalties_of_many_rows_take_no_more_operations_than_of_two() -> None:
    def operations(count: int) -> list[str]:
        rows = [_row(answer=(1, 2), repetition_penalty=1.2, logit_bias={1: 2.0}, top_p=0.9) for _ in range(count)]
        logits = torch.randn(count, 16)
        with _Operations() as seen:
            sample(logits, rows)
        return seen.names

    assert operations(16) == operations(2)


class _Operations(TorchFunctionMode):
    """Names of the torch functions called within."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - torch's own protocol
        if function.__name__ not in {"__get__", "tolist"}:
            self.names.append(function.__name__)
        return function(*args, **(kwargs or {}))
