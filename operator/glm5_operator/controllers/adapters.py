"""What the service controller does about adapters: facts for the plan, news for kubelet, and what pods say of them.

Used by the controllers of services and deployments. Decides nothing: the file is `plan.adapters`, its meaning `status.adapters`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from glm5_operator.api import names
from glm5_operator.api.deploy import AdapterReport
from glm5_operator.plan.facts import AdapterFacts, JobFacts
from glm5_operator.status.adapters import PodAnswer, read_answer
from glm5_operator.status.pods import is_true

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from glm5_operator.kube import ApiFailure, Applier, Cache, Resource
    from glm5_operator.plan.adapters import AdaptersPlan
    from glm5_operator.pods import PodReader

PATH: Final = "/health/adapters"


@dataclass(frozen=True)
class Adapters:
    """Adapters of services, as the cluster has them."""

    cache: Cache
    applier: Applier
    pods: PodReader
    port: int = names.ENGINE_PORT

    def facts(self, service: Resource) -> AdapterFacts:
        """For the plan of a service; nothing is read for one that takes no adapters."""
        if not service["spec"].get("adapterStorage"):
            return AdapterFacts()
        return AdapterFacts(self.jobs(service["metadata"]["namespace"]), _recorded(service))

    def jobs(self, namespace: str) -> tuple[JobFacts, ...]:
        """The fine-tuning jobs of a namespace that aren't being deleted."""
        found = self.cache.list(names.FINETUNE_KIND, namespace)
        return tuple(job_facts(job) for job in found if not job["metadata"].get("deletionTimestamp"))

    async def announce(self, plan: AdaptersPlan, pods: Iterable[Resource]) -> list[ApiFailure]:
        """Have kubelet bring the file to each pod now: it looks at a pod's ConfigMaps when the pod changes, else about once a minute."""
        failures = []
        for pod in pods:
            if not pod["metadata"].get("deletionTimestamp") and (pod.get("spec") or {}).get("nodeName"):
                failures.append(await self.applier.annotate_pod(pod, names.ADAPTERS_ANNOTATION, plan.digest))
        return [failure for failure in failures if failure is not None]

    async def ask(self, pods: Iterable[Resource]) -> tuple[PodAnswer, ...]:
        """What the ready pods say of their adapters."""
        ready = [pod for pod in pods if is_true(pod, "Ready") and not pod["metadata"].get("deletionTimestamp")]
        hosts = {pod["metadata"]["uid"]: str((pod.get("status") or {}).get("podIP") or "") for pod in ready}
        answers = await self.pods.read((host for host in hosts.values() if host), self.port, PATH)
        return tuple(
            read_answer(pod["metadata"]["name"], pod["metadata"]["uid"], answers.get(hosts[pod["metadata"]["uid"]])) for pod in ready
        )


def job_facts(job: Resource) -> JobFacts:
    """What plans of services may know of a job."""
    spec, status = job["spec"], job.get("status") or {}
    deploy, deployment, adapter = spec.get("deploy") or {}, status.get("deployment") or {}, status.get("adapter") or {}
    published = status.get("outcome") == "Succeeded" and bool(adapter.get("sha256"))
    same = (deployment.get("service"), deployment.get("adapter")) == (deploy.get("service"), deploy.get("adapter"))
    return JobFacts(
        name=job["metadata"]["name"],
        began=str(deployment.get("began") or "") if same else "",
        ended=bool(status.get("outcome")),
        path=str(adapter.get("path") or "") if published else "",
        sha256=str(adapter.get("sha256") or "") if published else "",
        service=str(deploy.get("service") or ""),
        adapter=str(deploy.get("adapter") or ""),
        phase=str(deployment.get("phase") or "") if same else "",
        share=float(deployment.get("share") or 0) if same else 0.0,
    )


def _recorded(service: Resource) -> tuple[AdapterReport, ...]:
    found: Sequence[Any] = (service.get("status") or {}).get("adapters") or ()
    reports = []
    for item in found:
        try:
            reports.append(AdapterReport.model_validate(item))
        except ValidationError:  # of another version: read anew from the jobs
            continue
    return tuple(reports)
