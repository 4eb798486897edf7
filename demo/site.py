"""Where the demo runs: a kind cluster of its own, or the cluster of the user's kubeconfig. Used by steps.py and the e2e fixtures."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster import images
from tests.cluster.errors import CommandFailedError, UnavailableError
from tests.cluster.kind import KindCluster
from tests.cluster.shell import run
from tests.cluster.tools import tool
from tests.cluster.workload import SITE_PACKAGES_NODE_PATH

CLUSTER_NAME = "glm5"
POD_PACKAGES = "/opt/glm5/site-packages"
PLACES = ("kind", "current")
_PROMPT_PROGRESS = {
    "extraEnv[0].name": "GLM5_OPERATOR_PROGRESS_INTERVAL",
    "extraEnv[0].value": "1",
    "extraEnv[1].name": "GLM5_OPERATOR_PROGRESS_TELL",
    "extraEnv[1].value": "1",
}
"""A run of one minute is watched as it goes: every second, in place of the 5 s and 10 s that suit runs of days."""


@dataclass(frozen=True)
class Site:
    """A cluster that the demo may use.

    Attributes:
        kubeconfig: Its credentials; None: as kubectl and helm find them by themselves.
        kubectl_path: Program.
        helm_path: Program.
        values: Helm values that this place needs.
        mounts_packages: Whether pods need the runtime's Python packages mounted from the node (decision 0006).
        serving_nodes: Labels that nodes for services have here, beside those of the pool's manifest.
        runtime: Which runtime image runs here and where it finds torch, in words.
        kind: The kind cluster, when it is one.
    """

    kubeconfig: Path | None
    kubectl_path: Path
    helm_path: Path
    values: Mapping[str, str] = field(default_factory=dict)
    mounts_packages: bool = False
    serving_nodes: Mapping[str, str] = field(default_factory=dict)
    runtime: str = ""
    kind: KindCluster | None = None

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl here and return its output."""
        return run(self.kubectl_path, *self._access, *words, stdin=stdin)

    def helm(self, *words: str) -> str:
        """Run helm here and return its output."""
        return run(self.helm_path, *self._access, *words)

    def pod_template(self, container: str) -> dict[str, Any]:
        """What pods with that main container need here and nowhere else, to be merged over the pool's podTemplate."""
        return mounted_packages(container) if self.mounts_packages else {}

    @property
    def _access(self) -> tuple[str, ...]:
        return ("--kubeconfig", str(self.kubeconfig)) if self.kubeconfig is not None else ()


def chosen() -> str:
    """Where the demo shall run: `kind` or `current`, by $CLUSTER.

    Raises:
        UnavailableError: It names neither.
    """
    place = os.environ.get("CLUSTER") or "kind"
    if place not in PLACES:
        raise UnavailableError(f"CLUSTER={place}: it is kind (a cluster of the demo's own, the default) or current (your kubeconfig's)")
    return place


def kind_site(cluster: KindCluster) -> Site:
    """The kind cluster as a place for the demo; images must have been loaded."""
    mounted = any(mount.node == SITE_PACKAGES_NODE_PATH for mount in cluster.options.mounts)
    tag = images.tag("runtime", with_torch=not mounted)
    return Site(
        kubeconfig=cluster.kubeconfig,
        kubectl_path=tool("kubectl"),
        helm_path=tool("helm"),
        values={**_PROMPT_PROGRESS, **({"engines.native.image.tag": tag} if mounted else {})},
        mounts_packages=mounted,
        serving_nodes={"example.com/cards-for": "inference"},
        runtime=f"runtime image {tag}: "
        + (
            "no registry is reached here, so it holds no torch, and pods mount the Python packages read-only from the node (decision 0006)"
            if mounted
            else "torch and all Python packages are in it"
        ),
        kind=cluster,
    )


def current_site() -> Site:
    """The cluster that kubectl would talk to now.

    Raises:
        UnavailableError: A program, a kubeconfig or its current context is missing; the message says what to do.
    """
    files = [Path(name) for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name] or [Path.home() / ".kube" / "config"]
    named = os.pathsep.join(map(str, files))
    if not any(file.exists() for file in files):
        raise UnavailableError(f"CLUSTER=current: there is no kubeconfig at {named}; set KUBECONFIG, or run `make demo` without CLUSTER")
    programs = {}
    for name in ("kubectl", "helm"):
        found = shutil.which(name)
        programs[name] = Path(found) if found else tool(name)
    registry = os.environ.get("IMAGE_REGISTRY", "")
    place = Site(
        kubeconfig=None,  # KUBECONFIG may name several files, which kubectl merges
        kubectl_path=programs["kubectl"],
        helm_path=programs["helm"],
        values={"image.registry": registry, "engines.native.image.registry": registry} if registry else {},
        runtime="images from " + (registry or "the nodes themselves (IMAGE_REGISTRY names a registry)"),
    )
    try:
        place.kubectl("config", "current-context")
    except CommandFailedError as error:
        raise UnavailableError(
            f"CLUSTER=current: {named} has no current context; choose one with `kubectl config use-context NAME`, "
            "or run `make demo` without CLUSTER"
        ) from error
    return place


def mounted_packages(container: str) -> dict[str, Any]:
    """A pod template that mounts the runtime's Python packages from the node (decision 0006)."""
    return {
        "spec": {
            "volumes": [{"name": "site-packages", "hostPath": {"path": SITE_PACKAGES_NODE_PATH, "type": "Directory"}}],
            "containers": [
                {
                    "name": container,
                    "env": [{"name": "PYTHONPATH", "value": POD_PACKAGES}],
                    "volumeMounts": [{"name": "site-packages", "mountPath": POD_PACKAGES, "readOnly": True}],
                }
            ],
        }
    }


def load_images(cluster: KindCluster) -> None:
    """Build the operator and runtime images and put them onto the nodes."""
    cluster.load(*(images.build(cluster.engine, target) for target in images.TARGETS))
