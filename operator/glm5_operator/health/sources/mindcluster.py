"""What MindCluster writes into ConfigMaps and one annotation, read strictly: devices, switch, host, and who waits for a reset.

Used by `view`. JSON stands in strings inside JSON, up to three levels deep. Whatever can't be read makes its whole map Unreadable, which is
no information: half a map would hide the faults in the other half. Names of devices and resources are whatever the plugin was told to use
(deviceNameCustomization.json), so only suffixes are known here. Formats: MindCluster 26.1.0, docs/en/scheduling/api, and of older ones the
keys without `-Fault` and entries without `fault_handling`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from glm5_operator.api.node_facts import MOST_CARDS
from glm5_operator.health.types import LAST_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

DEVICE_MAP: Final = "mindx-dl-deviceinfo-"
"""Of the device plugin, in kube-system, one a node."""
HOST_MAP: Final = "mindx-dl-nodeinfo-"
"""Of NodeD, in mindx-dl, one a node, and only while something is wrong."""
SWITCH_ENTRY: Final = "mindx-dl-switchinfo-"
CLUSTER_DEVICES: Final = "cluster-info-device-"
CLUSTER_SWITCHES: Final = "cluster-info-switch-"
CLUSTER_HOSTS: Final = "cluster-info-node-cm"
"""Of ClusterD, in mindx-dl: the maps of all nodes put together."""
CLUSTER_NAMESPACE: Final = "mindx-dl"
"""The only namespace where ClusterD writes, and the only one where maps of these names are believed."""
RESET_ANNOTATION: Final = "ResetInfo"

_DEVICES_KEY: Final = "DeviceInfoCfg"
_SWITCH_KEY: Final = "SwitchInfoCfg"
_SEPARATED_KEY: Final = "ManuallySeparateNPU"
_HOST_KEY: Final = "NodeInfo"
_SECONDS: Final = 10**11
"""Times below are in seconds (of public faults), others in milliseconds; 10^11 s is in the year 5138."""
_NUMBER: Final = re.compile(r"-(\d{1,4})$")
_MOST_WORD: Final = 64
"""Characters of a name that can't be read, in the words about it."""
_HOT_RESET: Final = re.compile(r"-hotReset[= ](-?\d+)")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A map that isn't what it should be.

    Attributes:
        where: ConfigMap (or annotation) and key.
        why: what is wrong with it.
    """

    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.where} can't be read: {self.why}"


@dataclass(frozen=True, slots=True)
class Code:
    """One fault code of an entry.

    Attributes:
        code: as written, for example 80E18404.
        level: as written; empty where the entry gives none for this code.
        since: when it began; None when unknown.
    """

    code: str
    level: str = ""
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """What is wrong with one device, or with the node.

    Attributes:
        kind: CardUnhealthy, CardNetworkUnhealthy, NodeUnhealthy or PublicFault.
        device: physical id; None when it is of the whole node.
        level: what to do about all of it (fault_handling).
        codes: at least one; a device that is only listed as bad has its kind for a code.
    """

    kind: str
    device: int | None
    level: str
    codes: tuple[Code, ...]


@dataclass(frozen=True, slots=True)
class Devices:
    """What the device plugin says of a node's cards.

    Attributes:
        where: which map this is from.
        updated: when it was written; None when it doesn't say.
        entries: what is wrong.
        listed: physical ids of all devices that are named as available, bad or recovering. Devices in use may be in none of these lists.
        available: of them the ones free for pods; newer plugins leave this to Volcano and list none.
        recovering: of them the ones that the plugin is resetting now.
    """

    where: str
    updated: datetime | None
    entries: tuple[Entry, ...] = ()
    listed: frozenset[int] = frozenset()
    available: frozenset[int] = frozenset()
    recovering: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Switch:
    """What is wrong with the switch inside the server.

    Attributes:
        level: see `levels.SWITCH_LEVELS`; empty when all is well.
        codes: as written.
    """

    level: str = ""
    codes: tuple[Code, ...] = ()


@dataclass(frozen=True, slots=True)
class HostFault:
    """What is wrong with a part of the host: `part` is its kind and number, for example `CPU 0`."""

    part: str
    level: str
    codes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Cards that MindCluster doesn't reset itself, by physical id: what a third party and what a person is to reset."""

    third_party: frozenset[int] = frozenset()
    manual: frozenset[int] = frozenset()


class _WrongError(Exception):
    """Of this module: why a map can't be read."""


def devices(config_map: Mapping[str, Any]) -> Devices | Unreadable:
    """Read `mindx-dl-deviceinfo-<node>`."""
    where, data = _where(config_map, _DEVICES_KEY), config_map.get("data") or {}
    try:
        outer = _object(_parsed(data.get(_DEVICES_KEY)), "the map")
        found = _devices(where, _object(outer.get("DeviceInfo"), "DeviceInfo"))
        separated = _ids(data.get(_SEPARATED_KEY) or "", _SEPARATED_KEY)
    except _WrongError as error:
        return Unreadable(where, str(error))
    return _with_separated(found, separated)


