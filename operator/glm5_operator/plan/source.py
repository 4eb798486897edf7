"""Where a checkpoint is: `spec.model.source` → the path that the engine reads, and the volume behind it.

Called by pod planning. Must not look whether anything is there; kubelet does, and status shows what it says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from glm5_operator.api.names import MODELS_DIR
from glm5_operator.plan import findings

if TYPE_CHECKING:
    from glm5_operator.plan.facts import Finding, Manifest

MODEL_VOLUME: Final = "model"
_SOURCE = re.compile(r"^(?P<scheme>pvc|hostpath|image)://(?P<claim>[^/]*)(?P<path>/.*)?$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What the engine reads: `path` inside the container; volume and mount are None for weights inside the image."""

    path: str
    volume: Manifest | None = None
    mount: Manifest | None = None


def model_files(source: str, model: str) -> ModelFiles | Finding:
    """Read a source that CEL has accepted; what it would have refused (an offline plan) is a Finding."""
    match = _SOURCE.match(source)
    path = (match["path"] or "") if match else ""
    if match is None or any(part in {".", ".."} for part in path.split("/")) or (match["scheme"] == "pvc") != bool(match["claim"]):
        return findings.source_not_supported(source)
    inside = path.strip("/")
    if match["scheme"] == "pvc":
        # Read-only at the source too: kubelet then leaves the ownership of the files alone instead of walking 700 GB.
        claim = {"claimName": match["claim"], "readOnly": True}
        return _mounted(model, {"persistentVolumeClaim": claim}, {"subPath": inside} if inside else {})
    if not inside:
        return findings.source_not_supported(source)
    if match["scheme"] == "hostpath":
        return _mounted(model, {"hostPath": {"path": f"/{inside}", "type": "Directory"}}, {})
    return ModelFiles(path=f"/{inside}")


def _mounted(model: str, volume: Manifest, mount: Manifest) -> ModelFiles:
    path = f"{MODELS_DIR}/{model}"
    return ModelFiles(
        path=path,
        volume={"name": MODEL_VOLUME, **volume},
        mount={"name": MODEL_VOLUME, "mountPath": path, **mount, "readOnly": True},
    )
