"""What the planner writes, before a real API server: taken strictly, given back unchanged, and of the Pod Security level it claims."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from glm5_operator.plan.facts import Product
from tests.unit.plan.builders import child, node, plan, service, tiny
from tests.unit.plan.regenerate import GOLDEN, pods

if TYPE_CHECKING:
    import httpx

    from glm5_operator.plan.service import ServicePlan
    from tests.cluster.api import ApiCluster

pytestmark = pytest.mark.api

PATHS = {
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "Service": "/api/v1/namespaces/{}/services",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
}
STRICT = {"dryRun": "All", "fieldValidation": "Strict"}


def difference(ours: object, theirs: object, path: str = "") -> list[str]:
    """Where the answer lacks what we sent, or has it in other words."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [text for key, value in ours.items() for text in difference(value, theirs.get(key), f"{path}.{key}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [text for index, value in enumerate(ours) for text in difference(value, theirs[index], f"{path}[{index}]")]
    return [] if ours == theirs else [f"{path}: sent {ours!r}, got {theirs!r}"]


@pytest.mark.parametrize("name", pods())
def test_the_api_server_takes_golden_manifests_strictly_and_gives_back_our_values(
    name: str, api_cluster: ApiCluster, namespace: str
) -> None:
    """What it rewrote (a quantity in other units, an empty value) would look like drift in every reconcile."""
    for manifest in yaml.safe_load_all((GOLDEN / "pods" / f"{name}.yaml").read_text(encoding="utf-8")):
        if manifest is None:
            continue
        sent = {**manifest, "metadata": {**manifest["metadata"], "namespace": namespace}}
        answer = api_cluster.http.post(PATHS[manifest["kind"]].format(namespace), params=STRICT, json=sent)
        assert answer.status_code == 201, answer.text
        assert difference(sent, answer.json()) == []


@pytest.mark.parametrize("memory", ["256Mi", "1500M", "64G", "1.5Gi", "2048Mi", "1000000000", "1Ti"])
def test_a_memory_in_any_words_is_planned_in_those_of_the_api_server(memory: str, api_cluster: ApiCluster, namespace: str) -> None:
    sent = child(plan(tiny(memory=memory)), "Deployment")
    sent["metadata"]["namespace"] = namespace

    answer = api_cluster.http.post(PATHS["Deployment"].format(namespace), params=STRICT, json=sent)

    assert answer.status_code == 201, answer.text
    assert difference(sent, answer.json()) == []


def pod_in(api_cluster: ApiCluster, namespace: str, planned: ServicePlan) -> httpx.Response:
    template = child(planned, "Deployment")["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", **template["metadata"]}, "spec": template["spec"]}
    return api_cluster.http.post(f"/api/v1/namespaces/{namespace}/pods", params=STRICT, json=pod)


def enforce(api_cluster: ApiCluster, namespace: str, level: str) -> None:
    labels = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}}
    headers = {"Content-Type": "application/merge-patch+json"}
    api_cluster.http.patch(f"/api/v1/namespaces/{namespace}", json=labels, headers=headers).raise_for_status()


def test_a_native_pod_is_let_into_a_restricted_namespace(api_cluster: ApiCluster, namespace: str) -> None:
    enforce(api_cluster, namespace, "restricted")

    answer = pod_in(api_cluster, namespace, plan(tiny()))

    assert answer.status_code == 201, answer.text


def test_a_vllm_pod_needs_the_baseline_level_and_says_nothing_worse(api_cluster: ApiCluster, namespace: str) -> None:
    planned = plan(service(), node("n0", Product.A3))
    enforce(api_cluster, namespace, "restricted")
    refused = pod_in(api_cluster, namespace, planned)
    enforce(api_cluster, namespace, "baseline")
    taken = pod_in(api_cluster, namespace, planned)

    assert refused.status_code == 403
    assert "runAsNonRoot" in refused.text
    assert taken.status_code == 201, taken.text


def test_with_an_image_that_has_a_user_a_vllm_pod_is_let_into_a_restricted_namespace(api_cluster: ApiCluster, namespace: str) -> None:
    """The way out that the security exceptions name."""
    own = {
        "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": True},
        "containers": [{"name": "engine", "securityContext": {"capabilities": {"add": None}, "readOnlyRootFilesystem": True}}],
    }
    planned = plan(service("GLM-5.1", "w8a8", {"podTemplate": {"spec": own}}), node("n0", Product.A3))
    enforce(api_cluster, namespace, "restricted")

    answer = pod_in(api_cluster, namespace, planned)

    assert answer.status_code == 201, answer.text
