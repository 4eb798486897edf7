"""The rollout strategy by spare cards. Nothing is faked."""

from __future__ import annotations

from typing import Any

import pytest

from glm5_operator.plan.facts import NodeFacts, Product
from tests.unit.plan.builders import child, node, plan, service, tiny

SURGE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
IN_PLACE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


def strategy(
    *members: NodeFacts, replicas: int = 1, tensor: int = 4, own: dict[str, int] | None = None, rollout: dict[str, Any] | None = None
) -> dict[str, Any]:
    spec = {"replicas": replicas, "engine": {"name": "vllm"}, **({"rollout": rollout} if rollout else {})}
    planned = plan(tiny(spec, tensor=tensor), *members, own_held=own)
    chosen: dict[str, Any] = child(planned, "Deployment")["spec"]["strategy"]
    return chosen


@pytest.mark.parametrize(
    ("members", "replicas", "tensor", "own", "expected"),
    [
        ([node("n0", Product.A2)], 1, 8, {}, IN_PLACE),  # one replica fills its node
        ([node("n0", Product.A2)], 2, 4, {}, IN_PLACE),
        ([node("n0", Product.A2)], 1, 4, {}, SURGE),
        ([node("n0", Product.A2), node("n1", Product.A2)], 1, 8, {}, SURGE),
        ([node("n0", Product.A2), node("n1", Product.A2, held=8)], 1, 8, {}, IN_PLACE),  # someone else has the spare node
        ([node("n0", Product.A2, held=8), node("n1", Product.A2)], 1, 8, {"n0": 8}, SURGE),  # our own pod isn't in the way
        ([node("n0", Product.A2), node("n1", Product.A2, ready=False)], 1, 8, {}, IN_PLACE),
        ([node("n0", Product.A2), node("n1", Product.A2, schedulable=False)], 1, 8, {}, IN_PLACE),
        ([node("n0", Product.A2, held=6), node("n1", Product.A2, held=6)], 1, 4, {"n0": 4}, IN_PLACE),  # four free cards, two on each node
    ],
)
def test_a_surge_needs_cards_for_one_more_replica_on_one_node(
    members: list[NodeFacts], replicas: int, tensor: int, own: dict[str, int], expected: dict[str, Any]
) -> None:
    assert strategy(*members, replicas=replicas, tensor=tensor, own=own) == expected


def test_the_strategy_does_not_change_when_the_services_own_pods_start() -> None:
    before = strategy(node("n0", Product.A2), node("n1", Product.A2), tensor=8)
    after = strategy(node("n0", Product.A2, held=8), node("n1", Product.A2), tensor=8, own={"n0": 8})

    assert before == after == SURGE


@pytest.mark.parametrize(
    ("rollout", "expected"),
    [
        ({"strategy": "Recreate"}, {"type": "Recreate"}),
        ({"maxSurge": 2}, {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2, "maxUnavailable": 0}}),
        ({"maxUnavailable": 2}, {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 2}}),
        ({"maxUnavailable": 0}, SURGE),  # nothing may be lost: it waits for cards rather than take the old replica away
        ({"maxSurge": 0, "maxUnavailable": 1}, IN_PLACE),
    ],
)
def test_stated_numbers_are_kept_on_a_full_node(rollout: dict[str, Any], expected: dict[str, Any]) -> None:
    assert strategy(node("n0", Product.A2), tensor=8, rollout=rollout) == expected


def test_a_rollout_can_be_paused_and_goes_on_without_a_trace() -> None:
    paused = child(plan(service("GLM-5.1", "w8a8", {"rollout": {"paused": True}})), "Deployment")["spec"]
    running = child(plan(service()), "Deployment")["spec"]

    assert paused.pop("paused") is True
    assert paused == running
