"""Case B17: edits that come faster than they are handled. The last one counts, and observedGeneration never runs ahead of the children."""

from __future__ import annotations

from collections.abc import Callable

from tests.api.conftest import Operated
from tests.support.documents import tiny
from tests.support.kube import Json, Kube, until

REPEATS = 30


def test_the_last_of_four_edits_within_a_moment_is_what_the_children_show_thirty_times(kube: Kube, home: str) -> None:
    kube.create(tiny(home, context={"maxTokens": 4096}))
    kube.wait_ready(home, "chat")

    for number in range(REPEATS):
        _four_edits(kube, home, 4096 + 16 * number)
        _wait_for_last(kube, home, 4096 + 16 * number)

    kube.wait_ready(home, "chat", timeout=90)


def test_edits_during_a_rollout_and_while_the_operator_restarts_are_not_lost(operated: Operated, kube: Kube, home: str) -> None:
    kube.create(tiny(home, context={"maxTokens": 4096}))
    kube.wait_ready(home, "chat")

    interruptions: list[Callable[[], object]] = [operated.operator.kill, operated.operator.stop]
    for number, interrupt in enumerate(interruptions, start=1):
        image = {"engine": {"name": "native", "image": f"glm5-runtime:0.1.{number}"}}
        kube.patch("GLM5Service", home, "chat", {"spec": image})
        _four_edits(kube, home, 8192 + 16 * number)
        interrupt()
        kube.patch("GLM5Service", home, "chat", {"spec": {"context": {"maxTokens": 8192 + 160 * number}}})
        operated.operator.start()
        _wait_for_last(kube, home, 8192 + 160 * number)

    kube.wait_ready(home, "chat", timeout=90)
    (container,) = kube.get("Deployment", home, "chat-engine")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"glm5-runtime:0.1.{len(interruptions)}"


def _four_edits(kube: Kube, home: str, tokens: int) -> None:
    for spec in ({"replicas": 3}, {"context": {"maxTokens": 2048}}, {"replicas": 2}, {"context": {"maxTokens": tokens}}):
        kube.patch("GLM5Service", home, "chat", {"spec": spec})


def _wait_for_last(kube: Kube, home: str, tokens: int) -> None:
    """Until the status claims the last generation; from then on the children must show it."""

    def claimed() -> bool:
        service = kube.get("GLM5Service", home, "chat")
        if service["status"]["observedGeneration"] != service["metadata"]["generation"]:
            return False
        assert _shown(kube.get("Deployment", home, "chat-engine")) == (2, str(tokens)), "observedGeneration ran ahead"
        return True

    until("the last edit to be observed", claimed, 20, every=0.01)


def _shown(deployment: Json) -> tuple[int, str]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (flag,) = [word for word in container["args"] if word.startswith("--max-model-len=")]
    return deployment["spec"]["replicas"], flag.removeprefix("--max-model-len=")
