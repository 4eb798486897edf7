"""A cluster file becomes the objects that `glm5 deploy` applies; what is wrong with it is said with its path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from glm5_operator.api.pool import NPUPool
from glm5_operator.api.service import GLM5Service
from glm5_operator.cli.cluster_file import EXAMPLE, ClusterFile, ModelEntry, PoolEntry, default_service_name, read_order
from glm5_operator.cli.errors import CliError
from tests.api.crd.documents import Json, overlay
from tests.unit.cli.support import glm5

Write = Callable[..., str]
FILE: Json = {
    "namespace": "prod",
    "pool": {"name": "inference", "spec": {"role": "Inference", "nodeNames": ["n1"]}},
    "models": {"GLM-5.1": {"weights": "w8a8", "source": "pvc://weights/GLM-5.1-w8a8"}},
}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def writer(changes: Json | None = None) -> str:
        path = tmp_path / "cluster.yaml"
        path.write_text(yaml.safe_dump(overlay(FILE, changes or {})))
        return str(path)

    return writer


def test_the_example_is_a_good_file_for_each_of_its_models(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(glm5("deploy", "--example").stdout)
    assert path.read_text() == EXAMPLE
    for model in ("GLM-5.1", "GLM-5", "tiny-glm5"):
        order = read_order(str(path), model)
        GLM5Service.parse(order.service)
        assert order.pool is not None
        NPUPool.parse(order.pool)


def test_the_example_shows_every_field() -> None:
    for model in (ClusterFile, PoolEntry, ModelEntry):
        for name, field in model.model_fields.items():
            assert f"{field.alias}:" in EXAMPLE, name


def test_a_model_is_found_in_any_case_and_named_as_the_file_spells_it(write: Write) -> None:
    order = read_order(write(), "glm-5.1")
    assert order.service["spec"]["model"]["name"] == "GLM-5.1"
    assert (order.namespace, order.service_name) == ("prod", "glm-5-1")
    assert [manifest["kind"] for manifest in order.manifests] == ["NPUPool", "GLM5Service"]


def test_a_pool_without_a_spec_is_left_as_it_is(write: Write) -> None:
    path = write({"pool": {"spec": None}})
    assert [manifest["kind"] for manifest in read_order(path, "GLM-5.1").manifests] == ["GLM5Service"]


def test_everything_of_a_service_can_be_said_in_the_file(write: Write) -> None:
    entry = {"service": "chat", "memory": 1073741824, "servedName": "glm", "spec": {"replicas": 2, "context": {"maxTokens": 4096}}}
    order = read_order(write({"models": {"GLM-5.1": entry}}), "GLM-5.1")
    assert order.service["spec"] == {
        "model": {
            "name": "GLM-5.1",
            "weights": "w8a8",
            "source": "pvc://weights/GLM-5.1-w8a8",
            "servedName": "glm",
            "memory": "1073741824",
        },
        "pool": "inference",
        "replicas": 2,
        "context": {"maxTokens": 4096},
    }


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"modles": {}}, "modles: is not a field"),
        ({"pool": {"name": 3}}, "pool.name: should be a valid string"),
        ({"pool": {"spec": {"role": "Serving"}}}, "pool.spec.role: should be 'Inference' or 'Training'"),
        ({"models": {"GLM-5.1": {"weights": "fp8"}}}, "models.GLM-5.1.spec.model.weights: should be"),
        ({"models": {"GLM-5.1": {"spec": {"pool": "other"}}}}, "models.GLM-5.1.spec.pool: is set by the file itself; remove it"),
        ({"models": {"GLM-5.1": {"spec": {"replica": 2}}}}, "models.GLM-5.1.spec.replica: is not a field"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fault_is_reported_with_its_path_in_the_file(write: Write, changes: Json, says: str) -> None:
    path = write(changes)
    run = glm5("deploy", "--cluster-config", path, "--model", "GLM-5.1", "--dry-run")
    assert run.exit_code == 3
    assert f"error: {path}: {says}" in run.stderr
    assert run.stdout == ""


def test_all_faults_are_reported_together(write: Write) -> None:
    run = glm5("deploy", "--cluster-config", write({"a": 1, "b": 2, "namespace": ""}), "--model", "GLM-5.1", "--dry-run")
    assert len(run.stderr.splitlines()) == 3


def test_a_model_that_the_file_lacks_is_answered_with_those_it_has(write: Write) -> None:
    run = glm5("deploy", "--cluster-config", write(), "--model", "glm-6", "--dry-run")
    assert run.exit_code == 3
    assert "has no model 'glm-6'; add it, or name one of GLM-5.1" in run.stderr


def test_two_documents_are_no_cluster_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("namespace: a\n---\nnamespace: b\n")
    with pytest.raises(CliError, match="has 2 documents"):
        read_order(str(path), "x")


def test_deploy_writes_its_objects_for_git_and_changes_nothing_in_a_dry_run(write: Write, tmp_path: Path) -> None:
    run = glm5("deploy", "--cluster-config", write(), "--model", "glm-5.1", "--dry-run", "--write", str(tmp_path / "out"))
    assert run.exit_code == 0
    written = {path.name: yaml.safe_load(path.read_text()) for path in (tmp_path / "out").iterdir()}
    assert set(written) == {"npupool-inference.yaml", "glm5service-glm-5-1.yaml"}
    assert list(yaml.safe_load_all(run.stdout)) == [written["npupool-inference.yaml"], written["glm5service-glm-5-1.yaml"]]


def test_deploy_without_a_file_says_which_option_is_missing() -> None:
    run = glm5("deploy", "--model", "glm-5")
    assert run.exit_code == 2
    assert "missing --cluster-config" in run.stderr


@pytest.mark.parametrize(("model", "name"), [("GLM-5.1", "glm-5-1"), ("My_Model", "my-model"), ("x" * 96, None)])
def test_a_service_is_named_after_its_model(model: str, name: str | None) -> None:
    found = default_service_name(model)
    assert len(found) <= 63
    assert name is None or found == name
