"""The PodResources client against kubelet's own generated server code, over a socket, and against answers that no kubelet gives."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm5_operator.agent.podresources import Device, PodResourcesError, allocations, devices, sort_out
from glm5_operator.api.node_facts import Holder
from tests.support.pod_resources import PodResources, pod, serving

LIMIT = 20.0


@pytest.fixture(scope="module")
def kubelet() -> Iterator[PodResources]:
    with serving() as server:
        yield server


async def test_each_card_has_the_pod_and_container_that_it_was_given_to(kubelet: PodResources) -> None:
    kubelet.say(
        [pod("chat-0", "Ascend910-0", "Ascend910-1"), pod("tune-0", "Ascend910-12", namespace="team-b", container="trainer"), pod("web")]
    )

    found = await allocations(str(kubelet.socket), LIMIT)

    chat = Holder(namespace="team-a", pod="chat-0", container="engine")
    assert found.holders == {0: chat, 1: chat, 12: Holder(namespace="team-b", pod="tune-0", container="trainer")}
    assert (found.virtual, found.unclear) == (False, ())


async def test_an_empty_node_and_a_large_one_are_read(kubelet: PodResources) -> None:
    kubelet.say([])
    assert (await allocations(str(kubelet.socket), LIMIT)).holders == {}

    kubelet.say([*(pod(f"p{number:04}" + "x" * 200) for number in range(1000)), pod("last", "Ascend910-63")])
    assert set((await allocations(str(kubelet.socket), LIMIT)).holders) == {63}


@pytest.mark.parametrize(
    ("resource", "device"),
    [("huawei.com/Ascend310P", "Ascend310P-7"), ("huawei.com/npu", "npu-7"), ("huawei.com/Ascend910B4-1", "Ascend910-7")],
)
async def test_other_products_resources_count_too(kubelet: PodResources, resource: str, device: str) -> None:
    kubelet.say([pod("a", device, resource=resource)])

    assert set((await allocations(str(kubelet.socket), LIMIT)).holders) == {7}


async def test_devices_of_others_are_passed_over_and_those_that_tell_no_card_are_named(kubelet: PodResources) -> None:
    kubelet.say(
        [
            pod("gpu", "GPU-1234", resource="nvidia.com/gpu"),
            pod("slice", "Ascend910-2c-100-3", resource="huawei.com/Ascend910-2c"),
            pod("hami", "NPU-3f2a-77", resource="huawei.com/Ascend910B4"),
        ]
    )

    found = await allocations(str(kubelet.socket), LIMIT)

    assert (found.holders, found.virtual) == ({}, True)
    assert found.unclear == ("huawei.com/Ascend910B4 NPU-3f2a-77 of team-a/hami",)


@pytest.mark.parametrize(("device", "card"), [("card-3", 3), ("site-npu-12", 12), ("Ascend9103", None)])
async def test_a_card_under_a_name_of_the_sites_own_has_its_holder_where_the_name_is_given(
    kubelet: PodResources, device: str, card: int | None
) -> None:
    """deviceNameCustomization.json of the device plugin. A prefix without a hyphen at its end leaves open where the id begins."""
    kubelet.say([pod("a", device, resource="acme.com/npu")], allocatable=["acme.com/npu", "rdma/hca"])

    found = await allocations(str(kubelet.socket), LIMIT, ("acme.com/npu",))

    assert set(found.holders) == ({card} if card is not None else set())
    assert found.unclear == (() if card is not None else ("acme.com/npu Ascend9103 of team-a/a",))


@pytest.mark.parametrize(
    ("offered", "named", "clear"),
    [
        (["acme.com/npu"], (), False),
        (None, (), False),
        (["acme.com/npu", "huawei.com/Ascend910"], (), True),
        (["acme.com/npu", "site.example/card"], ("site.example/card",), True),
    ],
    ids=str,
)
async def test_where_kubelet_knows_no_name_of_cards_any_device_may_be_one(
    kubelet: PodResources, offered: list[str] | None, named: tuple[str, ...], clear: bool
) -> None:
    kubelet.say([pod("a", "npu-3", resource="acme.com/npu")], allocatable=offered)

    found = await allocations(str(kubelet.socket), LIMIT, named)

    assert found.holders == {}
    assert found.unclear == (() if clear else ("acme.com/npu npu-3 of team-a/a, of a resource that isn't among admission.resources",))


@pytest.mark.parametrize(
    ("offered", "virtual"),
    [
        (["huawei.com/Ascend910"], False),
        (["huawei.com/Ascend910", "huawei.com/Ascend910-4c"], True),
        (["huawei.com/Ascend310P-2c.1cpu"], True),
    ],
    ids=str,
)
async def test_a_node_that_offers_slices_is_cut_into_vnpus_though_no_pod_holds_one(
    kubelet: PodResources, offered: list[str], virtual: bool
) -> None:
    kubelet.say([pod("a", "Ascend910-0")], allocatable=offered)

    found = await allocations(str(kubelet.socket), LIMIT)

    assert (set(found.holders), found.virtual) == ({0}, virtual)


async def test_a_refusal_of_kubelet_is_told_in_its_words(kubelet: PodResources) -> None:
    kubelet.say(refuse="rejected by rate limit: 100 %")

    with pytest.raises(PodResourcesError, match="gRPC status 8 rejected by rate limit: 100 %"):
        await allocations(str(kubelet.socket), LIMIT)


async def test_without_a_kubelet_the_error_names_the_socket(tmp_path: Path) -> None:
    with pytest.raises(PodResourcesError, match=r"none\.sock"):
        await allocations(str(tmp_path / "none.sock"), LIMIT)


async def test_a_socket_that_accepts_and_says_nothing_is_given_up() -> None:
    with tempfile.TemporaryDirectory(prefix="pr-") as folder:
        opened: list[asyncio.StreamWriter] = []
        server = await asyncio.start_unix_server(lambda _, writer: opened.append(writer), f"{folder}/s")
        async with server:
            with pytest.raises(PodResourcesError, match="Timeout"):  # on a busy machine the connection takes that long, too
                await allocations(f"{folder}/s", 0.2)
            for writer in opened:
                writer.transport.abort()
            await asyncio.sleep(0)  # the loop takes note of it


@given(st.binary(max_size=64))
def test_whatever_bytes_come_they_are_devices_or_a_named_fault(raw: bytes) -> None:
    try:
        found = tuple(devices(raw))
    except PodResourcesError:
        return
    assert all(isinstance(device, Device) for device in found)
    sort_out(found, (), ())


def field(number: int, value: bytes) -> bytes:
    """A length-delimited field of less than 128 bytes."""
    return bytes([number << 3 | 2, len(value)]) + value


def test_a_card_that_was_given_by_a_claim_leaves_open_which_one_it_is_and_claims_of_other_drivers_are_passed_over() -> None:
    def claim(driver: bytes, device: bytes) -> bytes:
        return field(5, field(2, b"c") + field(4, field(2, driver) + field(3, b"n1") + field(4, device)))

    container = field(1, b"engine") + claim(b"gpu.x.com", b"gpu-0") + claim(b"npu.huawei.com", b"npu-3-0")
    given = tuple(devices(field(1, field(1, b"chat-0") + field(2, b"team-a") + field(3, container))))

    found = sort_out(given, ("huawei.com/Ascend910",), ())

    assert (found.holders, found.unclear) == ({}, ("npu.huawei.com npu-3-0 of team-a/chat-0",))


def test_a_message_that_is_cut_anywhere_is_a_fault_or_a_shorter_list() -> None:
    entry = field(1, b"huawei.com/Ascend910") + field(2, b"Ascend910-3")
    whole = field(1, field(1, b"chat-0") + field(2, b"team-a") + field(3, field(1, b"engine") + field(2, entry)))
    assert [device.id for device in devices(whole)] == ["Ascend910-3"]

    for length in range(1, len(whole)):
        with pytest.raises(PodResourcesError, match="cut off"):
            list(devices(whole[:length]))
