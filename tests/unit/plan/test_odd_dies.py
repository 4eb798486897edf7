"""Case C20: numbers of dies on A3, whose cards are two dies each. Impossible ones are refused before anything is made."""

from __future__ import annotations

import pytest

from glm5_operator.api.common import InvalidObjectError
from glm5_operator.plan.facts import Product
from glm5_operator.plan.pool import plan_pool
from tests.unit.plan.builders import node, plan, pool, tiny

A3 = node("n0", Product.A3, cards=16)


def replica(dies: object) -> dict[str, object]:
    return {"engine": {"name": "vllm"}, "parallelism": {"tensor": dies}}


@pytest.mark.parametrize("dies", [1, 2, 6, 12, 16])
def test_one_die_and_even_numbers_that_fit_a_node_are_planned(dies: int) -> None:
    assert plan(tiny(replica(dies), memory="64Gi"), A3).stalled is None


@pytest.mark.parametrize(("dies", "reason"), [(3, "OddDies"), (15, "OddDies"), (17, "OddDies"), (18, "NeedsSeveralNodes")])
def test_half_cards_and_more_than_a_node_has_are_refused_with_what_goes(dies: int, reason: str) -> None:
    stalled = plan(tiny(replica(dies), memory="64Gi"), A3).stalled

    assert stalled is not None
    assert stalled.reason == reason
    assert "one die or an even number" in stalled.message or "pool of larger nodes" in stalled.message


@pytest.mark.parametrize("dies", [0, -1, "8", 2.5])
def test_what_is_no_number_of_cards_is_no_service(dies: object) -> None:
    with pytest.raises(InvalidObjectError, match="tensor"):
        tiny(replica(dies), memory="64Gi")


def test_pools_never_split_a_node_however_many_dies_each_would_like() -> None:
    """Seven dies for one and nine for the other would share a module, which is reset as a whole."""
    serving, training = (
        pool({"nodeNames": ["n0"]}),
        pool({"nodeNames": ["n0"]}, name="training", role="Training", created="2026-02-01T00:00:00Z"),
    )

    plans = [plan_pool(one, [serving, training], (A3,)) for one in (serving, training)]

    assert [found.cards for found in plans] == [16, 0]
    assert plans[1].conflicts == {"n0": "inference"}
