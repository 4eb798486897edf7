"""A rollout strategy moves only when pods do. Pure: nothing is faked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from glm5_operator.controllers.steady import keep_strategy
from glm5_operator.plan.service import ServicePlan
from tests.support.objects import a_deployment, a_plan, a_service

SURGE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
IN_PLACE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


def planned(strategy: dict[str, Any], revision: str = "7f3a2c") -> ServicePlan:
    plan = a_plan(revision=revision)
    (deployment,) = plan.objects
    return replace(plan, objects=({**deployment, "spec": {**deployment["spec"], "strategy": strategy}},))


def live(strategy: dict[str, Any], **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - passed through
    deployment = a_deployment(**changes)
    deployment["spec"]["strategy"] = strategy
    return deployment


def strategy_of(plan: ServicePlan) -> dict[str, Any]:
    (deployment,) = plan.objects
    found: dict[str, Any] = deployment["spec"]["strategy"]
    return found


def test_a_neighbour_that_takes_the_last_cards_changes_nothing() -> None:
    assert strategy_of(keep_strategy(planned(IN_PLACE), a_service(), live(SURGE))) == SURGE


def test_a_first_start_changes_nothing_either() -> None:
    starting = live(SURGE, total=0, updated=0)

    assert strategy_of(keep_strategy(planned(IN_PLACE), a_service(), starting)) == SURGE


def test_a_new_revision_takes_the_strategy_that_fits_now() -> None:
    assert strategy_of(keep_strategy(planned(IN_PLACE, revision="new"), a_service(), live(SURGE))) == IN_PLACE


def test_a_rollout_that_lost_its_spare_cards_may_still_change_its_way() -> None:
    half_way = live(SURGE, replicas=2, total=3, updated=1)

    assert strategy_of(keep_strategy(planned(IN_PLACE), a_service(), half_way)) == IN_PLACE


def test_what_the_user_states_counts_at_once() -> None:
    assert strategy_of(keep_strategy(planned(IN_PLACE), a_service(rollout={"maxSurge": 0}), live(SURGE))) == IN_PLACE


def test_before_the_first_apply_there_is_nothing_to_keep() -> None:
    assert strategy_of(keep_strategy(planned(IN_PLACE), a_service(), None)) == IN_PLACE
