"""pytest fixtures for the test clusters; tests/conftest.py loads this as a plugin.

`api_cluster` and `namespace` need nothing but Go (or built tools in the cache); `kind_cluster` needs a container engine
or root. A cluster that can't be had fails the tests that ask for it, with what to do: a skip would look like success.
"""

import os
import secrets
import sys
from collections.abc import Iterator

import pytest
from rich.console import Console

from tests.cluster import engine, workload
from tests.cluster.api import ApiCluster
from tests.cluster.build import Cluster, build
from tests.cluster.kind import KindCluster

E2E_NAME = "glm5-e2e"


@pytest.fixture(scope="session")
def api_cluster() -> Iterator[ApiCluster]:
    """An API-server-only cluster with KWOK running and no nodes, for this test session alone."""
    build(Cluster.API, Console(file=sys.__stderr__))
    with ApiCluster.start() as cluster:
        yield cluster


@pytest.fixture
def namespace(api_cluster: ApiCluster) -> Iterator[str]:
    """A fresh namespace of the API cluster; it is deleted after the test, without waiting for that."""
    name = f"t-{secrets.token_hex(4)}"
    api_cluster.http.post("/api/v1/namespaces", json={"metadata": {"name": name}}).raise_for_status()
    yield name
    api_cluster.http.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="session")
def kind_cluster() -> Iterator[KindCluster]:
    """A kind cluster with four workers of eight fake cards, the tiny model and the runtime's packages on them.

    It is removed at the end, unless it ran before: `python -m tests.cluster kind up --name glm5-e2e` keeps one for
    repeated runs. $GLM5_KIND_NAME uses another name.
    """
    name = os.environ.get("GLM5_KIND_NAME", E2E_NAME)
    console = Console(file=sys.__stderr__)
    with engine.in_use():
        before = KindCluster.find(name)
        keep = before is not None and before.alive
        build(Cluster.KIND, console)
        cluster = KindCluster.up(name, workload.options(engine.require()), say=lambda step: console.print(f"[dim]{name}: {step}[/dim]"))
        yield cluster
    if not keep and not cluster.down():
        console.print(f"[dim]{engine.STILL_RUNS}[/dim]", highlight=False)
