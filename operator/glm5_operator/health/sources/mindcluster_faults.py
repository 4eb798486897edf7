"""What MindCluster tells of one node, as faults in the remedy's terms: its maps found, their age judged, their levels graded.

Used by `view`, which decides whether it is believed. The forms of the maps are `mindcluster`'s matter, the grades `levels`'.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.health.sources import levels, mindcluster
from glm5_operator.health.sources.mindcluster import Devices, Switch, Unreadable
from glm5_operator.health.types import GRADES, Fault, Grade, worst

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

FRESH_FOR: Final = timedelta(minutes=11)
"""Two of the plugin's intervals and a minute: it writes on change, and every 5 minutes at the latest."""
AHEAD: Final = timedelta(minutes=2)
"""How much a node's clock may be ahead of ours before the age of what it writes means nothing."""

_CLUSTERD: Final = "cluster-info-"
_NAMESPACES: Final = {"kube-system", "mindx-dl"}
"""The label that the maps carry is anybody's to set: elsewhere a map of that name is somebody's wish to have a node drained."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the maps say.

    Attributes:
        where: the map that the cards' faults are from; empty where there is none that can be read.
        updated: when it was written.
        fresh: it is young enough to be believed.
        faults: physical id → faults, worst first; those of switch and host stand with every card that is asked for.
        whole: faults of the whole node.
        listed: physical ids that the map names.
        available: physical ids that it says are well and free.
        recovering: physical ids that are being reset.
        problems: what couldn't be read or is too old, in words.
    """

    where: str = ""
    updated: datetime | None = None
    fresh: bool = False
    faults: Mapping[int, tuple[Fault, ...]] | None = None
    whole: tuple[Fault, ...] = ()
    listed: frozenset[int] = frozenset()
    available: frozenset[int] = frozenset()
    recovering: frozenset[int] = frozenset()
    problems: tuple[str, ...] = ()

    def of(self, physical: int) -> tuple[Fault, ...]:
        """The faults of a card, worst first, with those of the node around it."""
        return worst_first((*(self.faults or {}).get(physical, ()), *self.whole))


def told(node: str, maps: Iterable[Mapping[str, Any]], now: datetime) -> Told:
    """Read all maps of a node; an empty `where` means that MindCluster says nothing of it."""
    named = {entry["metadata"]["name"]: entry for entry in maps if _is_believed(entry["metadata"])}
    problems: list[str] = []
    own = named.get(mindcluster.DEVICE_MAP + node)
    read = _readable([mindcluster.devices(own)] if own else (), problems)
    copies = _readable(_clusters(named, mindcluster.CLUSTER_DEVICES, node, mindcluster.devices_in_cluster), problems)
    # ClusterD copies the plugins' maps: worth believing where a plugin's own isn't seen. Where it is, its own time counts: with a public
    # fault ClusterD writes its own time into the copy, every few seconds, also of a plugin that has long ended.
    found = _newest(read or copies, now)
    if found is not None and read:
        # What others report to ClusterD (public faults) stands in its copies only.
        public = (entry for copy in copies if _is_fresh(copy, now) for entry in copy.entries if entry.kind == "PublicFault")
        found = replace(found, entries=(*found.entries, *public))
    if found is None:
        return Told(problems=tuple(problems))
    fresh = _is_fresh(found, now)
    if not fresh:
        problems.append(_age(found, now))
    if not any(_is_fresh(copy, now) for copy in copies):
        # Host and switch have no time of their own there: what a ClusterD has left that runs no more would stand for ever.
        named = {name: entry for name, entry in named.items() if not name.startswith(_CLUSTERD)}
    whole = (*_of_switch(_switch(named, node, problems)), *_of_host(_host(named, node, problems)), *_of_node(found))
    return Told(
        where=found.where,
        updated=found.updated,
        fresh=fresh,
        faults=_by_card(found),
        whole=whole,
        listed=found.listed,
        available=found.available,
        recovering=found.recovering,
        problems=tuple(problems),
    )


