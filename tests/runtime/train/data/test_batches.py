"""Batches: everything once, little padding, the same order again, any number of ranks; labels never on padding."""

from __future__ import annotations

import random
from collections import Counter
from typing import Literal, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm5_runtime.train.data.batches import MULTIPLE, Batch, BatchConfig, Plan, pad, padded_tokens, plan_epoch
from glm5_runtime.train.data.example import Example

Mode = Literal["buckets", "packed", "random"]
MODES: tuple[Mode, ...] = get_args(Mode)
LENGTHS = st.lists(st.integers(1, 200), min_size=1, max_size=120)


def long_tailed(rows: int, longest: int = 2048) -> list[int]:
    """Lengths as chats have them: half below 200 tokens, one in a hundred ten times as long."""
    draw = random.Random(1)
    return [min(longest, max(12, int(draw.lognormvariate(5.3, 1.0)))) for _ in range(rows)]


def indices(batches: list[Batch] | tuple[Batch, ...]) -> list[int]:
    return [index for batch in batches for row in batch.rows for index in row]


@pytest.mark.parametrize("mode", MODES)
@given(lengths=LENGTHS, epoch=st.integers(0, 3))
def test_an_epoch_has_each_example_once_and_no_batch_more_tokens_than_allowed(mode: Mode, lengths: list[int], epoch: int) -> None:
    plan = plan_epoch(lengths, BatchConfig(512, mode, 7), epoch)

    assert sorted(indices(plan.batches)) == list(range(len(lengths)))
    assert all(padded_tokens(batch, lengths) <= 512 for batch in plan.batches)
    assert plan.padded == sum(padded_tokens(batch, lengths) for batch in plan.batches)
    assert plan.tokens == sum(lengths)


def test_buckets_and_packing_waste_little_where_random_batches_waste_most() -> None:
    lengths = long_tailed(20_000)
    waste = {mode: plan_epoch(lengths, BatchConfig(8192, mode), 0).waste for mode in MODES}

    assert waste["buckets"] <= 0.11
    assert waste["packed"] <= 0.05
    assert waste["random"] > 0.4


def test_packed_rows_are_full() -> None:
    lengths = long_tailed(20_000)
    plan = plan_epoch(lengths, BatchConfig(8192, "packed"), 0)

    assert len(plan.batches) <= 1.01 * plan.padded / 8192 + 1
    assert all(len(batch.rows) == 1 for batch in plan.batches)


def test_a_batch_has_more_rows_the_shorter_its_longest_is() -> None:
    plan = plan_epoch([16] * 1000 + [512] * 10, BatchConfig(1024), 0)
    rows = {max(16 if index < 1000 else 512 for row in batch.rows for index in row): len(batch.rows) for batch in plan.batches}

    assert rows[512] == 2
    assert max(len(batch.rows) for batch in plan.batches) == 64


@pytest.mark.parametrize("mode", MODES)
def test_the_order_follows_from_seed_and_epoch_alone(mode: Mode) -> None:
    lengths = long_tailed(500)
    first = plan_epoch(lengths, BatchConfig(4096, mode, 1), 0)

    assert plan_epoch(lengths, BatchConfig(4096, mode, 1), 0) == first
    assert plan_epoch(lengths, BatchConfig(4096, mode, 1), 1) != first
    assert plan_epoch(lengths, BatchConfig(4096, mode, 2), 0) != first


def test_the_order_is_the_same_in_every_release() -> None:
    """A run that is resumed by a newer release must not see its rows in another order."""
    assert indices(plan_epoch(list(range(1, 21)), BatchConfig(64, seed=3), 2).batches) == [
        17,
        16,
        3,
        2,
        1,
        0,
        11,
        10,
        9,
        8,
        19,
        18,
        15,
        14,
        13,
        12,
        7,
        6,
        5,
        4,
    ]


@given(lengths=LENGTHS, ranks=st.integers(1, 5), start=st.integers(0, 200))
def test_ranks_get_equal_numbers_of_batches_and_together_all_that_is_left(lengths: list[int], ranks: int, start: int) -> None:
    plan = plan_epoch(lengths, BatchConfig(512), 0)
    start = min(start, len(plan.batches))
    shares = [plan.share(rank, ranks, start) for rank in range(ranks)]

    assert len({len(share) for share in shares}) == 1
    counting = [batch for share in shares for batch in share if batch.counts]
    assert Counter(counting) == Counter(plan.batches[start:])


def test_a_run_goes_on_at_any_batch_on_another_number_of_ranks() -> None:
    plan = plan_epoch(long_tailed(300), BatchConfig(4096, seed=5), 0)
    steps = list(zip(*(plan.share(rank, 4) for rank in range(4)), strict=True))

    for done in range(len(steps)):
        resumed = zip(*(plan.share(rank, 2, done * 4) for rank in range(2)), strict=True)
        left = [batch for step in resumed for batch in step if batch.counts]
        assert left == [batch for step in steps[done:] for batch in step if batch.counts]


def test_an_example_longer_than_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="513 tokens"):
        plan_epoch([513], BatchConfig(512), 0)


def test_nothing_has_no_batches() -> None:
    assert plan_epoch([], BatchConfig(512), 0) == Plan((), 0, 0)
    assert Plan((), 0, 0).share(0, 2) == []


# --- arrays -----------------------------------------------------------------------------------------------------------------


def example(length: int, token: int) -> Example:
    return Example((token,) * length, (False, *[True] * (length - 1)), 1)


@pytest.mark.parametrize("pad_token", [0, 7])  # one that is a stop token, and one that the rows themselves end with
def test_padding_is_never_learned_nor_seen_whatever_its_token(pad_token: int) -> None:
    examples = [example(5, 7), example(20, 7), example(16, 7)]
    made = pad(Batch(((0,), (1,), (2,))), examples, pad_token)

    assert made.tokens.shape == (3, 32)
    for row, each in enumerate(examples):
        length = len(each.tokens)
        assert made.trained[row].sum() == length - 1
        assert (made.segments[row] != 0).tolist() == [at < length for at in range(32)]
        assert (made.tokens[row, length:] == pad_token).all()
        assert not made.trained[row, length:].any()


def test_examples_in_one_row_keep_their_boundaries() -> None:
    made = pad(Batch(((0, 1),)), [example(5, 3), example(20, 4)], 0)

    assert made.tokens.shape == (1, 48)
    assert made.tokens[0, :5].tolist() == [3] * 5
    assert made.tokens[0, 16:36].tolist() == [4] * 20
    assert made.segments[0].tolist() == [1] * 5 + [0] * 11 + [2] * 20 + [0] * 12
    assert made.positions[0, 16:36].tolist() == list(range(20))
    assert np.flatnonzero(made.trained[0]).tolist() == [*range(1, 5), *range(17, 36)]


def test_a_batch_that_only_keeps_a_rank_busy_teaches_nothing() -> None:
    made = pad(Batch(((0,),), counts=False), [example(5, 3)], 0)

    assert made.tokens[0, :5].tolist() == [3] * 5
    assert not made.trained.any()


def test_widths_are_multiples_of_sixteen() -> None:
    lengths = long_tailed(200)
    examples = [example(length, 1) for length in lengths]
    for batch in plan_epoch(lengths, BatchConfig(4096), 0).batches:
        made = pad(batch, examples, 0)
        assert made.tokens.shape[1] % MULTIPLE == 0
        assert made.tokens.size == padded_tokens(batch, lengths)
