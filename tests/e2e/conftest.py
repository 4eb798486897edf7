"""The demo, once for all tests of this folder: a kind cluster with fake cards, the chart, a service that serves.

Nothing is faked here but the cards: API server, scheduler, kubelets, containerd, device-plugin protocol, images and model are real.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from demo import site as places
from demo import steps
from demo.site import Site
from tests.cluster.kind import KindCluster


@pytest.fixture(scope="session")
def place(kind_cluster: KindCluster) -> Iterator[Site]:
    """The cluster with operator, pool and the demo's service; logs of the operator are printed when a test of it failed."""
    places.load_images(kind_cluster)
    site = places.kind_site(kind_cluster)
    steps.install_operator(site)
    steps.apply_pool(site)
    steps.apply_service(site)
    steps.wait_serving(site)
    yield site
    print(site.kubectl("logs", "-n", steps.OPERATOR_NAMESPACE, "deploy/glm5-glm5-operator", "--tail=200"))


@pytest.fixture
def demo(place: Site) -> Site:
    """The place with its service serving, whatever the test before did to it."""
    steps.apply_service(place)
    steps.wait_serving(place)
    return place
