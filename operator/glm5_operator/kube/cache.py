"""What the watches have seen, kept small: the only place controllers read from.

Fed by the watch handlers in `app`, the relist, and the answers to our own writes (so a reconcile sees what the last one did);
read by controllers. Does no I/O and knows no controller.
Objects are kept as JSON bytes and decoded on demand: a thousand services with children cost a tenth of what they would as Python
dicts, while each is read a few times in its life. What nobody reads isn't kept: managedFields of objects that we don't apply, the
heartbeats of nodes, most of a pod's spec, and of pods of others everything but where they hold devices. Pods of the node agent are kept for
their readiness.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.kube import kinds
from glm5_operator.kube.cluster_info import ClusterInfo
from glm5_operator.kube.types import Key, Resource, key_of
from glm5_operator.kube.wire import decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Resources = list[Resource]  # a name of its own: inside the class `list` is the method

_GRAVES: Final = 20_000  # deletions remembered, so that a list taken just before one can't bring the object back
_LAST_STATES: Final = 1024  # a few kB each
_POD_CONTAINER: Final = ("name", "image", "resources", "ports")
_CHILD_KINDS: Final = frozenset(kind.name for kind in kinds.CHILDREN)
_OWN_KINDS: Final = frozenset({kinds.SERVICE.name, kinds.FINETUNE.name, kinds.POOL.name})
_LABEL_OF: Final = {kinds.SERVICE.name: names.SERVICE_LABEL, kinds.FINETUNE.name: names.FINETUNE_LABEL}
"""Kinds that have pods, with the label that their pods carry."""

_MAPS: Final = ("mindx-dl-deviceinfo-", "mindx-dl-nodeinfo-")

Group = tuple[str, ...]


class _Entry:
    """One object. `raw` is without its resourceVersion, so that equal bytes mean nothing new."""

    __slots__ = ("conditions", "group", "node", "raw", "version")

    def __init__(self, raw: bytes, version: str, group: Group | None, conditions: tuple[tuple[str, str], ...], node: str) -> None:
        self.raw = raw
        self.version = version
        self.group = group
        self.conditions = conditions
        self.node = node


class Cache:
    """Objects by key, with the lookups that controllers need."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[Key, _Entry]] = {kind.name: {} for kind in kinds.CACHED}
        self._groups: defaultdict[Group, set[Key]] = defaultdict(set)
        self._held: defaultdict[str, dict[Key, Mapping[str, int]]] = defaultdict(dict)
        self._held_together: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._news: Counter[str] = Counter()
        self._graves: OrderedDict[Key, int] = OrderedDict()
        self._last_states: OrderedDict[tuple[Group, Key], bytes] = OrderedDict()
        self._owner_of_label: dict[tuple[str, str, str], Key] = {}
        self._drivers: dict[str, str] = {}
        self._drivers_news = 0
        self._cluster_info = ClusterInfo()

    # Reading

    def get(self, kind: str, namespace: str, name: str) -> Resource | None:
        """The object as last seen, or None. `namespace` is "" for kinds of the cluster."""
        entry = self._entries[kind].get(Key(kind, namespace, name))
        return None if entry is None else _decode(entry)

    def list(self, kind: str, namespace: str | None = None) -> Resources:
        """All objects of a kind, in one namespace or everywhere, ordered by key."""
        found = self._entries[kind]
        return [_decode(found[key]) for key in sorted(found) if namespace is None or key.namespace == namespace]

    def raw(self, kind: str) -> Iterator[tuple[Key, bytes]]:
        """All objects of a kind as they are kept, in no order: the same bytes object as before means nothing new."""
        return ((key, entry.raw) for key, entry in self._entries[kind].items())

    def keys(self, kind: str) -> Iterator[Key]:
        """The keys of a kind, without decoding anything; what isn't Ready comes first, so that a new leader begins with it."""
        entries = self._entries[kind]
        return iter(sorted(entries, key=lambda key: ("Ready", "True") in entries[key].conditions))

    def children(self, owner_uid: str) -> Resources:
        """Objects (of any cached kind but Pod) whose controller reference names this uid, ordered by key."""
        return self._group(("owner", owner_uid))

    def pods(self, owner: Key) -> Resources:
        """The pods of one GLM5Service or GLM5FinetuneJob, found by namespace and their label of it, ordered by name.

        A pod is kept with metadata (no managedFields, of annotations only ours), nodeName, scheduling gates, each container's name, image,
        resources and ports, and its whole status.
        """
        return self._group((_LABEL_OF[owner.kind], owner.namespace, names.fit(owner.name)))

    def ended_pods(self, owner: Key) -> Resources:
        """Pods of a GLM5FinetuneJob that have ended and are gone by now, as they were at last; of all jobs the newest 1024.

        A pod that is told to end goes within a moment of its last word, and that may be why its attempt failed: who looks later needs it.
        """
        group = (_LABEL_OF[owner.kind], owner.namespace, names.fit(owner.name))
        return [decode(raw) for (of, _), raw in self._last_states.items() if of == group]

    def nodes(self, pool: str) -> Resources:
        """The nodes that carry `glm5.dev/pool=<pool>`, ordered by name.

        A node is kept with metadata (no managedFields), taints, unschedulable, capacity, allocatable and its conditions without times.
        """
        return self._group(("pool", pool))

    def agents(self, node: str) -> Resources:
        """The node agent's pods on a node, with their conditions; whoever made them."""
        return self._group(("agent", node))

    def compute_checks(self, node: str) -> Resources:
        """Pods that check the cards of a node by computing, those that have ended too; kept as pods of services are."""
        return self._group(("compute-check", names.fit(node)))

    def maps(self, node: str) -> Resources:
        """MindCluster's ConfigMaps about one node; of ClusterD's, which are of all nodes, the part of this one."""
        return self._group(("map", node)) + self._cluster_info.of(node)

    def told_anew(self, cluster_info: str) -> frozenset[str]:
        """The nodes whose part of this map of ClusterD has changed with its newest version, or that were in it when it went."""
        return self._cluster_info.changed(cluster_info)

    def held(self, node: str) -> Mapping[Key, Mapping[str, int]]:
        """The pods on a node that haven't ended, whosever they are, each with the extended resources it asks for."""
        return self._held.get(node, {})

    def held_together(self, node: str) -> Mapping[str, int]:
        """The extended resources that all pods of `held` ask for.

        Counted as pods come and go: who plans a thousand services must not look at a thousand pods for each.
        """
        return self._held_together.get(node, {})

    def driver(self, node: str) -> str:
        """The driver of a node as its AscendNode tells it; empty where that doesn't.

        Kept as the objects come: agents write all the time, and who plans must not decode what all of them wrote for each report of one.
        """
        return self._drivers.get(node, "")

    @property
    def drivers_version(self) -> int:
        """Grows whenever `driver` answers otherwise than before for some node."""
        return self._drivers_news

    def version(self, kind: str) -> int:
        """Grows with every news of that kind, so that what was computed from all of them can be kept until then."""
        return self._news[kind]

    def owner_of_label(self, label: str, namespace: str, value: str) -> Key | None:
        """Which object the value of a label of `names.OWNER_LABELS` means; long names are hashed in it."""
        return self._owner_of_label.get((label, namespace, value))

    def users_of(self, pool: str) -> tuple[Key, ...]:
        """Keys of the GLM5Services and GLM5FinetuneJobs whose spec names this pool."""
        return tuple(sorted(self._groups.get(("uses", pool), ())))

    def condition_counts(self) -> Mapping[tuple[str, ...], float]:
        """(kind, condition, status) → objects, for the metrics."""
        counts: Counter[tuple[str, ...]] = Counter()
        for kind in sorted(_OWN_KINDS):
            for entry in self._entries[kind].values():
                counts.update((kind, *condition) for condition in entry.conditions)
        return {key: float(number) for key, number in counts.items()}

    # Feeding

    def put(self, resource: Mapping[str, Any]) -> bool:
        """Take an object in; True when it is news. Older than what is known (or than its deletion) is ignored.

        A pod of others that holds no device is as good as none, so what makes it news is only that it takes or frees some, or is to end.
        """
        key = key_of(resource)
        node, held = _held_by(key.kind, resource)
        if key.kind == kinds.POD.name and not (held or _is_ours(resource) or _is_agent(resource)):
            return self.drop(resource)
        metadata = resource["metadata"]
        version = str(metadata.get("resourceVersion", ""))
        old = self._entries[key.kind].get(key)
        if _number(version) <= self._graves.get(key, -1) or (old is not None and _number(version) < _number(old.version)):
            return False
        if old is not None and version == old.version:
            return False  # most of what a watch brings after our own writes, and all of what a list brings: worth not encoding it
        slim = _slim(key.kind, resource)
        raw = encode(slim)  # sorted: lists and watches order the fields differently
        told = key.kind == kinds.CLUSTER_INFO.name and self._cluster_info.put(resource)
        if old is not None and old.raw == raw and not told:
            old.version = version
            return False
        self._unlink(key, old)
        entry = _Entry(raw, version, _group_of(key, resource), _conditions_of(key.kind, resource), node)
        self._entries[key.kind][key] = entry
        self._news[key.kind] += 1
        if held:
            self._held[node][key] = held
            self._held_together[node].update(held)
        if entry.group is not None:
            self._groups[entry.group].add(key)
        if label := _LABEL_OF.get(key.kind):
            self._owner_of_label[label, key.namespace, names.fit(key.name)] = key
        if key.kind == names.NODE_KIND:
            self._note_driver(key.name, str(((resource.get("status") or {}).get("facts") or {}).get("driver") or ""))
        return True

    def drop(self, resource: Mapping[str, Any]) -> bool:
        """Forget a deleted object; True when it was known. `resource` is its last state, with the deletion's resourceVersion."""
        key = key_of(resource)
        version = _number(str(resource["metadata"].get("resourceVersion", "")))
        old = self._entries[key.kind].get(key)
        if old is not None and version < _number(old.version):
            return False  # late news of a predecessor with the same name
        known = key.kind != kinds.POD.name or _is_ours(resource) or _is_agent(resource) or _devices_of(resource.get("spec") or {})
        if old is None and not known:
            return False  # most pods of a cluster: no older state of it could be kept either, so there is nothing to remember
        self._graves[key] = max(version, self._graves.get(key, 0))
        self._graves.move_to_end(key)
        while len(self._graves) > _GRAVES:
            self._graves.popitem(last=False)
        if old is None:
            return False
        self._remove(key, old)
        self._remember(key, old.group, resource)
        return True

    def _remember(self, key: Key, group: Group | None, pod: Mapping[str, Any]) -> None:
        """The last state of a trainer's pod that has ended."""
        if group is None or group[0] != names.FINETUNE_LABEL or (pod.get("status") or {}).get("phase") not in {"Failed", "Succeeded"}:
            return
        self._last_states[group, key] = encode(_slim(key.kind, pod))
        while len(self._last_states) > _LAST_STATES:
            self._last_states.popitem(last=False)

    def rewind(self, kind: str) -> None:
        """Take whatever comes next of a kind, and remember no deletion of it: the server has gone back, to a backup say."""
        for entry in self._entries[kind].values():
            entry.version = "0"
        for key in [key for key in self._graves if key.kind == kind]:
            del self._graves[key]

    def sweep(self, kind: str, namespace: str | None, seen: set[Key], version: int) -> Resources:
        """Drop what a full list (taken at `version`) didn't hold, and return it. What is newer than the list stays."""
        missing = [
            (key, entry)
            for key, entry in self._entries[kind].items()
            if key not in seen and (namespace is None or key.namespace == namespace) and _number(entry.version) <= version
        ]
        gone = [_decode(entry) for _, entry in missing]
        for key, entry in missing:
            self._remove(key, entry)
        return gone

    def _group(self, group: Group) -> Resources:
        return [_decode(self._entries[key.kind][key]) for key in sorted(self._groups.get(group, ()))]

    def _note_driver(self, node: str, driver: str) -> None:
        if driver != self._drivers.get(node, ""):
            self._drivers[node] = driver
            self._drivers_news += 1

    def _remove(self, key: Key, entry: _Entry) -> None:
        self._unlink(key, entry)
        del self._entries[key.kind][key]
        if key.kind == kinds.CLUSTER_INFO.name:
            self._cluster_info.drop(key.name)
        if key.kind == names.NODE_KIND and self._drivers.pop(key.name, ""):
            self._drivers_news += 1

    def _unlink(self, key: Key, entry: _Entry | None) -> None:
        if entry is None:
            return
        self._news[key.kind] += 1
        if entry.node in self._held:
            self._held_together[entry.node].subtract(self._held[entry.node].pop(key, {}))
            if not self._held[entry.node]:
                del self._held[entry.node], self._held_together[entry.node]
        if entry.group is not None:
            members = self._groups[entry.group]
            members.discard(key)
            if not members:
                del self._groups[entry.group]
        if label := _LABEL_OF.get(key.kind):
            self._owner_of_label.pop((label, key.namespace, names.fit(key.name)), None)


