"""Which kinds of objects the operator deals with, where they live in the API, and how it sees them.

One table: the client builds paths from it, `app` its watches, the relist its lists, and RBAC is checked against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from glm5_operator.api import names
from glm5_operator.health.sources.mindcluster import CLUSTER_NAMESPACE


class Feed(StrEnum):
    """How news of a kind arrive; lists (`relist`) complete what watches bring."""

    KOPF = "kopf"
    """What users write."""
    STREAM = "stream"
    """What the cluster writes back (`stream`): many times as much, and kopf takes several times the CPU (docs/decisions/0009)."""
    LISTS = "lists"
    """By lists only: it hardly ever changes by itself."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind.

    Attributes:
        feed: how news arrive.
        cached: kept in the cache at all.
        selector: label selector for watches and lists.
        only_in: the one namespace where it is looked for; empty for all.
        optional: of others; where it isn't served, there are none.
    """

    name: str
    group: str
    version: str
    plural: str
    namespaced: bool = True
    feed: Feed = Feed.LISTS
    cached: bool = True
    selector: str = ""
    only_in: str = ""
    optional: bool = False

    @property
    def watched(self) -> bool:
        """News arrive at once."""
        return self.feed is not Feed.LISTS

    @property
    def api_version(self) -> str:
        """As in an object's apiVersion."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def places(self, namespaces: tuple[str, ...]) -> tuple[str, ...]:
        """The namespaces in which an operator limited to `namespaces` watches and lists it; "" is the whole cluster."""
        if not self.namespaced:
            return ("",)
        if self.only_in:
            return (self.only_in,) if not namespaces or self.only_in in namespaces else ()
        return namespaces or ("",)

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Path of the collection, of one object, or of its subresource; without a namespace it is the collection of all namespaces."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{root}{scope}/{self.plural}" + (f"/{name}" if name else "") + (f"/{subresource}" if subresource else "")


_OURS: Final = f"{names.APP_MANAGED_BY_LABEL}={names.MANAGED_BY},{names.SERVICE_LABEL}"
_OURS_OF_ANY: Final = f"{names.APP_MANAGED_BY_LABEL}={names.MANAGED_BY}"
_OURS_OF_TRAINING: Final = f"{names.APP_MANAGED_BY_LABEL}={names.MANAGED_BY},{names.FINETUNE_LABEL}"

SERVICE: Final = Kind(names.SERVICE_KIND, names.GROUP, names.VERSION, names.SERVICE_PLURAL, feed=Feed.KOPF)
FINETUNE: Final = Kind(names.FINETUNE_KIND, names.GROUP, names.VERSION, names.FINETUNE_PLURAL, feed=Feed.KOPF)
POOL: Final = Kind(names.POOL_KIND, names.GROUP, names.VERSION, names.POOL_PLURAL, namespaced=False, feed=Feed.KOPF)
ASCEND_NODE: Final = Kind(names.NODE_KIND, names.GROUP, names.VERSION, names.NODE_PLURAL, namespaced=False, feed=Feed.STREAM)
"""Made by the operator, and written by the node agents: as many as there are nodes, so kopf isn't asked to watch them."""
NODE: Final = Kind("Node", "", "v1", "nodes", namespaced=False, feed=Feed.STREAM)
POD: Final = Kind("Pod", "", "v1", "pods", feed=Feed.STREAM)
"""Without a selector: pods of others hold cards too, and no label or field tells which. Of theirs the cache keeps only those that do."""
DEPLOYMENT: Final = Kind("Deployment", "apps", "v1", "deployments", feed=Feed.STREAM, selector=_OURS)
CLIENT_SERVICE: Final = Kind("Service", "", "v1", "services", feed=Feed.STREAM, selector=_OURS_OF_ANY)
"""What clients of a service talk to; of training, the headless one under which ranks find each other."""
DISRUPTION_BUDGET: Final = Kind("PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets", selector=_OURS)
JOB: Final = Kind("Job", "batch", "v1", "jobs", feed=Feed.STREAM, selector=_OURS_OF_TRAINING)
CONFIG_MAP: Final = Kind("ConfigMap", "", "v1", "configmaps", selector=_OURS_OF_ANY)
MIND_CLUSTER_MAP: Final = Kind("MindClusterMap", "", "v1", "configmaps", feed=Feed.STREAM, selector="mx-consumer-cim=true")
"""ConfigMaps of MindCluster's device plugin and NodeD, under a name of our own: in the cache they aren't mixed with those we write."""
CLUSTER_INFO: Final = Kind(
    "ClusterInfo", "", "v1", "configmaps", feed=Feed.STREAM, selector="mx-consumer-volcano=true", only_in=CLUSTER_NAMESPACE
)
"""ConfigMaps of MindCluster's ClusterD, of all nodes together; the cache keeps each node's part of them."""
POD_GROUP: Final = Kind(names.POD_GROUP_KIND, "scheduling.volcano.sh", "v1beta1", "podgroups", selector=_OURS_OF_TRAINING, optional=True)
"""Of Volcano, where that is installed."""
DAEMON_SET: Final = Kind("DaemonSet", "apps", "v1", "daemonsets", cached=False)
EVENT: Final = Kind("Event", "events.k8s.io", "v1", "events", cached=False)
LEASE: Final = Kind("Lease", "coordination.k8s.io", "v1", "leases", cached=False)
NAMESPACE: Final = Kind("Namespace", "", "v1", "namespaces", namespaced=False, cached=False)

ALL: Final = (
    SERVICE, FINETUNE, POOL, ASCEND_NODE, NODE, POD, DEPLOYMENT, CLIENT_SERVICE, DISRUPTION_BUDGET, JOB, CONFIG_MAP, MIND_CLUSTER_MAP,
    CLUSTER_INFO, POD_GROUP, DAEMON_SET, EVENT, LEASE, NAMESPACE,
)  # fmt: skip
CHILDREN: Final = (DEPLOYMENT, CLIENT_SERVICE, DISRUPTION_BUDGET, JOB, CONFIG_MAP, POD_GROUP)
OWNERS: Final = (SERVICE, FINETUNE)
"""What `plan` makes, and nothing besides: the rights follow from it (tests/unit/kube/test_rights.py)."""
CACHED: Final = tuple(kind for kind in ALL if kind.cached)
BY_KOPF: Final = tuple(kind for kind in ALL if kind.feed is Feed.KOPF)
STREAMED: Final = tuple(kind for kind in ALL if kind.feed is Feed.STREAM)
WATCHED: Final = tuple(kind for kind in ALL if kind.watched)
BY_NAME: Final = {kind.name: kind for kind in ALL}
