"""Which pod was given which card: kubelet's PodResources API (v1), over its socket. Called by `collect`.

The API is gRPC, of which one question without an answering stream is needed: HTTP/2 by httpx, five bytes of framing, and a reader for
the five fields that matter. grpcio would take 17 MB more of memory and threads of its own (docs/decisions).
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import httpx

from glm5_operator.api.node_facts import Holder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

LIST: Final = "/v1.PodResourcesLister/List"
ALLOCATABLE: Final = "/v1.PodResourcesLister/GetAllocatableResources"
SOCKET: Final = "pod-resources/kubelet.sock"
VENDOR: Final = "huawei.com/"
DRIVER: Final = "npu.huawei.com"
"""Of the vendor's devices that are given by claims (dynamic resource allocation). Their names don't tell the physical id."""
_CARD = re.compile(r"[A-Za-z][A-Za-z0-9]*-(\d+)")
_RENAMED = re.compile(r"[A-Za-z][A-Za-z0-9-]*-(\d+)")
"""A prefix of the site's own (DevicePublicNamePre in the device plugin's deviceNameCustomization.json) and the physical id. Where the
prefix doesn't end in a hyphen, its own digits can't be told from the id's."""
_VIRTUAL = re.compile(r"-\d+c(\.|$)|vir\d+", re.ASCII)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class PodResourcesError(Exception):
    """kubelet gave no answer that can be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Allocations:
    """Who was given what.

    Attributes:
        holders: by physical id.
        virtual: the node offers vNPUs, or a pod holds one.
        unclear: devices that are cards or may be, and of which card can't be told; a card without a holder isn't surely free then.
    """

    holders: dict[int, Holder]
    virtual: bool = False
    unclear: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """One device that a container was given."""

    holder: Holder
    resource: str
    id: str


async def allocations(socket: str, limit: float, resources: Iterable[str] = ()) -> Allocations:
    """Ask kubelet who holds what, and what it has to give; the second question may go unanswered (before Kubernetes 1.23).

    Args:
        socket: kubelet's.
        limit: seconds for each question.
        resources: that count cards, beside all of `VENDOR`.

    Raises:
        PodResourcesError: It didn't answer in time, refused, or sent what can't be read.
    """
    # A local socket has no TLS; verify would load all public authorities each time.
    transport = httpx.AsyncHTTPTransport(uds=socket, http1=False, http2=True, verify=False)
    try:
        async with httpx.AsyncClient(transport=transport, timeout=limit, trust_env=False) as client:
            given = tuple(devices(await _call(client, LIST, socket)))
            try:
                offered = {_one(entry, 1) for entry in _all(await _call(client, ALLOCATABLE, socket), 1)}
            except PodResourcesError:
                offered = set()
    except httpx.HTTPError as problem:
        raise PodResourcesError(f"{socket}: {str(problem) or type(problem).__name__}") from problem
    return sort_out(given, offered, frozenset(resources))


async def _call(client: httpx.AsyncClient, method: str, socket: str) -> bytes:
    """The message that answers an empty one."""
    headers = {"content-type": "application/grpc", "te": "trailers"}
    answer = await client.post(f"http://kubelet{method}", content=struct.pack(">BI", 0, 0), headers=headers)
    status = answer.headers.get("grpc-status", "0")
    if answer.status_code != httpx.codes.OK or status != "0":
        words = unquote(answer.headers.get("grpc-message", ""))
        raise PodResourcesError(f"{socket}: HTTP {answer.status_code}, gRPC status {status} {words}".rstrip())
    return _message(answer.content)


def sort_out(given: Collection[Device], offered: Collection[str], resources: Collection[str]) -> Allocations:
    """Cards by holder, of devices given and resources offered.

    The device plugin offers a node's cards under one name. Where kubelet knows none of the names that count cards, any other may be theirs.
    """
    holders: dict[int, Holder] = {}
    unclear: list[str] = []
    counts = {name for name in {*offered, *(device.resource for device in given)} if name.startswith(VENDOR) or name in resources}
    for device in given:
        who = f"{device.resource} {device.id} of {device.holder.namespace}/{device.holder.pod}"
        card = (_CARD if device.resource.startswith(VENDOR) else _RENAMED).fullmatch(device.id)
        if device.resource == DRIVER:
            unclear.append(who)
        elif not counts:
            unclear.append(f"{who}, of a resource that isn't among admission.resources")
        elif device.resource not in counts or _VIRTUAL.search(device.resource):
            continue
        elif card is None:
            unclear.append(who)
        else:
            holders[int(card[1])] = device.holder
    return Allocations(holders, any(_VIRTUAL.search(name) for name in {*offered, *counts}), tuple(unclear))


def devices(message: bytes) -> Iterator[Device]:
    """Every device in a ListPodResourcesResponse; of those given by claims the vendor's, with their driver as resource.

    Field numbers are those of k8s.io/kubelet/pkg/apis/podresources/v1/api.proto: pod_resources 1; PodResources name 1, namespace 2,
    containers 3; ContainerResources name 1, devices 2, dynamic_resources 5; ContainerDevices resource_name 1, device_ids 2;
    DynamicResource claim_resources 4; ClaimResource driver_name 2, device_name 4.

    Raises:
        PodResourcesError: It isn't one.
    """
    for pod in _all(message, 1):
        name, namespace = _one(pod, 1), _one(pod, 2)
        for container in _all(pod, 3):
            holder = Holder(namespace=namespace, pod=name, container=_one(container, 1))
            for entry in _all(container, 2):
                resource = _one(entry, 1)
                yield from (Device(holder, resource, item.decode(errors="replace")) for item in _all(entry, 2))
            claimed = (item for claim in _all(container, 5) for item in _all(claim, 4))
            yield from (Device(holder, DRIVER, _one(item, 4)) for item in claimed if _one(item, 2) == DRIVER)


def _message(body: bytes) -> bytes:
    """The one message of a unary answer; a compressed one was never asked for."""
    if len(body) < 5 or body[0] != 0 or len(body) - 5 != int.from_bytes(body[1:5], "big"):
        raise PodResourcesError(f"an answer of {len(body)} bytes isn't one whole message")
    return body[5:]


def _all(message: bytes, number: int) -> list[bytes]:
    """Every length-delimited field of that number."""
    return [value for field, value in _fields(message) if field == number]


def _one(message: bytes, number: int) -> str:
    """A string field; the last one counts and absent is empty, as protobuf has it."""
    values = _all(message, number)
    return values[-1].decode(errors="replace") if values else ""


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Length-delimited fields in order; others (CPU ids) are passed over."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        if tag & 7 == _VARINT:
            _, at = _varint(message, at)
            continue
        if tag & 7 not in (_FIXED64, _BYTES, _FIXED32):
            raise PodResourcesError(f"wire type {tag & 7} at byte {at}")
        size, at = _varint(message, at) if tag & 7 == _BYTES else (8 if tag & 7 == _FIXED64 else 4, at)
        if at + size > len(message):
            raise PodResourcesError(f"a field at byte {at} is cut off")
        if tag & 7 == _BYTES:
            yield tag >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise PodResourcesError(f"a number at byte {at} is cut off")
