"""Troubles that pods with cards show by how they are made. Called by `diagnose`; each rule is one function over one container.

Pods are read as they come from the API server or a file: what has another shape than expected reads as absent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.health.doctor.evidence import Diagnosis, Text
from glm5_operator.plan.compat import of_image
from glm5_operator.plan.facts import Product
from glm5_operator.plan.product import is_card_resource
from glm5_operator.plan.reading import bytes_of, object_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

LEAST_SHM: Final = 16 * 2**30
_SHM: Final = "/dev/shm"  # noqa: S108 - a path in a container
_KNOWN_UIDS: Final = (0, 1000)


@dataclass(frozen=True, slots=True)
class _Container:
    """A container that asks for cards."""

    pod: Mapping[str, Any]
    spec: Mapping[str, Any]
    cards: int
    env: Mapping[str, str]

    @property
    def where(self) -> str:
        metadata = object_at(self.pod, "metadata")
        return f"pod {metadata.get('namespace', 'default')}/{metadata.get('name', '')} container {self.spec.get('name', '')}"

    def security(self, field: str) -> Any:  # noqa: ANN401 - any JSON
        """A field of the container's security context, else of the pod's."""
        own = object_at(self.spec, "securityContext").get(field)
        return own if own is not None else object_at(self.pod, "spec", "securityContext").get(field)

    @property
    def privileged(self) -> bool:
        return object_at(self.spec, "securityContext").get("privileged") is True


def pod_troubles(pod: Mapping[str, Any]) -> Iterator[Diagnosis]:
    """All troubles of one pod."""
    for container in _containers(pod):
        for rule in _RULES:
            yield from rule(container)


def images(pods: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Images of containers with cards, each once."""
    return tuple(dict.fromkeys(str(container.spec.get("image") or "") for pod in pods for container in _containers(pod)))