def switch(config_map: Mapping[str, Any]) -> Switch | Unreadable | None:
    """Read SwitchInfoCfg of the same map; None on servers that have no such switch."""
    text = (config_map.get("data") or {}).get(_SWITCH_KEY)
    if not text:
        return None
    try:
        return _switch(_object(_parsed(text), "the map"))
    except _WrongError as error:
        return Unreadable(_where(config_map, _SWITCH_KEY), str(error))


def host(config_map: Mapping[str, Any]) -> tuple[HostFault, ...] | Unreadable:
    """Read `mindx-dl-nodeinfo-<node>`."""
    try:
        outer = _object(_parsed((config_map.get("data") or {}).get(_HOST_KEY)), "the map")
        return _host(_object(outer.get("NodeInfo"), "NodeInfo"))
    except _WrongError as error:
        return Unreadable(_where(config_map, _HOST_KEY), str(error))


def devices_in_cluster(config_map: Mapping[str, Any], node: str) -> Devices | Unreadable | None:
    """Read the node's part of `cluster-info-device-<m>`; None when it has none there."""
    return _in_cluster(config_map, DEVICE_MAP + node, _devices)


def switch_in_cluster(config_map: Mapping[str, Any], node: str) -> Switch | Unreadable | None:
    """Read the node's part of `cluster-info-switch-<x>`; None when it has none there."""
    return _in_cluster(config_map, SWITCH_ENTRY + node, lambda _, entry: _switch(entry))


def host_in_cluster(config_map: Mapping[str, Any], node: str) -> tuple[HostFault, ...] | Unreadable | None:
    """Read the node's part of `cluster-info-node-cm`; None when it has none there."""
    return _in_cluster(config_map, HOST_MAP + node, lambda _, entry: _host(entry))


def waiting(annotations: Mapping[str, str]) -> Waiting | Unreadable:
    """Read the annotation ResetInfo of a Node; nobody waits where it isn't there."""
    text = annotations.get(RESET_ANNOTATION)
    if not text:
        return Waiting()
    try:
        info = _object(_parsed(text), "the annotation")
        return Waiting(_to_reset(info, "ThirdPartyResetDevs"), _to_reset(info, "ManualResetDevs"))
    except _WrongError as error:
        return Unreadable(f"annotation {RESET_ANNOTATION}", str(error))


def hot_reset(plugin: Mapping[str, Any]) -> bool:
    """Whether a pod (or a DaemonSet's template) of the device plugin resets cards by itself: -hotReset is neither absent nor -1."""
    containers = (plugin.get("spec") or {}).get("containers") or ()
    words = " ".join(str(word) for container in containers for part in ("command", "args") for word in container.get(part) or ())
    found = _HOT_RESET.findall(words)
    return bool(found) and int(found[-1]) >= 0  # the last one counts, as Go's flags are read


# The parts


def _devices(where: str, info: Mapping[str, Any]) -> Devices:
    listed = _object(info.get("DeviceList"), "DeviceList")
    entries: list[Entry] = []
    bad: dict[str, frozenset[int]] = {"CardUnhealthy": frozenset(), "CardNetworkUnhealthy": frozenset()}
    available: frozenset[int] = frozenset()
    recovering: frozenset[int] = frozenset()
    for key, value in listed.items():
        if key.endswith("-Fault"):
            entries += _entries(value, key)
        elif key.endswith("-NetworkUnhealthy"):
            bad["CardNetworkUnhealthy"] |= _ids(value, key)
        elif key.endswith("-Unhealthy"):
            bad["CardUnhealthy"] |= _ids(value, key)
        elif key.endswith("-Recovering"):
            recovering |= _ids(value, key)
        else:
            available |= _free(value)
    # Plugins before 6.0 give no faults, only who is bad; and a card that is being reset may be listed as bad without any.
    for kind, ids in bad.items():
        told = {entry.device for entry in entries if (entry.kind == "CardNetworkUnhealthy") is (kind == "CardNetworkUnhealthy")}
        entries += [Entry(kind, device, "", (Code(kind),)) for device in sorted(ids - told - recovering)]
    named = frozenset(entry.device for entry in entries if entry.device is not None)
    everywhere = available | recovering | named | bad["CardUnhealthy"] | bad["CardNetworkUnhealthy"]
    if len(everywhere) > MOST_CARDS:
        raise _WrongError(f"it names {len(everywhere)} devices, and no node has so many")
    return Devices(where, _time(info.get("UpdateTime")), tuple(entries), everywhere, available, recovering)


def _with_separated(found: Devices, separated: frozenset[int]) -> Devices:
    """The separate list of chips that stay away until somebody takes them off it; what it says may be in no entry."""
    told = {entry.device for entry in found.entries if entry.level == _SEPARATED_KEY}
    more = tuple(Entry("CardUnhealthy", device, _SEPARATED_KEY, (Code(_SEPARATED_KEY),)) for device in sorted(separated - told))
    return Devices(found.where, found.updated, found.entries + more, found.listed | separated, found.available, found.recovering)


