"""Wiring of the parts. Faked: the API server behind HTTP."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import kopf
import pytest
from kubernetes.aio.client.configuration import Configuration

from glm5_operator import app
from glm5_operator.app import Operator
from glm5_operator.kube.client import Client
from glm5_operator.kube.parts import Controllers
from glm5_operator.kube.types import Key
from glm5_operator.metrics import Metrics
from glm5_operator.settings import Settings
from tests.support.objects import a_service
from tests.unit.kube.fake_api import FakeApi

Json = dict[str, Any]
POD: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "team", "resourceVersion": "7"}}


def lost(error: Exception) -> NoReturn:
    raise error


@pytest.fixture
async def operator() -> AsyncIterator[Operator]:
    settings, metrics = Settings(), Metrics()
    client = Client(Configuration(host="http://127.0.0.1:9"), settings.api, metrics)
    made = Operator(settings, client, client, metrics, lost)
    made.staff(Controllers({}, {}))
    yield made
    await client.close()


async def test_what_ends_kopf_is_told_as_it_is(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object, **__: object) -> list[Any]:
        return []

    async def ends(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(operator, "wait_for_crds", nothing)
    monkeypatch.setattr(kopf, "spawn_tasks", nothing)
    monkeypatch.setattr(kopf, "run_tasks", ends)

    async with contextlib.AsyncExitStack() as stack:
        with pytest.raises(OSError, match="no route to host"):
            await app._run_tasks(operator, stack)


async def test_a_node_that_the_operator_itself_relabels_wakes_the_services_of_both_pools() -> None:
    """The answer of the write is in the cache before its event comes, which is then no news."""

    def node(pool: str, version: str) -> Json:
        labels = {"glm5.dev/pool": pool}
        return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "npu-0", "labels": labels, "resourceVersion": version}}

    api, settings, metrics = FakeApi(answers={"PATCH": (200, node("new", "8"), {})}), Settings(), Metrics()
    await api.start()
    client = Client(Configuration(host=api.url), settings.api, metrics)
    operator = Operator(settings, client, client, metrics, lost)
    for resource in (a_service("chat", pool="new"), a_service("left", pool="old"), a_service("other", pool="third"), node("old", "7")):
        operator.cache.put(resource)
    operator.staff(Controllers({}, {}))

    await operator.applier.patch_node(node("old", "7"), labels={"glm5.dev/pool": "new"})

    later = time.monotonic() + 60
    woken = set()
    while taken := operator.queue.take(later):
        woken.add(taken[0])
    assert {key for key in woken if key.kind == "GLM5Service"} == {Key("GLM5Service", "prod", name) for name in ("chat", "left")}
    assert not operator.cache.put(node("new", "8"))
    await client.close()
    await api.stop()
