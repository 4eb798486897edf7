"""An attempt of a fine-tuning job: all its cards or none, one pod a node, nothing that could be retried behind the operator's back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import yaml

from glm5_operator.api.finetune import GLM5FinetuneJob
from glm5_operator.plan.attempt import AttemptPlan, claim_of, plan_attempt
from glm5_operator.plan.facts import Claim, FinetuneFacts, NodeFacts, PoolFacts, Product, Site
from glm5_operator.plan.finetune_findings import advice
from glm5_operator.plan.trainer import time_to_save
from tests.unit.plan.builders import RESOURCE, node, pool

Json = dict[str, Any]
A2 = Product.A2
LARGE = {"name": "GLM-5.1", "source": "pvc://weights/x"}


def job(spec: Json | None = None, *, name: str = "tune", **changes: object) -> GLM5FinetuneJob:
    """LoRA of a small model on four cards of one node; `spec` replaces its fields."""
    stated: Json = {
        "model": {"name": "tiny", "source": "pvc://weights/tiny", "memory": "8Gi"},
        "method": "lora",
        "data": {"source": "pvc://data/sets/qa.jsonl"},
        "pool": "training",
        "parallelism": {"npusPerNode": 4},
        "checkpoint": {"storage": "pvc://ckpt/runs"},
        "output": "pvc://adapters/team/support",
        **(spec or {}),
        **changes,
    }
    metadata = {"name": name, "namespace": "prod", "uid": "0123456789-abc"}
    return GLM5FinetuneJob.parse({"apiVersion": "glm5.dev/v1alpha1", "kind": "GLM5FinetuneJob", "metadata": metadata, "spec": stated})


def plan(wanted: GLM5FinetuneJob, *nodes: NodeFacts, attempt: int = 1, of: Any = None, **facts: Any) -> AttemptPlan:  # noqa: ANN401 - facts
    training = of or pool(name="training", role="Training")
    return plan_attempt(wanted, FinetuneFacts(PoolFacts(training, nodes or (node("n0", A2), node("n1", A2))), **facts), attempt)


def child(planned: AttemptPlan, kind: str) -> Json:
    assert planned.stalled is None, planned.stalled
    assert planned.waits is None, planned.waits
    return next(entry for entry in planned.objects if entry["kind"] == kind)


def pod_of(planned: AttemptPlan) -> Json:
    spec: Json = child(planned, "Job")["spec"]["template"]["spec"]
    return spec


def trainer_of(planned: AttemptPlan) -> Json:
    container: Json = pod_of(planned)["containers"][0]
    return container


def file_of(planned: AttemptPlan) -> Json:
    content: Json = yaml.safe_load(child(planned, "ConfigMap")["data"]["train.yaml"])
    return content


def test_an_attempt_is_an_indexed_job_that_its_own_controller_never_retries() -> None:
    spec = child(plan(job(parallelism={"nodes": 2, "npusPerNode": 4}), attempt=3), "Job")["spec"]

    assert {name: spec[name] for name in ("completionMode", "completions", "parallelism", "backoffLimit", "podReplacementPolicy")} == {
        "completionMode": "Indexed",
        "completions": 2,
        "parallelism": 2,
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
    }
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize(
    ("drain", "seconds"),
    [({"minutes": 15}, 450), ({"minutes": 1}, 30), ({"hours": 12}, 1800), ({"seconds": 14}, None), ({"seconds": 0}, None)],
    ids=str,
)
def test_a_rank_that_is_sent_away_gets_half_of_the_drain_to_save(drain: dict[str, int], seconds: int | None) -> None:
    rank = child(plan(job()), "Job")["spec"]["template"]

    assert time_to_save(rank, timedelta(**drain)) == seconds


def test_a_pod_that_is_no_rank_is_sent_away_with_its_own_grace() -> None:
    for labels in (None, {"glm5.dev/service": "chat"}, {"glm5.dev/finetune": "tune"}, {"glm5.dev/attempt": "1"}):
        assert time_to_save({"metadata": {"labels": labels}}, timedelta(minutes=15)) is None


def test_a_pod_has_its_cards_is_pinned_to_its_pool_and_alone_on_its_node() -> None:
    planned = plan(job())
    spec, trainer = pod_of(planned), trainer_of(planned)

    assert spec["nodeSelector"] == {"glm5.dev/pool": "training"}
    assert spec["tolerations"][0]["value"] == "training"
    assert trainer["resources"]["limits"] == {"memory": "8Gi", RESOURCE: "4"}
    apart = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert apart["labelSelector"]["matchLabels"] == {"glm5.dev/finetune": "tune", "glm5.dev/attempt": "1"}


def test_a_pod_is_restricted_has_no_credentials_and_leaves_within_ten_seconds() -> None:
    planned = plan(job())
    spec, trainer = pod_of(planned), trainer_of(planned)

    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["terminationGracePeriodSeconds"] < 10
    assert trainer["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert trainer["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_the_ranks_meet_at_the_first_pod_of_this_attempt() -> None:
    planned = plan(job(parallelism={"nodes": 2, "npusPerNode": 4}), attempt=2)
    env = {entry["name"]: entry.get("value") or entry["valueFrom"] for entry in trainer_of(planned)["env"]}

    assert env["MASTER_ADDR"] == "tune-attempt-2-0.tune-ranks.prod.svc.cluster.local"
    assert pod_of(planned)["subdomain"] == "tune-ranks"
    assert (env["MASTER_PORT"], env["NNODES"], env["NPROC_PER_NODE"], env["GLM5_ATTEMPT"]) == ("29500", "2", "4", "2")
    assert env["NODE_RANK"] == {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}


def test_the_longest_name_leaves_room_for_the_hostnames_of_its_pods() -> None:
    name = child(plan(job(name="a" * 63), attempt=100), "Job")["metadata"]["name"]

    assert len(f"{name}-9999") <= 63
    assert name.endswith("-attempt-100")


# --- room -------------------------------------------------------------------------------------------------------------------


def test_nothing_is_created_while_a_single_pod_would_have_no_cards() -> None:
    planned = plan(job(parallelism={"nodes": 2, "npusPerNode": 4}), node("n0", A2), node("n1", A2, held=5))

    assert planned.objects == ()
    assert planned.stalled is None
    assert planned.waits is not None
    assert planned.waits.reason == "WaitingForCards"
    assert "1 of 2 nodes" in planned.waits.message
    assert planned.resolved is not None
    assert planned.resolved.cards == 8


@pytest.mark.parametrize("lacking", [{"ready": False}, {"schedulable": False}, {"held": 5}])
def test_a_node_that_takes_no_pod_is_no_room(lacking: Json) -> None:
    assert plan(job(), node("n0", A2, **lacking)).waits is not None
    assert plan(job(), node("n0", A2, **lacking), node("n1", A2)).waits is None


def test_cards_that_were_promised_to_others_are_no_room() -> None:
    assert plan(job(), node("n0", A2), claims=(Claim(1, 5),)).waits is not None
    assert plan(job(), node("n0", A2), claims=(Claim(1, 4),)).waits is None
    assert plan(job(), node("n0", A2), node("n1", A2), claims=(Claim(1, 8),)).waits is None
    assert plan(job(), node("n0", A2), node("n1", A2), claims=(Claim(2, 8),)).waits is not None


def test_a_run_that_no_empty_pool_could_hold_is_stalled() -> None:
    found = plan(job(parallelism={"nodes": 3, "npusPerNode": 2})).stalled

    assert found is not None
    assert found.reason == "NotEnoughCards"


def test_nodes_whose_cards_failed_are_left_out_while_others_suffice() -> None:
    moved = plan(job(), avoided=frozenset({"n0"}))
    terms = pod_of(moved)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n0"]}]}]

    stays = plan(job(), node("n0", A2), avoided=frozenset({"n0"}))
    assert "nodeAffinity" not in pod_of(stays)["affinity"]


def test_a_node_that_is_left_out_is_no_room() -> None:
    waits = plan(job(), node("n0", A2), node("n1", A2, held=8), avoided=frozenset({"n0"})).waits

    assert waits is not None
    assert "1 left out because their cards failed" in waits.message


def test_a_claim_is_what_pods_without_a_node_ask_for() -> None:
    made = child(plan(job(parallelism={"nodes": 2, "npusPerNode": 4})), "Job")

    assert claim_of(made, RESOURCE, bound=0) == ("training", 2, 4)
    assert claim_of(made, RESOURCE, bound=2) == ("training", 0, 4)
    assert claim_of({"spec": {}}, RESOURCE, bound=0) == ("", 0, 0)


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (pool(name="training"), "WrongPoolRole"),
        (pool({"namespaces": ["other"]}, name="training", role="Training"), "NamespaceNotAllowed"),
    ],
)
def test_a_pool_that_is_not_for_this_job_is_refused(of: Any, reason: str) -> None:  # noqa: ANN401 - a pool
    stalled = plan(job(), of=of).stalled
    assert stalled is not None
    assert stalled.reason == reason


def test_without_a_pool_or_an_image_or_with_half_a_card_nothing_is_planned() -> None:
    missing = plan_attempt(job(), FinetuneFacts(None), 1).stalled
    image = plan(job(), site=Site({})).stalled
    half = plan(job(parallelism={"npusPerNode": 3}), node("n0", Product.A3)).stalled

    assert [finding.reason for finding in (missing, image, half) if finding] == ["PoolNotFound", "ImageMissing", "OddDies"]


# --- places and file --------------------------------------------------------------------------------------------------------


def test_each_place_is_a_volume_and_only_results_can_be_written() -> None:
    planned = plan(job())
    claims = {volume["name"]: volume["persistentVolumeClaim"] for volume in pod_of(planned)["volumes"] if "persistentVolumeClaim" in volume}
    mounts = {mount["mountPath"]: mount for mount in trainer_of(planned)["volumeMounts"]}

    assert {claim["claimName"]: claim.get("readOnly", False) for claim in claims.values()} == {
        "weights": True,
        "data": True,
        "ckpt": False,
        "adapters": False,
    }
    assert {path: mount.get("subPath") for path, mount in mounts.items() if mount["name"] in claims} == {
        "/models/tiny": "tiny",
        "/data": "sets",
        "/checkpoints": "runs",
        "/output": "team",
    }
    file = file_of(planned)
    assert (file["model"], file["data"]["files"], file["output"]) == ("/models/tiny", ["/data/qa.jsonl"], "/output/support")
    assert file["checkpoint"]["directory"] == "/checkpoints/tune-01234567"


def test_a_claim_that_is_named_thrice_is_one_volume_that_can_be_written() -> None:
    one = {"data": {"source": "pvc://all/qa.jsonl"}, "checkpoint": {"storage": "pvc://all"}, "output": "pvc://all/out"}
    planned = plan(job(one, model={"name": "tiny", "source": "pvc://all/tiny", "memory": "8Gi"}))
    claims = [volume for volume in pod_of(planned)["volumes"] if "persistentVolumeClaim" in volume]

    assert [volume["persistentVolumeClaim"] for volume in claims] == [{"claimName": "all"}]
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in trainer_of(planned)["volumeMounts"]}
    assert (mounts["/models/tiny"], mounts["/data"], mounts["/checkpoints"], mounts["/output"]) == (True, True, False, False)


def test_a_file_of_the_host_is_mounted_alone() -> None:
    planned = plan(job(data={"source": "hostpath:///qa.jsonl"}))

    assert {"name": "data", "hostPath": {"path": "/qa.jsonl", "type": "File"}} in pod_of(planned)["volumes"]
    assert file_of(planned)["data"]["files"] == ["/data/qa.jsonl"]


def test_a_later_job_of_the_same_name_does_not_go_on_from_the_checkpoints_of_the_first() -> None:
    first = job()
    second = first.model_copy(update={"metadata": first.metadata.model_copy(update={"uid": "fedcba98-x"})})

    assert file_of(plan(first))["checkpoint"]["directory"] != file_of(plan(second))["checkpoint"]["directory"]


def test_a_known_model_has_its_memory_by_its_cards() -> None:
    nodes = [node(f"n{number}", A2, cards=8) for number in range(8)]
    small = plan(job(model=LARGE, parallelism={"nodes": 8, "npusPerNode": 4}), *nodes)
    large = plan(job(model=LARGE, parallelism={"nodes": 8, "npusPerNode": 8}), *nodes)

    assert int(trainer_of(small)["resources"]["limits"]["memory"][:-2]) < int(trainer_of(large)["resources"]["limits"]["memory"][:-2])


@pytest.mark.parametrize(("method", "nodes", "least"), [("lora", 2, 24), ("full", 8, 189)])
def test_a_model_that_is_larger_than_its_cards_is_not_begun(method: str, nodes: int, least: int) -> None:
    many = [node(f"n{number}", A2, cards=8) for number in range(32)]
    stalled = plan(job(model=LARGE, method=method, parallelism={"nodes": nodes, "npusPerNode": 8}), *many).stalled

    assert stalled is not None
    assert stalled.reason == "ModelTooLarge"
    assert f"to {least} cards or more" in stalled.message
    enough = job(model=LARGE, method=method, parallelism={"nodes": -(-least // 8), "npusPerNode": 8})
    assert plan(enough, *many).stalled is None


# --- podTemplate ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ({"metadata": {"labels": {"glm5.dev/attempt": "9"}}}, "metadata.labels[glm5.dev/attempt]"),
        ({"spec": {"nodeName": "n0"}}, "spec.nodeName"),
        ({"spec": {"subdomain": "x"}}, "spec.subdomain"),
        ({"spec": {"hostname": "x"}}, "spec.hostname"),
        ({"spec": {"affinity": {"podAntiAffinity": None}}}, "spec.affinity"),
        ({"spec": {"terminationGracePeriodSeconds": 600}}, "spec.terminationGracePeriodSeconds"),
        ({"spec": {"automountServiceAccountToken": True}}, "spec.automountServiceAccountToken"),
        ({"spec": {"containers": [{"name": "trainer", "command": ["sh"]}]}}, "spec.containers[trainer].command"),
        ({"spec": {"containers": [{"name": "trainer", "env": [{"name": "MASTER_ADDR", "value": "x"}]}]}}, "env[MASTER_ADDR]"),
        ({"spec": {"containers": [{"name": "trainer", "resources": {"limits": {RESOURCE: "8"}}}]}}, f"limits[{RESOURCE}]"),
        ({"spec": {"containers": [{"name": "more", "resources": {"limits": {RESOURCE: "1"}}}]}}, f"limits[{RESOURCE}]"),
        ({"spec": {"containers": [{"name": "trainer", "env": [{"name": "ASCEND_VISIBLE_DEVICES", "value": "0"}]}]}}, "VISIBLE_DEVICES"),
        ({"spec": {"containers": None}}, "spec.containers[trainer]"),
    ],
)
def test_a_pod_template_can_not_undo_what_the_plan_guarantees(template: Json, path: str) -> None:
    stalled = plan(job(podTemplate=template)).stalled

    assert stalled is not None
    assert stalled.reason == "PodTemplateRefused"
    assert path in stalled.message


def test_a_pod_template_may_bring_what_the_site_needs() -> None:
    trainer = {"name": "trainer", "image": "registry.example/glm5-runtime:9", "env": [{"name": "GLM5_DEVICE", "value": "cpu"}]}
    planned = plan(job(podTemplate={"metadata": {"labels": {"team": "a"}}, "spec": {"hostNetwork": True, "containers": [trainer]}}))

    assert pod_of(planned)["hostNetwork"] is True
    assert {"name": "GLM5_DEVICE", "value": "cpu"} in trainer_of(planned)["env"]
    assert planned.resolved is not None
    assert planned.resolved.image == "registry.example/glm5-runtime:9"


# --- advice -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, ()),
        ({"training": {"dtype": "bf16", "batchSize": 7}}, ("dtype bf16",)),
        ({"data": {"source": "pvc://d/x", "maxLength": 2064}}, ("dtype bf16",)),
        ({"training": {"dtype": "fp16", "batchSize": 4}}, ()),
        ({"training": {"learningRate": 3e-4, "clip": 0.8}}, ()),
        ({"training": {"learningRate": 3.1e-4, "clip": 1.3}}, ("learningRate", "clip")),
        ({"lora": {"targets": ["o_proj", "up_proj"]}}, ("up_proj",)),
    ],
)
def test_what_is_unwise_is_told_and_not_refused(spec: Json, words: tuple[str, ...]) -> None:
    found = advice(job(spec, parallelism={"npusPerNode": 1}).spec)

    assert len(found) == len(words)
    assert all(word in finding.message for word, finding in zip(words, found, strict=True))


def test_other_jobs_with_the_same_output_are_named() -> None:
    spec = job({}, parallelism={"npusPerNode": 1}).spec

    (found,) = advice(spec, ["b", "a"])
    assert f"output {spec.output} is that of GLM5FinetuneJob a, b too" in found.message
    assert "GLM5FinetuneJob a, b, c, … too" in advice(spec, ["d", "c", "b", "a"])[0].message
