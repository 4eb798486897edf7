"""The Job that checks a run before its first attempt: like the attempt's pods, without cards, and pinned only where it must be."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from glm5_operator.plan.check import check_digest, check_objects
from tests.unit.plan.builders import RESOURCE, node, pool
from tests.unit.plan.test_attempt import A2, child, job, plan

Json = dict[str, Any]


def checked(spec: Json | None = None, of: Json | None = None) -> tuple[Json, Json, Json]:
    """Training file, Job and the one container; `of`: podTemplate of the pool."""
    wanted = job(spec)
    template = plan(wanted, of=pool({"podTemplate": of} if of else {}, name="training", role="Training")).template
    assert template is not None
    config, made = check_objects(wanted, template)
    return yaml.safe_load(config["data"]["train.yaml"]), made, made["spec"]["template"]["spec"]["containers"][0]


def test_it_reads_the_file_that_the_attempt_would() -> None:
    content, made, container = checked()

    assert content == yaml.safe_load(child(plan(job()), "ConfigMap")["data"]["train.yaml"])
    assert container["args"] == ["--config=/etc/glm5/train.yaml", "--result=/dev/termination-log", "--check"]
    assert {"name": "config", "configMap": {"name": "tune-check"}} in made["spec"]["template"]["spec"]["volumes"]


def test_it_has_no_cards_no_rendezvous_and_no_folder_to_write() -> None:
    _, made, container = checked()

    assert RESOURCE not in str(made)
    assert {item["name"] for item in container["env"]}.isdisjoint({"MASTER_ADDR", "NNODES", "NODE_RANK", "NPROC_PER_NODE", "GLM5_ATTEMPT"})
    assert {mount["mountPath"] for mount in container["volumeMounts"]}.isdisjoint({"/checkpoints", "/output", "/dev/shm"})
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in made["spec"]["template"]["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert claims == {"weights", "data"}


def test_it_meets_the_restricted_standard_like_the_trainer() -> None:
    _, made, container = checked()

    spec = made["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize(
    ("spec", "of"),
    [
        ({"data": {"source": "hostpath:///data/qa.jsonl"}}, None),
        ({"model": {"name": "tiny", "source": "hostpath:///models/tiny", "memory": "8Gi"}}, None),
        (
            {},
            {
                "spec": {
                    "volumes": [{"name": "packages", "hostPath": {"path": "/opt/packages"}}],
                    "containers": [
                        {"name": "trainer", "volumeMounts": [{"name": "packages", "mountPath": "/opt/packages", "readOnly": True}]}
                    ],
                }
            },
        ),
    ],
    ids=["data", "model", "packages of the site"],
)
def test_it_is_pinned_where_it_needs_folders_of_the_pools_nodes(spec: Json, of: Json | None) -> None:
    assert checked(spec, of)[1]["spec"]["template"]["spec"]["nodeSelector"] == {"glm5.dev/pool": "training"}


def test_else_it_may_run_anywhere() -> None:
    spec = checked()[1]["spec"]["template"]["spec"]

    assert "nodeSelector" not in spec
    assert "tolerations" not in spec


def test_its_own_controller_tries_again_what_failed_by_chance_and_nothing_else() -> None:
    spec = checked()[1]["spec"]

    assert spec["backoffLimit"] == 12
    exits, evicted = spec["podFailurePolicy"]["rules"]
    assert (exits["action"], exits["onExitCodes"]["values"]) == ("FailJob", [2, 3])
    assert (evicted["action"], evicted["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")


def test_it_takes_image_secrets_and_variables_of_the_site() -> None:
    trainer = {"name": "trainer", "image": "registry.example/glm5-runtime:9", "env": [{"name": "PYTHONPATH", "value": "/opt/packages"}]}
    _, made, container = checked({"podTemplate": {"spec": {"imagePullSecrets": [{"name": "registry"}], "containers": [trainer]}}})

    assert made["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert container["image"] == "registry.example/glm5-runtime:9"
    assert {"name": "PYTHONPATH", "value": "/opt/packages"} in container["env"]


def test_it_can_be_made_while_the_cards_are_taken() -> None:
    waits = plan(job(), node("n0", A2, held=8))

    assert waits.waits is not None
    assert waits.template is not None


def test_what_is_to_be_checked_is_told_apart_by_what_a_check_reads() -> None:
    digest = check_digest(job())

    assert digest == check_digest(job(policy={"maxAttempts": 9}, pool="other"))
    others: list[Json] = [
        {"data": {"source": "pvc://data/sets/other.jsonl"}},
        {"data": {"source": "pvc://other/sets/qa.jsonl"}},
        {"model": {"name": "tiny", "source": "pvc://weights/other", "memory": "8Gi"}},
        {"training": {"batchSize": 16}},
    ]
    assert len({digest, *(check_digest(job(spec)) for spec in others)}) == 5
