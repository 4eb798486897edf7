"""`glm5 plan`: what services become, computed here from files and assumed hardware; no cluster is asked.

Called by `app`. Decides nothing: facts go to the planner that the operator uses too, and its answer is printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from glm5_operator.api import names
from glm5_operator.api.pool import NPUPool
from glm5_operator.cli import documents, output
from glm5_operator.cli.errors import CliError, ExitCode
from glm5_operator.plan.facts import NodeFacts, PoolFacts, Product, ServiceFacts
from glm5_operator.plan.product import CHIP_LABEL, product_of
from glm5_operator.plan.service import plan_service

if TYPE_CHECKING:
    from glm5_operator.api.service import GLM5Service
    from glm5_operator.plan.service import ServicePlan


@dataclass(frozen=True)
class _NodeShape:
    """What one node of a product offers, as its usual server is sold."""

    resource: str
    cards: int
    chip: str


_SHAPES: Final = {
    Product.A2: _NodeShape("huawei.com/Ascend910", 8, "910B3"),
    Product.A3: _NodeShape("huawei.com/Ascend910", 16, "910_9391"),
    Product.ATLAS_310P: _NodeShape("huawei.com/Ascend310P", 4, "310P3"),
    Product.A5: _NodeShape("huawei.com/npu", 8, "Ascend950DT"),
}


@dataclass(frozen=True)
class Hardware:
    """What the user says about the nodes; None is derived."""

    product: Product | None = None
    nodes: int | None = None

    @classmethod
    def of(cls, product: str | None, nodes: int | None) -> Self:
        """From the command line's words."""
        if product is None:
            return cls(None, nodes)
        try:
            return cls(Product(product.upper()), nodes)
        except ValueError as error:
            known = ", ".join(Product)
            raise CliError(ExitCode.USAGE, f"{product!r} is no product", where="--product", remedy=f"use one of {known}") from error


def show_plans(paths: list[str], hardware: Hardware, namespace: str, form: output.Format) -> None:
    """Plan every service of the files and print the plans; a service that can't work ends the command with STALLED after the output."""
    services, pools = documents.objects(paths)
    if not services:
        raise CliError(ExitCode.INPUT, f"no {names.SERVICE_KIND} in {', '.join(paths)}")
    plans = [(service, plan_one(service, pools, hardware, namespace)) for service in services]
    _WRITERS[form](plans)
    for _, planned in plans:
        for warning in planned.warnings:
            output.note(f"warning: {warning.reason}: {warning.message}")
    stalled = [(service.metadata.name, planned.stalled) for service, planned in plans if planned.stalled is not None]
    if stalled:
        name, finding = stalled[0]
        raise CliError(ExitCode.STALLED, f"{finding.reason}: {finding.message}", where=f"{names.SERVICE_KIND} {name}")


def plan_one(service: GLM5Service, pools: list[NPUPool], hardware: Hardware, namespace: str) -> ServicePlan:
    """The plan of one service on the pool that it names, or on an assumed one."""
    if service.metadata.namespace is None:
        service = service.model_copy(update={"metadata": service.metadata.model_copy(update={"namespace": namespace})})
    pool = next((pool for pool in pools if pool.metadata.name == service.spec.pool), None)
    if pool is None and pools:
        raise CliError(
            ExitCode.INPUT,
            f"spec.pool is {service.spec.pool!r}, and the files have {', '.join(pool.metadata.name for pool in pools)}",
            where=f"{names.SERVICE_KIND} {service.metadata.name}",
            remedy="name one of them, or leave the pool file out and give --product",
        )
    pool = pool or _assumed_pool(service.spec.pool)
    return plan_service(service, ServiceFacts(pool=PoolFacts(pool, assumed_nodes(pool, hardware, service.spec.replicas))))


def assumed_nodes(pool: NPUPool, hardware: Hardware, replicas: int) -> tuple[NodeFacts, ...]:
    """Free nodes as the pool and the user describe them."""
    product = hardware.product or _stated_product(pool)
    if product is None:
        raise CliError(
            ExitCode.INPUT,
            "nothing says which Ascend product the nodes are",
            where=f"{names.POOL_KIND} {pool.metadata.name}",
            remedy="give --product A2, A3, 310P or 950, or set spec.product of the pool",
        )
    shape = _SHAPES[product]
    resource = pool.spec.resource_name or shape.resource
    labels = {**(pool.spec.node_selector or {}), CHIP_LABEL: shape.chip, names.POOL_LABEL: pool.metadata.name}
    count = hardware.nodes or len(pool.spec.node_names or ()) or max(1, replicas)
    return tuple(NodeFacts(f"node-{number}", labels, product, {resource: shape.cards}) for number in range(1, count + 1))


def _stated_product(pool: NPUPool) -> Product | None:
    if pool.spec.product is not None:
        return Product(pool.spec.product)
    return product_of(pool.spec.node_selector or {}, [pool.spec.resource_name] if pool.spec.resource_name else [])


def _assumed_pool(name: str) -> NPUPool:
    return NPUPool.parse({"metadata": {"name": name}, "spec": {"role": "Inference", "nodeSelector": {names.POOL_LABEL: name}}})


Plans = list[tuple["GLM5Service", "ServicePlan"]]


def _write_yaml(plans: Plans) -> None:
    output.write_yaml([manifest for _, planned in plans for manifest in planned.objects])


def _write_json(plans: Plans) -> None:
    output.write_json([_as_data(service, planned) for service, planned in plans])


def _as_data(service: GLM5Service, planned: ServicePlan) -> dict[str, Any]:
    finding = planned.stalled
    return {
        "service": service.metadata.name,
        "stalled": None if finding is None else {"reason": finding.reason, "message": finding.message},
        "resolved": None if planned.resolved is None else planned.resolved.model_dump(mode="json", by_alias=True, exclude_none=True),
        "warnings": [{"reason": warning.reason, "message": warning.message} for warning in planned.warnings],
        "revision": planned.revision,
        "endpoint": planned.endpoint,
        "objects": list(planned.objects),
    }


def _write_tables(plans: Plans) -> None:
    for service, planned in plans:
        if planned.resolved is not None:
            sizing = planned.resolved.model_dump(mode="json", by_alias=True, exclude_none=True)
            output.write_table(("per replica", "value"), sizing.items(), title=f"{service.metadata.name}: {service.spec.model.name}")
        if planned.objects:
            rows = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in planned.objects]
            output.write_table(("object", "name"), rows)


_WRITERS: Final = {output.Format.TABLE: _write_tables, output.Format.JSON: _write_json, output.Format.YAML: _write_yaml}
