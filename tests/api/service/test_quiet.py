"""Case B04: an operator with nothing to do writes nothing, also after a restart, and leaves others' annotations and conditions alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.conftest import Operated
from tests.support.documents import tiny
from tests.support.kube import Json, Kube, stays, until

SERVICES = 20
WINDOW = 15  # seconds; the case waits ten minutes: its timers are shortened by as much
OFTEN = {"GLM5_OPERATOR_QUEUE_RESYNC": "3", "GLM5_OPERATOR_WATCH_RELIST": "5"}
OMITTED = {
    "spec": {
        "hostNetwork": False,
        "nodeSelector": {},
        "tolerations": [],
        "containers": [
            {
                "name": "engine",
                "tty": False,
                "workingDir": "",
                "env": [{"name": "EMPTY", "value": ""}],
                "resources": {"requests": {"cpu": 0.5, "ephemeral-storage": "1e3"}},
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch", "readOnly": False}],
                "terminationMessagePath": "",
                "terminationMessagePolicy": "",
            },
            {
                "name": "helper",
                "image": "helper:1",
                "imagePullPolicy": "",
                "env": [{"name": "POD", "valueFrom": {"fieldRef": {"apiVersion": "", "fieldPath": "metadata.name"}}}],
                "livenessProbe": {
                    "httpGet": {"port": 80, "path": "", "scheme": ""},
                    "timeoutSeconds": 0,
                    "periodSeconds": 0,
                    "successThreshold": 0,
                    "failureThreshold": 0,
                },
            },
        ],
        "schedulerName": "",
        "dnsPolicy": "",
        "volumes": [{"name": "empty", "emptyDir": {}}, {"name": "scratch", "emptyDir": {"medium": "", "sizeLimit": "1024Mi"}}],
    }
}
"""What the API server leaves out, or gives back in other words."""


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


@pytest.fixture
def resyncing(operated: Operated) -> Iterator[Operated]:
    """The operator with resync and relist so short that several fall into the window; afterwards it has its usual ones."""
    operator, usual = operated.operator, dict(operated.operator.settings)
    operator.stop()
    operator.settings.update(OFTEN)
    operator.start()
    yield operated
    operator.stop()
    operator.settings.clear()
    operator.settings.update(usual)
    operator.start()


@pytest.mark.parametrize("template", [{}, OMITTED], ids=["plain", "with what the server leaves out"])
def test_resyncs_and_relists_of_what_is_in_order_write_nothing(resyncing: Operated, kube: Kube, home: str, template: Json) -> None:
    for name in ("chat", "other"):
        kube.create(tiny(home, name, podTemplate=template))
    for name in ("chat", "other"):
        kube.wait_ready(home, name)
    until("the pool to have counted the cards", lambda: kube.get("NPUPool", "", "inference")["status"]["cards"]["held"] == 2, 20)
    written, looked = resyncing.operator.writes(), _looked(resyncing, home)

    stays("no write", lambda: resyncing.operator.writes() == written, WINDOW, lambda: str(resyncing.writes(home)))

    assert _looked(resyncing, home) >= looked + 2 * 3, "each was looked at several times"


def _looked(operated: Operated, home: str) -> int:
    return operated.operator.said().count(f"GLM5Service/{home}/")


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
