"""What a service's pool and surroundings refuse, and that a stalled plan changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from glm5_operator.api.pool import NPUPool
from glm5_operator.api.service import GLM5Service
from glm5_operator.plan.facts import NodeFacts, PoolFacts, Product, ServiceFacts, Site
from glm5_operator.plan.service import plan_service
from tests.unit.plan.builders import RESOURCE, child, node, nodes, plan, pool, service, tiny


def other(name: str, allocatable: dict[str, int], product: Product | None = None) -> NodeFacts:
    return NodeFacts(name, {"rack": "a"}, product, allocatable)


TWO_RESOURCES = (other("n0", {"huawei.com/Ascend910": 8, "huawei.com/Ascend310P": 8}, Product.A2),)
NO_RESOURCE = (other("n0", {"nvidia.com/gpu": 8}),)
MIXED = (node("n0", Product.A2), node("n1", Product.A3))
HALF_SERVERS = (node("n0", Product.A3, cards=8),)


@pytest.mark.parametrize(
    ("wanted", "of", "members", "reason", "says"),
    [
        (service(), pool(role="Training"), nodes(), "WrongPoolRole", "set spec.pool to an inference pool"),
        (service(), pool({"namespaces": ["test"]}), nodes(), "NamespaceNotAllowed", "isn't open to namespace prod"),
        (service(), pool(), (), "PoolHasNoNodes", "nodeSelector or nodeNames"),
        (service(), pool(), MIXED, "ProductMixed", "A2 and A3"),
        (service(), pool(), NO_RESOURCE, "ResourceUnknown", "start the device plugin"),
        (service(), pool(), TWO_RESOURCES, "ResourceUnknown", "huawei.com/Ascend310P and huawei.com/Ascend910"),
        (service(), pool(), nodes(None), "ProductUnknown", "set spec.product of the pool"),
        (tiny({"engine": {"name": "vllm"}}), pool(), nodes(None), "ProductUnknown", "set spec.product"),
        (service(), pool(), HALF_SERVERS, "NotEnoughCards", "needs 16 huawei.com/Ascend910 on one node, and the largest node"),
        (service(), pool(), (node("n0", Product.A3, cards=12),), "NotEnoughCards", "offers 12"),
        (tiny(), pool({"resourceName": "example.com/npu"}), nodes(), "NotEnoughCards", "offers example.com/npu now"),
        (tiny({"engine": {"name": "vllm"}}, tensor=10), pool(), (node("n0", None, cards=8),), "ProductUnknown", "A2, A3"),
        (service("GLM-5.1", "bf16"), pool(), (node("n0", Product.A3, cards=12),), "NeedsSeveralNodes", "so 2 nodes of 16"),
        (service("GLM-5.1", "bf16"), pool(), nodes(), "NeedsSeveralNodes", "needs 32 cards, so 2 nodes of 16"),
        (service("GLM-5.2", "w4a8c8"), pool(), nodes(Product.A2, 4), "NeedsSeveralNodes", "needs 16 cards, so 2 nodes of 8"),
        (tiny({"engine": {"name": "vllm"}}, tensor=32), pool(), nodes(), "NeedsSeveralNodes", "32 cards"),
        (tiny(source="https://example.org/model"), pool(), nodes(), "SourceNotSupported", "pvc://CLAIM/PATH"),
        (tiny(source="pvc://claim/../../etc"), pool(), nodes(), "SourceNotSupported", "can't be mounted"),
        (
            tiny({"podTemplate": {"spec": {"nodeName": "n1"}}}),
            pool(),
            nodes(),
            "PodTemplateRefused",
            "spec.podTemplate may not change spec.nodeName",
        ),
        (
            tiny(),
            pool({"podTemplate": {"spec": {"volumes": "x"}}}),
            nodes(),
            "PodTemplateRefused",
            "of NPUPool inference: spec.volumes must be",
        ),
    ],
)
def test_a_service_that_can_not_work_is_stalled_with_what_to_change(
    wanted: GLM5Service, of: NPUPool, members: tuple[NodeFacts, ...], reason: str, says: str
) -> None:
    planned = plan_service(wanted, ServiceFacts(PoolFacts(of, members)))

    assert planned.stalled is not None
    assert planned.stalled.reason == reason
    assert says in planned.stalled.message
    assert planned.objects == (), "stalled changes nothing"
    assert planned.revision == ""


def test_without_its_pool_a_service_is_stalled() -> None:
    planned = plan_service(service(), ServiceFacts(None))

    assert planned.stalled is not None
    assert planned.stalled.reason == "PoolNotFound"


def test_a_pool_that_is_being_deleted_takes_no_new_plan() -> None:
    going = pool()
    leaving = going.model_copy(update={"metadata": going.metadata.model_copy(update={"deletion_timestamp": "2026-11-01T00:00:00Z"})})

    planned = plan(service(), of=leaving)

    assert planned.stalled is not None
    assert planned.stalled.reason == "PoolNotFound"


def test_an_operator_without_an_image_asks_for_one() -> None:
    planned = plan(service(), site=Site(images={"native": "glm5-runtime:0.1.0"}))

    assert planned.stalled is not None
    assert planned.stalled.reason == "ImageMissing"
    assert plan(service("GLM-5.1", "w8a8", {"engine": {"image": "mine:1"}}), site=Site(images={})).stalled is None


def test_what_is_resolved_shows_even_while_a_plan_is_stalled() -> None:
    planned = plan(service("GLM-5.1", "bf16"))

    assert planned.stalled is not None
    assert planned.resolved is not None
    assert (planned.resolved.nodes, planned.resolved.cards) == (2, 32)


def test_stated_hardware_of_the_pool_replaces_what_labels_do_not_say() -> None:
    stated: dict[str, Any] = {"product": "A3", "resourceName": "example.com/npu"}
    planned = plan(service(), other("n0", {"example.com/npu": 16}), of=pool(stated))

    assert planned.stalled is None
    assert planned.resolved is not None
    assert planned.resolved.product == "A3"
    assert child(planned, "Deployment")["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["example.com/npu"] == "16"


def test_two_boxes_of_eight_in_one_server_of_sixteen_need_no_second_node() -> None:
    planned = plan(service("GLM-5.2", "w4a8c8"), node("box16", Product.A2, cards=16))

    assert planned.stalled is None
    assert planned.resolved is not None
    assert planned.resolved.nodes == 1


def test_more_replicas_than_the_pool_has_room_for_are_planned_with_a_warning() -> None:
    planned = plan(service("GLM-5.1", "w8a8", {"replicas": 3}))

    assert planned.stalled is None
    assert [warning.reason for warning in planned.warnings] == ["ReplicasExceedPool"]
    assert "room for 2 of 3 replicas" in planned.warnings[0].message


def test_cards_in_use_never_stall_a_plan() -> None:
    busy = tuple(node(f"n{index}", held=16) for index in range(2))

    assert plan(service(), *busy).stalled is None


def test_a_plan_is_the_same_twice() -> None:
    assert plan(service()) == plan(service())
    assert RESOURCE in str(plan(service()).objects)
