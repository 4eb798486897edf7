"""`glm5 plan`: what services and fine-tuning jobs become, computed here from files and assumed hardware; no cluster is asked.

Called by `app`. Decides nothing: facts go to the planner that the operator uses too, and its answer is printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from glm5_operator.api import names
from glm5_operator.api.pool import NPUPool
from glm5_operator.cli import documents, output
from glm5_operator.cli.errors import CliError, ExitCode
from glm5_operator.plan.attempt import plan_attempt, rendezvous_service
from glm5_operator.plan.check import check_objects
from glm5_operator.plan.facts import FinetuneFacts, NodeFacts, PoolFacts, Product, ServiceFacts
from glm5_operator.plan.finetune_findings import advice
from glm5_operator.plan.product import CHIP_LABEL, product_of
from glm5_operator.plan.service import plan_service

if TYPE_CHECKING:
    from glm5_operator.api.finetune import GLM5FinetuneJob
    from glm5_operator.api.finetune_status import FinetuneResolved
    from glm5_operator.api.service import GLM5Service
    from glm5_operator.plan.facts import Finding, Manifest
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
    """Plan every service and job of the files and print the plans; one that can't work ends the command with STALLED after the output."""
    services, jobs, pools = documents.objects(paths)
    if not services and not jobs:
        raise CliError(ExitCode.INPUT, f"no {names.SERVICE_KIND} and no {names.FINETUNE_KIND} in {', '.join(paths)}")
    plans: Plans = [(service, plan_one(service, pools, hardware, namespace)) for service in services]
    plans += [(job, plan_run(job, pools, hardware, namespace)) for job in jobs]
    _WRITERS[form](plans)
    for _, planned in plans:
        for warning in planned.warnings:
            output.note(f"warning: {warning.reason}: {warning.message}")
    stalled = [(planned_for, planned.stalled) for planned_for, planned in plans if planned.stalled is not None]
    if stalled:
        owner, finding = stalled[0]
        raise CliError(ExitCode.STALLED, f"{finding.reason}: {finding.message}", where=f"{owner.kind} {owner.metadata.name}")


@dataclass(frozen=True)
class RunPlan:
    """What a fine-tuning job becomes: its check, and its first attempt on free nodes."""

    objects: tuple[Manifest, ...]
    resolved: FinetuneResolved | None
    stalled: Finding | None
    warnings: tuple[Finding, ...]


def plan_run(job: GLM5FinetuneJob, pools: list[NPUPool], hardware: Hardware, namespace: str) -> RunPlan:
    """The plan of one job. Its uid, which is in the name of its checkpoints' folder, is the API server's to give: `UID` stands for it."""
    metadata = job.metadata.model_copy(update={"namespace": job.metadata.namespace or namespace, "uid": "UID"})
    job = job.model_copy(update={"metadata": metadata})
    pool = _pool_of(job, pools, "Training")
    planned = plan_attempt(job, FinetuneFacts(PoolFacts(pool, assumed_nodes(pool, hardware, job.spec.nodes))), 1)
    objects: tuple[Manifest, ...] = ()
    if planned.template is not None:
        objects = (*check_objects(job, planned.template), rendezvous_service(job), *planned.objects)
    return RunPlan(objects, planned.resolved, planned.stalled or planned.waits, advice(job.spec))


def _pool_of(owner: GLM5Service | GLM5FinetuneJob, pools: list[NPUPool], role: str) -> NPUPool:
    """The pool that an object names, or an assumed one."""
    pool = next((pool for pool in pools if pool.metadata.name == owner.spec.pool), None)
    if pool is None and pools:
        raise CliError(
            ExitCode.INPUT,
            f"spec.pool is {owner.spec.pool!r}, and the files have {', '.join(pool.metadata.name for pool in pools)}",
            where=f"{owner.kind} {owner.metadata.name}",
            remedy="name one of them, or leave the pool file out and give --product",
        )
    return pool or _assumed_pool(owner.spec.pool, role)


def plan_one(service: GLM5Service, pools: list[NPUPool], hardware: Hardware, namespace: str) -> ServicePlan:
    """The plan of one service on the pool that it names, or on an assumed one."""
    if service.metadata.namespace is None:
        service = service.model_copy(update={"metadata": service.metadata.model_copy(update={"namespace": namespace})})
    pool = _pool_of(service, pools, "Inference")
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


def _assumed_pool(name: str, role: str) -> NPUPool:
    return NPUPool.parse({"metadata": {"name": name}, "spec": {"role": role, "nodeSelector": {names.POOL_LABEL: name}}})


Plans = list[tuple["GLM5Service | GLM5FinetuneJob", "ServicePlan | RunPlan"]]


def _write_yaml(plans: Plans) -> None:
    output.write_yaml([manifest for _, planned in plans for manifest in planned.objects])


def _write_json(plans: Plans) -> None:
    output.write_json([_as_data(service, planned) for service, planned in plans])


def _as_data(owner: GLM5Service | GLM5FinetuneJob, planned: ServicePlan | RunPlan) -> dict[str, Any]:
    finding = planned.stalled
    is_run = isinstance(planned, RunPlan)
    return {
        "job" if is_run else "service": owner.metadata.name,
        "stalled": None if finding is None else {"reason": finding.reason, "message": finding.message},
        "resolved": None if planned.resolved is None else planned.resolved.model_dump(mode="json", by_alias=True, exclude_none=True),
        "warnings": [{"reason": warning.reason, "message": warning.message} for warning in planned.warnings],
        **({} if isinstance(planned, RunPlan) else {"revision": planned.revision, "endpoint": planned.endpoint}),
        "objects": list(planned.objects),
    }


def _write_tables(plans: Plans) -> None:
    for service, planned in plans:
        if planned.resolved is not None:
            sizing = planned.resolved.model_dump(mode="json", by_alias=True, exclude_none=True)
            unit = "of an attempt" if isinstance(planned, RunPlan) else "per replica"
            output.write_table((unit, "value"), sizing.items(), title=f"{service.metadata.name}: {service.spec.model.name}")
        if planned.objects:
            rows = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in planned.objects]
            output.write_table(("object", "name"), rows)


_WRITERS: Final = {output.Format.TABLE: _write_tables, output.Format.JSON: _write_json, output.Format.YAML: _write_yaml}
