"""Troubles that MindCluster reports of a node in ConfigMaps and an annotation, and that the operator tells in an AscendNode's conditions.

Called by `diagnose`. Reads with `mindcluster`, grades with `levels`; a note is no trouble.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glm5_operator.health.doctor.evidence import Diagnosis
from glm5_operator.health.sources import mindcluster
from glm5_operator.health.sources.levels import HOST_LEVELS, card_grade
from glm5_operator.health.types import Grade

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from glm5_operator.health.doctor.evidence import Evidence

_BY_HAND = "ManuallySeparateNPU"


def mindcluster_troubles(evidence: Evidence) -> Iterator[Diagnosis]:
    """All that MindCluster and the operator say of the node."""
    for config_map in evidence.maps:
        name = str((config_map.get("metadata") or {}).get("name") or "")
        if name.startswith(mindcluster.DEVICE_MAP):
            yield from _devices(config_map, name)
        elif name.startswith(mindcluster.HOST_MAP):
            yield from _host(config_map, name)
    yield from _waiting(evidence)
    for condition in evidence.conditions:
        if condition.type == "FactsFresh" and condition.status == "False":
            yield Diagnosis(
                "SourceNotBelieved",
                "nothing is done to cards or pods of this node, since its facts can't be believed now",
                (f"condition FactsFresh: {condition.reason}: {condition.message}",),
                "look at who writes them: the node agent's pod, or MindCluster's device plugin, NodeD and ClusterD",
            )


def _devices(config_map: Mapping[str, Any], name: str) -> Iterator[Diagnosis]:
    found = mindcluster.devices(config_map)
    if isinstance(found, mindcluster.Unreadable):
        yield _unreadable(found)
        return
    sick = [entry for entry in found.entries if card_grade(entry.level, network="Network" in entry.kind) is not Grade.NOTE]
    told = [entry for entry in sick if entry.level != _BY_HAND]
    if told:
        yield Diagnosis(
            "CardFault",
            "MindCluster reports faults",
            tuple(
                f"{name}: {'the node' if entry.device is None else f'card {entry.device}'}: {entry.level or entry.kind}, codes"
                f" {', '.join(code.code for code in entry.codes)}"
                for entry in told
            ),
            "see status.remedy of the AscendNode for what is being done; docs/health.md says what each grade asks for",
            "vendor",
        )
    if by_hand := sorted({entry.device for entry in sick if entry.level == _BY_HAND and entry.device is not None}):
        yield Diagnosis(
            "CardSeparated",
            "the device plugin keeps cards back: a fault came too often, or a person put them into the list",
            (f"{name}: ManuallySeparateNPU has cards {', '.join(map(str, by_hand))}",),
            f"when they are repaired, take them out of data ManuallySeparateNPU of ConfigMap {name} (namespace kube-system)",
            "vendor",
        )


def _host(config_map: Mapping[str, Any], name: str) -> Iterator[Diagnosis]:
    found = mindcluster.host(config_map)
    if isinstance(found, mindcluster.Unreadable):
        yield _unreadable(found)
    elif told := [fault for fault in found if HOST_LEVELS.get(fault.level) is not Grade.NOTE]:
        yield Diagnosis(
            "HostFault",
            "NodeD reports faults of the host, which concern all its cards",
            tuple(f"{name}: {fault.part}: {fault.level}, codes {', '.join(fault.codes)}" for fault in told),
            "repair the named part; the BMC's log says more",
            "vendor",
        )


def _waiting(evidence: Evidence) -> Iterator[Diagnosis]:
    found = mindcluster.waiting(evidence.annotations)
    if isinstance(found, mindcluster.Unreadable):
        yield _unreadable(found)
    elif found.manual:
        yield Diagnosis(
            "ResetWaitsForPerson",
            "MindCluster asks for a reset that it doesn't do itself",
            (f"annotation {mindcluster.RESET_ANNOTATION}: ManualResetDevs has cards {', '.join(map(str, sorted(found.manual)))}",),
            "drain the node and reset it; with spec.health.mode Auto the pool's remedy does",
            "vendor",
        )


def _unreadable(found: mindcluster.Unreadable) -> Diagnosis:
    fix = "compare MindCluster's version with the supported ones (`glm5 compat`), and report the map"
    return Diagnosis(
        "MindClusterUnreadable", "what MindCluster wrote has another form than is known, so it says nothing", (str(found),), fix
    )
