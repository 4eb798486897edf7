"""One service from its first apply to its end, and everything that can be taken from under it. The operator is a real process."""

from __future__ import annotations

import pytest

from tests.api.conftest import Operated
from tests.support import kubelet
from tests.support.documents import tiny
from tests.support.kube import CHILD_KINDS, Json, Kube, stays, until
from tests.support.pods import running


def test_ten_lines_become_a_ready_deployment_and_service(kube: Kube, home: str) -> None:
    kube.create(tiny(home))

    kube.wait_ready(home, "chat")

    service = kube.get("GLM5Service", home, "chat")
    status = service["status"]
    assert status["endpoint"] == f"http://chat-api.{home}.svc.cluster.local:8000/v1"
    assert {name: status[name] for name in ("replicas", "readyReplicas", "updatedReplicas", "cardsHeld")} == {
        "replicas": 1,
        "readyReplicas": 1,
        "updatedReplicas": 1,
        "cardsHeld": 1,
    }
    (pod,) = kube.list("Pod", home, status["selector"])
    assert pod["metadata"]["labels"]["glm5.dev/revision"] == status["revision"]
    assert pod["spec"]["nodeSelector"]["glm5.dev/pool"] == "inference"
    assert pod["spec"]["containers"][0]["resources"]["limits"]["huawei.com/Ascend910"] == "1"
    # Only what carries something: no PodDisruptionBudget for one replica, no ConfigMap, no NetworkPolicy.
    assert {item.split("/")[0] for item in kube.leftovers(home)} == {"Deployment", "Service", "ReplicaSet", "Pod"}


def test_the_spec_stays_as_the_user_wrote_it(kube: Kube, home: str) -> None:
    written = kube.create(tiny(home))

    kube.wait_ready(home, "chat")

    assert kube.get("GLM5Service", home, "chat")["spec"] == written["spec"]
    managers = {
        entry["manager"] for entry in kube.get("GLM5Service", home, "chat")["metadata"]["managedFields"] if not entry.get("subresource")
    }
    assert "glm5-operator" not in managers


def test_a_deleted_deployment_comes_back(kube: Kube, home: str) -> None:
    kube.create(tiny(home))
    kube.wait_ready(home, "chat")
    old = kube.get("Deployment", home, "chat-engine")["metadata"]["uid"]

    kube.delete("Deployment", home, "chat-engine")

    def is_new() -> bool:
        found = kube.find("Deployment", home, "chat-engine")
        return found is not None and found["metadata"]["uid"] != old

    until("a new Deployment", is_new, 20)
    kube.wait_ready(home, "chat")


def test_a_deleted_pod_drops_ready_and_its_successor_restores_it(kube: Kube, silent_pool: str) -> None:
    """On a node without a kubelet: the successor serves only when the test says so, so Ready must fall in between."""
    home = silent_pool
    kube.create(tiny(home, pool=home))
    first = _serve(kube, home)

    kube.delete("Pod", home, first["metadata"]["name"])

    until("Ready to fall", lambda: kube.condition(home, "chat")["status"] == "False", 30, lambda: str(kube.condition(home, "chat")))
    assert kube.get("GLM5Service", home, "chat")["status"]["readyReplicas"] == 0
    kubelet.let_go(kube, first)
    second = _serve(kube, home, besides=first["metadata"]["name"])
    assert second["metadata"]["uid"] != first["metadata"]["uid"]


def _serve(kube: Kube, home: str, besides: str = "") -> Json:
    """Have the pod get ready, as its kubelet would say it, and wait until the service says so too."""
    pod = kubelet.the_pod(kube, home, besides={besides})
    kubelet.report(kube, pod, running(ready=True, started=True), ready=True)
    kube.wait_ready(home, "chat")
    return pod


def test_without_any_annotation_or_label_of_ours_children_are_repaired_and_no_pod_is_replaced(kube: Kube, home: str) -> None:
    kube.create(tiny(home))
    kube.wait_ready(home, "chat")
    pods = _uids(kube.list("Pod", home))
    before = kube.get("Deployment", home, "chat-engine")

    strip = dict.fromkeys(before["metadata"]["annotations"])
    kube.patch(
        "Deployment", home, "chat-engine", {"metadata": {"annotations": strip, "labels": dict.fromkeys(before["metadata"]["labels"])}}
    )
    kube.patch("Service", home, "chat-api", {"metadata": {"annotations": None, "labels": None}})

    def repaired() -> bool:
        found = [kube.get("Deployment", home, "chat-engine"), kube.get("Service", home, "chat-api")]
        return all(
            "glm5.dev/desired-hash" in (item["metadata"].get("annotations") or {}) and item["metadata"].get("labels") for item in found
        )

    until("annotations and labels to be back", repaired, 20)
    kube.wait_ready(home, "chat")
    assert _uids(kube.list("Pod", home)) == pods


