"""A small client for tests on a real API server: what a user would do with kubectl, as plain JSON, and waiting with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

Json = dict[str, Any]
Objects = list[Json]  # names of their own: inside the class `list` is the method
Names = list[str]

MERGE = {"Content-Type": "application/merge-patch+json"}

_PATHS = {
    "GLM5Service": ("/apis/glm5.dev/v1alpha1", "glm5services", True),
    "GLM5FinetuneJob": ("/apis/glm5.dev/v1alpha1", "glm5finetunejobs", True),
    "NPUPool": ("/apis/glm5.dev/v1alpha1", "npupools", False),
    "AscendNode": ("/apis/glm5.dev/v1alpha1", "ascendnodes", False),
    "Deployment": ("/apis/apps/v1", "deployments", True),
    "ReplicaSet": ("/apis/apps/v1", "replicasets", True),
    "DaemonSet": ("/apis/apps/v1", "daemonsets", True),
    "Service": ("/api/v1", "services", True),
    "Job": ("/apis/batch/v1", "jobs", True),
    "Pod": ("/api/v1", "pods", True),
    "Secret": ("/api/v1", "secrets", True),
    "ServiceAccount": ("/api/v1", "serviceaccounts", True),
    "ConfigMap": ("/api/v1", "configmaps", True),
    "ResourceQuota": ("/api/v1", "resourcequotas", True),
    "LimitRange": ("/api/v1", "limitranges", True),
    "PersistentVolumeClaim": ("/api/v1", "persistentvolumeclaims", True),
    "PersistentVolume": ("/api/v1", "persistentvolumes", False),
    "Event": ("/apis/events.k8s.io/v1", "events", True),
    "Node": ("/api/v1", "nodes", False),
    "Namespace": ("/api/v1", "namespaces", False),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets", True),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies", True),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases", True),
    "ValidatingAdmissionPolicy": ("/apis/admissionregistration.k8s.io/v1", "validatingadmissionpolicies", False),
    "ValidatingAdmissionPolicyBinding": ("/apis/admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings", False),
    "ClusterRoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
}

CHILD_KINDS = ("Deployment", "Service", "ConfigMap", "PodDisruptionBudget", "NetworkPolicy", "Job")


@dataclass(frozen=True)
class Kube:
    """Reads and writes objects. Every method but `find` and `delete` fails on an answer that isn't a success."""

    http: httpx.Client

    def path(self, kind: str, namespace: str = "", name: str = "", subresource: str = "") -> str:
        root, plural, namespaced = _PATHS[kind]
        scope = f"/namespaces/{namespace}" if namespaced and namespace else ""
        return f"{root}{scope}/{plural}" + (f"/{name}" if name else "") + (f"/{subresource}" if subresource else "")

    def create(self, document: Json) -> Json:
        metadata = document["metadata"]
        api_version = _PATHS[document["kind"]][0].removeprefix("/apis/").removeprefix("/api/")
        answer = self.http.post(self.path(document["kind"], metadata.get("namespace", "")), json={"apiVersion": api_version, **document})
        return _body(answer)

    def get(self, kind: str, namespace: str, name: str) -> Json:
        return _body(self.http.get(self.path(kind, namespace, name)))

    def find(self, kind: str, namespace: str, name: str) -> Json | None:
        answer = self.http.get(self.path(kind, namespace, name))
        return None if answer.status_code == 404 else _body(answer)

    def list(self, kind: str, namespace: str = "", selector: str = "") -> Objects:
        items: Objects = _body(self.http.get(self.path(kind, namespace), params={"labelSelector": selector}))["items"]
        return items

    def patch(self, kind: str, namespace: str, name: str, patch: Json, *, subresource: str = "") -> Json:
        """JSON merge patch, under the name of another field manager than the operator's."""
        path = self.path(kind, namespace, name, subresource)
        return _body(self.http.patch(path, json=patch, headers=MERGE, params={"fieldManager": "someone"}))

    def delete(self, kind: str, namespace: str, name: str, propagation: str = "Background") -> None:
        answer = self.http.request("DELETE", self.path(kind, namespace, name), json={"propagationPolicy": propagation})
        assert answer.is_success or answer.status_code == 404, answer.text

    def condition(self, namespace: str, name: str, kind: str = "Ready") -> Json:
        """A condition of a GLM5Service; empty before there is one."""
        return _condition(self.find("GLM5Service", namespace, name) or {}, kind)

    def wait_condition(self, namespace: str, name: str, reason: str, kind: str = "Ready", timeout: float = 60) -> Json:
        """Wait until a condition of a GLM5Service has that reason for the current generation, and return it."""

        def there() -> bool:
            service = self.get("GLM5Service", namespace, name)
            found = _condition(service, kind)
            return found.get("reason") == reason and found["observedGeneration"] == service["metadata"]["generation"]

        until(f"{kind} of {name} to be {reason}", there, timeout, lambda: str(self.condition(namespace, name, kind)))
        return self.condition(namespace, name, kind)

    def wait_ready(self, namespace: str, name: str, timeout: float = 60) -> Json:
        """Wait until a GLM5Service says that it serves its current generation."""
        return self.wait_condition(namespace, name, "Serving", timeout=timeout)

    def pool_condition(self, name: str, kind: str = "Ready") -> Json:
        return _condition(self.find("NPUPool", "", name) or {}, kind)

    def leftovers(self, namespace: str) -> Names:
        """Everything in a namespace that a service can have made."""
        kinds = (*CHILD_KINDS, "ReplicaSet", "Pod", "PersistentVolumeClaim")
        found = [f"{kind}/{item['metadata']['name']}" for kind in kinds for item in self.list(kind, namespace)]
        return [item for item in found if item != "ConfigMap/kube-root-ca.crt"]


def until(what: str, done: Callable[[], bool], timeout: float = 30, now: Callable[[], str] = lambda: "", every: float = 0.05) -> None:
    """Poll until `done`, or fail and say how things are."""
    deadline = time.monotonic() + timeout
    while not done():
        assert time.monotonic() < deadline, f"waited {timeout:g} s in vain for {what}; now: {now()}"
        time.sleep(every)


def stays(what: str, so: Callable[[], bool], seconds: float, now: Callable[[], str] = lambda: "") -> None:
    """Watch for a while that something that must not happen doesn't: a negative needs a window."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert so(), f"{what} no longer so; now: {now()}"
        time.sleep(0.1)


def _condition(resource: Json, kind: str) -> Json:
    conditions = (resource.get("status") or {}).get("conditions") or ()
    return next((item for item in conditions if item["type"] == kind), {})


def _body(answer: httpx.Response) -> Json:
    assert answer.is_success, f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text}"
    body: Json = answer.json()
    return body