def worst_first(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """Ordered by grade, then by code, so that the order doesn't wander between readings."""
    return tuple(sorted(faults, key=lambda fault: (-GRADES.index(fault.grade), fault.code)))


def _is_believed(metadata: Mapping[str, Any]) -> bool:
    allowed = {mindcluster.CLUSTER_NAMESPACE} if str(metadata.get("name")).startswith(_CLUSTERD) else _NAMESPACES
    return metadata.get("namespace") in allowed


def _readable(read: Iterable[Any], problems: list[str]) -> list[Any]:
    good = []
    for item in read:
        if isinstance(item, Unreadable):
            problems.append(str(item))
        elif item is not None:
            good.append(item)
    return good


def _clusters(named: Mapping[str, Any], prefix: str, node: str, read: Callable[[Mapping[str, Any], str], Any]) -> list[Any]:
    return [read(named[name], node) for name in sorted(named) if name.startswith(prefix)]


def _newest(found: Iterable[Devices], now: datetime) -> Devices | None:
    """The map that was written last; one from the future is older than all others."""
    return max(found, key=lambda item: (_is_fresh(item, now), item.updated.timestamp() if item.updated else 0.0), default=None)


def _is_fresh(found: Devices, now: datetime) -> bool:
    return found.updated is not None and -AHEAD <= now - found.updated <= FRESH_FOR


def _age(found: Devices, now: datetime) -> str:
    if found.updated is None:
        return f"{found.where} doesn't say when it was written"
    age = now - found.updated
    if age < -AHEAD:
        return f"{found.where} is of {found.updated:%Y-%m-%dT%H:%M:%SZ}, which is yet to come: set the node's clock"
    return (
        f"{found.where} is of {found.updated:%Y-%m-%dT%H:%M:%SZ}, and should be written every 5 minutes: see whether the device plugin runs"
    )


def _switch(named: Mapping[str, Any], node: str, problems: list[str]) -> Switch | None:
    own = named.get(mindcluster.DEVICE_MAP + node)
    read = [mindcluster.switch(own)] if own else _clusters(named, mindcluster.CLUSTER_SWITCHES, node, mindcluster.switch_in_cluster)
    return next(iter(_readable(read, problems)), None)


def _host(named: Mapping[str, Any], node: str, problems: list[str]) -> tuple[mindcluster.HostFault, ...]:
    own = named.get(mindcluster.HOST_MAP + node)
    read = [mindcluster.host(own)] if own else _clusters(named, mindcluster.CLUSTER_HOSTS, node, mindcluster.host_in_cluster)
    return next(iter(_readable(read, problems)), ())


def _by_card(found: Devices) -> dict[int, tuple[Fault, ...]]:
    cards: dict[int, list[Fault]] = {}
    for entry in found.entries:
        if entry.device is not None:
            cards.setdefault(entry.device, []).extend(_faults(entry))
    return {card: worst_first(faults) for card, faults in cards.items()}


def _faults(entry: mindcluster.Entry) -> tuple[Fault, ...]:
    """One fault a code, by the code's own level where these agree with what is to be done about all of them, else by that."""
    network = entry.kind == "CardNetworkUnhealthy"
    decided = levels.card_grade(entry.level, network=network)
    faults = tuple(
        Fault(code.code, code.level or entry.level, levels.card_grade(code.level or entry.level, network=network), network, code.since)
        for code in entry.codes
    )
    if worst(*(fault.grade for fault in faults)) is decided:
        return faults
    return tuple(replace(fault, level=entry.level, grade=decided) for fault in faults)


def _of_node(found: Devices) -> tuple[Fault, ...]:
    """Entries without a device. NodeUnhealthy without a level is a lost heartbeat, which the node's own condition says better."""
    entries = [entry for entry in found.entries if entry.device is None]
    quiet = [entry for entry in entries if entry.kind == "NodeUnhealthy" and not entry.level]
    noted = (Fault(code.code, entry.kind, Grade.NOTE, since=code.since) for entry in quiet for code in entry.codes)
    return (*noted, *(fault for entry in entries if entry not in quiet for fault in _faults(entry)))


def _of_switch(switch: Switch | None) -> tuple[Fault, ...]:
    if switch is None or not switch.level:
        return ()
    grade = levels.SWITCH_LEVELS.get(switch.level, Grade.ISOLATE)
    codes = switch.codes or (mindcluster.Code("switch"),)
    return tuple(Fault(code.code, switch.level, grade, network=True, since=code.since) for code in codes)


def _of_host(parts: Iterable[mindcluster.HostFault]) -> tuple[Fault, ...]:
    return tuple(
        Fault(f"{part.part} {code}", part.level, levels.HOST_LEVELS.get(part.level, Grade.ISOLATE))
        for part in parts
        for code in part.codes or ("?",)
    )
