"""Case B12: pods that may not be created or can't start reach the service as a reason of their own, and it heals by itself.

Real: quota, limit ranges, Pod Security, the scheduler, their texts. Played by the test: kubelet's pull errors (see support/kubelet.py).
"""

from __future__ import annotations

import pytest

from tests.api.conftest import Operated
from tests.support import kubelet
from tests.support.documents import cards, tiny
from tests.support.kube import Json, Kube, stays
from tests.support.pods import running, waiting

LIMIT = 60  # seconds; what the case asks for


def test_a_quota_is_named_with_what_is_asked_used_and_allowed_and_raising_it_heals(operated: Operated, kube: Kube, home: str) -> None:
    _quota(kube, home, {"requests.huawei.com/Ascend910": "4"})
    kube.create(tiny(home, **cards(8)))

    ready = kube.wait_condition(home, "chat", "QuotaExceeded", timeout=LIMIT)

    for part in ("ResourceQuota team", "asked requests.huawei.com/Ascend910=8", "used requests.huawei.com/Ascend910=0", "Ascend910=4"):
        assert part in ready["message"]
    assert kube.condition(home, "chat", "PodsScheduled")["reason"] == "QuotaExceeded"
    written = operated.writes(home)
    stays("no write while nothing changes", lambda: operated.writes(home) == written, 4, lambda: str(operated.writes(home)))

    kube.patch("ResourceQuota", home, "team", {"spec": {"hard": {"requests.huawei.com/Ascend910": "8"}}})

    kube.wait_ready(home, "chat", timeout=90)


def test_a_quota_that_wants_limits_says_which(kube: Kube, home: str) -> None:
    _quota(kube, home, {"limits.cpu": "100", "limits.memory": "1Ti"})
    kube.create(tiny(home))

    ready = kube.wait_condition(home, "chat", "QuotaNeedsLimits", timeout=LIMIT)

    assert "limits.cpu for: engine" in ready["message"]
    assert kube.condition(home, "chat", "Stalled")["status"] == "True"

    container = {"name": "engine", "resources": {"limits": {"cpu": "4"}, "requests": {"cpu": "1"}}}
    kube.patch("GLM5Service", home, "chat", {"spec": {"podTemplate": {"spec": {"containers": [container]}}}})

    kube.wait_ready(home, "chat")


def test_pod_security_says_what_it_refuses_and_changing_the_level_heals(kube: Kube, home: str) -> None:
    _enforce(kube, home, "restricted")
    kube.create(tiny(home))  # weights on a host path are against the restricted level

    ready = kube.wait_condition(home, "chat", "PodSecurityViolation", timeout=LIMIT)

    assert "restricted" in ready["message"]
    assert "hostPath" in ready["message"]
    assert kube.condition(home, "chat", "Stalled")["status"] == "True"

    _enforce(kube, home, "privileged")

    kube.wait_ready(home, "chat", timeout=90)


def test_a_limit_range_is_told_in_its_own_words(kube: Kube, home: str) -> None:
    kube.create(
        {
            "kind": "LimitRange",
            "metadata": {"name": "small", "namespace": home},
            "spec": {"limits": [{"type": "Container", "max": {"memory": "64Mi"}}]},
        }
    )
    kube.create(tiny(home))

    ready = kube.wait_condition(home, "chat", "LimitRangeViolated", timeout=LIMIT)

    assert "maximum memory usage per Container is 64Mi" in ready["message"]


def test_a_missing_service_account_is_named(kube: Kube, home: str) -> None:
    kube.create(tiny(home, podTemplate={"spec": {"serviceAccountName": "runner"}}))

    ready = kube.wait_condition(home, "chat", "ServiceAccountMissing", timeout=LIMIT)
    assert "create ServiceAccount runner" in ready["message"]

    kube.create({"kind": "ServiceAccount", "metadata": {"name": "runner", "namespace": home}})
    kube.wait_ready(home, "chat", timeout=90)


def test_a_node_selector_that_matches_nothing_is_shown_and_a_label_heals_it(kube: Kube, home: str) -> None:
    kube.create(tiny(home, podTemplate={"spec": {"nodeSelector": {"example.com/zone": home}}}))

    ready = kube.wait_condition(home, "chat", "NoMatchingNode", timeout=LIMIT)
    assert f"example.com/zone={home}" in ready["message"]

    kube.patch("Node", "", "npu-0", {"metadata": {"labels": {"example.com/zone": home}}})
    kube.wait_ready(home, "chat")
    kube.patch("Node", "", "npu-0", {"metadata": {"labels": {"example.com/zone": None}}})


def test_short_cards_are_counted_and_their_holders_named(kube: Kube, home: str, silent_pool: str) -> None:
    kube.create(tiny(home, "first", pool=silent_pool, **cards(8)))
    holder = kubelet.the_pod(kube, home)
    kubelet.report(kube, holder, running(ready=True, started=True), ready=True)
    kube.wait_ready(home, "first")

    kube.create(tiny(home, "second", pool=silent_pool, **cards(8)))

    ready = kube.wait_condition(home, "second", "InsufficientCards", timeout=LIMIT)
    assert "no node has 8 huawei.com/Ascend910 free" in ready["message"]
    assert f"held by pods {home}/{holder['metadata']['name']}" in ready["message"]

    kube.delete("GLM5Service", home, "first")
    kubelet.let_go(kube, holder)

    waiter = kubelet.the_pod(kube, home, besides={holder["metadata"]["name"]})
    kubelet.report(kube, waiter, running(ready=True, started=True), ready=True)
    kube.wait_ready(home, "second")


@pytest.mark.parametrize(
    ("container", "says"),
    [
        (waiting("ErrImagePull", 'failed to resolve reference "registry.example/glm5:9": not found'), "check name and tag"),
        (
            waiting("ImagePullBackOff", 'Back-off pulling image "x": ErrImagePull: pull access denied, authorization failed'),
            "check imagePullSecrets",
        ),
    ],
    ids=["no such tag", "no such pull secret"],
)
def test_an_image_that_can_not_be_pulled_is_named_with_kubelets_words(
    kube: Kube, home: str, silent_pool: str, container: Json, says: str
) -> None:
    kube.create(tiny(home, pool=silent_pool, engine={"name": "native", "image": "registry.example/glm5:9"}))
    pod = kubelet.the_pod(kube, home)

    kubelet.report(kube, pod, {**container, "image": "registry.example/glm5:9"}, phase="Pending")

    ready = kube.wait_condition(home, "chat", "ImagePullFailed", timeout=LIMIT)
    assert "registry.example/glm5:9" in ready["message"]
    assert says in ready["message"]

    kubelet.report(kube, pod, running(ready=True, started=True), ready=True)
    kube.wait_ready(home, "chat")


def _quota(kube: Kube, namespace: str, hard: Json) -> None:
    kube.create({"kind": "ResourceQuota", "metadata": {"name": "team", "namespace": namespace}, "spec": {"hard": hard}})


def _enforce(kube: Kube, namespace: str, level: str) -> None:
    kube.patch("Namespace", "", namespace, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}})
