"""The API-server-only test cluster does what its users rely on."""

import json

import pytest

from tests.cluster import api
from tests.cluster.api import ApiCluster
from tests.cluster.nodes import RESOURCE
from tests.cluster.shell import wait_for

pytestmark = pytest.mark.api


def test_a_deployment_that_asks_for_cards_becomes_ready_on_a_kwok_node(api_cluster: ApiCluster, namespace: str) -> None:
    (node,) = api_cluster.add_nodes(1, prefix=f"{namespace}-node", resources={RESOURCE: "4"})
    container = {"name": "c", "image": "registry.invalid/engine:1", "resources": {"limits": {RESOURCE: "2"}}}
    pod = {"nodeSelector": {"kubernetes.io/hostname": node}, "containers": [container]}
    deployment = {
        "metadata": {"name": "engine"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod},
        },
    }
    api_cluster.http.post(f"/apis/apps/v1/namespaces/{namespace}/deployments", json=deployment).raise_for_status()

    def pods_by_state() -> bool:
        pods = api_cluster.http.get(f"/api/v1/namespaces/{namespace}/pods").json()["items"]
        conditions = [{c["type"]: c["status"] for c in pod["status"].get("conditions", [])} for pod in pods]
        ready = sum(c.get("Ready") == "True" for c in conditions)
        short = sum(c.get("PodScheduled") == "False" for c in conditions)
        return (ready, short) == (2, 1)  # four cards carry two pods of two cards, and not a third

    wait_for("two ready pods and one without cards", pods_by_state, timeout=30)


def test_kubectl_and_the_server_have_the_pinned_version(api_cluster: ApiCluster) -> None:
    versions = json.loads(api_cluster.kubectl("version", "--output=json"))
    assert versions["serverVersion"]["gitVersion"] == versions["clientVersion"]["gitVersion"] == "v1.35.4"


def test_a_stopped_cluster_leaves_no_process_and_no_folder() -> None:
    with ApiCluster.start() as cluster:
        identities = [cluster.processes.identity(name) for name in cluster.processes.names()]
        assert cluster.alive
    assert len(identities) == 5
    assert not any(identity is None or identity.alive for identity in identities)
    assert not cluster.folder.exists()


def test_a_cluster_with_a_dead_part_is_replaced_under_its_name() -> None:
    first = ApiCluster.start("itself")
    try:
        first.processes.stop("kube-scheduler")
        assert not first.alive
        second = ApiCluster.start("itself")
        assert second.alive
        assert second.server != first.server
        again = ApiCluster.start("itself")
        assert again.server == second.server
    finally:
        first.stop()
    assert "itself" not in api.names()
