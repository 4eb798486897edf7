"""Events: which are sent, against a fake API server; the clock is a number."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from glm5_operator.kube.client import Client
from glm5_operator.kube.events import Events
from glm5_operator.metrics import Metrics
from tests.unit.kube.fake_api import FakeApi
from tests.unit.kube.objects import an_object

SERVICE = an_object("GLM5Service", "chat")


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


async def send_all(events: Events, api: FakeApi, count: int) -> list[dict[str, object]]:
    """Run the sender until that many requests came."""
    task = asyncio.create_task(events.run())
    await _eventually(lambda: len(api.requests) >= count)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return list(api.objects.values())


def fate(metrics: Metrics, name: str) -> float:
    return metrics.registry.get_sample_value("glm5_operator_events_total", {"fate": name}) or 0.0


async def test_an_event_names_its_object_reason_and_sender(client: Client, api: FakeApi, metrics: Metrics) -> None:
    events = Events(client, metrics)
    events.warning(SERVICE, "ImagePullFailed", "no such image")

    sent = (await send_all(events, api, 1))[0]

    assert sent["type"] == "Warning"
    assert sent["reason"] == "ImagePullFailed"
    assert sent["note"] == "no such image"
    assert sent["reportingController"] == "glm5.dev/glm5-operator"
    assert sent["regarding"] == {"apiVersion": "v1", "kind": "GLM5Service", "name": "chat", "namespace": "ns", "uid": "uid-chat"}


async def test_the_same_event_again_within_the_window_is_not_sent(client: Client, api: FakeApi, metrics: Metrics) -> None:
    clock = Clock()
    events = Events(client, metrics, clock)
    for _ in range(5):
        events.warning(SERVICE, "Stalled", "x")
    clock.now = 601.0
    events.warning(SERVICE, "Stalled", "x")

    assert len(await send_all(events, api, 2)) == 2
    assert fate(metrics, "repeated") == 4


async def test_one_object_cannot_flood(client: Client, api: FakeApi, metrics: Metrics) -> None:
    events = Events(client, metrics, Clock())
    for number in range(25):
        events.warning(SERVICE, "Crash", f"attempt {number}")
    events.normal(an_object("GLM5Service", "other"), "Ready", "serves")

    assert len(await send_all(events, api, 11)) == 11
    assert fate(metrics, "limited") == 15


async def test_a_full_backlog_drops_events_instead_of_waiting(client: Client, metrics: Metrics) -> None:
    events = Events(client, metrics, Clock())
    for number in range(1100):
        events.normal(an_object("GLM5Service", f"s{number}"), "Ready", "serves")

    assert fate(metrics, "dropped") == 100


async def test_an_event_of_a_cluster_scoped_object_goes_to_the_default_namespace(client: Client, api: FakeApi, metrics: Metrics) -> None:
    events = Events(client, metrics)
    events.normal(an_object("NPUPool", "inference", namespace=""), "Ready", "8 cards")

    await send_all(events, api, 1)

    assert api.requests == [("POST", "/apis/events.k8s.io/v1/namespaces/default/events")]


async def test_a_refused_event_is_counted_and_the_next_one_sent(client: Client, api: FakeApi, metrics: Metrics) -> None:
    events = Events(client, metrics)
    api.answers["POST"] = (403, {"message": "no"}, {})
    events.normal(SERVICE, "A", "a")
    events.normal(SERVICE, "B", "b")

    await send_all(events, api, 2)

    await _eventually(lambda: fate(metrics, "failed") >= 1)


async def _eventually(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not done():  # noqa: ASYNC110 - the code under test has no event to wait for
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("message", "sent"),
    [
        ("长" * 3000, "长" * 340 + "…"),
        ("a" + "😀" * 3000, "a" + "😀" * 255 + "…"),
        ("x" * 1025, "x" * 1021 + "…"),
        ("长" * 341 + "x", "长" * 341 + "x"),
        ("x" * 1024, "x" * 1024),
    ],
)
async def test_a_note_of_more_bytes_than_the_server_takes_is_cut_between_characters(
    client: Client, api: FakeApi, metrics: Metrics, message: str, sent: str
) -> None:
    events = Events(client, metrics)
    events.warning(SERVICE, "Crash", message)

    assert (await send_all(events, api, 1))[0]["note"] == sent
    assert len(sent.encode()) <= 1024