def controller_of(resource: Resource) -> Mapping[str, Any] | None:
    """The owner reference that says `controller: true`."""
    for reference in resource["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return dict(reference)
    return None


def _decode(entry: _Entry) -> Resource:
    resource: dict[str, Any] = decode(entry.raw)
    resource["metadata"]["resourceVersion"] = entry.version
    return resource


def _number(version: str) -> int:
    """A resourceVersion as the ordered number that it is on every server of the supported versions."""
    return int(version) if version.isdigit() else 0


def _group_of(key: Key, resource: Mapping[str, Any]) -> Group | None:
    if key.kind in _LABEL_OF:
        pool = (resource.get("spec") or {}).get("pool")
        return ("uses", pool) if pool else None
    labels = resource["metadata"].get("labels") or {}
    if key.kind == kinds.POD.name:
        found = next(((label, labels[label]) for label in names.OWNER_LABELS if labels.get(label)), None)
        if found is None and _is_agent(resource):
            return ("agent", resource["spec"]["nodeName"])
        if found is None and (node := labels.get(names.COMPUTE_CHECK_LABEL)):
            return ("compute-check", node)
        return (found[0], key.namespace, found[1]) if found else None
    if key.kind == kinds.MIND_CLUSTER_MAP.name:
        return ("map", node) if (node := node_of_map(key.name)) else None
    if key.kind == kinds.NODE.name:
        pool = labels.get(names.POOL_LABEL)
        return ("pool", pool) if pool else None
    if key.kind in _CHILD_KINDS:
        owner = controller_of(resource)
        return ("owner", str(owner["uid"])) if owner else None
    return None


def _conditions_of(kind: str, resource: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    if kind not in _OWN_KINDS:
        return ()
    conditions = (resource.get("status") or {}).get("conditions") or ()
    return tuple(
        (str(item.get("type")), str(item.get("status"))) for item in conditions if item.get("type") in {"Ready", "Stalled", "Reconciling"}
    )


def _held_by(kind: str, resource: Mapping[str, Any]) -> tuple[str, Mapping[str, int]]:
    """The node a pod is on, and what it keeps there from others until it is gone."""
    spec, status = resource.get("spec") or {}, resource.get("status") or {}
    node = str(spec.get("nodeName") or "") if kind == kinds.POD.name else ""
    if not node or status.get("phase") in {"Failed", "Succeeded"}:
        return "", {}
    return node, _devices_of(spec)


def _devices_of(spec: Mapping[str, Any]) -> dict[str, int]:
    """Extended resources of a pod, counted as the scheduler does: init containers come one after the other, sidecars stay."""
    together: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            together.update(_asked(container))
        else:
            most |= together + _asked(container)
    for container in spec.get("containers") or ():
        together.update(_asked(container))
    return dict(most | together)


def _asked(container: Mapping[str, Any]) -> Counter[str]:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return Counter({name: int(amount) for name, amount in asked.items() if "/" in name and str(amount).isdigit()})


def node_of_map(name: str) -> str:
    """The node that a ConfigMap of MindCluster is about; empty for none."""
    prefix = next((prefix for prefix in _MAPS if name.startswith(prefix)), None)
    return name.removeprefix(prefix) if prefix else ""


def _is_agent(pod: Mapping[str, Any]) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return labels.get(names.APP_COMPONENT_LABEL) == names.COMPONENT_NODE_AGENT and bool((pod.get("spec") or {}).get("nodeName"))


def _is_ours(pod: Mapping[str, Any]) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return any(label in labels for label in (*names.OWNER_LABELS, names.COMPUTE_CHECK_LABEL))


def _slim(kind: str, resource: Mapping[str, Any]) -> dict[str, Any]:
    if kind == kinds.POD.name and not _is_ours(resource):
        metadata = resource["metadata"]
        identity = {name: metadata[name] for name in ("name", "namespace", "uid", "deletionTimestamp") if name in metadata}
        other: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": kind,
            "metadata": identity | _audited(resource),
            "spec": {"nodeName": resource["spec"]["nodeName"]},
        }
        if pool := (resource["spec"].get("nodeSelector") or {}).get(names.POOL_LABEL):
            other["spec"]["nodeSelector"] = {names.POOL_LABEL: pool}
        return other | (_slim_agent(resource) if _is_agent(resource) else {})
    if kind == kinds.CLUSTER_INFO.name:
        resource = {name: value for name, value in resource.items() if name != "data"}  # kept in parts
    drop = {"resourceVersion"} if kind in _CHILD_KINDS else {"resourceVersion", "managedFields"}
    if kind == kinds.POD.name:
        drop.add("annotations")
    slim = {**resource, "metadata": {name: value for name, value in resource["metadata"].items() if name not in drop}}
    if kind == kinds.POD.name:
        annotations = resource["metadata"].get("annotations") or {}
        if kept := {name: annotations[name] for name in (names.ADAPTERS_ANNOTATION, names.REAL_ANNOTATION) if name in annotations}:
            slim["metadata"]["annotations"] = kept
        slim["spec"] = _slim_pod(resource.get("spec") or {})
    elif kind == kinds.NODE.name:
        spec, status = resource.get("spec") or {}, resource.get("status") or {}
        slim["spec"] = {name: spec[name] for name in ("taints", "unschedulable") if name in spec}
        slim["status"] = {name: status[name] for name in ("capacity", "allocatable", "nodeInfo") if name in status} | {
            "conditions": [{"type": item.get("type"), "status": item.get("status")} for item in status.get("conditions") or ()]
        }
    return slim


def _audited(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Of a pod of others, beside where it is: what makes it anew, and which devices it was given."""
    metadata = pod["metadata"]
    kept: dict[str, Any] = {}
    if owners := [reference for reference in metadata.get("ownerReferences") or () if reference.get("controller")]:
        kept["ownerReferences"] = owners
    if given := (metadata.get("annotations") or {}).get(names.REAL_ANNOTATION):
        kept["annotations"] = {names.REAL_ANNOTATION: given}
    return kept


def _slim_agent(pod: Mapping[str, Any]) -> dict[str, Any]:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return {"status": {"conditions": [{"type": item.get("type"), "status": item.get("status")} for item in conditions]}}


def _slim_pod(spec: Mapping[str, Any]) -> dict[str, Any]:
    slim: dict[str, Any] = {name: spec[name] for name in ("nodeName", "schedulingGates", "nodeSelector") if name in spec}
    for group in ("initContainers", "containers"):
        if group in spec:
            slim[group] = [{name: container[name] for name in _POD_CONTAINER if name in container} for container in spec[group]]
    return slim
