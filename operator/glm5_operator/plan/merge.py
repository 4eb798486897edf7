"""podTemplates over the planned pod: a strategic merge, and a guard on what planning guarantees.

Called by pod planning: the pool's podTemplate first, the service's over it. A podTemplate comes from a user and is stored unpruned, so
nothing about its shape is taken for granted.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.plan import findings
from glm5_operator.plan.guard import first_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from glm5_operator.plan.facts import Finding, Manifest
    from glm5_operator.plan.guard import Loss

    Guard = Callable[[Manifest, Manifest, str], Loss | None]

# Lists whose entries are objects told apart by a key, as in the Kubernetes API. Entries of `_WHOLE` replace each other as a whole:
# half a volume of each would have two sources.
_KEYS: Final = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
    "claims": "name",
}
_WHOLE: Final = {"volumes", "env", "volumeMounts"}
_APPENDED: Final = {"tolerations", "envFrom"}
_LISTS: Final = _KEYS.keys() | _APPENDED
_FREE: Final = {"labels", "annotations", "matchLabels", "nodeSelector", "limits", "requests", "overhead", "volumeAttributes"}
"""Maps whose keys users choose: there `env` is no list of variables."""
_PROBES: Final = {"startupProbe", "readinessProbe", "livenessProbe"}
_HANDLERS: Final = {"exec", "httpGet", "tcpSocket", "grpc"}


class MalformedTemplateError(ValueError):
    """A podTemplate has another shape than a pod; `path` is where."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} {why}")
        self.path = path
        self.why = why


def merge(base: Manifest, over: Mapping[str, Any], path: str = "") -> Manifest:
    """`over` laid over `base`: objects merge, keyed lists merge by key, other lists and values replace, null removes.

    Both have the shape of a pod where lists of objects belong; `apply_template` checks that first.
    """
    merged = dict(base)
    for key, value in over.items():
        here = f"{path}.{key}" if path else key
        if value is None:
            merged.pop(key, None)
        elif _is_list(key, path):
            merged[key] = _merge_list(key, merged.get(key) or [], value, here)
        elif isinstance(merged.get(key), dict):
            merged[key] = _merge_object(key, merged[key], value, here)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def apply_template(
    pod: Manifest, template: Mapping[str, Any] | None, origin: str, *, planned: Manifest, resource: str, guard: Guard = first_loss
) -> Manifest | Finding:
    """The pod with one podTemplate over it; a Finding when it is malformed or changes what planning guarantees.

    Args:
        pod: the pod template so far.
        template: the user's part; None changes nothing.
        origin: whose it is, for messages, such as `spec.podTemplate of NPUPool inference`.
        planned: the pod template as it is without any podTemplate, whose guarantees hold.
        resource: name of the NPU resource.
        guard: finds the first guarantee that is lost; as of `guard.first_loss`.
    """
    if not template:
        return pod
    try:
        _check(template)
        merged = merge(pod, template)
    except MalformedTemplateError as fault:
        return findings.pod_template_malformed(origin, fault.path, fault.why)
    lost = guard(planned, merged, resource)
    return merged if lost is None else findings.pod_template_refused(origin, *lost)


def _is_list(key: str, path: str) -> bool:
    return key in _LISTS and path.rpartition(".")[2] not in _FREE


def _check(value: object, path: str = "") -> None:
    """Refuse what merging, or whoever looks at the merged pod, would trip over: lists of another shape, and directives.

    `$patch`, `$retainKeys` and their like steer a patch; taken for a field, one would do the opposite of what it says.
    """
    if isinstance(value, list):
        for index, entry in enumerate(value):
            _check(entry, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, inner in value.items():
            here = f"{path}.{key}" if path else key
            if key.startswith("$"):
                raise MalformedTemplateError(here, "is a directive of patches, and those aren't carried out: null removes a field")
            if _is_list(key, path) and inner is not None:
                _check_list(key, inner, here)
            _check(inner, here)


def _check_list(key: str, value: object, path: str) -> None:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise MalformedTemplateError(path, "must be a list of objects")
    by = _KEYS.get(key)
    for index, entry in enumerate(value):
        if by and not isinstance(entry.get(by), str | int):
            raise MalformedTemplateError(f"{path}[{index}]", f"must have {by}")


def _merge_object(key: str, base: Manifest, over: object, path: str) -> Manifest:
    if not isinstance(over, dict):
        raise MalformedTemplateError(path, "must be an object")
    if key in _PROBES and _HANDLERS & over.keys():
        base = {name: value for name, value in base.items() if name not in _HANDLERS}  # another way to check replaces ours
    return merge(base, over, path)


def _merge_list(key: str, base: list[Any], over: list[Any], path: str) -> list[Any]:
    if key in _APPENDED:
        return [*base, *(copy.deepcopy(entry) for entry in over if entry not in base)]
    by = _KEYS[key]
    merged = {entry[by]: entry for entry in base}
    for entry in over:
        name = entry[by]
        if name in merged and key not in _WHOLE:
            merged[name] = merge(merged[name], entry, f"{path}[{name}]")
        else:
            merged[name] = copy.deepcopy(entry)
    return list(merged.values())
