"""The client against a fake API server: what each trouble becomes, what is counted, and when nothing is sent."""

from __future__ import annotations

from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from glm5_operator.kube import errors, kinds
from glm5_operator.kube.client import Client
from glm5_operator.metrics import Metrics
from tests.unit.kube.fake_api import FakeApi

EVENT = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "ns"}}
EVENT_PATH = "/apis/events.k8s.io/v1/namespaces/ns/events/e"


def count(registry: CollectorRegistry, **labels: str) -> float:
    return registry.get_sample_value("glm5_operator_api_requests_total", labels) or 0.0


async def test_a_missing_object_is_not_found(client: Client, metrics: Metrics) -> None:
    with pytest.raises(errors.NotFoundError):
        await client.get(kinds.LEASE, "ns", "nothing")

    assert count(metrics.registry, verb="get", kind="Lease", code="404") == 1


async def test_a_silent_server_is_unavailable_after_the_timeout(client: Client, api: FakeApi, metrics: Metrics) -> None:
    api.silent = True

    with pytest.raises(errors.UnavailableError, match="no answer"):
        await client.get(kinds.LEASE, "ns", "x")

    assert count(metrics.registry, verb="get", kind="Lease", code="timeout") == 1


async def test_after_a_timeout_no_old_connection_is_used_again(client: Client, api: FakeApi) -> None:
    """Behind a load balancer that forgot us each of them would cost another timeout; case B07."""
    api.objects[EVENT_PATH] = EVENT
    await client.get(kinds.EVENT, "ns", "e")
    api.silent = True
    with pytest.raises(errors.UnavailableError):
        await client.get(kinds.EVENT, "ns", "e")
    api.silent = False
    before = set(api.peers)

    await client.get(kinds.EVENT, "ns", "e")

    assert len(api.peers - before) == 1


async def test_connections_are_used_again_otherwise(client: Client, api: FakeApi) -> None:
    api.objects[EVENT_PATH] = EVENT
    for _ in range(5):
        await client.get(kinds.EVENT, "ns", "e")

    assert len(api.peers) == 1


async def test_no_server_at_all_is_unavailable(client: Client, api: FakeApi) -> None:
    await api.stop()
    await api.start()  # the fixture stops it again; the client still knows the old port

    with pytest.raises(errors.UnavailableError, match="no connection"):
        await client.get(kinds.LEASE, "ns", "x")


async def test_the_servers_wish_to_wait_is_kept(client: Client, api: FakeApi) -> None:
    api.answers["POST"] = (429, {"message": "slow down"}, {"Retry-After": "4"})

    with pytest.raises(errors.TooManyRequestsError) as caught:
        await client.create(kinds.EVENT, EVENT)

    assert caught.value.retry_after == timedelta(seconds=4)


async def test_a_guard_that_objects_keeps_writes_from_being_sent_and_lets_reads_pass(
    client: Client, api: FakeApi, metrics: Metrics
) -> None:
    def guard() -> None:
        raise errors.NotLeaderError("no")

    api.objects[EVENT_PATH] = EVENT
    client.guard_writes(guard)

    with pytest.raises(errors.NotLeaderError):
        await client.create(kinds.EVENT, EVENT)
    await client.get(kinds.EVENT, "ns", "e")

    assert [method for method, _ in api.requests] == ["GET"]
    assert count(metrics.registry, verb="create", kind="Event", code="guarded") == 1


async def test_an_answer_that_is_not_json_is_an_error_not_a_crash(client: Client, api: FakeApi) -> None:
    api.answers["GET"] = (200, ["not an object"], {})  # type: ignore[assignment]

    with pytest.raises(errors.KubeError):
        await client.get(kinds.LEASE, "ns", "x")
