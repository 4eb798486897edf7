"""Why a job's adapter can't go into its service now: what needs both objects, and so is no rule of admission.

Called by the deployments' controller. One question after the other, in the order in which a user would fix them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glm5_operator.api.deploy import DEFAULT_RANK
from glm5_operator.plan.adapters import IN_FILE, deploying, limits_of, plan_adapters, within
from glm5_operator.plan.facts import Finding

if TYPE_CHECKING:
    from glm5_operator.api.finetune import GLM5FinetuneJob
    from glm5_operator.api.service import GLM5Service
    from glm5_operator.plan.facts import AdapterFacts, JobFacts


def hindrance(job: GLM5FinetuneJob, service: GLM5Service | None, facts: AdapterFacts) -> Finding | None:
    """What keeps the adapter of `job` out of the service that it names; None when nothing does. `facts` are the service's."""
    deploy = job.spec.deploy
    assert deploy is not None, "asked only for jobs that deploy"
    if service is None:
        return Finding("ServiceNotFound", f"there is no GLM5Service {deploy.service} in the job's namespace: create it")
    name = service.metadata.name
    if service.spec.engine_name != "native":
        return Finding("AdaptersNeedNative", f"GLM5Service {name} has engine {service.spec.engine_name}, and adapters need engine native")
    storage = service.spec.adapter_storage
    if storage is None:
        return Finding(
            "NoAdapterStorage", f"GLM5Service {name} takes no adapters: set its spec.adapterStorage to the volume of {job.spec.output}"
        )
    if not within(job.spec.output, storage):
        return Finding(
            "StorageMismatch",
            f"{job.spec.output} isn't within adapterStorage {storage} of GLM5Service {name}: change that, or let a new job write there",
        )
    count, rank = limits_of(service.spec)
    wanted = (job.spec.lora.rank if job.spec.lora else None) or DEFAULT_RANK
    if wanted > rank:
        return Finding(
            "RankTooLarge", f"the adapter has rank {wanted}, and GLM5Service {name} takes {rank} at most: raise its spec.adapterLimits.rank"
        )
    return _taken(job, service, facts) or _no_room(job, service, facts, count)


def _taken(job: GLM5FinetuneJob, service: GLM5Service, facts: AdapterFacts) -> Finding | None:
    """Somebody else has the name. Of two jobs the one that began first keeps it."""
    assert job.spec.deploy is not None
    name, mine = job.spec.deploy.adapter, job.metadata.name
    if name == service.spec.served_name:
        return Finding("NameTaken", f"{name} is the name of the model itself: choose another spec.deploy.adapter")
    listed = next((one for one in service.spec.adapters or () if one.name == name), None)
    if listed is not None and listed.source not in {f"job://{mine}", job.spec.output}:
        return Finding(
            "NameTaken",
            f"GLM5Service {service.metadata.name} lists another adapter {name}, from {listed.source}: remove it there, or choose another "
            "spec.deploy.adapter",
        )
    order = [
        one for one in deploying(service.metadata.name, facts.jobs) if one.adapter == name and (one.phase in IN_FILE or one.name == mine)
    ]
    holder = _holder(order, mine)
    if holder is None:
        return None
    return Finding(
        "NameTaken",
        f"GLM5FinetuneJob {holder} deploys an adapter {name} to GLM5Service {service.metadata.name} already: delete that job, or choose "
        "another spec.deploy.adapter",
    )


def _holder(order: list[JobFacts], mine: str) -> str | None:
    """Who else has the name: while I wait anybody, once I have begun those who began before me."""
    me = next((place for place, one in enumerate(order) if one.name == mine), len(order))
    begun = me < len(order) and order[me].phase in IN_FILE
    others = order[:me] if begun else [one for one in order if one.name != mine]
    return others[0].name if others else None


def _no_room(job: GLM5FinetuneJob, service: GLM5Service, facts: AdapterFacts, count: int) -> Finding | None:
    assert job.spec.deploy is not None
    plan = plan_adapters(service, facts)
    loaded = [one for one in plan.adapters if not one.left_out] if plan else []
    if any(one.name == job.spec.deploy.adapter for one in loaded) or len(loaded) < count:
        return None
    return Finding(
        "TooManyAdapters",
        f"GLM5Service {service.metadata.name} has {len(loaded)} adapters and takes {count}: remove one, or raise its "
        "spec.adapterLimits.count",
    )
