"""Keeps a Deployment's rollout strategy as it is while no rollout goes on. Pure.

Used by the service controller. The planner chooses surge or replace by the cards that are free at the moment; that matters when
pods are replaced and at no other time. Without this, every pod of a neighbour that takes or frees the last cards would rewrite the
Deployments of all services of the pool, and a resync of a full pool would write once for each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from glm5_operator.api import names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glm5_operator.plan.service import ServicePlan

_STATED = ("strategy", "maxSurge", "maxUnavailable")


def keep_strategy(plan: ServicePlan, service: Mapping[str, Any], live: Mapping[str, Any] | None) -> ServicePlan:
    """The plan with the strategy of the live Deployment, unless the user states one, or pods are (about to be) replaced."""
    if live is None or _states_one(service) or _is_replacing(plan, live):
        return plan
    objects = tuple(_with_strategy(item, live["spec"]["strategy"]) if item["kind"] == "Deployment" else item for item in plan.objects)
    return replace(plan, objects=objects)


def _states_one(service: Mapping[str, Any]) -> bool:
    rollout = service["spec"].get("rollout") or {}
    return any(rollout.get(name) is not None for name in _STATED)


def _is_replacing(plan: ServicePlan, live: Mapping[str, Any]) -> bool:
    labels = live["spec"]["template"]["metadata"].get("labels") or {}
    status = live.get("status") or {}
    has_old_pods = int(status.get("replicas") or 0) > int(status.get("updatedReplicas") or 0)
    return has_old_pods or bool(labels.get(names.REVISION_LABEL) != plan.revision)


def _with_strategy(deployment: Mapping[str, Any], strategy: Mapping[str, Any]) -> dict[str, Any]:
    return {**deployment, "spec": {**deployment["spec"], "strategy": strategy}}
