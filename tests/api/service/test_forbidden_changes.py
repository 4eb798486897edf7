"""Case B09: what Kubernetes lets nobody change. Selectors and names never move; what is refused shows in a condition and can be undone."""

from __future__ import annotations

import pytest

from tests.support.documents import tiny
from tests.support.kube import Json, Kube

EDITS: dict[str, Json] = {
    "engine": {"engine": {"name": "vllm"}},
    "image": {"engine": {"name": "native", "image": "glm5-runtime:0.1.1"}},
    "source": {"model": {"name": "tiny", "weights": "bf16", "source": "pvc://weights/tiny", "memory": "2Gi"}},
    "context": {"context": {"maxTokens": 8192}},
    "auth": {"auth": {"secretRef": {"name": "key", "key": "token"}}},
    "drain": {"drain": {"timeout": "60s"}},
    "labels in the template": {"podTemplate": {"metadata": {"labels": {"team": "a"}}}},
    "recreate": {"rollout": {"strategy": "Recreate"}},
}


@pytest.mark.parametrize("what", EDITS)
def test_no_edit_moves_a_selector_a_name_or_the_cluster_ip_and_the_way_back_is_the_same_revision(kube: Kube, home: str, what: str) -> None:
    if what == "source":
        _claim(kube, home)
    kube.create(tiny(home))
    kube.wait_ready(home, "chat")
    before = _fixed(kube, home)
    revision = kube.get("GLM5Service", home, "chat")["status"]["revision"]

    kube.patch("GLM5Service", home, "chat", {"spec": EDITS[what]})
    kube.wait_ready(home, "chat", timeout=90)
    assert _fixed(kube, home) == before

    original = tiny(home)["spec"]
    kube.patch("GLM5Service", home, "chat", {"spec": {name: original.get(name) for name in EDITS[what]}})
    kube.wait_ready(home, "chat", timeout=90)
    assert _fixed(kube, home) == before
    assert kube.get("GLM5Service", home, "chat")["status"]["revision"] == revision


def test_what_the_api_server_refuses_is_a_condition_with_the_field_and_taking_it_back_clears_it(kube: Kube, home: str) -> None:
    kube.create(tiny(home))
    kube.wait_ready(home, "chat")
    uid = kube.get("Deployment", home, "chat-engine")["metadata"]["uid"]

    bad = {"spec": {"volumes": [{"name": "Not_A_Name", "emptyDir": {}}]}}
    kube.patch("GLM5Service", home, "chat", {"spec": {"podTemplate": bad}})

    refused = kube.wait_condition(home, "chat", "Invalid")
    assert "volumes[" in refused["message"]
    assert "Not_A_Name" in refused["message"]
    assert kube.condition(home, "chat", "Stalled")["status"] == "True"
    assert kube.get("GLM5Service", home, "chat")["status"]["readyReplicas"] == 1  # what serves keeps serving

    kube.patch("GLM5Service", home, "chat", {"spec": {"podTemplate": None}})
    kube.wait_ready(home, "chat")
    assert kube.get("Deployment", home, "chat-engine")["metadata"]["uid"] == uid


def _fixed(kube: Kube, namespace: str) -> Json:
    deployment, service = kube.get("Deployment", namespace, "chat-engine"), kube.get("Service", namespace, "chat-api")
    return {
        "uids": (deployment["metadata"]["uid"], service["metadata"]["uid"]),
        "selector": deployment["spec"]["selector"],
        "ip": service["spec"]["clusterIP"],
        "route": service["spec"]["selector"],
    }


def _claim(kube: Kube, namespace: str) -> None:
    size, modes = {"storage": "1Gi"}, ["ReadWriteMany"]
    name = f"{namespace}-weights"
    reference = {"namespace": namespace, "name": "weights"}
    volume = {"capacity": size, "accessModes": modes, "storageClassName": "", "hostPath": {"path": "/tmp"}, "claimRef": reference}
    kube.create({"kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume})
    claim = {"accessModes": modes, "storageClassName": "", "resources": {"requests": size}, "volumeName": name}
    kube.create({"kind": "PersistentVolumeClaim", "metadata": {"name": "weights", "namespace": namespace}, "spec": claim})
