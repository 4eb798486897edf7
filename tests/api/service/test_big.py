"""Case E07: a big object works like a small one; nothing of it is copied into annotations, which have a limit of 256 kB."""

from __future__ import annotations

from tests.api.conftest import Operated
from tests.support.documents import tiny
from tests.support.kube import Kube, stays


def test_a_service_of_200_kb_becomes_ready_with_as_few_writes_as_a_small_one(operated: Operated, kube: Kube, home: str) -> None:
    kube.create(tiny(home, podTemplate={"metadata": {"annotations": {"example.com/note": "x" * 200_000}}}))
    kube.wait_ready(home, "chat")

    written = operated.writes(home)

    assert len(written) <= 8, written
    stays("no further write", lambda: operated.writes(home) == written, 3, lambda: str(operated.writes(home)))
    (pod,) = kube.list("Pod", home)
    assert len(pod["metadata"]["annotations"]["example.com/note"]) == 200_000
    assert sum(len(value) for value in kube.get("Deployment", home, "chat-engine")["metadata"]["annotations"].values()) < 1000