@pytest.mark.parametrize(
    "patch",
    [
        {"spec": {"template": {"spec": {"containers": [{"name": "engine", "image": "evil:1"}]}}}},
        {"spec": {"replicas": 3}},
        {"spec": {"template": {"spec": {"nodeSelector": {"glm5.dev/pool": "training"}}}}},
    ],
    ids=["image", "replicas", "pool pin"],
)
def test_a_foreign_change_of_what_we_own_is_taken_back(kube: Kube, home: str, patch: Json) -> None:
    kube.create(tiny(home))
    kube.wait_ready(home, "chat")
    wanted = kube.get("Deployment", home, "chat-engine")["spec"]

    path = kube.path("Deployment", home, "chat-engine")
    answer = kube.http.patch(path, json=patch, headers={"Content-Type": "application/strategic-merge-patch+json"})
    assert answer.is_success, answer.text

    until("the Deployment to be as planned", lambda: kube.get("Deployment", home, "chat-engine")["spec"] == wanted, 20)
    kube.wait_ready(home, "chat")


def test_a_foreign_annotation_causes_neither_a_rollout_nor_a_write(operated: Operated, kube: Kube, home: str) -> None:
    kube.create(tiny(home))
    kube.wait_ready(home, "chat")
    pods, written = _uids(kube.list("Pod", home)), operated.writes(home)

    kube.patch("GLM5Service", home, "chat", {"metadata": {"annotations": {"example.com/note": "mine"}}})
    kube.patch("Deployment", home, "chat-engine", {"metadata": {"annotations": {"example.com/note": "mine"}}})

    stays("no write", lambda: operated.writes(home) == written, 2, lambda: str(operated.writes(home)))
    assert kube.get("Deployment", home, "chat-engine")["metadata"]["annotations"]["example.com/note"] == "mine"
    assert _uids(kube.list("Pod", home)) == pods


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
def test_deleting_a_service_leaves_nothing(kube: Kube, home: str, propagation: str) -> None:
    kube.create(tiny(home, replicas=2))
    kube.wait_ready(home, "chat")

    kube.delete("GLM5Service", home, "chat", propagation)

    until("nothing to be left", lambda: kube.find("GLM5Service", home, "chat") is None and kube.leftovers(home) == [], 30)


def test_no_finalizer_holds_a_service_or_its_children(kube: Kube, home: str) -> None:
    kube.create(tiny(home))
    kube.wait_ready(home, "chat")

    ours = [kube.get("GLM5Service", home, "chat")] + [item for kind in CHILD_KINDS for item in kube.list(kind, home)]

    assert {item["metadata"]["name"]: item["metadata"]["finalizers"] for item in ours if item["metadata"].get("finalizers")} == {}


def test_scaling_to_zero_frees_the_cards_and_counts_as_healthy(kube: Kube, home: str) -> None:
    kube.create(tiny(home))
    kube.wait_ready(home, "chat")

    kube.patch("GLM5Service", home, "chat", {"spec": {"replicas": 0}})

    ready = kube.wait_condition(home, "chat", "ScaledToZero")
    assert ready["status"] == "True"
    assert kube.get("GLM5Service", home, "chat")["status"]["cardsHeld"] == 0


def test_the_scale_subresource_moves_the_deployment(kube: Kube, home: str) -> None:
    kube.create(tiny(home))
    kube.wait_ready(home, "chat")

    kube.patch("GLM5Service", home, "chat", {"spec": {"replicas": 3}}, subresource="scale")

    kube.wait_ready(home, "chat")
    scale = kube.http.get(kube.path("GLM5Service", home, "chat", "scale")).json()
    assert scale["status"] == {"replicas": 3, "selector": kube.get("GLM5Service", home, "chat")["status"]["selector"]}
    assert kube.get("Deployment", home, "chat-engine")["spec"]["replicas"] == 3


def _uids(items: list[Json]) -> set[str]:
    return {item["metadata"]["uid"] for item in items}
