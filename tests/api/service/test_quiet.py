"""Case B04: an operator with nothing to do writes nothing, also after a restart, and leaves others' annotations and conditions alone."""

from __future__ import annotations

from tests.api.conftest import Operated
from tests.support.documents import tiny
from tests.support.kube import Json, Kube, stays, until

SERVICES = 20
WINDOW = 15  # seconds; the case waits ten minutes, and nothing here happens on a timer shorter than that but the relist


def test_twenty_healthy_services_cause_no_write_neither_idle_nor_after_a_restart(operated: Operated, kube: Kube, home: str) -> None:
    for number in range(SERVICES):
        kube.create(tiny(home, f"chat-{number}"))
    for number in range(SERVICES):
        kube.wait_ready(home, f"chat-{number}")
    until("the pool to have counted the cards", lambda: kube.get("NPUPool", "", "inference")["status"]["cards"]["held"] == SERVICES, 20)
    versions, written = _versions(kube, home), operated.operator.writes()

    stays("every version", lambda: _versions(kube, home) == versions, WINDOW)
    assert operated.operator.writes() == written

    operated.operator.stop()
    operated.operator.start()
    until("a reconcile of everything", lambda: operated.operator.said().count(f"GLM5Service/{home}/") >= SERVICES, 30)
    stays("every version", lambda: _versions(kube, home) == versions, 3)
    assert operated.operator.writes() == 0


def test_a_service_costs_few_writes_until_it_is_ready(operated: Operated, kube: Kube, home: str) -> None:
    kube.create(tiny(home))
    kube.wait_ready(home, "chat")

    written = operated.writes(home)

    assert len([write for write in written if "/status" not in write]) == 2  # Deployment and Service
    assert len(written) <= 8, written


def test_a_foreign_condition_and_annotation_stay_and_roll_nothing(operated: Operated, kube: Kube, home: str) -> None:
    kube.create(tiny(home))
    kube.wait_ready(home, "chat")
    pods = {pod["metadata"]["uid"] for pod in kube.list("Pod", home)}
    written = operated.writes(home)

    theirs = {
        "type": "example.com/Checked",
        "status": "True",
        "reason": "Fine",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    _apply_status(kube, home, {"conditions": [theirs]})
    kube.patch("GLM5Service", home, "chat", {"metadata": {"annotations": {"example.com/note": "1"}}})
    stays("no write", lambda: operated.writes(home) == written, 3, lambda: str(operated.writes(home)))

    kube.patch("GLM5Service", home, "chat", {"spec": {"replicas": 2}})
    kube.wait_ready(home, "chat")
    assert kube.condition(home, "chat", "example.com/Checked")["reason"] == "Fine"
    assert pods <= {pod["metadata"]["uid"] for pod in kube.list("Pod", home)}


def _versions(kube: Kube, home: str) -> dict[str, str]:
    kinds = ("GLM5Service", "Deployment", "Service")
    pools = {"pool": kube.get("NPUPool", "", "inference")["metadata"]["resourceVersion"]}
    return pools | {
        f"{kind}/{item['metadata']['name']}": item["metadata"]["resourceVersion"] for kind in kinds for item in kube.list(kind, home)
    }


def _apply_status(kube: Kube, home: str, status: Json) -> None:
    body = {"apiVersion": "glm5.dev/v1alpha1", "kind": "GLM5Service", "metadata": {"name": "chat", "namespace": home}, "status": status}
    answer = kube.http.patch(
        kube.path("GLM5Service", home, "chat", "status"),
        json=body,
        headers={"Content-Type": "application/apply-patch+yaml"},
        params={"fieldManager": "checker", "force": "true"},
    )
    assert answer.is_success, answer.text
