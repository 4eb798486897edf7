"""The network between operator and API server loses connections; case B07.

The documented time: a dead watch is noticed after `watch.server_timeout + watch.grace` (here 6 s, by default 45 s), a dead connection for
requests after `api.request_timeout` (here 2 s, by default 10 s); then everything goes on without a restart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.api.kube.conftest import a_service
from tests.api.kube.process import SmallOperator
from tests.api.kube.proxy import Proxy
from tests.cluster.api import ApiCluster
from tests.support.kube import Kube, until

Start = Callable[..., SmallOperator]
NOTICED = 6.0 + 2.0 + 2.0  # watch timeout, request timeout, and a reconnect with its backoff
SLACK = 10.0  # a busy machine


@pytest.fixture
def proxy(cluster: ApiCluster) -> Iterator[Proxy]:
    made = Proxy.before(cluster.server)
    yield made
    made.close()


@pytest.fixture
def proxied(proxy: Proxy, cluster: ApiCluster, tmp_path: Path) -> Path:
    """A kubeconfig that leads through the proxy."""
    return proxy.kubeconfig(cluster.kubeconfig, tmp_path)


@dataclass
class Home:
    """A namespace with one service."""

    kube: Kube
    namespace: str

    def create(self) -> None:
        self.kube.create(a_service(self.namespace))

    def scale(self, replicas: int) -> None:
        self.kube.patch("GLM5Service", self.namespace, "chat", {"spec": {"replicas": replicas}})

    def replicas(self) -> int:
        found = self.kube.find("Deployment", self.namespace, "chat-engine")
        return 0 if found is None else int(found["spec"]["replicas"])


@pytest.fixture
def home(kube: Kube, namespace: str) -> Home:
    return Home(kube, namespace)


@pytest.mark.parametrize("how", ["swallowed", "reset"])
def test_a_change_is_acted_on_in_bounded_time_after_connections_were_lost(
    how: str, start: Start, proxy: Proxy, proxied: Path, home: Home
) -> None:
    operator = start(proxied)
    home.create()
    until("the Deployment", lambda: home.replicas() == 1, 30, operator.tail)
    before = proxy.accepted

    assert (proxy.swallow() if how == "swallowed" else proxy.reset()) > 0
    home.scale(3)
    lost = time.monotonic()
    until("the change to be acted on", lambda: home.replicas() == 3, NOTICED + SLACK, operator.tail)

    print(f"acted on after {how} connections: {time.monotonic() - lost:.1f} s")  # noqa: T201 - a measurement
    assert not operator.ended, "without a restart"
    assert operator.get("/healthz").status_code == 200
    assert proxy.accepted - before < 60, "reconnecting must not become a flood"


def test_liveness_fails_while_the_watches_stay_silent_and_recovers_with_them(start: Start, proxy: Proxy, proxied: Path, home: Home) -> None:
    """Without a lease: with one, a leader without an API server ends sooner than that (the next test)."""
    operator = start(proxied, leading=False, LEASE_ENABLED="false")
    home.create()
    until("the Deployment", lambda: home.replicas() == 1, 30, operator.tail)
    assert operator.get("/healthz").status_code == 200

    proxy.swallow(new_too=True)
    until("liveness to fail", lambda: operator.get("/healthz").status_code == 503, 12 + SLACK, operator.tail)
    assert "no sign of life" in operator.get("/healthz").text
    home.scale(2)

    proxy.restore()
    until("the change made in the gap to be acted on", lambda: home.replicas() == 2, NOTICED + SLACK, operator.tail)
    until("liveness to recover", lambda: operator.get("/healthz").status_code == 200, NOTICED + SLACK, operator.tail)
    assert not operator.ended


def test_a_leader_that_can_no_longer_reach_the_api_server_ends_within_its_lease(start: Start, proxy: Proxy, proxied: Path) -> None:
    operator = start(proxied)

    proxy.swallow(new_too=True)

    assert operator.wait(8 + SLACK) == 75, operator.tail()
