"""Two operators at once, as processes that are killed and frozen; case B16."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import httpx

from tests.api.kube.conftest import a_service
from tests.api.kube.process import SmallOperator
from tests.support.kube import Kube, stays, until

Start = Callable[..., SmallOperator]
PROMPT = 3.0  # seconds; kopf takes 5 more for each task of ours that it finds when it ends
TAKE_OVER = 15.0  # seconds; the promise of docs/operations, with the default lease


def test_a_warm_standby_takes_over_within_fifteen_seconds_after_kill_minus_nine(start: Start, kube: Kube, namespace: str) -> None:
    leader, standby = start(), start(leading=False)
    kube.create(a_service(namespace))
    until("the first service's Deployment", lambda: kube.find("Deployment", namespace, "chat-engine") is not None, 30, leader.tail)
    assert standby.writes() == {}

    leader.kill()
    killed = time.monotonic()
    kube.create(a_service(namespace, "second"))
    until("the standby to act", lambda: kube.find("Deployment", namespace, "second-engine") is not None, 60, standby.tail)

    taken = time.monotonic() - killed
    print(f"take-over after kill -9: {taken:.1f} s")  # noqa: T201 - a measurement
    assert taken <= TAKE_OVER
    assert not any(verb == "apply" and kind == "Deployment" and count > 1 for (verb, kind), count in standby.writes().items())


def test_a_frozen_leader_writes_nothing_when_it_wakes_up_and_ends(start: Start, kube: Kube, namespace: str) -> None:
    leader = start(LEASE_DURATION="4", LEASE_RENEW="1")
    standby = start(leading=False, LEASE_DURATION="4", LEASE_RENEW="1")
    kube.create(a_service(namespace))
    until("the first service's Deployment", lambda: kube.find("Deployment", namespace, "chat-engine") is not None, 30, leader.tail)

    leader.send(signal.SIGSTOP)
    until("the standby to lead", lambda: standby.said("leading as"), 30, standby.tail)
    # Work for the frozen one: it finds these changes in its sockets' buffers when it wakes up.
    kube.patch("GLM5Service", namespace, "chat", {"spec": {"replicas": 3}})
    until("the new leader to act", lambda: kube.get("Deployment", namespace, "chat-engine")["spec"]["replicas"] == 3, 30, standby.tail)
    kube.patch("Deployment", namespace, "chat-engine", {"metadata": {"labels": {"seen-by": "standby"}}})
    before = holders(kube, namespace)
    leader.send(signal.SIGCONT)

    assert leader.wait(15) == 75, leader.tail()
    assert holders(kube, namespace) == before, "managedFields would show a write of the old leader"
    assert standby.get("/healthz").status_code == 200


def holders(kube: Kube, namespace: str) -> list[tuple[str, str]]:
    """Who wrote the Deployment, and when: our two processes share a name, so the time tells."""
    fields = kube.get("Deployment", namespace, "chat-engine")["metadata"]["managedFields"]
    return [(entry["manager"], entry["time"]) for entry in fields if entry["manager"] == "glm5-operator"]


def test_a_leader_that_is_asked_to_stop_hands_over_at_once(start: Start, kube: Kube, namespace: str) -> None:
    leader, standby = start(), start(leading=False)

    with httpx.Client(base_url=leader.admin_url) as prometheus:  # which keeps its connection
        assert prometheus.get("/metrics").status_code == 200

        leader.send(signal.SIGTERM)
        stopped = time.monotonic()

        assert leader.wait(15) == 0, leader.tail()
    assert time.monotonic() - stopped < PROMPT, leader.tail()
    until("the standby to lead", lambda: standby.said("leading as"), 8, standby.tail)
    print(f"hand-over after SIGTERM: {time.monotonic() - stopped:.1f} s")  # noqa: T201 - a measurement
    assert kube.get("Lease", namespace, "glm5-operator")["spec"]["holderIdentity"] != ""


def test_a_standby_is_ready_and_alive_but_writes_nothing(start: Start, kube: Kube, namespace: str) -> None:
    start()
    standby = start(leading=False)
    kube.create(a_service(namespace))
    until("the leader's Deployment", lambda: kube.find("Deployment", namespace, "chat-engine") is not None, 30)

    assert standby.get("/readyz").status_code == 200
    stays("a standby is alive", lambda: standby.get("/healthz").status_code == 200, 2.0, standby.tail)
    assert standby.writes() == {}
    assert "glm5_operator_leader 0.0" in standby.get("/metrics").text
