"""ClusterD's ConfigMaps taken apart: each node's part of them, and whose part has changed.

Held by the cache. One such map is of up to a thousand nodes (some 800 kB) and is written every few seconds while anything changes. It is
decoded once for each version of it; who looks at a node gets a map with that node's entry alone, in the form in which ClusterD writes it.
What an entry means is `health.sources.mindcluster`'s matter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.health.sources.mindcluster import CLUSTER_DEVICES, CLUSTER_HOSTS, CLUSTER_SWITCHES, DEVICE_MAP, HOST_MAP, SWITCH_ENTRY
from glm5_operator.kube.wire import decode, encode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glm5_operator.kube.types import Resource

_NAMES: Final = (CLUSTER_DEVICES, CLUSTER_HOSTS, CLUSTER_SWITCHES)
_ENTRIES: Final = (DEVICE_MAP, HOST_MAP, SWITCH_ENTRY)
_TIME: Final = "UpdateTime"
_SHOWN: Final = 200
"""Characters of a map that can't be read; that it can't is all that is made of it."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One entry: `rest` is JSON without its time, which moves every few seconds without anything else being new."""

    rest: bytes
    time: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Map:
    metadata: Mapping[str, Any]
    parts: Mapping[str, _Part] = field(default_factory=dict)
    broken: str | None = None


class ClusterInfo:
    """The newest version of each map, by entry."""

    def __init__(self) -> None:
        self._maps: dict[str, _Map] = {}
        self._changed: dict[str, frozenset[str]] = {}

    def put(self, config_map: Resource) -> bool:
        """Take in a map; True when the part of some node says something else than before, not only of another moment."""
        name = str(config_map["metadata"]["name"])
        if not name.startswith(_NAMES):
            return False
        old, new = self._maps.get(name), _read(config_map)
        self._maps[name] = new
        return self._note(name, old, new)

    def drop(self, name: str) -> None:
        """Forget a map; the parts of all its nodes have changed."""
        if old := self._maps.pop(name, None):
            self._note(name, old, None)

    def changed(self, name: str) -> frozenset[str]:
        """The nodes whose part has changed with the newest version of that map."""
        return self._changed.get(name, frozenset())

    def of(self, node: str) -> list[Resource]:
        """The maps that have a part of the node, each with that part alone; and those that can't be read, which may have had one."""
        return [part for name in sorted(self._maps) if (part := self._part(name, node)) is not None]

    def _part(self, name: str, node: str) -> Resource | None:
        found = self._maps[name]
        text = found.broken
        for prefix in _ENTRIES:
            if part := found.parts.get(prefix + node):
                entry = decode(part.rest)
                text = encode({prefix + node: {**entry, **part.time} if part.time else entry}).decode()
        return None if text is None else {"apiVersion": "v1", "kind": "ConfigMap", "metadata": found.metadata, "data": {name: text}}

    def _note(self, name: str, old: _Map | None, new: _Map | None) -> bool:
        before, after = (found.parts if found is not None else {} for found in (old, new))
        moved = [entry for entry in before.keys() | after.keys() if _rest(before.get(entry)) != _rest(after.get(entry))]
        self._changed[name] = frozenset(filter(None, map(_node, moved)))
        return bool(self._changed[name])


def part_of(config_map: Resource, node: str) -> Resource | None:
    """The same map with the part of that node alone; None where it has none."""
    info = ClusterInfo()
    info.put(config_map)
    return next(iter(info.of(node)), None)


def _read(config_map: Resource) -> _Map:
    metadata = {name: value for name, value in config_map["metadata"].items() if name in {"name", "namespace", "uid"}}
    text = (config_map.get("data") or {}).get(metadata["name"])
    if not text:  # of no node there is anything to say
        return _Map(metadata)
    try:
        whole = decode(text.encode())
    except (ValueError, RecursionError):
        whole = None
    if not isinstance(whole, dict):
        return _Map(metadata, broken=text[:_SHOWN])
    return _Map(metadata, {name: _without_time(entry) for name, entry in whole.items()})


def _without_time(entry: object) -> _Part:
    if not isinstance(entry, dict) or _TIME not in entry:
        return _Part(encode(entry), {})
    return _Part(encode({name: value for name, value in entry.items() if name != _TIME}), {_TIME: entry[_TIME]})


def _rest(part: _Part | None) -> bytes | None:
    return None if part is None else part.rest


def _node(entry: str) -> str:
    prefix = next((prefix for prefix in _ENTRIES if entry.startswith(prefix)), None)
    return entry.removeprefix(prefix) if prefix else ""
