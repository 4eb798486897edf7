"""Services, pools and nodes that say only what a test is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glm5_operator.api.names import API_VERSION
from glm5_operator.api.pool import NPUPool
from glm5_operator.api.service import GLM5Service
from glm5_operator.plan.facts import NodeFacts, PoolFacts, Product, ServiceFacts, Site
from glm5_operator.plan.service import ServicePlan, plan_service
from glm5_operator.plan.sizing import Hardware

if TYPE_CHECKING:
    from collections.abc import Mapping

RESOURCE = "huawei.com/Ascend910"
CARDS = {Product.A2: 8, Product.A3: 16, Product.ATLAS_310P: 8, Product.A5: 8}


def standard_hardware(product: Product) -> Hardware:
    """A server of the product."""
    return Hardware(product=product, cards_per_node=CARDS[product])


def service(
    model: str = "GLM-5.1",
    weights: str = "w8a8",
    spec: Mapping[str, object] | None = None,
    *,
    name: str = "chat",
    namespace: str = "prod",
    source: str = "",
    memory: str = "",
) -> GLM5Service:
    """A service of a model with a recipe."""
    stated = {"name": model, "weights": weights, "source": source or f"pvc://weights/{model}-{weights}"}
    if memory:
        stated["memory"] = memory
    return GLM5Service.parse(
        {
            "apiVersion": API_VERSION,
            "kind": "GLM5Service",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"model": stated, "pool": "inference", **(spec or {})},
        }
    )


def tiny(
    spec: Mapping[str, object] | None = None,
    *,
    tensor: int = 1,
    weights: str = "bf16",
    memory: str = "1Gi",
    name: str = "chat",
    source: str = "",
) -> GLM5Service:
    """A small model without a recipe."""
    stated = {"parallelism": {"tensor": tensor}, **(spec or {})}
    return service("tiny-glm5", weights, stated, name=name, source=source, memory=memory)


def pool(
    spec: Mapping[str, object] | None = None, *, name: str = "inference", role: str = "Inference", created: str = "2026-01-01T00:00:00Z"
) -> NPUPool:
    """A pool that selects by label."""
    stated = {"role": role, **(spec or {})}
    if "nodeNames" not in stated:
        stated.setdefault("nodeSelector", {"rack": "a"})
    metadata = {"name": name, "creationTimestamp": created}
    return NPUPool.parse({"apiVersion": API_VERSION, "kind": "NPUPool", "metadata": metadata, "spec": stated})


def node(
    name: str = "n0",
    product: Product | None = Product.A3,
    *,
    labels: Mapping[str, str] | None = None,
    cards: int | None = None,
    ready: bool = True,
    schedulable: bool = True,
    held: int = 0,
    taints: frozenset[str] = frozenset(),
    assigned: str = "",
) -> NodeFacts:
    """A node with as many cards as a server of its product."""
    count = cards if cards is not None else CARDS[product] if product else 8
    found = {"rack": "a"} if labels is None else labels
    return NodeFacts(name, found, product, {RESOURCE: count}, ready, schedulable, held, taints, assigned=assigned)


def nodes(product: Product | None = Product.A3, count: int = 2) -> tuple[NodeFacts, ...]:
    """Equal nodes."""
    return tuple(node(f"n{index}", product) for index in range(count))


def facts(*members: NodeFacts, of: NPUPool | None = None, site: Site | None = None, own_held: dict[str, int] | None = None) -> ServiceFacts:
    """What a plan knows: a pool of these nodes, two A3 servers when none are named."""
    return ServiceFacts(PoolFacts(of or pool(), members or nodes()), site or Site(), own_held or {})


def plan(
    wanted: GLM5Service, *members: NodeFacts, of: NPUPool | None = None, site: Site | None = None, own_held: dict[str, int] | None = None
) -> ServicePlan:
    """The plan of a service on these nodes."""
    return plan_service(wanted, facts(*members, of=of, site=site, own_held=own_held))


def child(planned: ServicePlan, kind: str) -> dict[str, Any]:
    """The child of a kind; fails with the reason when the plan is stalled."""
    assert planned.stalled is None, planned.stalled
    return next(entry for entry in planned.objects if entry["kind"] == kind)


def pod_of(planned: ServicePlan) -> dict[str, Any]:
    """The planned pod's spec."""
    spec: dict[str, Any] = child(planned, "Deployment")["spec"]["template"]["spec"]
    return spec


def engine_of(planned: ServicePlan) -> dict[str, Any]:
    """The planned engine container."""
    return next(entry for entry in pod_of(planned)["containers"] if entry["name"] == "engine")


def env_of(planned: ServicePlan) -> dict[str, Any]:
    """The engine's environment; values by reference are the reference."""
    return {entry["name"]: entry.get("value", entry.get("valueFrom", "")) for entry in engine_of(planned)["env"]}
