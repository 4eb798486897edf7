"""Nodes of a test's own. KWOK keeps them Ready."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import pytest

from tests.api.conftest import Operated
from tests.support.documents import RACK
from tests.support.kube import Kube

AddNodes = Callable[..., list[str]]


@pytest.fixture
def rack(kube: Kube) -> Iterator[str]:
    """A name for a test's pool and nodes; pools and nodes that begin with it are removed after the test."""
    name = f"r-{secrets.token_hex(3)}"
    yield name
    for kind in ("NPUPool", "Node"):
        for item in kube.list(kind):
            if item["metadata"]["name"].startswith(name):
                kube.delete(kind, "", item["metadata"]["name"])


@pytest.fixture
def add_nodes(operated: Operated, rack: str) -> AddNodes:
    """`add_nodes(2)` makes nodes of the test's rack, `add_nodes(1, rack="other", prefix="x")` of another."""

    def add(count: int, *, prefix: str = "node", rack_label: str | None = None, **labels: str) -> list[str]:
        return operated.cluster.add_nodes(count, prefix=f"{rack}-{prefix}", labels={RACK: rack_label or rack, **labels})

    return add
