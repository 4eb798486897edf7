"""What a podTemplate may not change: each guarantee of planning, with the field that breaks it and where the wish belongs instead.

Called by `merge` with the pod as planned and as the podTemplates made it. The merged pod is whatever a user wrote: of the shape of what
they added only this is sure, that lists which merge by a key are lists of objects, each with its key.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from glm5_operator.api import names
from glm5_operator.plan.reading import bytes_of, engine_of, memory_of, object_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from glm5_operator.plan.facts import Manifest

Loss = tuple[str, str]
"""A path, and why it may not change with what to do instead."""

_ENGINE: Final = f"spec.containers[{names.ENGINE_CONTAINER}]"
_CARDS: Final = "the plan decides the number of cards, and the engine has them all; change spec.parallelism instead"
_NPU_DOMAIN: Final = "huawei.com/"
_DEFAULT_GRACE: Final = 30  # seconds, of a pod that names none


def first_loss(planned: Manifest, after: Manifest, resource: str) -> Loss | None:
    """The first guarantee of `planned` that `after` breaks; None when all hold. `resource` names the NPU resource."""
    return next(chain(_pod_losses(planned, after), card_losses(planned, after, resource, _CARDS), _engine_losses(planned, after)), None)


def _pod_losses(planned: Manifest, after: Manifest) -> Iterator[Loss]:
    spec = object_at(after, "spec")
    for path, why in (
        ("metadata.labels", "these labels select the service's pods; use a prefix of your own"),
        ("spec.nodeSelector", "it pins the pod to its pool; choose the pool with spec.pool"),
    ):
        kept, found = object_at(planned, *path.split(".")), object_at(after, *path.split("."))
        yield from ((f"{path}[{key}]", why) for key, value in kept.items() if found.get(key) != value)
    if spec.get("nodeName"):
        yield "spec.nodeName", "it would bypass the scheduler and the card allocation; select nodes in the NPUPool"
    if spec.get("restartPolicy", "Always") != "Always":
        yield "spec.restartPolicy", "a service's pods are kept running; set spec.replicas to 0 to stop it"
    yield from token_losses(after)
    tolerations = object_at(planned, "spec")["tolerations"]
    if tolerations != spec.get("tolerations", [])[: len(tolerations)]:
        yield "spec.tolerations", "the first one lets the pod onto its pool; add yours, they come after it"
    least, grace = planned["spec"]["terminationGracePeriodSeconds"], spec.get("terminationGracePeriodSeconds", _DEFAULT_GRACE)
    if not isinstance(grace, int) or grace < least:
        yield "spec.terminationGracePeriodSeconds", f"running requests get {least} s to finish; shorten spec.drain.timeout instead"


def token_losses(after: Manifest) -> Iterator[Loss]:
    """Credentials for the API server, by the pod's field or by a volume."""
    spec, why = object_at(after, "spec"), "the operator's pods run without an API token; remove it"
    if spec.get("automountServiceAccountToken") is not False:
        yield "spec.automountServiceAccountToken", why
    yield from (
        (f"spec.volumes[{volume['name']}].projected.sources[{index}].serviceAccountToken", why)
        for volume in spec.get("volumes", [])
        for index, source in enumerate(_list(object_at(volume, "projected").get("sources")))
        if "serviceAccountToken" in source
    )


def card_losses(planned: Manifest, after: Manifest, resource: str, cards: str) -> Iterator[Loss]:
    """Another number of cards than planned, in any container, or a choice of cards past the device plugin. `cards` says why not."""
    known = dict(_containers(planned))
    for path, container in _containers(after):
        of_plan = known.get(path)
        for kind in ("limits", "requests"):
            wanted = {name: str(amount) for name, amount in object_at(of_plan or {}, "resources", kind).items() if _is_npu(name, resource)}
            found = {name: str(amount) for name, amount in object_at(container, "resources", kind).items() if _is_npu(name, resource)}
            yield from ((f"{path}.resources.{kind}[{name}]", cards) for name in wanted | found if wanted.get(name) != found.get(name))
        yield from (
            (f"{path}.env[{entry.get('name')}]", "the device plugin sets it for the cards that the container was given; remove it")
            for entry in _env(container)
            if entry.get("name") in names.DEVICE_ENV
        )


def _engine_losses(planned: Manifest, after: Manifest) -> Iterator[Loss]:
    old, new = engine_of(planned), engine_of(after)
    if new is None or old is None:
        yield _ENGINE, "it is the engine; leave it in place"
        return
    for field, why in (
        ("command", "the operator starts the engine; state further flags in spec.engine.args"),
        ("args", "they come from the spec; state further flags in spec.engine.args"),
    ):
        if new.get(field) != old[field]:
            yield f"{_ENGINE}.{field}", why
    for name in (names.API_KEY_ENV, names.VLLM_API_KEY_ENV):
        if _variable(new, name) != _variable(old, name):
            yield f"{_ENGINE}.env[{name}]", "clients' key is read from the Secret that spec.auth.secretRef names; set that instead"
    ports = [port for port in new.get("ports", []) if port.get("name") == names.ENGINE_PORT_NAME]
    if ports != old["ports"]:
        yield f"{_ENGINE}.ports[{names.ENGINE_PORT_NAME}]", "clients and checks use it; add ports of other names and numbers"
    yield from _memory_losses(planned, after, new)


def _memory_losses(planned: Manifest, after: Manifest, engine: Manifest) -> Iterator[Loss]:
    """Memory holds the engine and every volume in memory that it mounts, /dev/shm above all. Without a limit there is nothing to exceed."""
    stated = object_at(engine, "resources", "limits").get("memory")
    if stated is None:
        return
    limit, where = bytes_of(stated), f"{_ENGINE}.resources.limits[memory]"
    if limit is None:
        yield where, f"{stated!r} isn't a quantity such as 64Gi"
        return
    bare = (memory_of(planned) or 0) - _in_memory(planned)
    volumes = _in_memory(after)
    if limit < bare + volumes:
        yield where, f"the plan needs {bare} bytes and {volumes} in memory volumes such as /dev/shm; lower spec.model.memory, or raise this"


def _in_memory(pod: Manifest) -> int:
    mounted = [mount.get("name") for mount in (engine_of(pod) or {}).get("volumeMounts", [])]
    volumes = [object_at(volume, "emptyDir") for volume in object_at(pod, "spec").get("volumes", []) if volume["name"] in mounted]
    return sum(bytes_of(volume.get("sizeLimit")) or 0 for volume in volumes if volume.get("medium") == "Memory")


def _containers(pod: Manifest) -> Iterator[tuple[str, Manifest]]:
    spec = object_at(pod, "spec")
    for group in ("initContainers", "containers", "ephemeralContainers"):
        yield from ((f"spec.{group}[{entry['name']}]", entry) for entry in spec.get(group, []))


def _is_npu(name: str, resource: str) -> bool:
    return name == resource or name.startswith(_NPU_DOMAIN)


def _env(container: Manifest) -> list[Manifest]:
    return _list(container.get("env"))


def _variable(container: Manifest, name: str) -> Manifest | None:
    return next((entry for entry in _env(container) if entry.get("name") == name), None)


def _list(value: object) -> list[Manifest]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
