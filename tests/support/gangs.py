"""Minimal CRDs of Kueue and Volcano: what the operator looks for and writes, with any content. Their controllers are played by tests."""

from __future__ import annotations

from typing import Any

from tests.support.kube import Kube, until

Json = dict[str, Any]
GROUPS = {"workloads": ("kueue.x-k8s.io", "Workload"), "podgroups": ("scheduling.volcano.sh", "PodGroup")}


def install(kube: Kube, plural: str) -> None:
    """Have a kind of the two served."""
    group, kind = GROUPS[plural]
    open_object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": open_object, "status": open_object}}
    version = {"name": "v1beta1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            # The group ends in k8s.io, which belongs to the community.
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/kueue"},
        },
        "spec": {"group": group, "names": {"kind": kind, "plural": plural}, "scope": "Namespaced", "versions": [version]},
    }
    kube.http.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", json=crd).raise_for_status()
    until(f"{plural} to be served", lambda: kube.http.get(f"/apis/{group}/v1beta1/{plural}").is_success, 30)


def remove(kube: Kube, plural: str) -> None:
    """As if it had never been installed."""
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.{GROUPS[plural][0]}"
    kube.http.delete(path)
    until(f"{plural} to be gone", lambda: kube.http.get(path).status_code == 404, 30)


def pod_groups(kube: Kube, namespace: str) -> list[Json]:
    """Volcano's groups of a namespace; none where it isn't installed."""
    answer = kube.http.get(f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{namespace}/podgroups")
    items: list[Json] = answer.json().get("items") or [] if answer.is_success else []
    return items
