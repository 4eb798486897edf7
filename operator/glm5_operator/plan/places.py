"""Where a run reads and writes: the paths inside its pods, and the volumes behind them.

Called by `trainer`. Each claim is one volume, however often it is named: kubelet waits for ever on a pod that names a claim twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from glm5_operator.api import names
from glm5_operator.plan.facts import Finding
from glm5_operator.plan.source import model_files

if TYPE_CHECKING:
    from glm5_operator.api.finetune import GLM5FinetuneJob
    from glm5_operator.plan.facts import Manifest

_PVC = "pvc://"
_HOST = "hostpath://"


@dataclass(frozen=True, slots=True)
class Places:
    """Paths inside the pod, with volumes and mounts."""

    model: str
    data: str
    checkpoints: str
    output: str
    volumes: list[Manifest]
    mounts: list[Manifest]


@dataclass
class _Volumes:
    """Volumes so far; one a claim, writable as soon as one mount is."""

    claims: dict[str, Manifest] = field(default_factory=dict)
    others: list[Manifest] = field(default_factory=list)
    mounts: list[Manifest] = field(default_factory=list)

    def mount(self, claim: str, path: str, inside: str, *, read_only: bool) -> None:
        """Mount a folder of a claim."""
        volume = self.claims.setdefault(claim, {"name": f"claim-{len(self.claims)}", "persistentVolumeClaim": {"claimName": claim}})
        source = volume["persistentVolumeClaim"]
        if not read_only:
            source["readOnly"] = False
        source.setdefault("readOnly", True)
        mount: Manifest = {"name": volume["name"], "mountPath": path}
        if inside:
            mount["subPath"] = inside
        if read_only:
            mount["readOnly"] = True
        self.mounts.append(mount)

    def listed(self) -> list[Manifest]:
        """All volumes; what the API server drops (readOnly: false) isn't there."""
        for volume in self.claims.values():
            if not volume["persistentVolumeClaim"]["readOnly"]:
                del volume["persistentVolumeClaim"]["readOnly"]
        return [*self.claims.values(), *self.others]


def places_of(job: GLM5FinetuneJob) -> Places | Finding:
    """The places of a run. Checkpoints lie in a folder of this very job: one of the same name that comes later mustn't go on from them."""
    spec, volumes = job.spec, _Volumes()
    model = _model(job, volumes)
    if isinstance(model, Finding):
        return model
    data = _data(spec.data.source, volumes)
    claim, path, inside = _split(spec.checkpoint.storage, names.CHECKPOINT_DIR)
    volumes.mount(claim, path, inside, read_only=False)
    claim, _, inside = _split(spec.output, "")
    folder, _, last = inside.rpartition("/")
    volumes.mount(claim, names.OUTPUT_DIR, folder, read_only=False)  # the folder above it: a result appears by a rename
    run = f"{names.fit(job.metadata.name, 50)}-{job.metadata.uid[:8]}"
    return Places(
        model=model,
        data=data,
        checkpoints=f"{names.CHECKPOINT_DIR}/{run}",
        output=f"{names.OUTPUT_DIR}/{last}",
        volumes=volumes.listed(),
        mounts=volumes.mounts,
    )


def places_of_evaluation(job: GLM5FinetuneJob, rows: str) -> Places | Finding:
    """The places of an evaluation of its result: model and held-out rows, both only read."""
    volumes = _Volumes()
    model = _model(job, volumes)
    if isinstance(model, Finding):
        return model
    data = _data(rows, volumes)
    return Places(model=model, data=data, checkpoints="", output="", volumes=volumes.listed(), mounts=volumes.mounts)


def _model(job: GLM5FinetuneJob, volumes: _Volumes) -> str | Finding:
    """Path of the model's folder, which is mounted."""
    source = job.spec.model.source
    model = model_files(source, job.spec.model.name)
    if isinstance(model, Finding):
        return model
    if source.startswith(_PVC):
        volumes.mount(*_split(source, model.path), read_only=True)
    elif model.volume and model.mount:
        volumes.others.append(model.volume)
        volumes.mounts.append(model.mount)
    return model.path


def _data(source: str, volumes: _Volumes) -> str:
    folder, _, file = source.rpartition("/")
    path = f"{names.DATA_DIR}/{file}"
    if source.startswith(_PVC):
        claim, _, inside = _split(folder, "")
        volumes.mount(claim, names.DATA_DIR, inside, read_only=True)
    else:
        # The file itself: the folder above it may be the node's root.
        volumes.others.append({"name": "data", "hostPath": {"path": source.removeprefix(_HOST), "type": "File"}})
        volumes.mounts.append({"name": "data", "mountPath": path, "readOnly": True})
    return path


def _split(source: str, path: str) -> tuple[str, str, str]:
    """Claim, path in the pod and folder inside the claim, of what CEL has accepted."""
    claim, _, inside = source.removeprefix(_PVC).partition("/")
    return claim, path, inside.strip("/")
