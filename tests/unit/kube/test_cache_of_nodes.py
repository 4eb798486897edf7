"""What the cache keeps for the node controller: the agents' pods, MindCluster's ConfigMaps, and that a pod of others is to end. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from glm5_operator.api import names
from glm5_operator.kube.cache import Cache
from glm5_operator.kube.types import Key
from tests.unit.kube.objects import a_pod, an_object


def an_agent(*, ready: str, version: int = 1) -> dict[str, Any]:
    return an_object(
        "Pod",
        "agent-x",
        version=version,
        namespace="glm5-system",
        labels={"app.kubernetes.io/component": "node-agent"},
        spec={"nodeName": "n", "containers": [{"name": "agent"}]},
        status={"phase": "Running", "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "10:00"}]},
    )


def test_the_agents_pod_of_a_node_is_kept_with_its_readiness_though_it_holds_no_card() -> None:
    cache = Cache()
    assert cache.put(an_agent(ready="True"))

    assert [pod["status"]["conditions"] for pod in cache.agents("n")] == [[{"type": "Ready", "status": "True"}]]
    assert cache.agents("other") == []


def test_an_agent_that_is_no_longer_ready_is_news_and_one_that_is_gone_is_forgotten() -> None:
    cache = Cache()
    cache.put(an_agent(ready="True"))

    assert cache.put(an_agent(ready="False", version=2))
    assert cache.drop(an_agent(ready="False", version=3))
    assert cache.agents("n") == []


@pytest.mark.parametrize(
    ("name", "node"),
    [("mindx-dl-deviceinfo-npu-1", "npu-1"), ("mindx-dl-nodeinfo-npu-1", "npu-1"), ("cluster-info-device-0", None)],
)
def test_a_map_of_mindcluster_is_found_by_its_node(name: str, node: str | None) -> None:
    cache = Cache()
    cache.put(an_object("MindClusterMap", name, namespace="kube-system", data={"DeviceInfoCfg": "{}"}))

    assert [item["metadata"]["name"] for item in cache.maps("npu-1")] == ([name] if node else [])


def test_that_a_pod_of_others_is_to_end_is_news() -> None:
    cache = Cache()
    pod = a_pod("notebook", service=None, node="n", cards=1)
    cache.put(pod)

    ending = {**pod, "metadata": {**pod["metadata"], "resourceVersion": "2", "deletionTimestamp": "2026-01-01T00:00:00Z"}}

    assert cache.put(ending)
    kept = cache.get("Pod", "ns", "notebook")
    assert kept is not None
    assert kept["metadata"]["deletionTimestamp"]
    assert cache.held("n") == {Key("Pod", "ns", "notebook"): {"huawei.com/Ascend910": 1}}


def test_of_a_pod_of_others_the_audit_finds_its_pool_its_daemon_set_and_its_devices() -> None:
    cache = Cache()
    pod = a_pod("stranger", service=None, node="n", cards=1)
    pod["spec"]["nodeSelector"] = {names.POOL_LABEL: "training", "zone": "a"}
    owners = [{"kind": "DaemonSet", "name": "burn-in", "controller": True}]
    pod["metadata"] |= {"ownerReferences": owners, "annotations": {names.REAL_ANNOTATION: "Ascend910-0", "other": "x"}}
    cache.put(pod)

    kept = cache.get("Pod", "ns", "stranger")
    assert kept is not None
    assert kept["spec"]["nodeSelector"] == {names.POOL_LABEL: "training"}
    assert kept["metadata"]["ownerReferences"] == owners
    assert kept["metadata"]["annotations"] == {names.REAL_ANNOTATION: "Ascend910-0"}
