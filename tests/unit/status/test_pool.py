"""The status of a pool: its plan, said. Pure: nothing is faked."""

from __future__ import annotations

from dataclasses import replace

from glm5_operator.api.pool import NPUPool
from glm5_operator.plan.facts import Finding, Product
from glm5_operator.plan.pool import PoolPlan
from glm5_operator.plan.pool_audit import Audit, Breach, Holding, Stray
from glm5_operator.status.conditions import gave_up
from glm5_operator.status.pool import in_words, new_violations, pool_status
from tests.support.clock import at
from tests.support.objects import condition

POOL = {
    "apiVersion": "glm5.dev/v1alpha1",
    "kind": "NPUPool",
    "metadata": {"name": "inference", "generation": 3},
    "spec": {"role": "Inference", "nodeSelector": {"accelerator": "huawei-Ascend910"}},
}
PLAN = PoolPlan(
    changes=(),
    members=("npu-0", "npu-1"),
    conflicts={},
    product=Product.A2,
    resource_name="huawei.com/Ascend910",
    cards=16,
    held_cards=3,
    free_cards=5,
    stalled=None,
    warnings=(),
)


def test_a_pool_with_cards_is_ready_and_counts_only_usable_ones_as_free() -> None:
    found = pool_status(POOL, PLAN, Audit(), (), at())

    assert condition(found.status, "Ready")["status"] == "True"
    assert found.status["cards"] == {"total": 16, "held": 3, "free": 5}
    assert (found.status["nodes"], found.status["product"], found.status["resourceName"]) == (2, "A2", "huawei.com/Ascend910")


def test_the_status_is_what_the_crd_has_fields_for() -> None:
    found = pool_status(POOL, replace(PLAN, conflicts={"npu-9": "training"}), Audit(), (), at())
    read = NPUPool.parse({**POOL, "status": found.status})

    assert read.status is not None
    assert read.status.model_dump(mode="json", by_alias=True, exclude_unset=True) == found.status


def test_processes_of_nobody_are_a_violation_of_their_node_that_names_them_once() -> None:
    hostile = Breach(Holding("npu-1", "dev", "hostile", 2), "NoPool")
    audit = Audit(breaches=(hostile,), strays=(Stray("npu-0", (0, 3), tuple(range(4711, 4811))),))

    found = pool_status(POOL, PLAN, audit, (), at())
    violated = condition(found.status, "Violated")
    stray, breach = found.status["violations"]

    assert (violated["status"], violated["reason"]) == ("True", "NotAllocated")
    assert "processes 4711, 4712, 4713, 4714, 4715, 4716, 4717, 4718 and more are on cards 0, 3 of node npu-0" in violated["message"]
    assert violated["message"].endswith("; and 1 more")
    assert (stray["node"], stray["count"], stray["cards"], len(stray["pids"])) == ("npu-0", 2, [0, 3], 64)
    assert breach["pod"] == "hostile"
    assert "4711" in in_words(stray)

    read = NPUPool.parse({**POOL, "status": found.status})
    assert read.status is not None
    assert read.status.model_dump(mode="json", by_alias=True, exclude_unset=True) == found.status

    others = replace(audit, strays=(Stray("npu-0", (0,), (5000,)),))
    later = pool_status({**POOL, "status": found.status}, PLAN, others, (), at(minutes=9)).status
    assert later["violations"][0]["since"] == stray["since"]
    assert new_violations(found.status, later) == [], "one Event a node, whatever processes come and go"


def test_a_pool_whose_nodes_offer_no_cards_says_what_to_look_at() -> None:
    found = pool_status(POOL, replace(PLAN, cards=0, held_cards=0, free_cards=0), Audit(), (), at())

    assert condition(found.status, "Stalled")["reason"] == "NoCards"
    assert "device plugin" in condition(found.status, "Stalled")["message"]


def test_nodes_that_can_not_be_labelled_are_on_their_way_until_that_was_given_up() -> None:
    first = pool_status(POOL, PLAN, Audit(), ("nodes npu-0 is forbidden: policy x",), at()).status
    assert condition(first, "Stalled")["status"] == "False"
    given_up = gave_up({**POOL, "status": first}, "NodeWriteFailed", at())

    assert condition(given_up, "Stalled")["status"] == "True"
    assert "policy x" in condition(given_up, "Stalled")["message"]
    assert pool_status({**POOL, "status": given_up}, PLAN, Audit(), ("nodes npu-0 is forbidden: policy x",), at()).status == given_up
    assert not pool_status({**POOL, "status": given_up}, PLAN, Audit(), (), at()).stalled


def test_a_node_in_two_pools_is_named_with_the_other_pool() -> None:
    found = pool_status(POOL, replace(PLAN, conflicts={"npu-9": "training", "npu-8": "lab"}), Audit(), (), at())

    assert found.status["conflicts"] == [{"node": "npu-8", "pool": "lab"}, {"node": "npu-9", "pool": "training"}]
    conflict = condition(found.status, "Conflict")
    assert conflict["status"] == "True"
    assert "node npu-8 and 1 more nodes" in conflict["message"]
    assert condition(found.status, "Ready")["status"] == "True"


def test_nodes_that_can_not_be_labelled_are_tried_again() -> None:
    found = pool_status(POOL, PLAN, Audit(), ("npu-0: 503",), at())

    assert condition(found.status, "Reconciling")["reason"] == "NodeWriteFailed"
    assert not found.stalled


def test_what_the_plan_refuses_is_stalled_in_its_words() -> None:
    found = pool_status(POOL, replace(PLAN, stalled=Finding("MixedProducts", "split the pool")), Audit(), (), at())

    assert found.stalled
    assert condition(found.status, "Ready")["message"] == "split the pool"
