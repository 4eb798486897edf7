"""Installing, upgrading, rolling back and removing the chart on a real API server (cases E06, E08)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from glm5_operator.kube.managed import holds
from tests.api.chart.conftest import RELEASE, SYSTEM, Release, as_json
from tests.cluster.errors import CommandFailedError
from tests.cluster.shell import run, wait_for
from tests.cluster.tools import tool
from tests.support.chart import CHART, Document, pod_templates

pytestmark = pytest.mark.api

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/glm5services.glm5.dev"
SERVICES = "/apis/glm5.dev/v1alpha1/namespaces/default/glm5services"
SERVICE: dict[str, Any] = {
    "apiVersion": "glm5.dev/v1alpha1",
    "kind": "GLM5Service",
    "metadata": {"name": "chat", "namespace": "default"},
    "spec": {
        "model": {"name": "tiny", "weights": "bf16", "source": "image:///models/tiny", "memory": "1Gi"},
        "parallelism": {"tensor": 1},
        "pool": "cards",
    },
}
EVERY_OPTION: dict[str, Any] = {
    "replicas": 2,
    "networkPolicy": {
        "enabled": True,
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
    },
    "extraEnv": [{"name": "A", "value": 1}, {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
    "imagePullSecrets": [{"name": "registry"}],
    "priorityClassName": "system-cluster-critical",
    "podAnnotations": {"a": "b"},
    "podLabels": {"a": "b"},
    "resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}, "limits": {"cpu": 1.5, "memory": "2Gi"}},
}


def path_of(document: Document) -> str:
    """Where the API server keeps it."""
    group, _, version = document["apiVersion"].rpartition("/")
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    plural = {"NetworkPolicy": "networkpolicies", "ValidatingAdmissionPolicy": "validatingadmissionpolicies"}.get(
        document["kind"], document["kind"].lower() + "s"
    )
    metadata = document["metadata"]
    scope = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
    return f"{root}{scope}/{plural}/{metadata['name']}"


def is_hook(document: Document) -> bool:
    return "helm.sh/hook" in document["metadata"].get("annotations", {})


def older_chart(folder: Path) -> Path:
    """The chart as an earlier version might have been: without spec.startup and without status.cardsHeld."""
    chart = folder / "older" / CHART.name
    shutil.copytree(CHART, chart)
    file = chart / "files" / "crds" / "glm5services.glm5.dev.yaml"
    crd = yaml.safe_load(file.read_text())
    for version in crd["spec"]["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        del schema["properties"]["spec"]["properties"]["startup"]
        del schema["properties"]["status"]["properties"]["cardsHeld"]
        schema["x-kubernetes-validations"] = []
        schema["properties"]["spec"]["x-kubernetes-validations"] = []
    file.write_text(yaml.safe_dump(crd))
    return chart


def spec_fields(release: Release) -> set[str]:
    (version,) = release.get(CRD)["spec"]["versions"]
    return set(version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])


def apply_service(release: Release, **spec: object) -> None:
    """As a user does: kubectl refuses unknown fields."""
    release.cluster.kubectl("apply", "-f", "-", stdin=as_json({**SERVICE, "spec": {**SERVICE["spec"], **spec}}))


def test_crds_follow_upgrade_and_rollback_and_stay_with_their_services_after_uninstall(release: Release, tmp_path: Path) -> None:
    release.install(older_chart(tmp_path))
    assert "startup" not in spec_fields(release)
    wait_for("the kind to be served", lambda: release.get(SERVICES), timeout=30)
    apply_service(release)
    with pytest.raises(CommandFailedError, match="startup"):
        apply_service(release, startup={"timeout": "10m"})

    release.install()
    assert "startup" in spec_fields(release)
    wait_for("the new field to be taken", lambda: not _refused(release), timeout=30)
    assert release.get(f"{SERVICES}/chat")["spec"]["startup"] == {"timeout": "10m"}

    release.helm("rollback", RELEASE, "1")
    assert "startup" not in spec_fields(release)
    release.helm("rollback", RELEASE, "2")
    assert release.get(f"{SERVICES}/chat")["spec"]["model"]["name"] == "tiny"

    release.helm("uninstall", RELEASE, "--no-hooks")
    assert release.get(f"{SERVICES}/chat")["metadata"]["name"] == "chat"
    left = [item for item in release.rendered() if item["kind"] != "CustomResourceDefinition" and release.get(path_of(item))]
    assert left == []
    release.install()  # helm takes its own kept CRDs back
    assert release.get(f"{SERVICES}/chat")["metadata"]["name"] == "chat"


def _refused(release: Release) -> bool:
    try:
        apply_service(release, startup={"timeout": "10m"})
    except CommandFailedError:
        return True
    return False


def test_crds_that_were_applied_by_hand_are_taken_over_only_when_told(release: Release) -> None:
    release.helm("uninstall", RELEASE, "--no-hooks", "--ignore-not-found")
    kinds = ("glm5services", "glm5finetunejobs", "npupools", "ascendnodes")
    release.cluster.kubectl("delete", "crd", "--ignore-not-found", *(f"{kind}.glm5.dev" for kind in kinds))
    release.cluster.kubectl("apply", "-f", str(CHART.parents[1] / "crds"))
    with pytest.raises(CommandFailedError, match="invalid ownership metadata"):
        release.install()
    release.install(CHART, "--take-ownership")
    assert release.get(CRD)["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


@pytest.mark.parametrize("values", [{}, EVERY_OPTION], ids=["defaults", "every option"])
def test_what_is_live_is_what_the_chart_says_so_no_tool_finds_a_difference(
    release: Release, tmp_path: Path, values: dict[str, Any]
) -> None:
    file = tmp_path / "v.yaml"
    file.write_text(yaml.safe_dump(values))
    release.install(CHART, "--values", str(file))
    documents = [item for item in release.chart.render(values, release=RELEASE, namespace=SYSTEM) if not is_hook(item)]
    assert len(documents) > 10
    for document in documents:
        assert holds(release.get(path_of(document)), document), path_of(document)


def test_every_document_passes_strict_validation_hooks_included(release: Release) -> None:
    release.install()
    documents = release.chart.render(EVERY_OPTION, release="other", namespace=SYSTEM)
    others = [item for item in documents if item["kind"] != "CustomResourceDefinition"]
    text = yaml.safe_dump_all(others)
    words = ("apply", "--dry-run=server", "--validate=strict", "-f", "-")
    said = run(tool("kubectl"), "--kubeconfig", release.cluster.kubeconfig, *words, stdin=text)
    assert said.count("(server dry run)") == len(others) > 10


def test_every_pod_of_the_chart_but_the_node_agent_is_admitted_where_the_restricted_standard_is_enforced(release: Release) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "strict", "labels": labels}}
    release.cluster.http.post("/api/v1/namespaces", json=namespace).raise_for_status()
    wait_for("its default account", lambda: release.get("/api/v1/namespaces/strict/serviceaccounts/default"), timeout=30)
    pods = pod_templates(release.chart.render(EVERY_OPTION))
    assert pods.pop("DaemonSet/r-glm5-operator-agent")
    assert len(pods) == 3
    for name, pod in pods.items():
        spec = {key: value for key, value in pod["spec"].items() if key not in {"serviceAccountName", "priorityClassName"}}
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": pod["metadata"]["labels"]}, "spec": spec}
        answer = release.cluster.http.post("/api/v1/namespaces/strict/pods", json=document, params={"dryRun": "All"})
        assert answer.is_success, f"{name}: {answer.text}"
        loose = {**document, "spec": {**spec, "containers": [{**spec["containers"][0], "securityContext": {}}]}}
        assert release.cluster.http.post("/api/v1/namespaces/strict/pods", json=loose, params={"dryRun": "All"}).status_code == 403
