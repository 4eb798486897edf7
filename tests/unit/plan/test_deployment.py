"""What keeps a job's adapter out of the service that it names, and the Job that evaluates it. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from glm5_operator.api.finetune import GLM5FinetuneJob
from glm5_operator.api.service import GLM5Service
from glm5_operator.plan.deployment import hindrance
from glm5_operator.plan.evaluation import evaluation
from glm5_operator.plan.facts import AdapterFacts, Finding, JobFacts, Site
from tests.unit.plan.builders import pool, service, tiny
from tests.unit.plan.test_attempt import job

Json = dict[str, Any]
DEPLOY: Json = {"service": "chat", "adapter": "support"}
MINE = JobFacts("tune", ended=True, path="pvc://adapters/team/support", sha256="a" * 64, service="chat", adapter="support")
OTHER = replace(MINE, name="other", path="pvc://adapters/team/other", phase="Loading", began="2026-01-01T00:00:00Z")


def tuned(**spec: object) -> GLM5FinetuneJob:
    return job({"deploy": DEPLOY}, **spec)


def taking(**spec: object) -> GLM5Service:
    return tiny({"adapterStorage": "pvc://adapters", **spec})


def why(found: Finding | None) -> str:
    return found.reason if found else ""


@pytest.mark.parametrize(
    ("wanted", "target", "reason", "says"),
    [
        (tuned(), taking(), "", ""),
        (tuned(), None, "ServiceNotFound", "no GLM5Service chat"),
        (tuned(), service(name="chat"), "AdaptersNeedNative", "engine vllm"),
        (tuned(), tiny(), "NoAdapterStorage", "spec.adapterStorage"),
        (tuned(), taking(adapterStorage="pvc://other"), "StorageMismatch", "pvc://adapters/team/support isn't within"),
        (tuned(), taking(adapterStorage="pvc://adapters/te"), "StorageMismatch", "pvc://adapters/te"),
        (tuned(lora={"rank": 32}), taking(), "RankTooLarge", "rank 32, and GLM5Service chat takes 16"),
        (tuned(lora={"rank": 32}), taking(adapterLimits={"rank": 32}), "", ""),
        (tuned(deploy={**DEPLOY, "adapter": "tiny-glm5"}), taking(), "NameTaken", "the model itself"),
        (tuned(), taking(adapters=[{"name": "support", "source": "pvc://adapters/else"}]), "NameTaken", "from pvc://adapters/else"),
        (tuned(), taking(adapters=[{"name": "support", "source": "pvc://adapters/team/support"}]), "", ""),
        (tuned(), taking(adapters=[{"name": "support", "source": "job://tune"}]), "", ""),
        (
            tuned(),
            taking(adapterLimits={"count": 1}, adapters=[{"name": "a", "source": "pvc://adapters/a"}]),
            "TooManyAdapters",
            "has 1 adapters and takes 1",
        ),
        (tuned(), taking(adapterLimits={"count": 1}, adapters=[{"name": "support", "source": "job://tune"}]), "", ""),
    ],
)
def test_each_hindrance_names_what_to_change(wanted: GLM5FinetuneJob, target: GLM5Service | None, reason: str, says: str) -> None:
    found = hindrance(wanted, target, AdapterFacts((MINE,)))

    assert why(found) == reason
    assert says in (found.message if found else "")


@pytest.mark.parametrize("phase", ["Loading", "Evaluating", "Canary", "Deployed"])
def test_a_name_that_another_job_deploys_already_is_waited_for(phase: str) -> None:
    found = hindrance(tuned(), taking(), AdapterFacts((MINE, replace(OTHER, phase=phase))))

    assert why(found) == "NameTaken"
    assert found is not None
    assert "GLM5FinetuneJob other" in found.message


@pytest.mark.parametrize("phase", ["", "Waiting", "RolledBack"])
def test_a_job_that_is_not_in_the_service_holds_no_name(phase: str) -> None:
    assert hindrance(tuned(), taking(), AdapterFacts((MINE, replace(OTHER, phase=phase)))) is None


def test_of_two_that_began_in_one_moment_exactly_one_goes_on() -> None:
    first, second = (replace(MINE, name=name, phase="Loading", began="2026-01-01T00:00:00Z") for name in ("a", "b"))
    facts = AdapterFacts((first, second))

    assert hindrance(job({"deploy": DEPLOY}, name="a"), taking(), facts) is None
    assert why(hindrance(job({"deploy": DEPLOY}, name="b"), taking(), facts)) == "NameTaken"


def test_another_name_or_service_is_no_hindrance() -> None:
    others = (replace(OTHER, adapter="sales"), replace(OTHER, name="third", service="elsewhere"))

    assert hindrance(tuned(), taking(), AdapterFacts((MINE, *others))) is None


# --- the evaluation ---------------------------------------------------------------------------------------------------------


def evaluated(target: GLM5Service | None = None, source: str = "pvc://data/sets/held.jsonl", **spec: object) -> Json:
    wanted = job({"deploy": {**DEPLOY, "evaluate": {"source": source}}}, **spec)
    found = evaluation(wanted, target or taking(), pool(name="training", role="Training"), Site())
    assert not isinstance(found, Finding), found
    return found


def container_of(found: Json) -> Json:
    (container,) = found["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_it_asks_the_service_by_both_names_and_takes_no_card() -> None:
    found = evaluated(taking(model={"name": "tiny-glm5", "weights": "bf16", "source": "pvc://w/t", "memory": "1Gi", "servedName": "glm"}))

    container = container_of(found)
    assert container["command"] == ["glm5-runtime", "evaluate"]
    assert container["args"] == [
        "--url=http://chat-api.prod.svc.cluster.local:8000",
        "--model=support",
        "--base=glm",
        "--checkpoint=/models/tiny",
        "--data=/data/held.jsonl",
        "--result=/dev/termination-log",
    ]
    assert set(container["resources"]["limits"]) == {"memory"}
    assert "glm5.dev/attempt" not in found["metadata"]["labels"], "an attempt of the training is something else"


def test_model_and_rows_are_only_read_and_a_claim_is_one_volume() -> None:
    found = evaluated(source="pvc://weights/held.jsonl")

    pod = found["spec"]["template"]["spec"]
    claims = [volume["persistentVolumeClaim"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume]
    assert claims == [{"claimName": "weights", "readOnly": True}]
    mounts = {mount["mountPath"]: mount for mount in container_of(found)["volumeMounts"]}
    assert mounts["/models/tiny"]["readOnly"]
    assert mounts["/data"]["readOnly"]


def test_rows_on_nodes_are_one_file() -> None:
    pod = evaluated(source="hostpath:///data/held.jsonl")["spec"]["template"]["spec"]

    assert {"name": "data", "hostPath": {"path": "/data/held.jsonl", "type": "File"}} in pod["volumes"]


def test_the_api_key_comes_from_the_services_secret_and_stands_nowhere() -> None:
    auth = {"secretRef": {"name": "chat-key", "key": "token"}}

    env = {entry["name"]: entry for entry in container_of(evaluated(taking(auth=auth)))["env"]}
    assert env["GLM5_API_KEY"]["valueFrom"] == {"secretKeyRef": {"name": "chat-key", "key": "token"}}
    assert "GLM5_API_KEY" not in {entry["name"] for entry in container_of(evaluated())["env"]}


def test_its_pod_has_the_least_rights_and_is_retried_for_what_may_pass_alone() -> None:
    found = evaluated()
    pod, container = found["spec"]["template"]["spec"], container_of(found)

    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert pod["nodeSelector"] == {"glm5.dev/pool": "training"}
    assert pod["restartPolicy"] == "Never"
    (rule,) = found["spec"]["podFailurePolicy"]["rules"]
    assert rule == {"action": "FailJob", "onExitCodes": {"containerName": "evaluator", "operator": "In", "values": [2, 3]}}


def test_a_pool_that_has_gone_is_told() -> None:
    wanted = job({"deploy": {**DEPLOY, "evaluate": {"source": "pvc://data/held.jsonl"}}})

    found = evaluation(wanted, taking(), None, Site())

    assert isinstance(found, Finding)
    assert found.reason == "PoolNotFound"


def test_images_and_packages_come_as_the_pool_and_the_job_say_for_trainers_and_cards_do_not() -> None:
    mounts = [{"name": "packages", "mountPath": "/opt/packages", "readOnly": True}]
    trainer = {"name": "trainer", "env": [{"name": "PYTHONPATH", "value": "/opt/packages"}], "volumeMounts": mounts}
    site_spec = {
        "volumes": [{"name": "packages", "hostPath": {"path": "/srv/packages"}}],
        "containers": [{**trainer, "resources": {"limits": {"huawei.com/Ascend910": "1"}}}],
    }
    wanted = tuned(
        deploy={**DEPLOY, "evaluate": {"source": "pvc://data/held.jsonl"}}, podTemplate={"spec": {"imagePullSecrets": [{"name": "mine"}]}}
    )

    training = pool({"podTemplate": {"spec": site_spec}}, name="training", role="Training")
    found = evaluation(wanted, taking(), training, Site())

    assert not isinstance(found, Finding), found
    spec = found["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert {"name": "PYTHONPATH", "value": "/opt/packages"} in container["env"]
    assert mounts[0] in container["volumeMounts"]
    assert site_spec["volumes"][0] in spec["volumes"]
    assert spec["imagePullSecrets"] == [{"name": "mine"}]
    assert container["resources"] == {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}


def test_a_pod_template_brings_no_credentials_into_the_evaluation() -> None:
    token = {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    wanted = tuned(deploy={**DEPLOY, "evaluate": {"source": "pvc://data/held.jsonl"}}, podTemplate={"spec": {"volumes": [token]}})

    found = evaluation(wanted, taking(), pool(name="training", role="Training"), Site())

    assert isinstance(found, Finding)
    assert (found.reason, "spec.volumes[token]" in found.message) == ("PodTemplateRefused", True)
