"""Troubles that MindCluster reports of a node in ConfigMaps and an annotation, and that the operator tells in an AscendNode's conditions.

Called by `diagnose`. Reads with `mindcluster`, grades with `levels`; a note is no trouble.
"""

from __future__ import annotations

from dataclasses import replace
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
    own, copies = {}, {}
    for config_map in evidence.maps:
        metadata = config_map.get("metadata") or {}
        name = str(metadata.get("name") or "")
        if name.startswith((mindcluster.DEVICE_MAP, mindcluster.HOST_MAP)):
            own[name] = config_map
        elif metadata.get("namespace") == mindcluster.CLUSTER_NAMESPACE:
            copies[name] = config_map
    for name, config_map in own.items():
        if name.startswith(mindcluster.DEVICE_MAP):
            yield from _devices(mindcluster.devices(config_map), name, name)
        else:
            yield from _host(mindcluster.host(config_map), name)
    if evidence.node:
        yield from _copies(evidence.node, own, copies)
    yield from _waiting(evidence)
    for condition in evidence.conditions:
        if condition.type == "FactsFresh" and condition.status == "False":
            yield Diagnosis(
                "SourceNotBelieved",
                "nothing is done to cards or pods of this node, since its facts can't be believed now",
                (f"condition FactsFresh: {condition.reason}: {condition.message}",),
                "look at who writes them: the node agent's pod, or MindCluster's device plugin, NodeD and ClusterD",
            )


def _copies(node: str, own: Mapping[str, Any], copies: Mapping[str, Mapping[str, Any]]) -> Iterator[Diagnosis]:
    """What ClusterD says of the node: beside the maps that it has copied only what others have reported to it."""
    plugins, nodeds = mindcluster.DEVICE_MAP + node, mindcluster.HOST_MAP + node
    for name, config_map in copies.items():
        if name.startswith(mindcluster.CLUSTER_DEVICES) and (found := mindcluster.devices_in_cluster(config_map, node)) is not None:
            where = name
            if isinstance(found, mindcluster.Devices):
                where = f"{name} (written {found.updated or 'nobody knows when'})"
                if plugins in own:
                    found = replace(found, entries=tuple(entry for entry in found.entries if entry.kind == "PublicFault"))
            yield from _devices(found, where, plugins)
        elif (
            name == mindcluster.CLUSTER_HOSTS and nodeds not in own and (parts := mindcluster.host_in_cluster(config_map, node)) is not None
        ):
            yield from _host(parts, name)


def _devices(found: mindcluster.Devices | mindcluster.Unreadable, name: str, own: str) -> Iterator[Diagnosis]:
    """`name` is where it stands, `own` the device plugin's own map of the node."""
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
            f"when they are repaired, take them out of data ManuallySeparateNPU of ConfigMap {own} (namespace kube-system)",
            "vendor",
        )


def _host(found: tuple[mindcluster.HostFault, ...] | mindcluster.Unreadable, name: str) -> Iterator[Diagnosis]:
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
