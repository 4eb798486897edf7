"""Which adapters a service's engine is to have: its list, its jobs' deployments and where all lie become one file in a ConfigMap.

Called by `plan_service` and pod planning. Must not decide how far a deployment is: that is `status.deployment`, which this only reads.
Pods mount the ConfigMap, so a change of it replaces none; the engine follows the file (`glm5-runtime serve --adapters-file`).
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.api.deploy import DEFAULT_ADAPTERS, DEFAULT_RANK
from glm5_operator.plan.facts import Finding
from glm5_operator.plan.source import MODEL_VOLUME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from glm5_operator.api.service import GLM5Service, GLM5ServiceSpec
    from glm5_operator.plan.facts import AdapterFacts, JobFacts, Manifest

IN_FILE: Final = frozenset({"Loading", "Evaluating", "Canary", "Deployed"})
"""Phases of a deployment whose adapter the engine has."""

_PVC: Final = "pvc://"
_JOB: Final = "job://"
_FLAGS: Final = re.compile(
    r"--?(no[-_])?(enable[-_]lora|lora[-_]dir|lora[-_]modules|max[-_]loras|max[-_]lora[-_]rank|adapters[-_]file)(=|$)"
)
_HASH_LENGTH: Final = 16


@dataclass(frozen=True, slots=True)
class PlannedAdapter:
    """One adapter of a service.

    Attributes:
        name: what clients send.
        source: as in spec.adapters, or job://NAME of the job that deploys it.
        path: pvc://CLAIM/FOLDER; empty while nothing says where it is.
        sha256: of its weights; empty when nothing says so.
        share: part of the requests for the model's own name.
        left_out: why the engine isn't asked to load it; empty when it is.
    """

    name: str
    source: str
    path: str = ""
    sha256: str = ""
    share: float = 0.0
    left_out: str = ""


@dataclass(frozen=True, slots=True)
class AdaptersPlan:
    """The adapters of a service, and the file for its engine."""

    adapters: tuple[PlannedAdapter, ...]
    text: str

    @property
    def digest(self) -> str:
        """Short hash of the file, as pods carry it in an annotation."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:_HASH_LENGTH]


def plan_adapters(service: GLM5Service, facts: AdapterFacts) -> AdaptersPlan | None:
    """The adapters of a service; None for one without adapterStorage."""
    storage = service.spec.adapter_storage
    if storage is None:
        return None
    jobs = {job.name: job for job in facts.jobs}
    listed = [_listed(one.name, one.source, service, facts, jobs) for one in service.spec.adapters or ()]
    taken = {adapter.name for adapter in listed}
    for job in deploying(service.metadata.name, facts.jobs):
        if job.phase in IN_FILE and job.adapter not in taken and within(job.path, storage):
            taken.add(job.adapter)
            listed.append(PlannedAdapter(job.adapter, f"{_JOB}{job.name}", job.path, job.sha256))
    adapters = _with_shares(listed, service.metadata.name, facts.jobs)
    return AdaptersPlan(adapters, _text(adapters, storage))


def full_share(service: GLM5Service, facts: AdapterFacts, job: str) -> float:
    """Part of the model's own traffic for a job's adapter that asks for all of it: what newer deployments leave."""
    jobs = tuple(replace(one, share=1.0) if one.name == job else one for one in facts.jobs)
    plan = plan_adapters(service, replace(facts, jobs=jobs))
    name = next((one.adapter for one in jobs if one.name == job), "")
    return next((one.share for one in plan.adapters if one.name == name), 1.0) if plan else 1.0


def deploying(service: str, jobs: Sequence[JobFacts]) -> list[JobFacts]:
    """The jobs that deploy to a service, in the order in which they began to."""
    return sorted((job for job in jobs if job.service == service and job.adapter), key=lambda job: (job.began, job.name))


def within(path: str, storage: str) -> bool:
    """A folder of the storage."""
    return path.startswith(f"{storage}/")


def limits_of(spec: GLM5ServiceSpec) -> tuple[int, int]:
    """Adapters at the same time, and the largest rank."""
    stated = spec.adapter_limits
    return (stated.count if stated else None) or DEFAULT_ADAPTERS, (stated.rank if stated else None) or DEFAULT_RANK


def adapter_args(spec: GLM5ServiceSpec) -> list[str]:
    """The engine's flags."""
    if spec.adapter_storage is None:
        return []
    count, rank = limits_of(spec)
    return [
        "--enable-lora",
        f"--lora-dir={names.ADAPTERS_DIR}",
        f"--max-loras={count}",
        f"--max-lora-rank={rank}",
        f"--adapters-file={names.ADAPTERS_FILE_DIR}/{names.ADAPTERS_FILE}",
    ]


