"""Services, pools and nodes that say only what a test is about."""

from __future__ import annotations

from typing import Any

from glm5_operator.api.names import API_VERSION
from glm5_operator.api.pool import NPUPool
from glm5_operator.api.service import GLM5Service
from glm5_operator.plan.facts import NodeFacts, PoolFacts, Product, ServiceFacts, Site
from glm5_operator.plan.service import ServicePlan, plan_service
from glm5_operator.plan.sizing import Hardware

RESOURCE = "huawei.com/Ascend910"
CARDS = {Product.A2: 8, Product.A3: 16, Product.ATLAS_310P: 8, Product.A5: 8}


def standard_hardware(product: Product) -> Hardware:
    """A server of the product."""
    return Hardware(product=product, cards_per_node=CARDS[product])


def service(model: str = "GLM-5.1", weights: str = "w8a8", *, name: str = "chat", namespace: str = "prod", **spec: Any) -> GLM5Service:
    """A service of a model with a recipe; `source` and other fields of model are taken from `spec` too."""
    stated = {
        "name": model,
        "weights": weights,
        "source": spec.pop("source", f"pvc://weights/{model}-{weights}"),
        **spec.pop("model_extra", {}),
    }
    return GLM5Service.parse(
        {
            "apiVersion": API_VERSION,
            "kind": "GLM5Service",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"model": stated, "pool": "inference", **spec},
        }
    )


def tiny(*, memory: str = "1Gi", tensor: int = 1, weights: str = "bf16", **spec: Any) -> GLM5Service:
    """A small model without a recipe."""
    stated = {"tensor": tensor, **spec.pop("parallelism", {})}
    return service("tiny-glm5", weights, model_extra={"memory": memory, **spec.pop("model_extra", {})}, parallelism=stated, **spec)


def pool(name: str = "inference", *, role: str = "Inference", created: str = "2026-01-01T00:00:00Z", **spec: Any) -> NPUPool:
    """A pool that selects by label."""
    if "nodeNames" not in spec:
        spec.setdefault("nodeSelector", {"rack": "a"})
    return NPUPool.parse(
        {
            "apiVersion": API_VERSION,
            "kind": "NPUPool",
            "metadata": {"name": name, "creationTimestamp": created},
            "spec": {"role": role, **spec},
        }
    )


def node(name: str = "n0", product: Product | None = Product.A3, **facts: Any) -> NodeFacts:
    """A node with as many cards as a server of its product."""
    facts.setdefault("labels", {"rack": "a"})
    facts.setdefault("allocatable", {RESOURCE: CARDS[product] if product else 8})
    return NodeFacts(name=name, product=product, **facts)


def nodes(product: Product | None = Product.A3, count: int = 2, **facts: Any) -> tuple[NodeFacts, ...]:
    """Equal nodes."""
    return tuple(node(f"n{index}", product, **facts) for index in range(count))


def facts(*members: NodeFacts, of: NPUPool | None = None, site: Site | None = None, own_held: dict[str, int] | None = None) -> ServiceFacts:
    """What a plan knows: a pool of these nodes, two A3 servers when none are named."""
    return ServiceFacts(PoolFacts(of or pool(), members or nodes()), site or Site(), own_held or {})


def plan(wanted: GLM5Service, *members: NodeFacts, **known: Any) -> ServicePlan:
    """The plan of a service on these nodes."""
    return plan_service(wanted, facts(*members, **known))


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
