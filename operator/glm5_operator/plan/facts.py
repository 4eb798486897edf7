"""What a plan may know about the world besides the spec: frozen values, gathered by controllers.

Controllers fill these from the cache, `glm5 plan` from a cluster file. Nothing here looks anything up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from glm5_operator.api import names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glm5_operator.api.deploy import AdapterReport
    from glm5_operator.api.pool import NPUPool

Manifest = dict[str, Any]
"""One desired object as plain JSON, without owner references and hash (kube.apply adds them)."""

_NOTHING: Mapping[str, int] = MappingProxyType({})


class Product(StrEnum):
    """An Ascend generation, as far as planning tells them apart."""

    A2 = "A2"
    A3 = "A3"
    ATLAS_310P = "310P"
    A5 = "950"


@dataclass(frozen=True, slots=True)
class Finding:
    """Why something can't be planned, or a warning beside a plan.

    Attributes:
        reason: CamelCase, becomes the reason of a condition.
        message: says what to change.
    """

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node as planning sees it.

    Attributes:
        name: the node's name.
        labels: all labels of the node.
        product: see `product.product_of`; None when nothing on the node tells.
        allocatable: extended resources (`product.extended_resources`), as counts.
        ready: the node's Ready condition is True.
        schedulable: neither cordoned, nor in remedy, nor on its way to another pool.
        held: NPU cards (dies on A3) that pods on the node hold, ours and others' alike.
        taints: the keys and values of its taints with effect NoSchedule or NoExecute, as `key=value`.
        assigned: the pool that names.MOVE_ANNOTATION says, whatever selects the node; empty for none.
        lent_by: names.LENT_ANNOTATION, as it is written; empty for none.
        driver: HDK version, from the device plugin's label or the node agent; empty when nobody has read it.
    """

    name: str
    labels: Mapping[str, str]
    product: Product | None
    allocatable: Mapping[str, int]
    ready: bool = True
    schedulable: bool = True
    held: int = 0
    taints: frozenset[str] = frozenset()
    driver: str = ""
    assigned: str = ""
    lent_by: str = ""


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """A pool and the nodes that are its members (`plan.pool.members`; a node contested by two pools is in one of them)."""

    pool: NPUPool
    nodes: tuple[NodeFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class Site:
    """Operator-wide defaults, from settings.

    Attributes:
        images: engine name → image reference without a product suffix; the planner appends `-a3` and the like for vllm.
        cluster_domain: the DNS suffix of Services.
        image_pull_policy: of engine containers; empty leaves it to Kubernetes.
        progress_port: where the first pod of a training run tells how far it is.
    """

    images: Mapping[str, str] = field(
        default_factory=lambda: {"native": "glm5-runtime:0.1.0", "vllm": "quay.io/ascend/vllm-ascend:v0.23.0"},
    )
    cluster_domain: str = "cluster.local"
    image_pull_policy: str = ""
    progress_port: int = names.PROGRESS_PORT


@dataclass(frozen=True, slots=True)
class Claim:
    """Cards that an attempt was given before its pods took them: so many pods, one a node, with so many cards each."""

    pods: int
    cards: int


@dataclass(frozen=True, slots=True)
class FinetuneFacts:
    """All that `plan_attempt` may know.

    Attributes:
        pool: None when no pool of that name exists.
        site: operator-wide defaults.
        claims: of other runs on the same pool whose pods have yet to get their nodes.
        avoided: nodes that cards of earlier attempts failed on.
        kueue: Kueue is installed.
        volcano: Volcano is.
    """

    pool: PoolFacts | None
    site: Site = field(default_factory=Site)
    claims: tuple[Claim, ...] = ()
    avoided: frozenset[str] = frozenset()
    kueue: bool = False
    volcano: bool = False


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What a service's plan may know of a fine-tuning job of its namespace.

    Attributes:
        began: when its adapter was begun to be loaded, as Kubernetes writes times; empty before.
        ended: it has an outcome.
        path: pvc://CLAIM/FOLDER of its published adapter; empty before.
        sha256: of that adapter's weights.
        service: the service that it deploys to; empty for none.
        adapter: under which name.
        phase: how far that is (`status.deployment.phase`); empty before it began.
        share: part of the model's own traffic that its adapter is to answer.
    """

    name: str
    began: str = ""
    ended: bool = False
    path: str = ""
    sha256: str = ""
    service: str = ""
    adapter: str = ""
    phase: str = ""
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """What a service's plan may know of adapters.

    Attributes:
        jobs: the fine-tuning jobs of its namespace.
        recorded: what its status said last of its adapters.
    """

    jobs: tuple[JobFacts, ...] = ()
    recorded: tuple[AdapterReport, ...] = ()


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """All that `plan_service` may know.

    Attributes:
        pool: None when no pool of that name exists.
        site: operator-wide defaults.
        own_held: node name → cards held there by this service's own pods. Cards of others limit a surge, own ones don't:
            without this the rollout strategy would flip as soon as the service's pods start.
        adapters: of a service that has adapterStorage.
    """

    pool: PoolFacts | None
    site: Site = field(default_factory=Site)
    own_held: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    adapters: AdapterFacts = field(default_factory=AdapterFacts)
