"""Case B16: two operators, one writer. Who wrote what is read from the API server's audit log; each operator has a user of its own."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from tests.api.conftest import Operated
from tests.support.documents import tiny
from tests.support.kube import Kube, until
from tests.support.operator import OperatorProcess
from tests.support.users import kubeconfig_of

LEASE_LOST = 75
TAKE_OVER = 15  # seconds, as documented; the lease is 8 s


@pytest.fixture
def pair(operated: Operated, home: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OperatorProcess, OperatorProcess]]:
    """A leader and a standby in place of the usual operator; after the test that one leads again."""
    operated.operator.stop()
    folder = tmp_path_factory.mktemp("pair")
    names = [f"{home}-a", f"{home}-b"]
    configs = [kubeconfig_of(operated.kube, operated.cluster.kubeconfig, name, folder) for name in names]
    first, second = (OperatorProcess(config, folder / f"{config.stem}.log") for config in configs)
    first.start()
    second.start(leading=False)
    yield first, second
    for operator in (first, second):
        if not operator.ended:
            operator.kill()
    operated.operator.start()


def test_a_standby_writes_nothing(operated: Operated, kube: Kube, home: str, pair: tuple[OperatorProcess, OperatorProcess]) -> None:
    kube.create(tiny(home))
    kube.wait_ready(home, "chat")

    assert operated.writes(home, f"{home}-a")
    assert operated.writes(home, f"{home}-b") == []
    assert pair[1].get("/readyz").is_success


def test_a_killed_leader_is_replaced_within_the_lease_and_the_rollout_goes_on(
    operated: Operated, kube: Kube, home: str, pair: tuple[OperatorProcess, OperatorProcess]
) -> None:
    first, second = pair
    kube.create(tiny(home, replicas=2))
    kube.wait_ready(home, "chat")

    kube.patch("GLM5Service", home, "chat", {"spec": {"engine": {"name": "native", "image": "glm5-runtime:0.1.1"}}})
    first.kill()
    killed = time.monotonic()
    kube.patch("GLM5Service", home, "chat", {"spec": {"replicas": 3}})

    until("the standby to lead", lambda: second.leads, TAKE_OVER + 5, second.tail)
    assert time.monotonic() - killed < TAKE_OVER
    kube.wait_ready(home, "chat")
    assert len(kube.list("Pod", home)) == 3
    assert len(kube.list("Deployment", home)) == 1


def test_a_leader_that_was_frozen_notices_before_it_writes(
    operated: Operated, kube: Kube, home: str, pair: tuple[OperatorProcess, OperatorProcess]
) -> None:
    first, second = pair
    kube.create(tiny(home))
    kube.wait_ready(home, "chat")

    first.freeze()
    kube.patch("GLM5Service", home, "chat", {"spec": {"replicas": 2}})
    until("the standby to lead", lambda: second.leads, TAKE_OVER + 5, second.tail)
    kube.wait_ready(home, "chat")
    handed_over = len(_writers(operated, home))
    kube.patch("GLM5Service", home, "chat", {"spec": {"replicas": 1}})
    first.thaw()

    assert first.wait() == LEASE_LOST
    kube.wait_ready(home, "chat")
    writers = _writers(operated, home)
    assert set(writers[handed_over:]) == {f"{home}-b"}
    switches = sum(one != other for one, other in itertools.pairwise(writers))
    assert switches == 1


def test_a_leader_that_leaves_in_order_hands_over_at_once(kube: Kube, home: str, pair: tuple[OperatorProcess, OperatorProcess]) -> None:
    first, second = pair
    kube.create(tiny(home))
    kube.wait_ready(home, "chat")

    assert first.stop() == 0
    left = time.monotonic()
    until("the standby to lead", lambda: second.leads, TAKE_OVER, second.tail, every=0.02)

    assert time.monotonic() - left < 2
    kube.patch("GLM5Service", home, "chat", {"spec": {"replicas": 2}})
    kube.wait_ready(home, "chat")


def _writers(operated: Operated, namespace: str) -> list[str]:
    """Users of operators in the order of their writes in a namespace."""
    entries = [json.loads(line) for line in operated.cluster.audit_log.read_text().splitlines()]
    ours = [
        entry
        for entry in entries
        if entry.get("userAgent") == "glm5-operator"
        and (entry.get("objectRef") or {}).get("namespace") == namespace
        and entry["responseStatus"]["code"] < 300
    ]
    ours.sort(key=lambda entry: datetime.fromisoformat(entry["requestReceivedTimestamp"]))
    return [entry["user"]["username"].rsplit(":", 1)[1] for entry in ours]
