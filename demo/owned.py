"""What in a cluster is the demo's own, so that `CLUSTER=current` changes nothing else there. Used by steps.py.

Namespaces and pool carry LABEL; the release and its CRDs are known by Helm's own annotations. What lacks them is never
changed and never deleted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from demo.site import Site
from tests.cluster.errors import ClusterError

OPERATOR_NAMESPACE = "glm5-demo-system"
RELEASE = "glm5-demo"
DEPLOYMENT = f"{RELEASE}-glm5-operator"
LABEL = ("app.kubernetes.io/part-of", "glm5-demo")
SELECTOR = "=".join(LABEL)


class ForeignObjectError(ClusterError):
    """Something of that name is in the cluster already and isn't the demo's."""


@dataclass(frozen=True, slots=True)
class Operator:
    """The operator that looks after a cluster."""

    namespace: str
    deployment: str

    @property
    def own(self) -> bool:
        """Whether the demo installed it."""
        return self.namespace == OPERATOR_NAMESPACE


def apply(site: Site, thing: dict[str, Any]) -> None:
    """Apply an object of the demo, unless one of that name is somebody else's.

    Raises:
        ForeignObjectError: It is.
    """
    kind, name = thing["kind"].lower(), thing["metadata"]["name"]
    where = ("-n", thing["metadata"]["namespace"]) if "namespace" in thing["metadata"] else ()
    found = site.kubectl("get", kind, name, *where, "--ignore-not-found", "-o", "json")
    if found.strip() and not _labelled(json.loads(found)):
        raise ForeignObjectError(
            f"this cluster has a {kind} {name} that the demo did not make (it lacks the label {SELECTOR}), so it is left alone: "
            "delete it if nobody needs it, or run the demo on another cluster (`make demo` without CLUSTER makes one)"
        )
    labels = {**thing["metadata"].get("labels", {}), LABEL[0]: LABEL[1]}
    site.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps({**thing, "metadata": {**thing["metadata"], "labels": labels}}))


def namespace(site: Site, name: str) -> None:
    """Make a namespace of the demo's."""
    apply(site, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


def present(site: Site, kind: str, name: str) -> bool:
    """Whether that object is there and the demo made it."""
    found = site.kubectl("get", kind, name, "--ignore-not-found", "-o", "json")
    return bool(found.strip()) and _labelled(json.loads(found))


def delete(site: Site, kind: str, name: str) -> None:
    """Delete an object if the demo made it, and wait for its end."""
    if present(site, kind, name):
        site.kubectl("delete", kind, name, "--ignore-not-found", "--wait=true")


def other_operator(site: Site) -> Operator | None:
    """The operator that was installed here by somebody else, whatever its release's name; None when there is none."""
    # By the chart's label: engines are `part-of: glm5` too, and names can be overridden.
    listed = json.loads(site.kubectl("get", "deployments", "-A", "-l", "app.kubernetes.io/part-of=glm5,helm.sh/chart", "-o", "json"))[
        "items"
    ]
    for item in listed:
        found = Operator(item["metadata"]["namespace"], item["metadata"]["name"])
        if not found.own:
            return found
    return None


def crds(site: Site) -> dict[str, bool]:
    """The CRDs that are here, by name, and whether the demo's release brought them."""
    listed = json.loads(site.kubectl("get", "customresourcedefinitions", "-o", "json"))["items"]
    return {item["metadata"]["name"]: _of_release(item) for item in listed if item["spec"]["group"] == "glm5.dev"}


def _of_release(item: dict[str, Any]) -> bool:
    notes = item["metadata"].get("annotations", {})
    return (notes.get("meta.helm.sh/release-name"), notes.get("meta.helm.sh/release-namespace")) == (RELEASE, OPERATOR_NAMESPACE)


def _labelled(item: dict[str, Any]) -> bool:
    return bool(item["metadata"].get("labels", {}).get(LABEL[0]) == LABEL[1])
