"""What hardware a node has: product, card memory and resource name, read from labels and allocatable.

Called by whoever builds NodeFacts and by pool planning. Must not guess: what nothing on the node tells is None,
and the planner then asks the user to state it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.plan.facts import NodeFacts, Product

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CHIP_LABEL: Final = "node.kubernetes.io/npu.chip.name"  # the device plugin writes it: 910B3, 310P3, Ascend950DT
BOARD_LABEL: Final = "accelerator-type"  # admins write it by hand: module-910b-8, module-a3-16
SERVER_LABEL: Final = "servertype"  # the device plugin: Ascend910B-20, Ascend310P-8
DRIVER_LABEL: Final = "huawei.com/driver.version"  # the device plugin: 25.2.0
MEMORY_LABEL: Final = "mind-cluster/npu-chip-memory"  # the device plugin: 64G

GB: Final = 10**9
CARD_BYTES: Final = 64 * GB
"""Of an A2 card and of an A3 die, when no label says otherwise. Decimal on purpose: the driver keeps about 3 of 64 GiB for itself."""

# First match wins: 910_93 and 910C are A3 and must be looked at before 910B.
_CHIPS: Final = (
    (re.compile(r"910_?93|910C|910_?9[34]\d\d", re.IGNORECASE), Product.A3),
    (re.compile(r"910B", re.IGNORECASE), Product.A2),
    (re.compile(r"310P", re.IGNORECASE), Product.ATLAS_310P),
    (re.compile(r"950", re.IGNORECASE), Product.A5),
)
_BOARDS: Final = (
    (re.compile(r"^module-a3-"), Product.A3),
    (re.compile(r"^(module|card)-910b-"), Product.A2),
    (re.compile(r"^(350|850|950)-"), Product.A5),
)
# `huawei.com/Ascend910` is not here: 910A, A2 and A3 share it.
_RESOURCES: Final = (
    (re.compile(r"^huawei\.com/Ascend910C$"), Product.A3),
    (re.compile(r"^huawei\.com/(Ascend910B|ascend-1980$)"), Product.A2),
    (re.compile(r"^huawei\.com/Ascend310P"), Product.ATLAS_310P),
    (re.compile(r"^huawei\.com/npu$"), Product.A5),
)
# Whole cards only: vNPU templates (Ascend910-2c), HAMi's -memory and -core, and npu-core are shares of one.
_WHOLE_CARD: Final = re.compile(r"^huawei\.com/(Ascend(910|310)[A-Z]?\d?(-1|-V|-VPro|-IPro)?|npu|ascend-\d+)$")
_SMALL_CARDS: Final = ((re.compile(r"910B4$", re.IGNORECASE), 32 * GB), (re.compile(r"310P", re.IGNORECASE), 21 * GB))
_INTERNAL: Final = ("kubernetes.io/", "hugepages-", "attachable-volumes-")


def product_of(labels: Mapping[str, str], allocatable: Iterable[str] = ()) -> Product | None:
    """The node's product; the device plugin's labels count more than those written by hand."""
    return (
        _first(_CHIPS, labels.get(CHIP_LABEL, ""))
        or _first(_BOARDS, labels.get(BOARD_LABEL, ""))
        or _first(_CHIPS, labels.get(SERVER_LABEL, ""))
        or next((found for name in sorted(allocatable) if (found := _first(_RESOURCES, name))), None)
    )


def card_bytes(labels: Mapping[str, str]) -> int:
    """Memory of one card (die on A3) of the node."""
    return _card_bytes(labels.get(MEMORY_LABEL, ""), labels.get(CHIP_LABEL, ""))


@lru_cache(maxsize=256)  # asked for each node of the pool at each plan, and hardly two nodes of a cluster differ
def _card_bytes(memory: str, chip: str) -> int:
    stated = re.match(r"^(\d+)\s*G", memory, re.IGNORECASE)
    if stated:
        return int(stated.group(1)) * GB
    return next((size for pattern, size in _SMALL_CARDS if pattern.search(chip)), CARD_BYTES)


def resource_of(nodes: Iterable[NodeFacts]) -> tuple[str, ...]:
    """Names of the whole-card resources that these nodes offer; one means it is known."""
    return tuple(sorted({name for node in nodes for name, count in node.allocatable.items() if count > 0 and is_card_resource(name)}))


@lru_cache(maxsize=256)  # as above
def is_card_resource(name: str) -> bool:
    """The name of a whole card's resource, as far as they are known."""
    return _WHOLE_CARD.match(name) is not None


def extended_resources(allocatable: Mapping[str, Any]) -> dict[str, int]:
    """The device-like part of `node.status.allocatable`; anything that isn't a whole number is left out."""
    found = {}
    for name, amount in allocatable.items():
        if "/" in name and not name.startswith(_INTERNAL) and str(amount).isdigit():
            found[name] = int(amount)
    return found


def node_facts(node: Mapping[str, Any], held: int = 0) -> NodeFacts:
    """Facts of a Node object as the API server sends it."""
    metadata, spec, status = (node.get(part) or {} for part in ("metadata", "spec", "status"))
    labels = metadata.get("labels") or {}
    allocatable = extended_resources(status.get("allocatable") or {})
    conditions = {entry.get("type"): entry.get("status") for entry in status.get("conditions") or ()}
    taints = (entry for entry in spec.get("taints") or () if entry.get("effect") in {"NoSchedule", "NoExecute"})
    return NodeFacts(
        name=metadata["name"],
        labels=labels,
        product=product_of(labels, allocatable),
        allocatable=allocatable,
        ready=conditions.get("Ready") == "True",
        schedulable=not (spec.get("unschedulable", False) or is_in_remedy(node) or _is_moving(node)),
        held=held,
        taints=frozenset(f"{entry.get('key', '')}={entry.get('value', '')}" for entry in taints),
        driver=str(labels.get(DRIVER_LABEL, "")),
        lent_by=str((metadata.get("annotations") or {}).get(names.LENT_ANNOTATION, "")),
        assigned=str((metadata.get("annotations") or {}).get(names.MOVE_ANNOTATION, "")),
    )


def is_in_remedy(node: Mapping[str, Any]) -> bool:
    """Whether the operator keeps new pods away from the node because of its cards."""
    return any(entry.get("key") == names.HEALTH_TAINT for entry in (node.get("spec") or {}).get("taints") or ())


def _is_moving(node: Mapping[str, Any]) -> bool:
    return any(entry.get("key") == names.MOVE_TAINT for entry in (node.get("spec") or {}).get("taints") or ())


def _first(table: Iterable[tuple[re.Pattern[str], Product]], text: str) -> Product | None:
    return next((product for pattern, product in table if pattern.search(text)), None)
