"""Cases F05 and F06 as the operator sees them: loading is no failure, an endless crasher is one, a dead engine drops Ready at once.

Played by the test: kubelet (see support/kubelet.py). Real probes and a real engine are tested end to end.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from tests.support import kubelet
from tests.support.documents import tiny
from tests.support.kube import Json, Kube, stays, until
from tests.support.pods import an_end, running, terminated, waiting


@pytest.fixture
def pod(kube: Kube, home: str, silent_pool: str) -> Json:
    """The pod of a service that was just created; nothing of it has started."""
    kube.create(tiny(home, pool=silent_pool))
    return kubelet.the_pod(kube, home)


def test_loading_is_told_apart_from_failing(kube: Kube, home: str, pod: Json) -> None:
    kubelet.report(kube, pod, running())
    loading = kube.wait_condition(home, "chat", "Loading")
    assert "loading the model" in loading["message"]
    assert kube.condition(home, "chat", "Reconciling")["status"] == "True"

    kubelet.report(kube, pod, terminated(an_end(1, message="OSError: /models/tiny/config.json not found"), restarts=0))
    failed = kube.wait_condition(home, "chat", "EngineCrashing")
    assert "restarts: 0; last log: OSError: /models/tiny/config.json not found" in failed["message"]

    kubelet.report(kube, pod, running(ready=True, started=True), ready=True)
    kube.wait_ready(home, "chat")


def test_an_endless_crasher_is_stalled_with_its_last_log_line_and_a_better_pod_heals_it(kube: Kube, home: str, pod: Json) -> None:
    end = _never_ready("loading shard 27 of 28\nRuntimeError: ACL_ERROR 507035")
    kubelet.report(kube, pod, waiting("CrashLoopBackOff", "back-off 5m0s", restarts=5, last=end))

    kube.wait_condition(home, "chat", "EngineCrashing")
    stalled = kube.condition(home, "chat", "Stalled")
    assert stalled["status"] == "True"
    assert "exit code 3" in stalled["message"]
    assert "restarts: 5" in stalled["message"]
    assert "error code 507035: a computation on the card failed, by its kernel, its input or the card" in stalled["message"]
    assert "RuntimeError: ACL_ERROR 507035" in stalled["message"]

    kubelet.report(kube, pod, running(ready=True, started=True, restarts=6, last=end), ready=True)
    kube.wait_ready(home, "chat")


def test_a_corrected_spec_heals_an_endless_crasher(kube: Kube, home: str, pod: Json) -> None:
    kubelet.report(kube, pod, waiting("CrashLoopBackOff", restarts=9, last=_never_ready("boom")))
    kube.wait_condition(home, "chat", "EngineCrashing")
    assert kube.condition(home, "chat", "Stalled")["status"] == "True"

    kube.patch("GLM5Service", home, "chat", {"spec": {"engine": {"name": "native", "image": "glm5-runtime:0.1.1"}}})

    successor = kubelet.the_pod(kube, home, besides={pod["metadata"]["name"]})
    until("the verdict on the old pod to be gone", lambda: kube.condition(home, "chat", "Stalled")["status"] == "False", 20)
    kubelet.report(kube, successor, running(ready=True, started=True), ready=True)
    until("the old pod to be deleted", lambda: _is_going(kube, pod), 20)
    # Not before the old one is gone: it may still hold its card.
    stays("Ready is not True", lambda: kube.condition(home, "chat")["status"] != "True", 1)
    kubelet.let_go(kube, pod)
    kube.wait_ready(home, "chat")


def test_out_of_memory_names_the_limit(kube: Kube, home: str, pod: Json) -> None:
    kubelet.report(kube, pod, waiting("CrashLoopBackOff", restarts=1, last=an_end(137, reason="OOMKilled")))

    assert "memory limit of 1Gi" in kube.wait_condition(home, "chat", "OutOfMemory")["message"]


def test_ready_falls_within_a_second_of_the_pod_when_the_engine_stops(kube: Kube, home: str, pod: Json) -> None:
    kubelet.report(kube, pod, running(ready=True, started=True), ready=True)
    kube.wait_ready(home, "chat")

    # The engine died, HTTP still answers: kubelet's readiness probe is all that tells.
    kubelet.report(kube, pod, running(started=True), ready=False)
    said = time.monotonic()

    until("Ready to fall", lambda: kube.condition(home, "chat")["status"] == "False", 10, every=0.02)
    assert time.monotonic() - said < 1
    assert kube.condition(home, "chat")["reason"] == "EngineNotReady"
    assert kube.get("GLM5Service", home, "chat")["status"]["readyReplicas"] == 0
    assert kube.condition(home, "chat", "EngineReady")["status"] == "False"


def _never_ready(last_words: str) -> Json:
    """The end of a run of 24 minutes that began after the pod was last ready (which is when its status is first written, so: now)."""
    begin = datetime.now(UTC) + timedelta(seconds=2)
    return an_end(3, message=last_words, started=begin, finished=begin + timedelta(minutes=24))


def _is_going(kube: Kube, pod: Json) -> bool:
    found = kube.find("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])
    return found is None or "deletionTimestamp" in found["metadata"]
