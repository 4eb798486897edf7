"""Brings live objects to their desired state with as few writes as possible.

Called by controllers. Decides nothing about what is wanted; turns every refusal into a value. The cache gets the answer of each
write, so that the next reconcile doesn't act on what was before it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.kube import errors, kinds, managed
from glm5_operator.kube.cache import Cache, controller_of
from glm5_operator.kube.types import ApiFailure, Applied, Key, Manifest, Resource, key_of
from glm5_operator.kube.wire import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from glm5_operator.kube.client import Client
    from glm5_operator.metrics import Metrics

log = logging.getLogger(__name__)

_KEPT: Final = frozenset({"PersistentVolumeClaim"})  # data outlives the plan that asked for it


class Applier:
    """Server-side apply with field manager `glm5-operator`, skipped where the live object already says so."""

    def __init__(self, client: Client, cache: Cache, metrics: Metrics, changed: Callable[[Resource], None] = lambda _: None) -> None:
        """`changed` gets what others wait for, once it was written: the watch brings the cache no news of it any more.

        That is a node as it was and as it is, and objects whose status is told.
        """
        self._client = client
        self._cache = cache
        self._metrics = metrics
        self._changed = changed

    async def converge(self, owner: Resource, desired: Sequence[Manifest], live: Sequence[Resource]) -> Applied:
        """Make the owner's children equal `desired`; `live` is `Cache.children(owner uid)`.

        Children without a place in `desired` are removed (PersistentVolumeClaims excepted). One failure doesn't keep the
        rest from being tried. A desired object that exists and isn't the owner's is a NameConflict failure and left alone.
        An owner that is being deleted gets nothing: its children are on their way out, and recreating them would race the collector.
        """
        if owner["metadata"].get("deletionTimestamp"):
            return Applied()
        changed: list[Key] = []
        removed: list[Key] = []
        conflicts: list[Key] = []
        failures: list[ApiFailure] = []
        by_key = {key_of(child): child for child in live}
        wanted = {key_of(manifest): _owned(manifest, owner) for manifest in desired}
        for key, manifest in wanted.items():
            try:
                if await self._settle(owner, key, manifest, by_key.get(key), conflicts):
                    changed.append(key)
            except _RefusedError as refusal:
                failures.append(refusal.failure)
            except errors.KubeError as error:
                failures.append(errors.failure(error, key))
        for key, child in by_key.items():
            if key in wanted or key.kind in _KEPT or child["metadata"].get("deletionTimestamp"):
                continue
            try:
                await self._client.delete(key, child["metadata"]["uid"])
                removed.append(key)
            except (errors.NotFoundError, errors.ConflictError):
                continue  # gone, or another object has the name by now: the watch will tell
            except errors.KubeError as error:
                failures.append(errors.failure(error, key))
        return Applied(tuple(changed), tuple(removed), tuple(conflicts), tuple(failures))

    async def write_status(self, resource: Resource, status: Mapping[str, Any], *, tell: bool = False) -> ApiFailure | None:
        """Write the whole `.status` if it differs from the one in `resource`; an object that is gone is no failure.

        With `tell` those are woken whom the object concerns: the watch brings the cache no news of what we wrote ourselves.
        """
        status = _without_nulls(status)  # the server drops them, and the next comparison would find them missing
        if _same_status(resource.get("status") or {}, status):
            return None
        metadata, key = resource["metadata"], key_of(resource)
        current = self._cache.get(key.kind, key.namespace, key.name)
        if current is not None and current["metadata"]["uid"] != metadata["uid"]:
            return None  # a successor of the same name; the server doesn't compare uids on this subresource
        identity = {name: metadata[name] for name in ("name", "namespace") if name in metadata}
        body = {"apiVersion": resource["apiVersion"], "kind": resource["kind"], "metadata": identity, "status": status}
        try:
            answer = await self._client.apply(body, force=True, subresource="status")
        except (errors.NotFoundError, errors.ConflictError):
            return None
        except errors.KubeError as error:
            return errors.failure(error, key)
        if self._cache.put(answer) and tell:
            self._changed(answer)
        return None

    async def patch_node(
        self,
        node: Resource,
        *,
        labels: Mapping[str, str | None],
        taints: Sequence[Mapping[str, Any]] | None = None,
        annotations: Mapping[str, str | None] | None = None,
    ) -> ApiFailure | None:
        """Set (or with None remove) labels and annotations of a node, and replace its taints when given; no write when nothing differs.

        Taints are one atomic list that others write too, and a label that is removed may have got another value since: such a patch
        carries the node's resourceVersion, and a concurrent change is a retryable Conflict.
        """
        have = node["metadata"].get("labels") or {}
        metadata: dict[str, Any] = {}
        patch: dict[str, Any] = {}
        different = {name: value for name, value in labels.items() if have.get(name) != value}
        if different:
            metadata["labels"] = different
            if None in different.values():
                metadata["resourceVersion"] = node["metadata"]["resourceVersion"]
        said = node["metadata"].get("annotations") or {}
        if notes := {name: value for name, value in (annotations or {}).items() if said.get(name) != value}:
            metadata |= {"annotations": notes, "resourceVersion": node["metadata"]["resourceVersion"]}
        if taints is not None and list(taints) != list((node.get("spec") or {}).get("taints") or ()):
            patch["spec"] = {"taints": list(taints)}
            metadata["resourceVersion"] = node["metadata"]["resourceVersion"]
        if metadata:
            patch["metadata"] = metadata
        if not patch:
            return None
        key = key_of(node)
        try:
            answer = await self._client.merge_patch(key, patch)
        except errors.NotFoundError:
            return None
        except errors.KubeError as error:
            return errors.failure(error, key)
        if self._cache.put(answer):
            for state in (node, answer):
                self._changed(state)
        return None

    async def annotate_pod(self, pod: Resource, name: str, value: str) -> ApiFailure | None:
        """Set one annotation of a pod, unless it says so already; a pod that is gone, or another one by that name, is no failure."""
        if (pod["metadata"].get("annotations") or {}).get(name) == value:
            return None
        key = key_of(pod)
        patch = {"metadata": {"uid": pod["metadata"]["uid"], "annotations": {name: value}}}
        try:
            self._cache.put(await self._client.merge_patch(key, patch))
        except (errors.NotFoundError, errors.ConflictError):
            return None
        except errors.KubeError as error:
            return errors.failure(error, key)
        return None

    async def put_ascend_node(self, manifest: Manifest, live: Resource | None) -> ApiFailure | None:
        """Create an AscendNode, or bring owners and the reset that is asked for to what the manifest says, unless they are.

        No apply: one that leaves out the last field of a spec makes that null, which the schema refuses.
        """
        owners, reset = manifest["metadata"]["ownerReferences"], manifest["spec"].get("reset")
        try:
            if live is None:
                self._cache.put(await self._client.create(kinds.ASCEND_NODE, manifest))
            elif (live.get("spec") or {}).get("reset") != reset or live["metadata"].get("ownerReferences") != owners:
                patch = {"metadata": {"uid": live["metadata"]["uid"], "ownerReferences": owners}, "spec": {"reset": reset}}
                self._cache.put(await self._client.merge_patch(key_of(live), patch))
        except errors.AlreadyExistsError:
            return None  # the watch will tell
        except errors.KubeError as error:
            return errors.failure(error, key_of(manifest))
        return None

    async def create_pod(self, manifest: Manifest, owner: Resource) -> ApiFailure | None:
        """Create a pod that goes with an object of the cluster; one of that name that is there already is no failure."""
        reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"]}
        # Not blocking the owner's deletion: that would need a right on its finalizers.
        owned = {**manifest["metadata"], "ownerReferences": [reference | {"uid": owner["metadata"]["uid"], "controller": True}]}
        try:
            self._cache.put(await self._client.create(kinds.POD, {**manifest, "metadata": owned}))
        except errors.AlreadyExistsError:
            return None  # the watch will tell
        except errors.KubeError as error:
            return errors.failure(error, key_of(manifest))
        return None

    async def take_off(self, resource: Resource, annotation: str) -> ApiFailure | None:
        """Remove one annotation; an object that is gone is no failure."""
        try:
            self._cache.put(await self._client.merge_patch(key_of(resource), {"metadata": {"annotations": {annotation: None}}}))
        except errors.NotFoundError:
            return None
        except errors.KubeError as error:
            return errors.failure(error, key_of(resource))
        return None

    async def delete(self, resource: Resource) -> ApiFailure | None:
        """Delete this very object; one that is gone, or another one by that name, is no failure."""
        try:
            await self._client.delete(key_of(resource), resource["metadata"]["uid"])
        except (errors.NotFoundError, errors.ConflictError):
            return None
        except errors.KubeError as error:
            return errors.failure(error, key_of(resource))
        return None

    async def label_pod(self, pod: Resource, name: str, value: str | None) -> ApiFailure | None:
        """Set or (with None) remove one label of a pod, unless it says so already; who waits for it is told."""
        if (pod["metadata"].get("labels") or {}).get(name) == value:
            return None
        key = key_of(pod)
        patch = {"metadata": {"uid": pod["metadata"]["uid"], "labels": {name: value}}}
        try:
            answer = await self._client.merge_patch(key, patch)
        except (errors.NotFoundError, errors.ConflictError):
            return None
        except errors.KubeError as error:
            return errors.failure(error, key)
        if self._cache.put(answer):
            self._changed(answer)
        return None

    async def evict(self, pod: Resource, grace: int | None = None) -> ApiFailure | None:
        """Ask a pod to end, unless it does already; a pod that is gone, or another one by that name, is no failure.

        `grace`: seconds that it gets, more or less than its own; None: its own.
        """
        if pod["metadata"].get("deletionTimestamp"):
            return None
        key = key_of(pod)
        try:
            await self._client.evict(key, pod["metadata"]["uid"], grace)
        except (errors.NotFoundError, errors.ConflictError):
            return None
        except errors.KubeError as error:
            return errors.failure(error, key)
        return None

    async def _settle(self, owner: Resource, key: Key, manifest: Manifest, live: Resource | None, conflicts: list[Key]) -> bool:
        """Apply one object unless it is settled already; True when something was written."""
        if live is None:
            live = await self._find(owner, key, manifest)
        if live is not None and live["metadata"].get("deletionTimestamp"):
            return False  # on its way out; its deletion wakes us
        if live is None:
            # Without force: whoever creates the name between our look and this is met with a conflict, not overrun.
            self._cache.put(await self._client.apply(manifest, force=False))
            return True
        if managed.holds(live, manifest) and managed.ours(live, manifest):
            self._metrics.applies_skipped.labels(key.kind).inc()
            return False
        rivals = managed.foreign_managers(live, manifest)
        answer = await self._client.apply(manifest, force=True)
        if rivals:
            log.warning("%s: took fields back from %s", key, ", ".join(rivals))
            self._metrics.apply_conflicts.labels(key.kind).inc()
            conflicts.append(key)
        self._cache.put(answer)
        return bool(answer["metadata"].get("resourceVersion") != live["metadata"].get("resourceVersion"))

    async def _find(self, owner: Resource, key: Key, manifest: Manifest) -> Resource | None:
        """The object of that name, if it is the owner's though the cache doesn't show it: a label or the owner reference was taken off.

        One read per creation is the price of never writing into an object that isn't ours.
        """
        try:
            found = await self._client.get(kinds.BY_NAME[key.kind], key.namespace, key.name)
        except errors.NotFoundError:
            return None
        reference = controller_of(found)
        if reference is not None and reference.get("uid") == owner["metadata"]["uid"]:
            return found
        if reference is None and managed.is_orphan_of_ours(found, manifest):
            return found
        predecessor = reference is not None and (reference.get("kind"), reference.get("name")) == (owner["kind"], owner["metadata"]["name"])
        if predecessor or found["metadata"].get("deletionTimestamp"):
            raise _RefusedError(
                ApiFailure("BeingDeleted", f"{key.kind} {key.name} of an earlier owner is still being deleted", key, retryable=True)
            )
        holder = f"controlled by {reference['kind']} {reference['name']}" if reference else "not made by this operator"
        raise _RefusedError(
            ApiFailure(
                "NameConflict",
                f"{key.kind} {key.name} exists already and is {holder}; it is left alone. "
                f"Rename or delete it, or rename the {owner['kind']}.",
                key,
                retryable=False,
            )
        )


def _same_status(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether nothing is to be written. Conditions of types that we don't write belong to somebody else and say nothing."""
    types = {item["type"] for item in wanted.get("conditions") or ()}
    ours = [item for item in live.get("conditions") or () if item.get("type") in types]
    return {**live, "conditions": ours} == {**wanted, "conditions": wanted.get("conditions") or []}


def _without_nulls(value: Any) -> Any:  # noqa: ANN401 - JSON in, the same kind of JSON out
    if isinstance(value, Mapping):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list | tuple) else value


class _RefusedError(Exception):
    """Carries a failure that isn't the API server's out of `_find`."""

    def __init__(self, failure: ApiFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def _owned(manifest: Manifest, owner: Resource) -> Manifest:
    """The manifest with owner reference and desired hash."""
    metadata, parent = manifest["metadata"], owner["metadata"]
    # A reference across namespaces makes the garbage collector delete the child the next time it starts.
    assert metadata.get("namespace", "") == parent.get("namespace", ""), f"{key_of(manifest)} isn't in the namespace of {key_of(owner)}"
    reference = {
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": parent["name"], "uid": parent["uid"],
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    complete = {**manifest, "metadata": {**metadata, "ownerReferences": [reference]}}
    digest = hashlib.sha256(encode(complete)).hexdigest()[:16]
    annotations = {**(metadata.get("annotations") or {}), names.DESIRED_HASH_ANNOTATION: digest}
    return {**complete, "metadata": {**complete["metadata"], "annotations": annotations}}
