"""Nodes without a kubelet, for tests that play it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import kubelet
from tests.support.documents import bare_node, pool
from tests.support.kube import Kube, until


@pytest.fixture
def silent_pool(kube: Kube, home: str) -> Iterator[str]:
    """A pool of one node without a kubelet: pods get there and stay as a test says they are."""
    kube.create(bare_node(f"silent-{home}", home))
    with kubelet.heartbeat(kube, f"silent-{home}"):
        kube.create(pool(home))
        until("the pool to be ready", lambda: kube.pool_condition(home).get("status") == "True", 20, lambda: str(kube.pool_condition(home)))
        yield home
        for service in kube.list("GLM5Service", home):
            kube.delete("GLM5Service", home, service["metadata"]["name"])
        kube.delete("NPUPool", "", home)
    kube.delete("Node", "", f"silent-{home}")  # its pods go with it: nobody else would end them
