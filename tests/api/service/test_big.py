"""Case E07: a big object works like a small one; nothing of it is copied into annotations, which have a limit of 256 kB."""

from __future__ import annotations

import json

import pytest

from tests.api.conftest import Operated
from tests.support.documents import tiny
from tests.support.kube import Json, Kube, stays, until


def test_a_service_of_200_kb_becomes_ready_with_as_few_writes_as_a_small_one(operated: Operated, kube: Kube, home: str) -> None:
    kube.create(tiny(home, podTemplate={"metadata": {"annotations": {"example.com/note": "x" * 200_000}}}))
    kube.wait_ready(home, "chat")

    written = operated.writes(home)

    assert len(written) <= 8, written
    stays("no further write", lambda: operated.writes(home) == written, 3, lambda: str(operated.writes(home)))
    (pod,) = kube.list("Pod", home)
    assert len(pod["metadata"]["annotations"]["example.com/note"]) == 200_000
    assert sum(len(value) for value in kube.get("Deployment", home, "chat-engine")["metadata"]["annotations"].values()) < 1000


@pytest.mark.parametrize("labels", [{"app": "jupyter"}, {"glm5.dev/service": "chat"}], ids=["a stranger's", "with our label"])
def test_a_pod_that_is_9_mb_on_the_wire_ends_no_watch_and_no_process(
    operated: Operated, kube: Kube, home: str, labels: dict[str, str]
) -> None:
    """The API server writes `<` as six bytes; etcd takes 1.5 MB."""
    container = {"name": "a", "image": "a:1", "env": [{"name": "A", "value": "<" * 1_450_000}]}
    spec = {"nodeSelector": {"nobody": "has"}, "containers": [container]}
    pod: Json = {"kind": "Pod", "metadata": {"name": "big", "namespace": home, "labels": labels}, "spec": spec}
    kube.create(pod)
    kube.patch("Pod", home, "big", {"metadata": {"annotations": {"example.com/note": "1"}}})

    kube.create(tiny(home))
    kube.wait_ready(home, "chat")

    stays("the operator to run", lambda: not operated.operator.ended, 3, operated.operator.tail)
    assert "can't be" not in operated.operator.tail()
    kube.delete("Pod", home, "big")


@pytest.mark.parametrize("depth", [300, 1_500, 9_900])
def test_a_service_nested_deeper_than_others_ends_stalled_and_harms_nobody_else(
    operated: Operated, kube: Kube, home: str, depth: int
) -> None:
    """The API server keeps what podTemplate holds at any depth that its JSON allows; parsers in Python end at about a thousand."""
    document = {"apiVersion": "glm5.dev/v1alpha1", **tiny(home, "deep", podTemplate={"spec": {"affinity": {"a": "DEEP"}}})}
    body = json.dumps(document).replace('"DEEP"', '{"a":' * depth + "1" + "}" * depth)
    created = kube.http.post(kube.path("GLM5Service", home), content=body, headers={"content-type": "application/json"})
    assert created.status_code == 201, created.text[:500]

    def reasons() -> str:
        conditions = kube.http.get(kube.path("GLM5Service", home, "deep")).text.partition('"conditions":')[2]
        return conditions.partition("]")[0]

    kube.create(tiny(home))
    kube.wait_ready(home, "chat")
    until("the deep service to be stalled", lambda: "spec.podTemplate: is nested too deeply" in reasons(), 30, reasons)

    operated.operator.stop()
    operated.operator.start()
    kube.patch("GLM5Service", home, "chat", {"spec": {"replicas": 2}})
    kube.wait_ready(home, "chat")
    kube.delete("GLM5Service", home, "deep")
