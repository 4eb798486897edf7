"""The shared API cluster with our CRDs, and the I/O layer's own objects on it. Each test has a namespace of its own.

The operators started here look at that namespace only: other tests write objects of the same kinds elsewhere in this cluster.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glm5_operator.api import names
from glm5_operator.kube.apply import Applier
from glm5_operator.kube.cache import Cache
from glm5_operator.kube.client import Client, load_configuration
from glm5_operator.metrics import Metrics
from glm5_operator.settings import Api
from tests.api.kube.process import SmallOperator
from tests.cluster.api import ApiCluster
from tests.support.crds import install_crds
from tests.support.kube import Kube, until

Json = dict[str, Any]


@pytest.fixture(scope="session")
def cluster(api_cluster: ApiCluster) -> ApiCluster:
    install_crds(api_cluster)
    return api_cluster


@pytest.fixture
def kube(cluster: ApiCluster) -> Kube:
    return Kube(cluster.http)


@pytest.fixture
def service(kube: Kube, namespace: str) -> Json:
    """A GLM5Service that no operator looks at, unless the test starts one."""
    return kube.create(a_service(namespace))


def a_service(namespace: str, name: str = "chat", **spec: object) -> Json:
    model = {"name": "tiny", "weights": "bf16", "source": "pvc://weights/tiny", "memory": "1Gi"}
    return {
        "kind": names.SERVICE_KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"model": model, "pool": "inference", "parallelism": {"tensor": 1}, **spec},
    }


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def client(cluster: ApiCluster, metrics: Metrics) -> AsyncIterator[Client]:
    made = Client(await load_configuration(str(cluster.kubeconfig)), Api(), metrics)
    yield made
    await made.close()


@pytest.fixture
def cache() -> Cache:
    return Cache()


@pytest.fixture
def applier(client: Client, cache: Cache, metrics: Metrics) -> Applier:
    return Applier(client, cache, metrics)


@pytest.fixture
def start(cluster: ApiCluster, namespace: str, tmp_path: Path) -> Iterator[Callable[..., SmallOperator]]:
    """Start operators (the I/O layer with the small controller) in this test's namespace; they end with the test."""
    started: list[SmallOperator] = []

    def one(kubeconfig: Path | None = None, *, leading: bool = True, **settings: str) -> SmallOperator:
        operator = SmallOperator(kubeconfig or cluster.kubeconfig, tmp_path / f"operator-{len(started)}.log", namespace, settings)
        started.append(operator)
        operator.start()
        if leading:
            until("the operator to lead", lambda: operator.said("leading as") or operator.ended, 60, operator.tail)
        else:
            until("the standby to be warm", lambda: operator.said("the cache is complete") or operator.ended, 60, operator.tail)
        assert not operator.ended, operator.tail()
        return operator

    yield one
    for operator in started:
        operator.kill()
