"""Which kinds of objects the operator deals with, where they live in the API, and how it sees them.

One table: the client builds paths from it, `app` its watches, the relist its lists, and RBAC is checked against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from glm5_operator.api import names


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind.

    Attributes:
        watched: news arrive by watch. The others are only listed (`relist`): they hardly ever change by themselves, and each watched
            object costs about as much CPU as a reconcile.
        cached: kept in the cache at all.
        selector: label selector for watches and lists.
        watch_selector: likewise for kopf's watch, where that is to see less than lists do.
    """

    name: str
    group: str
    version: str
    plural: str
    namespaced: bool = True
    watched: bool = False
    cached: bool = True
    selector: str = ""
    watch_selector: str = ""

    @property
    def api_version(self) -> str:
        """As in an object's apiVersion."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Path of the collection, of one object, or of its subresource; without a namespace it is the collection of all namespaces."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{root}{scope}/{self.plural}" + (f"/{name}" if name else "") + (f"/{subresource}" if subresource else "")


_OURS: Final = f"{names.APP_MANAGED_BY_LABEL}={names.MANAGED_BY},{names.SERVICE_LABEL}"

SERVICE: Final = Kind(names.SERVICE_KIND, names.GROUP, names.VERSION, names.SERVICE_PLURAL, watched=True)
POOL: Final = Kind(names.POOL_KIND, names.GROUP, names.VERSION, names.POOL_PLURAL, namespaced=False, watched=True)
NODE: Final = Kind("Node", "", "v1", "nodes", namespaced=False, watched=True)
POD: Final = Kind("Pod", "", "v1", "pods", watched=True, watch_selector=names.SERVICE_LABEL)
"""Listed without a selector: pods of others hold cards too, and no label or field tells which. The cache keeps only those that do, and
`strangers` watches them."""
DEPLOYMENT: Final = Kind("Deployment", "apps", "v1", "deployments", watched=True, selector=_OURS)
CLIENT_SERVICE: Final = Kind("Service", "", "v1", "services", watched=True, selector=_OURS)
DISRUPTION_BUDGET: Final = Kind("PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets", selector=_OURS)
DAEMON_SET: Final = Kind("DaemonSet", "apps", "v1", "daemonsets", cached=False)
EVENT: Final = Kind("Event", "events.k8s.io", "v1", "events", cached=False)
LEASE: Final = Kind("Lease", "coordination.k8s.io", "v1", "leases", cached=False)
NAMESPACE: Final = Kind("Namespace", "", "v1", "namespaces", namespaced=False, cached=False)

ALL: Final = (
    SERVICE, POOL, NODE, POD, DEPLOYMENT, CLIENT_SERVICE, DISRUPTION_BUDGET, DAEMON_SET, EVENT, LEASE, NAMESPACE,
)  # fmt: skip
CHILDREN: Final = (DEPLOYMENT, CLIENT_SERVICE, DISRUPTION_BUDGET)
"""What `plan` makes, and nothing besides: the rights follow from it (tests/unit/kube/test_rights.py)."""
CACHED: Final = tuple(kind for kind in ALL if kind.cached)
WATCHED: Final = tuple(kind for kind in ALL if kind.watched)
OTHERS: Final = "Pod of others"
"""Name of `strangers`' watch, which lives and dies apart from kopf's of our pods."""
OTHERS_SELECTOR: Final = f"!{names.SERVICE_LABEL}"
BY_NAME: Final = {kind.name: kind for kind in ALL}
