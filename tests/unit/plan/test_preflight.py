"""Case C18 before anything starts: a driver too old for the image's CANN, an image of other cards, and versions that nobody has read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glm5_operator.plan.facts import NodeFacts, Product
from glm5_operator.plan.product import node_facts
from tests.unit.plan.builders import node, plan, pool, service, tiny
from tests.unit.plan.test_attempt import job
from tests.unit.plan.test_attempt import plan as plan_run


def members(*drivers: str, product: Product = Product.A3) -> tuple[NodeFacts, ...]:
    return tuple(replace(node(f"n{number}", product), driver=driver) for number, driver in enumerate(drivers))


def test_a_service_whose_nodes_all_have_an_old_driver_does_not_start_and_says_which_to_take() -> None:
    planned = plan(service(), *members("23.0.5", "24.1.rc1"))
    assert planned.stalled is not None
    assert (planned.objects, planned.stalled.reason) == ((), "VersionsDoNotFit")
    assert planned.stalled.message == (
        "found driver 23.0.5, need 25.2 or later for CANN 9.1.0 in quay.io/ascend/vllm-ascend:v0.23.0-a3, on n0 of NPUPool inference: "
        "update the driver there, or take an image that `glm5 compat` lists for them"
    )


def test_one_old_driver_among_others_is_a_warning() -> None:
    planned = plan(service(), *members("25.5.1", "24.1.rc1"))
    assert planned.stalled is None
    assert [warning.reason for warning in planned.warnings] == ["VersionsDoNotFit"]
    assert "on n1 of NPUPool inference" in planned.warnings[0].message


@pytest.mark.parametrize("driver", ["", "unreadable", "99.0", "25.2.0"])
def test_a_driver_that_fits_or_that_nobody_can_judge_stops_nothing(driver: str) -> None:
    planned = plan(service(), *members(driver))
    assert (planned.stalled, planned.warnings) == (None, ())


def test_the_bundled_runtime_has_the_same_need() -> None:
    planned = plan(tiny(), *members("24.1.rc1"))
    assert planned.stalled is not None
    assert "for CANN 9.1.0 in glm5-runtime:0.1.0" in planned.stalled.message


def test_an_image_for_other_cards_is_refused_whatever_the_driver() -> None:
    wanted = tiny({"engine": {"name": "vllm", "image": "registry.example/vllm-ascend:v0.23.0-910b"}})
    planned = plan(wanted, *members("", product=Product.ATLAS_310P))
    assert planned.stalled is not None
    assert planned.stalled.message.startswith("found an image for A2, need one for 310P for 310P cards")


def test_an_attempt_of_training_stays_off_the_nodes_that_do_not_fit() -> None:
    drivers = members("25.5.1", "24.1.rc1", product=Product.A2)
    planned = plan_run(job(), *drivers)
    assert planned.stalled is None
    assert planned.template is not None
    assert "n1" in str(planned.template["spec"]["affinity"])
    both = plan_run(job(parallelism={"npusPerNode": 8, "nodes": 2}), *drivers)
    assert both.stalled is not None
    assert both.stalled.reason == "VersionsDoNotFit"


def test_the_device_plugins_label_tells_the_driver() -> None:
    found = node_facts({"metadata": {"name": "n0", "labels": {"huawei.com/driver.version": "24.1.rc1"}}})
    assert (found.driver, node_facts({"metadata": {"name": "n0"}}).driver) == ("24.1.rc1", "")


def test_a_pool_whose_pods_compute_on_the_cpu_asks_no_driver_for_anything() -> None:
    on_cpu = {"spec": {"containers": [{"name": "engine", "env": [{"name": "GLM5_DEVICE", "value": "cpu"}]}]}}
    planned = plan(service(), *members("23.0.5"), of=pool({"podTemplate": on_cpu}))

    assert (planned.stalled, planned.warnings) == (None, ())
