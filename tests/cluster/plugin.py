"""pytest fixtures for the test clusters; tests/conftest.py loads this as a plugin.

`api_cluster` and `namespace` need nothing but Go (or built tools in the cache); `kind_cluster` needs a container engine
or root. A cluster that can't be had fails the tests that ask for it, with what to do: a skip would look like success.
"""

import secrets
from collections.abc import Iterator

import pytest

from tests.cluster.api import ApiCluster


@pytest.fixture(scope="session")
def api_cluster() -> Iterator[ApiCluster]:
    """An API-server-only cluster with KWOK running and no nodes, for this test session alone."""
    with ApiCluster.start() as cluster:
        yield cluster


@pytest.fixture
def namespace(api_cluster: ApiCluster) -> Iterator[str]:
    """A fresh namespace of the API cluster; it is deleted after the test, without waiting for that."""
    name = f"t-{secrets.token_hex(4)}"
    api_cluster.http.post("/api/v1/namespaces", json={"metadata": {"name": name}}).raise_for_status()
    yield name
    api_cluster.http.delete(f"/api/v1/namespaces/{name}")
