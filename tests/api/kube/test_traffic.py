"""How many requests the operator sends, and that no edit gets lost: cases B04 and B17, and the budget of writes."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.api.kube.conftest import a_service
from tests.api.kube.process import SmallOperator
from tests.cluster.api import ApiCluster
from tests.support.kube import Kube, stays, until

Start = Callable[..., SmallOperator]


@pytest.fixture
def node(cluster: ApiCluster) -> str:
    """One KWOK node, so that pods become Ready."""
    if cluster.http.get("/api/v1/nodes/quiet-0").status_code == 404:
        cluster.add_nodes(1, prefix="quiet")
    return "quiet-0"


def is_ready(kube: Kube, namespace: str, name: str) -> bool:
    service = kube.get("GLM5Service", namespace, name)
    conditions = service.get("status", {}).get("conditions", [])
    wanted = ("Ready", "True", service["metadata"]["generation"])
    return wanted in [(item["type"], item["status"], item["observedGeneration"]) for item in conditions]


def test_twenty_services_become_ready_with_few_writes_and_then_none(start: Start, kube: Kube, namespace: str, node: str) -> None:
    operator = start(WATCH_RELIST="5")
    for number in range(20):
        kube.create(a_service(namespace, f"s{number}"))
    until("all to be ready", lambda: all(is_ready(kube, namespace, f"s{number}") for number in range(20)), 60, operator.tail)
    until("the last status to be written", lambda: operator.get("/metrics").text.find("glm5_operator_queue_depth 0.0") > 0, 10)
    before = operator.writes()

    assert sum(before.values()) <= 8 * 20, before
    listed = operator.requests()["list", "Deployment"]
    until("two relists to pass", lambda: operator.requests()["list", "Deployment"] >= listed + 2, 30, operator.tail)
    assert operator.writes() == before


def test_a_foreign_annotation_and_status_field_cause_no_write_of_ours(start: Start, kube: Kube, namespace: str, node: str) -> None:
    operator = start()
    kube.create(a_service(namespace))
    until("it to be ready", lambda: is_ready(kube, namespace, "chat"), 60, operator.tail)
    before = operator.writes()

    kube.patch("GLM5Service", namespace, "chat", {"metadata": {"annotations": {"team.example.com/note": "hello"}}})
    kube.patch("Deployment", namespace, "chat-engine", {"metadata": {"annotations": {"team.example.com/note": "hello"}}})
    seen = 'glm5_operator_watch_events_total{kind="GLM5Service",news="true"}'
    until("the operator to have seen it", lambda: seen in operator.get("/metrics").text, 10)

    stays("no write", lambda: operator.writes() == before, 2.0, lambda: str(operator.writes()))
    assert len(kube.list("ReplicaSet", namespace)) == 1, "no rollout"


def test_a_restart_resyncs_without_a_write(start: Start, kube: Kube, namespace: str, node: str) -> None:
    first = start()
    for number in range(5):
        kube.create(a_service(namespace, f"s{number}"))
    until("all to be ready", lambda: all(is_ready(kube, namespace, f"s{number}") for number in range(5)), 60, first.tail)
    first.send(signal.SIGTERM)
    assert first.wait(15) == 0

    second = start()
    done = 'glm5_operator_reconcile_seconds_count{kind="GLM5Service",result="again"} 5.0'
    until("each to be looked at", lambda: done in second.get("/metrics").text, 20, second.tail)

    assert second.writes() == {}


def test_children_match_the_last_of_fast_edits_every_time(start: Start, kube: Kube, namespace: str) -> None:
    """Four edits in a burst, thirty times; `observedGeneration` follows only when the children do."""
    operator = start()
    kube.create(a_service(namespace))
    until("the Deployment", lambda: kube.find("Deployment", namespace, "chat-engine") is not None, 30, operator.tail)

    for repetition in range(30):
        last = 2 + repetition % 3
        for spec in ({"replicas": 1}, {"replicas": 5}, {"context": {"maxTokens": 8192 + repetition}}, {"replicas": last}):
            kube.patch("GLM5Service", namespace, "chat", {"spec": spec})
        wanted = (last, str(8192 + repetition))
        until(f"repetition {repetition}", lambda wanted=wanted: shape(kube, namespace) == wanted, 15, operator.tail)  # type: ignore[misc]
        until("the status to follow", lambda: observed(kube, namespace), 15, operator.tail)
        assert shape(kube, namespace) == wanted

    assert "giving up" not in operator.tail()


def test_edits_made_while_no_operator_runs_are_found_by_the_next(start: Start, kube: Kube, namespace: str) -> None:
    first = start()
    kube.create(a_service(namespace))
    until("the Deployment", lambda: kube.find("Deployment", namespace, "chat-engine") is not None, 30, first.tail)
    first.kill()

    kube.patch("GLM5Service", namespace, "chat", {"spec": {"replicas": 4}})
    kube.delete("Service", namespace, "chat-api")
    second = start()

    until("the edit", lambda: shape(kube, namespace)[0] == 4, 30, second.tail)
    until("the Service", lambda: kube.find("Service", namespace, "chat-api") is not None, 30, second.tail)


def shape(kube: Kube, namespace: str) -> tuple[int, str]:
    spec = kube.get("Deployment", namespace, "chat-engine")["spec"]
    return spec["replicas"], spec["template"]["spec"]["containers"][0]["args"][-1]


def observed(kube: Kube, namespace: str) -> bool:
    service = kube.get("GLM5Service", namespace, "chat")
    return bool(service.get("status", {}).get("observedGeneration") == service["metadata"]["generation"])
