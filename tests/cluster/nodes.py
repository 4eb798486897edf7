"""What a Kubernetes node with Ascend cards looks like: labels and resources by product. Used by api.py and kind.py.

Values are those that Ascend's device plugin and installation guide set on real nodes.
"""

import os
from collections.abc import Mapping
from typing import Any

RESOURCE = "huawei.com/Ascend910"
CARDS = {"A2": 8, "A3": 16}  # A3 counts dies: eight modules of two
PRODUCTS = tuple(CARDS)

_PRODUCT_LABELS: dict[str, dict[str, str]] = {
    "A2": {
        "accelerator-type": "module-910b-8",
        "node.kubernetes.io/npu.chip.name": "910B3",
        "servertype": "Ascend910B-20",
        "mind-cluster/npu-chip-memory": "64G",
    },
    "A3": {
        "accelerator-type": "module-a3-16",
        "node.kubernetes.io/npu.chip.name": "Ascend910",
        "servertype": "Ascend910A3-48",
        "mind-cluster/npu-chip-memory": "64G",
    },
}


def node_labels(product: str) -> dict[str, str]:
    """The labels of a real worker node with that product."""
    arch = "huawei-arm" if os.uname().machine == "aarch64" else "huawei-x86"
    return {"accelerator": "huawei-Ascend910", "workerselector": "dls-worker-node", "host-arch": arch, **_PRODUCT_LABELS[product]}


def kwok_node(
    name: str, *, product: str = "A2", labels: Mapping[str, str] | None = None, resources: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A Node object that KWOK keeps Ready, as large as a real one.

    Args:
        name: Its name.
        product: A2 or A3, decides labels and number of cards.
        labels: Added to (or replacing) the product's labels.
        resources: Added to (or replacing) capacity and allocatable.
    """
    size = {"cpu": "192", "memory": "1Ti", "ephemeral-storage": "2Ti", "pods": "1000", RESOURCE: str(CARDS[product]), **(resources or {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "type": "kwok",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                **node_labels(product),
                **(labels or {}),
            },
        },
        "status": {"capacity": size, "allocatable": size},
    }
