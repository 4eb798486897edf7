"""Rows in memory: what makes two sets of them the same."""

from __future__ import annotations

import pytest

from glm5_runtime.train.data.dataset import Dataset
from glm5_runtime.train.data.example import Example


def filled(*examples: Example) -> Dataset:
    data = Dataset()
    for example in examples:
        data.append(example)
    return data


FIRST, SECOND = Example((1, 2, 3), (False, True, True), 1), Example((4, 5), (False, True), 2)


def test_the_same_rows_have_the_same_digest() -> None:
    assert filled(FIRST, SECOND).digest() == filled(FIRST, SECOND).digest()


@pytest.mark.parametrize(
    "other",
    [
        (SECOND, FIRST),
        (FIRST,),
        (Example((1, 2, 9), (False, True, True), 1), SECOND),
        (Example((1, 2, 3), (False, False, True), 1), SECOND),
        (Example((1, 2), (False, True), 1), Example((3, 4, 5), (True, False, True), 2)),
    ],
    ids=["order", "fewer", "token", "label", "boundary"],
)
def test_other_rows_have_another(other: tuple[Example, ...]) -> None:
    assert filled(*other).digest() != filled(FIRST, SECOND).digest()
