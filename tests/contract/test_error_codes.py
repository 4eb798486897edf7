"""The trainer names its own card for the codes for which the operator tries another: neither imports the other."""

from __future__ import annotations

import pytest

from glm5_operator.health.sources.runtime_errors import evidence
from glm5_runtime.train.distributed.ranks import OWN_CARD

CODES = [str(number) for first in (107000, 207000, 507000) for number in range(first, first + 1000)]
NAMES = [f"E{module}{number:04}" for module in "EHIJKLZ" for number in (1, 2, 6, 9, 12, 15, 9999)]
FAULTS = ["80E01801", "80F78006", "80C98009", "8C03A000", "8C1F8608", "90E01801", "80A01801"]


@pytest.mark.parametrize("kind", [CODES, NAMES, FAULTS], ids=["numbers", "names", "fault codes"])
def test_the_trainer_and_the_operator_blame_a_card_for_the_same_codes(kind: list[str]) -> None:
    def by_operator(code: str) -> bool:
        found = evidence(f"error code is {code}")
        return found is not None and found.elsewhere

    differ = [code for code in kind if by_operator(code) != bool(OWN_CARD.search(f"error code is {code}"))]

    assert differ == []
