"""Leader election on a fake API server; the steady clocks of the candidates are numbers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from glm5_operator.kube.client import Client
from glm5_operator.kube.errors import NotLeaderError
from glm5_operator.kube.lease import LeaderLease, LeaseLostError
from glm5_operator.settings import Lease
from tests.unit.kube.fake_api import FakeApi

PATH = "/apis/coordination.k8s.io/v1/namespaces/glm5-system/leases/glm5-operator"
# `renew` is real time here: hold() sleeps it between renewals.
SETTINGS = Lease(duration=8.0, renew=0.01)


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def a_candidate(client: Client, clock: Clock, name: str = "a") -> LeaderLease:
    return LeaderLease(client, SETTINGS, name, clock)


def may_write(lease: LeaderLease) -> bool:
    try:
        lease.guard()
    except NotLeaderError:
        return False
    return True


async def test_the_first_candidate_leads_and_only_then_may_write(client: Client, api: FakeApi) -> None:
    lease = a_candidate(client, Clock())
    assert not may_write(lease)

    await lease.acquire()

    assert may_write(lease)
    assert api.objects[PATH]["spec"]["holderIdentity"] == lease.identity


async def test_a_second_candidate_waits_until_the_record_has_not_changed_for_its_duration(client: Client) -> None:
    clock = Clock()
    first, second = a_candidate(client, clock), a_candidate(client, clock, "b")
    await first.acquire()

    assert not await second._try()
    clock.now += 7.9
    assert not await second._try()
    clock.now += 0.2
    assert await second._try()
    assert not may_write(first), "the old leader had to stop before"


async def test_the_holder_stops_writing_before_anybody_else_may_start(client: Client) -> None:
    clock = Clock()
    lease = a_candidate(client, clock)
    await lease.acquire()

    clock.now += 6.7
    assert may_write(lease)
    clock.now += 0.2
    assert not may_write(lease)


async def test_wall_clocks_in_the_record_decide_nothing(client: Client, api: FakeApi) -> None:
    """A holder whose node's clock is hours away is still the holder; case B16."""
    clock = Clock()
    first, second = a_candidate(client, clock), a_candidate(client, clock, "b")
    await first.acquire()
    api.edit(PATH, renewTime="2001-01-01T00:00:00.000000Z")

    assert not await second._try()
    clock.now += 7.0
    assert not await second._try()


async def test_a_frozen_leader_that_wakes_up_finds_that_it_may_not_write_and_ends(client: Client, api: FakeApi) -> None:
    clock = Clock()
    first, second = a_candidate(client, clock), a_candidate(client, clock, "b")
    await first.acquire()
    await second._try()
    clock.now += 120.0  # first was frozen
    assert await second._try()

    assert not may_write(first)
    with pytest.raises(LeaseLostError):
        await first.hold()
    assert api.objects[PATH]["spec"]["holderIdentity"] == second.identity


async def test_a_frozen_leader_whose_lease_nobody_took_goes_on(client: Client) -> None:
    clock = Clock()
    lease = a_candidate(client, clock)
    await lease.acquire()
    clock.now += 120.0
    assert not may_write(lease)

    assert await lease._try()

    assert may_write(lease)


async def test_a_leader_whose_lease_was_taken_by_hand_ends_at_its_next_renewal(client: Client, api: FakeApi) -> None:
    lease = a_candidate(client, Clock())
    await lease.acquire()
    api.edit(PATH, holderIdentity="somebody")

    with pytest.raises(LeaseLostError, match="somebody has the lease"):
        await lease.hold()


async def test_a_leader_without_an_api_server_ends_when_its_time_is_over(client: Client, api: FakeApi) -> None:
    clock = Clock()
    lease = a_candidate(client, clock)
    await lease.acquire()
    api.answers["PUT"] = (500, {}, {})
    clock.now += 7.0

    with pytest.raises(LeaseLostError):
        await lease.hold()


async def test_one_failed_renewal_is_survived(client: Client, api: FakeApi) -> None:
    clock = Clock()
    lease = a_candidate(client, clock)
    await lease.acquire()
    api.answers["PUT"] = (500, {}, {})
    clock.now += 2.0
    assert not await lease._try()
    del api.answers["PUT"]
    clock.now += 2.0

    assert await lease._try()

    clock.now += 6.0
    assert may_write(lease)


async def test_answers_later_than_a_first_attempt_may_take_still_renew_the_lease(client: Client, api: FakeApi) -> None:
    """An overloaded API server: attempts that are all as short as the first would never succeed. The attempts take real time."""
    lease = LeaderLease(client, Lease(duration=0.8, renew=0.01), "a", Clock())
    await lease.acquire()
    taken = held_version(lease)
    api.delay = 0.25  # a first attempt may take 0.2 s, the next one all that is left, 0.68 s

    holding = asyncio.create_task(lease.hold())
    async with asyncio.timeout(10):
        while held_version(lease) <= taken:  # noqa: ASYNC110 - the lease has no event for it
            await asyncio.sleep(0.01)

    assert not holding.done()
    holding.cancel()


def held_version(lease: LeaderLease) -> int:
    """The version that this candidate knows it wrote or read last."""
    return int(lease._object["metadata"]["resourceVersion"]) if lease._object and lease._object["spec"] else 0


async def test_a_released_lease_is_taken_at_once(client: Client) -> None:
    clock = Clock()
    first, second = a_candidate(client, clock), a_candidate(client, clock, "b")
    await first.acquire()
    assert not await second._try()

    await first.release()

    assert not may_write(first)
    assert await second._try()


async def test_of_two_that_try_at_once_one_leads(client: Client) -> None:
    clock = Clock()
    dead = a_candidate(client, clock, "dead")
    await dead.acquire()
    candidates = [a_candidate(client, clock, name) for name in "abc"]
    for candidate in candidates:
        await candidate._try()
    clock.now += 9.0
    for candidate in candidates:
        candidate._object = None

    won = [await candidate._try() for candidate in candidates]

    assert won.count(True) == 1


async def test_a_restarted_pod_of_the_same_name_is_not_the_same_holder(client: Client) -> None:
    clock = Clock()
    before, after = a_candidate(client, clock), a_candidate(client, clock)
    await before.acquire()

    assert not await after._try()


async def test_a_count_of_transitions_at_its_limit_hinders_nobody(client: Client, api: FakeApi) -> None:
    first, second = a_candidate(client, Clock()), a_candidate(client, Clock(), "b")
    await first.acquire()
    api.edit(PATH, holderIdentity="", leaseTransitions=2**31 - 1)

    assert await second._try()

    assert api.objects[PATH]["spec"]["leaseTransitions"] == 2**31 - 1  # one more doesn't fit the field
