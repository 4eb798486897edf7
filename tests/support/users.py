"""Kubeconfigs of users of their own, so that an audit log tells two operators apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.support.kube import Kube

NAMESPACE = "glm5-system"


def kubeconfig_of(kube: Kube, admin: Path, name: str, folder: Path) -> Path:
    """A service account with the rights of an administrator, and a kubeconfig with its token."""
    kube.create({"kind": "ServiceAccount", "metadata": {"name": name, "namespace": NAMESPACE}})
    kube.create(
        {
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"test-{name}"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}],
        }
    )
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
    answer = kube.http.post(kube.path("ServiceAccount", NAMESPACE, name, "token"), json=request)
    assert answer.is_success, answer.text
    config: dict[str, Any] = yaml.safe_load(admin.read_text())
    for user in config["users"]:
        user["user"] = {"token": answer.json()["status"]["token"]}
    path = folder / f"{name}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path