def stacks(pods: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """As `images`, without containers that are told to compute on the CPU: those ask no driver for anything, as in planning."""
    found = (container for pod in pods for container in _containers(pod) if container.env.get("GLM5_DEVICE") != "cpu")
    return tuple(dict.fromkeys(str(container.spec.get("image") or "") for container in found))


def pod_texts(pod: Mapping[str, Any]) -> Iterator[Text]:
    """What scheduler and kubelet say of a pod: conditions, and why containers wait or ended."""
    metadata, status = object_at(pod, "metadata"), object_at(pod, "status")
    where = f"pod {metadata.get('namespace', 'default')}/{metadata.get('name', '')}"
    for condition in _objects(status.get("conditions")):
        if condition.get("status") != "True" and condition.get("message"):
            yield Text(f"{where} condition {condition.get('type')}", str(condition["message"]))
    for container in _objects(status.get("containerStatuses")):
        for state in (*object_at(container, "state").values(), *object_at(container, "lastState").values()):
            if isinstance(state, dict) and state.get("message"):
                yield Text(f"{where} container {container.get('name')}", str(state["message"]))


def _containers(pod: Mapping[str, Any]) -> Iterator[_Container]:
    for spec in _objects(object_at(pod, "spec").get("containers")):
        wanted = [str(count) for name, count in object_at(spec, "resources", "limits").items() if is_card_resource(name)]
        cards = sum(int(count) for count in wanted if count.isascii() and count.isdigit())
        if cards:
            env = {str(entry.get("name")): str(entry["value"]) for entry in _objects(spec.get("env")) if "value" in entry}
            yield _Container(pod, spec, cards, env)


def _visible(container: _Container) -> Iterator[Diagnosis]:
    given = container.env.get("ASCEND_RT_VISIBLE_DEVICES")
    # A privileged container sees all cards of the host, and there the physical ids work.
    if given is not None and not container.privileged and given.replace(" ", "") != ",".join(map(str, range(container.cards))):
        yield Diagnosis(
            "DeviceNumbersWrong",
            "CANN counts logical ids from 0 inside the container, and ASCEND_RT_VISIBLE_DEVICES has others",
            (f"{container.where}: ASCEND_RT_VISIBLE_DEVICES={given} with {container.cards} cards",),
            f"remove it, or set it to {','.join(map(str, range(min(container.cards, 16))))}",
            "reporter",
            ("vllm-project/vllm-ascend#9428", "Project-HAMi/HAMi#1894"),
        )
    if (by_hand := container.env.get("ASCEND_VISIBLE_DEVICES")) and by_hand != "void":
        yield Diagnosis(
            "CardsChosenByHand",
            "ASCEND_VISIBLE_DEVICES is set in the pod, so Ascend's runtime mounts those cards, whatever Kubernetes gave the container",
            (f"{container.where}: ASCEND_VISIBLE_DEVICES={by_hand}",),
            "remove it: the device plugin sets it",
            "vendor",
            ("gpustack/gpustack#3429",),
        )
    real = str(object_at(container.pod, "metadata", "annotations").get("huawei.com/AscendReal") or "")
    physical = container.env.get("PHYSICAL_DEVICES")
    if real and physical and sorted(re.findall(r"\d+", physical)) != sorted(re.findall(r"-(\d+)", real)):
        yield Diagnosis(
            "PhysicalDevicesWrong",
            "the connector of old Mooncake versions wants physical ids, and PHYSICAL_DEVICES has others than were given",
            (f"{container.where}: PHYSICAL_DEVICES={physical}, huawei.com/AscendReal={real}",),
            "take it from annotation huawei.com/AscendReal, or use a newer version",
            "reporter",
            ("vllm-project/vllm-ascend#2557", "volcano-sh/kthena#405"),
        )


def _user(container: _Container) -> Iterator[Diagnosis]:
    uid = container.security("runAsUser")
    if container.cards > 1 and isinstance(uid, int) and uid not in _KNOWN_UIDS:
        yield Diagnosis(
            "DeviceUserUnknown",
            "device nodes belong to uid and gid 1000 with mode 0660, and HCCL needs the uid in /etc/passwd (else error 19)",
            (f"{container.where}: runAsUser {uid} with {container.cards} cards",),
            "run as uid 1000 from an image whose /etc/passwd has it, with supplementalGroups 1000",
            "reporter",
            ("vllm-project/vllm-ascend#9490", "vllm-project/vllm-ascend#9495"),
        )
    capabilities = object_at(container.spec, "securityContext", "capabilities")
    dropped, added = (found if isinstance(found := capabilities.get(how), list) else [] for how in ("drop", "add"))
    if "ALL" in dropped and "DAC_OVERRIDE" not in added and uid in (None, 0) and container.security("runAsNonRoot") is not True:
        yield Diagnosis(
            "RootWithoutOverride",
            "the driver's files belong to uid 1000, and root without DAC_OVERRIDE can't open them: torch.npu.device_count() is 0",
            (f"{container.where}: drop [ALL], runAsUser {'unset' if uid is None else uid}",),
            "add capability DAC_OVERRIDE, or run as uid 1000",
            "reporter",
            ("Project-HAMi/ascend-device-plugin#139",),
        )


def _shared_memory(container: _Container) -> Iterator[Diagnosis]:
    ours = object_at(container.pod, "metadata", "labels").get(names.APP_MANAGED_BY_LABEL) == names.MANAGED_BY  # sized by the model
    if container.cards < 2 or ours or object_at(container.pod, "spec").get("hostIPC") is True:
        return
    mounts = {str(mount.get("name")) for mount in _objects(container.spec.get("volumeMounts")) if mount.get("mountPath") == _SHM}
    volumes = [volume for volume in _objects(object_at(container.pod, "spec").get("volumes")) if str(volume.get("name")) in mounts]
    if not volumes:
        found = f"no volume at {_SHM}, so 64 MiB"
    else:
        limit = object_at(volumes[0], "emptyDir").get("sizeLimit")
        size = bytes_of(limit) if limit is not None else None
        if size is None or size >= LEAST_SHM:
            return
        found = f"{_SHM} of {limit}"
    yield Diagnosis(
        "SharedMemorySmall",
        "processes of several cards talk through /dev/shm, and it is too small",
        (f"{container.where}: {found}",),
        "mount an emptyDir with medium Memory and at least 16Gi at /dev/shm, and count it in the memory limit",
        "advice",
        ("gpustack/gpustack#5014",),
    )


def _settings(container: _Container) -> Iterator[Diagnosis]:
    size = container.env.get("RANK_SIZE")
    if size is not None and size.isdigit() and int(size) % container.cards:
        yield Diagnosis(
            "RankSizeWrong",
            "RANK_SIZE isn't a multiple of the container's cards: some cards do nothing, or ranks share one",
            (f"{container.where}: RANK_SIZE={size} with {container.cards} cards",),
            "let it be the number of cards of all pods of the run",
        )
    if "PYTORCH_ALLOC_CONF" in container.env and "PYTORCH_NPU_ALLOC_CONF" in container.env:
        yield Diagnosis(
            "AllocatorSetTwice",
            "PYTORCH_ALLOC_CONF and PYTORCH_NPU_ALLOC_CONF are both set, which aborts",
            (container.where,),
            "set one of them",
            "vendor",
            ("Ascend/pytorch PYTORCH_NPU_ALLOC_CONF.md",),
        )
    image = of_image(str(container.spec.get("image") or ""))
    if image.vllm_ascend == "0.19.1rc1" and image.chip is Product.A3 and not _ready(container):
        yield Diagnosis(
            "LoaderStuck",
            "vllm-ascend 0.19.1rc1 may stop while it loads weights on A3",
            (f"{container.where}: image {container.spec.get('image')}, not ready",),
            "take a newer version; a local disk makes it rarer",
            "advice",
            ("vllm-project/vllm-ascend#8898",),
        )


def _ready(container: _Container) -> bool:
    states = _objects(object_at(container.pod, "status").get("containerStatuses"))
    return any(state.get("name") == container.spec.get("name") and state.get("ready") is True for state in states)


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


_RULES: Final = (_visible, _user, _shared_memory, _settings)