def _entries(value: object, key: str) -> list[Entry]:
    items = _parsed(value) or [] if value else []  # Go writes null for a list of none
    return [_entry(_object(item, f"an item of {key}")) for item in _list(items, key)]


def _entry(item: Mapping[str, Any]) -> Entry:
    kind, name = str(item.get("fault_type") or ""), str(item.get("npu_name") or "")
    # fault_handling is the one to decide by; plugins before it have the other two.
    level = next((str(item[key]) for key in ("fault_handling", "fault_level", "large_model_fault_level") if item.get(key)), "")
    times = _object(item.get("fault_time_and_level_map") or {}, "fault_time_and_level_map")
    codes = [code.strip() for code in str(item.get("fault_code") or "").split(",") if code.strip()]
    read = []
    for code in codes:
        own = _object(times.get(code) or {}, f"fault_time_and_level_map of {code}")
        read.append(Code(code, str(own.get("fault_level") or ""), _time(own.get("fault_time"))))
    return Entry(kind, _id(name) if name else None, level, tuple(read) or (Code(kind),))


def _switch(info: Mapping[str, Any]) -> Switch:
    level = str(info.get("FaultLevel") or "")
    codes = []
    for item in _list(info.get("FaultCode") or [], "FaultCode"):
        event = _event(str(item))
        codes.append(Code(str(event.get("AssembledFaultCode") or item), level, _time(event.get("AlarmRaisedTime"))))
    return Switch(level if codes or level not in {"NotHandle", ""} else "", tuple(codes))


def _event(text: str) -> Mapping[str, Any]:
    """Newer plugins write each code as an event in JSON, older ones the bare code."""
    if not text.startswith("{"):
        return {}
    return _object(_parsed(text), "an item of FaultCode")


def _host(info: Mapping[str, Any]) -> tuple[HostFault, ...]:
    faults = []
    for item in _list(info.get("FaultDevList") or [], "FaultDevList"):
        part = _object(item, "an item of FaultDevList")
        codes = tuple(str(code) for code in _list(part.get("FaultCode") or [], "FaultCode"))
        faults.append(HostFault(f"{part.get('DeviceType') or '?'} {part.get('DeviceId', '?')}", str(part.get("FaultLevel") or ""), codes))
    return tuple(faults)


def _to_reset(info: Mapping[str, Any], key: str) -> frozenset[int]:
    found = set()
    for item in _list(info.get(key) or [], key):
        number = _object(item, f"an item of {key}").get("PhyID")
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= LAST_ID:
            raise _WrongError(f"an item of {key} has no PhyID")
        found.add(number)
    return frozenset(found)


def _in_cluster(config_map: Mapping[str, Any], entry: str, read: Callable[[str, Mapping[str, Any]], T]) -> T | Unreadable | None:
    name = config_map["metadata"]["name"]
    where = f"{entry} in ConfigMap {name}"
    text = (config_map.get("data") or {}).get(name)
    if text == "":
        return None  # ClusterD writes so when it has nothing to say of any node: all hosts are well
    try:
        whole = _cluster(text if isinstance(text, str) else None)
        return None if entry not in whole else read(where, _object(whole[entry], entry))
    except _WrongError as error:
        return Unreadable(where, str(error))


@lru_cache(maxsize=16)  # some hundred kB where a whole map is read, asked for each node that is in it
def _cluster(text: str | None) -> Mapping[str, Any]:
    return _object(_parsed(text), "the map")


# JSON


def _parsed(text: object) -> object:
    if not isinstance(text, str):
        raise _WrongError("it isn't there" if text is None else "it is no text")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _WrongError(f"no JSON: {error}") from error


def _object(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _WrongError(f"{what} is no object")
    return value


def _list(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise _WrongError(f"{what} is no list")
    return value


def _ids(value: object, key: str) -> frozenset[int]:
    """Physical ids of a list such as `Ascend910-0,Ascend910-1`."""
    if not isinstance(value, str):
        raise _WrongError(f"{key} is no text")
    return frozenset(_id(name.strip()) for name in value.split(",") if name.strip())


def _free(value: object) -> frozenset[int]:
    """Of the devices that are free those whose name has a number: shares of chips are counted in units of their own."""
    return frozenset(
        int(found[1]) for name in str(value).split(",") if (found := _NUMBER.search(name.strip())) and int(found[1]) <= LAST_ID
    )


def _id(name: str) -> int:
    """The physical id, which is the last number: `Ascend910-5`, and 5 again of the share `Ascend910-2c-100-5`."""
    found = _NUMBER.search(name)
    if not found or int(found[1]) > LAST_ID:
        raise _WrongError(f"{name[:_MOST_WORD]!r} names no device")
    return int(found[1])


def _time(value: object) -> datetime | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return None
    try:
        return datetime.fromtimestamp(value if value < _SECONDS else value / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _where(config_map: Mapping[str, Any], key: str) -> str:
    return f"{key} of ConfigMap {config_map['metadata']['name']}"
