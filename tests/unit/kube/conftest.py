"""A small fake API server on loopback for the HTTP parts, and clients for it. Nothing above HTTP is faked."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from kubernetes.aio.client.configuration import Configuration

from glm5_operator.kube.client import Client
from glm5_operator.metrics import Metrics
from glm5_operator.settings import Api
from tests.unit.kube.fake_api import FakeApi


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    fake = FakeApi()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def client(api: FakeApi, metrics: Metrics) -> AsyncIterator[Client]:
    configuration = Configuration(host=api.url)
    configuration.client_session_kwargs = {"trust_env": False}
    made = Client(configuration, Api(request_timeout=1.0, connect_timeout=1.0), metrics)
    yield made
    await made.close()
