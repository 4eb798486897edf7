"""The demo, once for all tests of this folder: a kind cluster with fake cards, the chart, a service that serves.

Nothing is faked here but the cards: API server, scheduler, kubelets, containerd, device-plugin protocol, images and model are real.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import pytest

from demo import site as places
from demo import steps, training
from demo.site import Site
from tests.cluster.errors import CommandFailedError
from tests.cluster.kind import KindCluster


@pytest.fixture(scope="session")
def place(kind_cluster: KindCluster) -> Site:
    """The cluster with operator, pool and the demo's service."""
    places.load_images(kind_cluster)
    site = places.kind_site(kind_cluster)
    steps.install_operator(site)
    steps.apply_pool(site)
    training.apply_storage(site)
    steps.apply_service(site)
    steps.wait_serving(site)
    return site


@pytest.fixture
def demo(place: Site) -> Site:
    """The place with its service serving, whatever the test before did to it."""
    steps.apply_service(place)
    steps.wait_serving(place)
    return place


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows what the operator said last."""
    report = yield
    site = item.funcargs.get("place")
    if report.failed and isinstance(site, Site):
        with contextlib.suppress(CommandFailedError):
            said = site.kubectl("logs", "-n", steps.OPERATOR_NAMESPACE, f"deploy/{steps.DEPLOYMENT}", "--tail=200")
            report.sections.append(("the operator's log", said))
    return report