def adapter_mounts(service: GLM5Service) -> tuple[list[Manifest], list[Manifest]]:
    """Volumes and mounts of storage and file. A claim that the model lies in too is one volume: kubelet waits for ever on a second."""
    storage = service.spec.adapter_storage
    if storage is None:
        return [], []
    claim, _, inside = storage.removeprefix(_PVC).partition("/")
    shared = service.spec.model.source.removeprefix(_PVC).partition("/")[0] == claim and service.spec.model.source.startswith(_PVC)
    volume = MODEL_VOLUME if shared else "adapters"
    mount: Manifest = {"name": volume, "mountPath": names.ADAPTERS_DIR, "readOnly": True}
    if inside:
        mount["subPath"] = inside
    file = {"name": "adapters-file", "configMap": {"name": names.adapters_name(service.metadata.name), "optional": True}}
    own = [] if shared else [{"name": volume, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}]
    return [*own, file], [mount, {"name": "adapters-file", "mountPath": names.ADAPTERS_FILE_DIR, "readOnly": True}]


def adapters_file(service: GLM5Service, plan: AdaptersPlan) -> Manifest:
    """The ConfigMap."""
    name = service.metadata.name
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.adapters_name(name),
            "namespace": service.metadata.namespace or "default",
            "labels": names.child_labels(name),
        },
        "data": {names.ADAPTERS_FILE: plan.text},
    }


def refused(spec: GLM5ServiceSpec) -> Finding | None:
    """What admission refuses, or would if it could read so many arguments."""
    if spec.adapter_storage is None:
        return None
    if spec.engine_name != "native":
        return Finding("AdaptersNeedNative", "adapters are engine native's: remove spec.adapterStorage, or set spec.engine.name to native")
    for argument in (spec.engine.args if spec.engine else None) or ():
        if _FLAGS.match(argument):
            return Finding(
                "AdapterFlags",
                f"with spec.adapterStorage the operator sets the flags of adapters: remove {argument.partition('=')[0]} from "
                "spec.engine.args, and use spec.adapters and spec.adapterLimits",
            )
    return None


def _listed(name: str, source: str, service: GLM5Service, facts: AdapterFacts, jobs: Mapping[str, JobFacts]) -> PlannedAdapter:
    """An entry of spec.adapters. A job's adapter stays where it was found once: that somebody deletes the job must not unload it."""
    if not source.startswith(_JOB):
        same = next((job for job in deploying(service.metadata.name, facts.jobs) if (job.adapter, job.path) == (name, source)), None)
        return PlannedAdapter(name, source, source, same.sha256 if same and same.phase in IN_FILE else "")
    job = jobs.get(source.removeprefix(_JOB))
    before = next((one for one in facts.recorded if (one.name, one.source) == (name, source) and one.path), None)
    found = PlannedAdapter(name, source)
    if job is not None and job.path:
        if job.service == service.metadata.name and job.adapter == name and job.phase == "RolledBack":
            why = f"the deployment of GLM5FinetuneJob {job.name} was rolled back; list its folder by pvc:// to load it all the same"
            return replace(found, left_out=why)
        found = replace(found, path=job.path, sha256=job.sha256)
    elif before is not None:
        found = replace(found, path=before.path or "", sha256=before.sha256 or "")
    elif job is None:
        return replace(found, left_out=f"there is no GLM5FinetuneJob {source.removeprefix(_JOB)}")
    else:
        return replace(found, left_out=f"GLM5FinetuneJob {job.name} has {'published no adapter' if job.ended else 'not published it yet'}")
    if not within(found.path, service.spec.adapter_storage or ""):
        return replace(found, left_out=f"{found.path} isn't within adapterStorage {service.spec.adapter_storage}")
    return found


def _with_shares(adapters: list[PlannedAdapter], service: str, jobs: Sequence[JobFacts]) -> tuple[PlannedAdapter, ...]:
    """Of all traffic the newest deployment gets what it asks for, those before it of what is left: together never more than all."""
    shares: dict[str, float] = {}
    left = 1.0
    for job in reversed(deploying(service, jobs)):
        mine = next((one for one in adapters if one.name == job.adapter and one.path == job.path and not one.left_out), None)
        if mine is not None and job.phase in IN_FILE and job.adapter not in shares:
            shares[job.adapter] = round(min(left, max(0.0, job.share)), 6)
            left = max(0.0, left - shares[job.adapter])
    return tuple(replace(one, share=shares.get(one.name, 0.0)) for one in adapters)


def _text(adapters: Sequence[PlannedAdapter], storage: str) -> str:
    entries: list[dict[str, Any]] = [
        {
            "name": one.name,
            "path": f"{names.ADAPTERS_DIR}/{one.path.removeprefix(storage + '/')}",
            **({"sha256": one.sha256} if one.sha256 else {}),
            "share": one.share,
        }
        for one in adapters
        if not one.left_out
    ]
    return json.dumps({"adapters": entries}, indent=1)
