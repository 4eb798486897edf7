"""Where the demo runs: a kind cluster of its own, or the cluster of the user's kubeconfig. Used by steps.py and the e2e fixtures."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster import images
from tests.cluster.errors import UnavailableError
from tests.cluster.kind import KindCluster
from tests.cluster.shell import run
from tests.cluster.tools import tool
from tests.cluster.workload import SITE_PACKAGES_NODE_PATH

CLUSTER_NAME = "glm5"
POD_PACKAGES = "/opt/glm5/site-packages"


@dataclass(frozen=True)
class Site:
    """A cluster that the demo may use.

    Attributes:
        kubeconfig: Its credentials.
        kubectl: Program.
        helm: Program.
        values: Helm values that this place needs.
        pod_template: Goes into NPUPool.spec.podTemplate: what pods need here and nowhere else.
        kind: The kind cluster, when it is one.
    """

    kubeconfig: Path
    kubectl_path: Path
    helm_path: Path
    values: Mapping[str, str] = field(default_factory=dict)
    pod_template: Mapping[str, Any] | None = None
    kind: KindCluster | None = None

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl here and return its output."""
        return run(self.kubectl_path, "--kubeconfig", self.kubeconfig, *words, stdin=stdin)

    def helm(self, *words: str) -> str:
        """Run helm here and return its output."""
        return run(self.helm_path, "--kubeconfig", self.kubeconfig, *words)


def kind_site(cluster: KindCluster) -> Site:
    """The kind cluster as a place for the demo; images must have been loaded."""
    mounted = any(mount.node == SITE_PACKAGES_NODE_PATH for mount in cluster.options.mounts)
    return Site(
        kubeconfig=cluster.kubeconfig,
        kubectl_path=tool("kubectl"),
        helm_path=tool("helm"),
        pod_template=mounted_packages() if mounted else None,
        kind=cluster,
    )


def current_site() -> Site:
    """The cluster that kubectl would talk to now.

    Raises:
        UnavailableError: A program or the kubeconfig is missing; the message says what to do.
    """
    kubeconfig = Path(os.environ.get("KUBECONFIG", "").split(os.pathsep)[0] or Path.home() / ".kube" / "config")
    if not kubeconfig.exists():
        raise UnavailableError(
            f"CLUSTER=current: there is no kubeconfig at {kubeconfig}; set KUBECONFIG, or run `make demo` without CLUSTER"
        )
    programs = {}
    for name in ("kubectl", "helm"):
        found = shutil.which(name)
        programs[name] = Path(found) if found else tool(name)
    registry = os.environ.get("IMAGE_REGISTRY", "")
    return Site(
        kubeconfig=kubeconfig,
        kubectl_path=programs["kubectl"],
        helm_path=programs["helm"],
        values={"image.registry": registry, "engines.native.image.registry": registry} if registry else {},
    )


def mounted_packages() -> dict[str, Any]:
    """A pod template that mounts the runtime's Python packages from the node (decision 0006)."""
    return {
        "spec": {
            "volumes": [{"name": "site-packages", "hostPath": {"path": SITE_PACKAGES_NODE_PATH, "type": "Directory"}}],
            "containers": [
                {
                    "name": "engine",
                    "env": [{"name": "PYTHONPATH", "value": POD_PACKAGES}],
                    "volumeMounts": [{"name": "site-packages", "mountPath": POD_PACKAGES, "readOnly": True}],
                }
            ],
        }
    }


def load_images(cluster: KindCluster) -> None:
    """Build the operator and runtime images and put them onto the nodes."""
    cluster.load(*(images.build(cluster.engine, target) for target in images.TARGETS))
