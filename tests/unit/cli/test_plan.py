"""`glm5 plan` turns files into plans without a cluster: sizing and objects, or the reason why it can't work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.crd.documents import REMOVED, TINY, Json, pool, service
from tests.support.trainers import finetune
from tests.unit.cli.support import glm5

SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"


def write(folder: Path, *documents: Json) -> str:
    path = folder / "cr.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


def planned(*words: str) -> dict[str, Any]:
    run = glm5("plan", *words, "-o", "json")
    assert run.exit_code == 0, run.stderr
    plans: list[dict[str, Any]] = json.loads(run.stdout)
    assert len(plans) == 1
    return plans[0]


def test_a_sample_on_its_pool_becomes_a_deployment_and_a_service_with_sixteen_dies() -> None:
    plan = planned("-f", str(SAMPLES / "glm-5.1-w8a8-a3.yaml"), "--pool-file", str(SAMPLES / "pool-a3.yaml"))
    assert [manifest["kind"] for manifest in plan["objects"]] == ["Deployment", "Service"]
    assert (plan["resolved"]["product"], plan["resolved"]["cards"], plan["resolved"]["maxTokens"]) == ("A3", 16, 40960)
    assert plan["stalled"] is None
    assert plan["endpoint"] == "http://glm51-api.default.svc.cluster.local:8000/v1"


def test_the_table_shows_sizing_and_objects() -> None:
    run = glm5("plan", "-f", str(SAMPLES / "glm-5-w4a8-a2.yaml"), "--product", "a2")
    assert run.exit_code == 0
    rows = [line.split() for line in run.stdout.splitlines()]
    assert ["cards", "8"] in rows
    assert ["Deployment", "glm5-engine"] in rows
    assert ["Service", "glm5-api"] in rows


def test_the_yaml_is_what_kubectl_would_apply() -> None:
    run = glm5("plan", "-f", str(SAMPLES / "tiny.yaml"), "--product", "A2", "-o", "yaml", "-n", "demo")
    deployment, client = yaml.safe_load_all(run.stdout)
    assert (deployment["kind"], deployment["metadata"]["namespace"]) == ("Deployment", "demo")
    assert client["kind"] == "Service"
    engine = deployment["spec"]["template"]["spec"]["containers"][0]
    assert engine["resources"]["limits"]["huawei.com/Ascend910"] == "1"


def test_adapters_are_a_config_map() -> None:
    plan = planned("-f", str(SAMPLES / "tiny-adapters.yaml"), "--product", "A2")
    (file,) = [manifest for manifest in plan["objects"] if manifest["kind"] == "ConfigMap"]
    assert file["metadata"]["name"] == "tiny-adapters"
    assert json.loads(file["data"]["adapters.json"]) == {"adapters": [{"name": "sales", "path": "/adapters/sales", "share": 0.0}]}


def test_an_adapter_of_a_job_waits_for_it_in_the_plan(tmp_path: Path) -> None:
    path = write(tmp_path, service(TINY, {"adapterStorage": "pvc://adapters", "adapters": [{"name": "a", "source": "job://tune"}]}))
    plan = planned("-f", path, "--product", "A2")
    assert plan["warnings"] == [{"reason": "AdapterWaits", "message": "adapter a: there is no GLM5FinetuneJob tune"}]


def test_a_service_that_cannot_work_ends_with_what_to_change() -> None:
    run = glm5("plan", "-f", str(SAMPLES / "glm-5.1-w8a8-a3.yaml"), "--product", "A2")
    assert run.exit_code == 4
    assert run.stderr.startswith("error: GLM5Service glm51: WeightsDoNotFit: ")
    assert run.stderr.count("\n") == 1


def test_a_stalled_plan_is_data_too() -> None:
    run = glm5("plan", "-f", str(SAMPLES / "glm-5.1-w8a8-a3.yaml"), "--product", "A2", "-o", "json")
    assert run.exit_code == 4
    plan = json.loads(run.stdout)[0]
    assert plan["stalled"]["reason"] == "WeightsDoNotFit"
    assert plan["objects"] == []


def test_the_pool_may_stand_in_the_same_file(tmp_path: Path) -> None:
    path = write(tmp_path, pool({"product": "A3", "resourceName": "huawei.com/Ascend910C"}), service())
    assert planned("-f", path)["resolved"]["resourceName"] == "huawei.com/Ascend910C"


def test_the_pools_own_podtemplate_and_namespaces_count(tmp_path: Path) -> None:
    closed = pool({"product": "A3", "namespaces": ["prod"], "podTemplate": {"spec": {"runtimeClassName": "ascend"}}})
    path = write(tmp_path, closed, service())
    assert glm5("plan", "-f", path, "-n", "test").exit_code == 4
    deployment = planned("-f", path, "-n", "prod")["objects"][0]
    assert deployment["spec"]["template"]["spec"]["runtimeClassName"] == "ascend"


def test_a_namespace_in_the_document_counts_more_than_the_option(tmp_path: Path) -> None:
    document = service()
    document["metadata"]["namespace"] = "own"
    plan = planned("-f", write(tmp_path, pool({"product": "A3"}), document), "-n", "other")
    assert {manifest["metadata"]["namespace"] for manifest in plan["objects"]} == {"own"}


def test_several_services_are_planned_together_and_one_that_stalls_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, service(TINY, name="small"), service({"model": {"weights": "bf16"}}, name="large"))
    run = glm5("plan", "-f", path, "--product", "A3", "-o", "json")
    assert [plan["service"] for plan in json.loads(run.stdout)] == ["small", "large"]
    assert run.exit_code == 4
    assert "GLM5Service large: NeedsSeveralNodes" in run.stderr


def test_more_replicas_than_nodes_is_a_warning_beside_the_plan(tmp_path: Path) -> None:
    run = glm5("plan", "-f", write(tmp_path, service({"replicas": 3})), "--product", "A3", "--nodes", "2")
    assert run.exit_code == 0
    assert "warning: ReplicasExceedPool" in run.stderr
    assert "warning" not in glm5("plan", "-f", write(tmp_path, service({"replicas": 3})), "--product", "A3").stderr


@pytest.mark.parametrize(
    ("documents", "words", "code", "says"),
    [
        ([service()], (), 3, "nothing says which Ascend product the nodes are; give --product"),
        ([service()], ("--product", "910B"), 2, "--product: '910B' is no product; use one of A2, A3, 310P, 950"),
        ([service({"pool": "other"}), pool({"product": "A3"})], (), 3, "spec.pool is 'other', and the files have inference"),
        ([pool()], (), 3, "no GLM5Service and no GLM5FinetuneJob in"),
        ([service({"pool": REMOVED})], ("--product", "A3"), 3, "spec.pool: field required"),
    ],
    ids=["no product", "unknown product", "another pool", "no service", "no pool"],
)
def test_a_wrong_input_is_one_line(tmp_path: Path, documents: list[Json], words: tuple[str, ...], code: int, says: str) -> None:
    run = glm5("plan", "-f", write(tmp_path, *documents), *words)
    assert run.exit_code == code
    assert says in run.stderr
    assert run.stderr.count("\n") == 1
    assert run.stdout == ""


def test_the_service_may_come_from_standard_input() -> None:
    run = glm5("plan", "-f", "-", "--product", "A3", stdin=yaml.safe_dump(service()))
    assert run.exit_code == 0
    assert "chat-engine" in run.stdout


@pytest.mark.parametrize("product", ["A2", "A3", "310P", "950"])
def test_a_small_model_is_planned_on_every_product(product: str) -> None:
    plan = planned("-f", str(SAMPLES / "tiny.yaml"), "--product", product)
    assert (plan["resolved"]["product"], plan["resolved"]["cards"]) == (product, 1)


def a_run(folder: Path, *others: Json, **spec: object) -> str:
    document: Json = finetune("lab", pool="training", **spec)  # type: ignore[arg-type]
    return write(folder, document | {"apiVersion": "glm5.dev/v1alpha1"}, *others)


def test_a_fine_tuning_job_becomes_its_check_and_its_first_attempt(tmp_path: Path) -> None:
    plan = planned("-f", a_run(tmp_path, nodes=2, cards=8, training={"batchSize": 16}), "--product", "A2")

    names = [f"{manifest['kind']}/{manifest['metadata']['name']}" for manifest in plan["objects"]]
    assert names == ["ConfigMap/tune-check", "Job/tune-check", "Service/tune-ranks", "ConfigMap/tune-config-1", "Job/tune-attempt-1"]
    attempt = plan["objects"][-1]["spec"]
    assert (attempt["completions"], plan["resolved"]["cards"], plan["job"]) == (2, 16, "tune")
    assert attempt["template"]["spec"]["containers"][0]["resources"]["limits"]["huawei.com/Ascend910"] == "8"


def test_what_is_unwise_about_a_job_is_a_warning_and_what_can_not_be_planned_the_end(tmp_path: Path) -> None:
    run = glm5("plan", "-f", a_run(tmp_path, training={"batchSize": 8, "learningRate": 0.1}), "--product", "A2", "-o", "yaml")
    assert run.exit_code == 0
    assert "warning: Unwise: training.learningRate 0.1" in run.stderr
    assert [document["kind"] for document in yaml.safe_load_all(run.stdout)][-1] == "Job"

    run = glm5("plan", "-f", a_run(tmp_path, cards=9), "--product", "A2")
    assert run.exit_code == 4
    assert "GLM5FinetuneJob tune: NotEnoughCards" in run.stderr


def test_a_job_on_an_inference_pool_of_the_file_can_not_be_planned(tmp_path: Path) -> None:
    run = glm5("plan", "-f", a_run(tmp_path, pool(name="training")), "--product", "A2")

    assert "WrongPoolRole" in run.stderr
