"""A pool's health policy with what it left out filled in."""

from __future__ import annotations

from datetime import timedelta

import pytest

from glm5_operator.api.health_policy import HealthPolicy, ThermalRule
from glm5_operator.health.remedy.policy import Policy, Thermal
from glm5_operator.health.types import Product


def test_nothing_stated_is_a_dry_run_with_the_documented_defaults() -> None:
    assert Policy.of(None, Product.A2) == Policy.of(HealthPolicy(), Product.A2) == Policy()
    assert Policy().mode == "DryRun"


def test_zero_is_stated_and_not_left_out() -> None:
    made = Policy.of(HealthPolicy(resets=0, debounce=timedelta(0), idle_memory=0, thermal=()), Product.A2)

    assert (made.resets, made.debounce, made.idle_memory, made.thermal) == (0, timedelta(0), 0, ())


def test_every_field_of_the_api_reaches_the_policy() -> None:
    rule = ThermalRule(temperature=80, utilisation=50, sustain=timedelta(minutes=1), action="Reset")
    stated = {
        "mode": "Auto",
        "resets": 7,
        "window": timedelta(hours=1),
        "nodes_in_remedy": 3,
        "debounce": timedelta(seconds=5),
        "verify": timedelta(seconds=6),
        "drain": timedelta(seconds=7),
        "compute_check": True,
        "idle_memory": 1,
    }
    assert stated.keys() | {"thermal"} == HealthPolicy.model_fields.keys()
    made = Policy.of(HealthPolicy.model_validate({**stated, "thermal": (rule,)}), Product.A3)

    assert {name: getattr(made, name) for name in stated} == stated
    assert made.thermal == (Thermal(80, 50, timedelta(minutes=1), "Reset"),)


@pytest.mark.parametrize(("product", "rules"), [(Product.A2, 1), (Product.A3, 1), (Product.A5, 1), (Product.ATLAS_310P, 0), (None, 0)])
def test_a_310p_that_idles_at_86_degrees_has_no_thermal_rule_of_its_own(product: Product | None, rules: int) -> None:
    thermal = Policy.of(None, product).thermal

    assert len(thermal) == rules
    assert all((rule.temperature, rule.utilisation, rule.action) == (85, 95, "Alert") for rule in thermal)
