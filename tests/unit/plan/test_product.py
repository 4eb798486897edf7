"""Reading hardware from nodes. Label values are those of the device plugins' documentation."""

from __future__ import annotations

import pytest

from glm5_operator.plan.facts import NodeFacts, Product
from glm5_operator.plan.product import card_bytes, extended_resources, node_facts, product_of, resource_of

CHIP, BOARD, SERVER = "node.kubernetes.io/npu.chip.name", "accelerator-type", "servertype"


@pytest.mark.parametrize(
    ("labels", "resource", "expected"),
    [
        ({CHIP: "910B3"}, "huawei.com/Ascend910", Product.A2),
        ({CHIP: "910B4-1"}, "huawei.com/Ascend910", Product.A2),
        ({CHIP: "Ascend910_9392"}, "huawei.com/Ascend910", Product.A3),
        ({CHIP: "910_9391"}, "huawei.com/Ascend910", Product.A3),
        ({CHIP: "910C"}, "huawei.com/Ascend910", Product.A3),
        ({CHIP: "310P3"}, "huawei.com/Ascend310P", Product.ATLAS_310P),
        ({CHIP: "Ascend950DT"}, "huawei.com/npu", Product.A5),
        ({CHIP: "910A"}, "huawei.com/Ascend910", None),
        ({BOARD: "module-910b-8"}, "huawei.com/Ascend910", Product.A2),
        ({BOARD: "card-910b-infer"}, "huawei.com/Ascend910", Product.A2),
        ({BOARD: "module-a3-16-super-pod"}, "huawei.com/Ascend910", Product.A3),
        ({BOARD: "850-Atlas-8p-8"}, "huawei.com/npu", Product.A5),
        ({BOARD: "module"}, "huawei.com/Ascend910", None),
        ({SERVER: "Ascend910B-20"}, "huawei.com/Ascend910", Product.A2),
        ({SERVER: "Ascend310P-8"}, "huawei.com/Ascend310P", Product.ATLAS_310P),
        ({CHIP: "910B3", BOARD: "module-a3-16"}, "huawei.com/Ascend910", Product.A2),  # the plugin's label counts more than a hand's
        ({}, "huawei.com/Ascend910", None),  # 910A, A2 and A3 share this name
        ({}, "huawei.com/ascend-1980", Product.A2),
        ({}, "huawei.com/Ascend910B4", Product.A2),
        ({}, "huawei.com/Ascend910C", Product.A3),
        ({}, "huawei.com/npu", Product.A5),
    ],
)
def test_the_product_comes_from_labels_before_resource_names(labels: dict[str, str], resource: str, expected: Product | None) -> None:
    assert product_of(labels, {resource: 8}) == expected


@pytest.mark.parametrize(
    ("labels", "gigabytes"),
    [
        ({"mind-cluster/npu-chip-memory": "64G"}, 64),
        ({"mind-cluster/npu-chip-memory": "32G"}, 32),
        ({CHIP: "910B4"}, 32),
        ({CHIP: "910B4-1"}, 64),
        ({}, 64),
    ],
)
def test_card_memory_comes_from_its_label_or_the_chip(labels: dict[str, str], gigabytes: int) -> None:
    assert card_bytes(labels) == gigabytes * 10**9


@pytest.mark.parametrize(
    ("allocatable", "expected"),
    [
        ({"huawei.com/Ascend910": 8}, ("huawei.com/Ascend910",)),
        ({"huawei.com/Ascend910": 0}, ()),
        (
            {"huawei.com/Ascend910B3": 8, "huawei.com/Ascend910B3-memory": 524288, "huawei.com/Ascend910B3-core": 800},
            ("huawei.com/Ascend910B3",),
        ),
        ({"huawei.com/Ascend910-2c": 4, "huawei.com/npu-core": 100}, ()),  # shares of a card
        ({"huawei.com/Ascend310P-VPro": 4}, ("huawei.com/Ascend310P-VPro",)),
        ({"nvidia.com/gpu": 8}, ()),
        ({"huawei.com/Ascend910": 8, "huawei.com/Ascend310P": 8}, ("huawei.com/Ascend310P", "huawei.com/Ascend910")),
    ],
)
def test_only_whole_cards_count_as_the_resource_of_a_pool(allocatable: dict[str, int], expected: tuple[str, ...]) -> None:
    assert resource_of([NodeFacts("n", {}, None, allocatable)]) == expected


def test_extended_resources_are_what_a_device_plugin_could_have_registered() -> None:
    allocatable = {
        "cpu": "64",
        "memory": "256Gi",
        "pods": "110",
        "hugepages-2Mi": "0",
        "kubernetes.io/batch-cpu": "4",
        "huawei.com/Ascend910": "16",
        "example.com/odd": "1k",
    }

    assert extended_resources(allocatable) == {"huawei.com/Ascend910": 16}


def test_facts_of_a_node_as_the_api_server_sends_it() -> None:
    found = node_facts(
        {
            "metadata": {"name": "a3-1", "labels": {BOARD: "module-a3-16"}},
            "spec": {
                "unschedulable": True,
                "taints": [
                    {"key": "glm5.dev/role", "value": "inference", "effect": "NoSchedule"},
                    {"key": "soft", "effect": "PreferNoSchedule"},
                ],
            },
            "status": {"allocatable": {"huawei.com/Ascend910": "16", "cpu": "320"}, "conditions": [{"type": "Ready", "status": "True"}]},
        },
        held=2,
    )

    assert found == NodeFacts(
        "a3-1", {BOARD: "module-a3-16"}, Product.A3, {"huawei.com/Ascend910": 16}, True, False, 2, frozenset({"glm5.dev/role=inference"})
    )


def test_a_node_that_has_just_registered_has_no_facts_yet_and_breaks_nothing() -> None:
    found = node_facts({"metadata": {"name": "new"}, "spec": {}, "status": {}})

    assert (found.ready, found.schedulable, dict(found.allocatable), found.product) == (False, True, {}, None)


def test_a_node_in_remedy_takes_no_new_pods() -> None:
    taint = {"key": "glm5.dev/health", "value": "remedy", "effect": "NoSchedule"}

    assert not node_facts({"metadata": {"name": "n"}, "spec": {"taints": [taint]}, "status": {}}).schedulable
