"""The command line and the operator together: from a cluster file to an endpoint. KWOK plays kubelet, everything else is real."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.api.conftest import Operated
from tests.support.documents import RACK, Json
from tests.unit.cli.support import glm5

if TYPE_CHECKING:
    from click.testing import Result

pytestmark = pytest.mark.api

TINY: Json = {"weights": "bf16", "source": "hostpath:///models/tiny", "memory": "1Gi", "spec": {"parallelism": {"tensor": 1}}}


def deploy(operated: Operated, folder: Path, namespace: str, *, pool: Json, model: Json, name: str = "tiny") -> Result:
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump({"namespace": namespace, "pool": pool, "models": {name: model}}))
    words = ("--cluster-config", str(path), "--model", name, "--timeout", "60", "--kubeconfig", str(operated.cluster.kubeconfig))
    return glm5("deploy", *words)


def test_a_model_serves_after_one_command_and_status_says_so(operated: Operated, home: str, tmp_path: Path) -> None:
    run = deploy(operated, tmp_path, home, pool={"name": "inference"}, model=TINY)
    assert (run.exit_code, run.stdout) == (0, f"http://tiny-api.{home}.svc.cluster.local:8000/v1\n"), run.stderr

    status = glm5("status", "-n", home, "--kubeconfig", str(operated.cluster.kubeconfig))
    row = next(line.split() for line in status.stdout.splitlines() if home in line.split())
    assert row[:6] == [home, "tiny", "tiny", "bf16", "1/1", "True"]


def test_a_pool_of_the_same_file_gets_its_nodes_before_the_stall_counts(operated: Operated, home: str, tmp_path: Path) -> None:
    operated.cluster.add_nodes(1, prefix=f"npu-{home}", labels={RACK: home})
    pool = {"name": home, "spec": {"role": "Inference", "nodeSelector": {RACK: home}}}
    try:
        run = deploy(operated, tmp_path, home, pool=pool, model=TINY)
        assert run.exit_code == 0, run.stderr
    finally:
        operated.kube.delete("NPUPool", "", home)
        operated.kube.delete("Node", "", f"npu-{home}-0")


def test_weights_that_cannot_fit_end_the_wait_with_what_to_change(
    operated: Operated, home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glm5_operator.cli.deploy.STALL_GRACE", 2.0)
    model = {"weights": "w8a8", "source": "pvc://weights/GLM-5.1-w8a8"}
    run = deploy(operated, tmp_path, home, pool={"name": "inference"}, model=model, name="GLM-5.1")
    assert run.exit_code == 4
    last = run.stderr.splitlines()[-1]
    assert last.startswith(f"error: GLM5Service {home}/glm-5-1: WeightsDoNotFit: ")
    assert "change spec.model.weights or spec.pool" in last
