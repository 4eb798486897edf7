"""The replay buffer on the CPU: what goes in comes out, once copied; what would spoil batches stays out. Pinned memory needs a card."""

from __future__ import annotations

import pytest
import torch

from glm5_runtime.train.rl.replay import Columns, ReplayBuffer
from tests.runtime.model.oracle import CPU
from tests.runtime.train.rl.vectors import NAN

COLUMNS = Columns(
    {"tokens": torch.int64, "mask": torch.bool, "log_probs": torch.float32},
    {"score": torch.float32, "group": torch.int64},
)


def rollout(number: int, length: int) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    tokens = torch.arange(length) + 100 * number
    return {"tokens": tokens, "mask": tokens % 3 > 0, "log_probs": -tokens.float() / 7}, {"score": number / 4, "group": (1 << 40) + number}


def filled(lengths: list[int], capacity: int = 4, length: int = 10) -> ReplayBuffer:
    buffer = ReplayBuffer(COLUMNS, capacity, length, CPU)
    for number, each in enumerate(lengths):
        buffer.add(*rollout(number, each))
    return buffer


def test_a_batch_has_the_rollouts_asked_for_in_order_as_wide_as_the_longest_and_zeros_behind() -> None:
    buffer = filled([3, 10, 5])

    batch = buffer.gather([2, 0, 2])

    assert batch.lengths.tolist() == [5, 3, 5]
    assert {name: (tuple(each.shape), each.dtype) for name, each in batch.tokens.items()} == {
        name: ((3, 5), kind) for name, kind in COLUMNS.tokens.items()
    }
    for at, (number, length) in enumerate([(2, 5), (0, 3), (2, 5)]):
        tokens, whole = rollout(number, length)
        for name, values in tokens.items():
            assert torch.equal(batch.tokens[name][at, :length], values)
            assert not batch.tokens[name][at, length:].any()
        assert {name: each[at].item() for name, each in batch.whole.items()} == whole


def test_the_newest_takes_the_place_of_the_oldest_and_nothing_of_that_is_left() -> None:
    buffer = filled([10, 9, 8, 7, 2])

    batch = buffer.gather(range(4))

    assert len(buffer) == 4
    assert batch.lengths.tolist() == [2, 9, 8, 7]
    assert batch.tokens["tokens"][0].tolist() == [400, 401, 0, 0, 0, 0, 0, 0, 0]


def test_a_batch_is_made_once_from_the_rows_and_later_rollouts_do_not_change_it() -> None:
    buffer = filled([10, 9, 8, 7])
    made: list[tuple[str, int]] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # noqa: ANN001, ANN204 - torch's own signature
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.shape == (3, 9) and not function.is_view:
                made.append((function.name(), result.data_ptr()))
            return result

    with Watch():
        batch = buffer.gather([1, 2, 3])
    kept = batch.tokens["tokens"].clone()
    for number in range(4):
        buffer.add(*rollout(50 + number, 10))

    assert len({place for _, place in made}) == len(COLUMNS.tokens)
    assert {each.data_ptr() for each in batch.tokens.values()} == {place for _, place in made}
    assert {name for name, _ in made} == {"aten::empty.memory_format", "aten::index_select.out"}
    assert torch.equal(batch.tokens["tokens"], kept)


def test_memory_is_taken_once_and_known() -> None:
    buffer = ReplayBuffer(COLUMNS, 16, 32, CPU)

    assert buffer.bytes == 16 * 32 * (8 + 1 + 4) + 16 * (4 + 8 + 8)


def test_rollouts_are_drawn_without_repetition_and_the_same_by_the_same_seed() -> None:
    buffer = filled([1, 2, 3])

    drawn = [buffer.sample(3, torch.Generator().manual_seed(5)).tolist() for _ in range(2)]

    assert sorted(drawn[0]) == [0, 1, 2]
    assert drawn[0] == drawn[1]
    for number in (0, 4):
        with pytest.raises(ValueError, match=f"{number} rollouts of 3 can't be drawn"):
            buffer.sample(number, torch.Generator())


def test_after_clearing_no_rollout_is_there() -> None:
    buffer = filled([3, 10, 5])

    buffer.clear()

    assert len(buffer) == 0
    with pytest.raises(IndexError):
        buffer.gather([0])
    assert buffer.add(*rollout(8, 2)) == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"log_probs": torch.tensor([0.0, NAN, 0.0])}, "log_probs has numbers that aren't finite"),
        ({"log_probs": torch.tensor([0.0, -torch.inf, 0.0])}, "log_probs has numbers that aren't finite"),
        ({"log_probs": torch.zeros(2)}, "equally long"),
        ({"log_probs": torch.zeros(3, 1)}, "equally long"),
        ({"tokens": torch.zeros(3)}, "tokens is torch.float32, the buffer keeps torch.int64"),
        ({"mask": torch.ones(3, dtype=torch.int64)}, "mask is torch.int64, the buffer keeps torch.bool"),
        ({"values": torch.zeros(3)}, "columns missing or unknown: values"),
    ],
)
def test_tokens_that_would_spoil_a_batch_are_refused_and_nothing_changes(changed: dict[str, torch.Tensor], message: str) -> None:
    buffer = filled([3])
    tokens, whole = rollout(1, 3)

    with pytest.raises(ValueError, match=message):
        buffer.add({**tokens, **changed}, whole)

    assert len(buffer) == 1
    assert not any(column[1].any() for column in buffer._tokens.values())


@pytest.mark.parametrize(
    ("whole", "message"),
    [
        ({"score": NAN, "group": 1}, "score is nan"),
        ({"score": 1.0, "group": 1.5}, "group is 1.5, the buffer keeps whole numbers"),
        ({"score": 1.0}, "columns missing or unknown: group"),
    ],
)
def test_numbers_of_the_whole_that_would_spoil_a_batch_are_refused(whole: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        filled([]).add(rollout(1, 3)[0], whole)


@pytest.mark.parametrize("length", [0, 11])
def test_rollouts_that_are_empty_or_too_long_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"a rollout of {length} tokens; there is room for 1 to 10"):
        filled([]).add(*rollout(1, length))


def test_rows_that_are_not_there_and_buffers_without_room_are_refused() -> None:
    buffer = filled([3, 4])
    for rows in ([2], [-1]):
        with pytest.raises(IndexError, match="there are rollouts 0 to 1"):
            buffer.gather(rows)
    with pytest.raises(ValueError, match="at least 1"):
        buffer.gather([])
    with pytest.raises(ValueError, match="0 rollouts of 10 tokens"):
        ReplayBuffer(COLUMNS, 0, 10, CPU)
    with pytest.raises(ValueError, match="both of tokens and of the whole: score"):
        ReplayBuffer(Columns({"score": torch.float32}, {"score": torch.float32}), 1, 1, CPU)
