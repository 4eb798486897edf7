"""Model sources become volumes. Nothing is faked."""

from __future__ import annotations

import pytest

from glm5_operator.plan.facts import Finding
from glm5_operator.plan.source import model_files
from tests.unit.plan.builders import engine_of, plan, pod_of, tiny


def test_a_claim_is_mounted_read_only_at_its_path() -> None:
    planned = plan(tiny(source="pvc://weights/models/tiny"))

    assert pod_of(planned)["volumes"][0] == {"name": "model", "persistentVolumeClaim": {"claimName": "weights", "readOnly": True}}
    assert engine_of(planned)["volumeMounts"][0] == {
        "name": "model",
        "mountPath": "/models/tiny-glm5",
        "subPath": "models/tiny",
        "readOnly": True,
    }
    assert "--model=/models/tiny-glm5" in engine_of(planned)["args"]


@pytest.mark.parametrize("source", ["pvc://weights", "pvc://weights/"])
def test_a_claim_without_a_path_is_mounted_whole(source: str) -> None:
    assert "subPath" not in engine_of(plan(tiny(source=source)))["volumeMounts"][0]


def test_a_host_path_must_be_a_folder_that_exists() -> None:
    planned = plan(tiny(source="hostpath:///data/models/tiny/"))

    assert pod_of(planned)["volumes"][0] == {"name": "model", "hostPath": {"path": "/data/models/tiny", "type": "Directory"}}
    assert engine_of(planned)["volumeMounts"][0]["readOnly"] is True


def test_weights_inside_the_image_need_no_volume() -> None:
    planned = plan(tiny(source="image:///opt/tiny"))

    assert "model" not in [volume["name"] for volume in pod_of(planned)["volumes"]]
    assert "--model=/opt/tiny" in engine_of(planned)["args"]


@pytest.mark.parametrize(
    "source",
    [
        "https://example.org/model",
        "pvc:///models",
        "pvc://",
        "hostpath://data/models",
        "hostpath:///",
        "hostpath:///data/../etc",
        "image:///./x",
        "image://x/y",
        "pvc://claim/../..",
        "",
        "pvc:weights",
        "PVC://weights/x",
    ],
)
def test_a_source_that_admission_would_refuse_is_a_finding_offline(source: str) -> None:
    assert isinstance(model_files(source, "tiny"), Finding)
