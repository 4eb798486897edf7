"""Which adapters a service's engine is asked to load, where they lie in its pod, and how traffic is shared out. Pure."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from glm5_operator.api.deploy import AdapterReport
from glm5_operator.api.service import GLM5Service
from glm5_operator.plan.adapters import AdaptersPlan, plan_adapters
from glm5_operator.plan.facts import AdapterFacts, JobFacts, PoolFacts, Product, ServiceFacts
from glm5_operator.plan.service import ServicePlan, plan_service
from tests.unit.plan.builders import child, engine_of, node, plan, pod_of, pool, tiny

Json = dict[str, Any]
SHA = "a" * 64
TUNE = JobFacts("tune", ended=True, path="pvc://adapters/support", sha256=SHA)
DEPLOYING = replace(TUNE, service="chat", adapter="support", phase="Loading", began="2026-01-01T00:00:00Z")


def taking(*adapters: tuple[str, str], storage: str = "pvc://adapters", **spec: object) -> GLM5Service:
    """A service that takes adapters and lists these, by name and source."""
    listed = {"adapters": [{"name": name, "source": source} for name, source in adapters]} if adapters else {}
    return tiny({"adapterStorage": storage, **listed, **spec})


def planned(service: GLM5Service, *jobs: JobFacts, recorded: tuple[AdapterReport, ...] = ()) -> AdaptersPlan:
    found = plan_adapters(service, AdapterFacts(jobs, recorded))
    assert found is not None
    return found


def file_of(found: AdaptersPlan) -> list[Json]:
    text = json.loads(found.text)
    assert list(text) == ["adapters"]
    return list(text["adapters"])


def whole(service: GLM5Service, *jobs: JobFacts) -> ServicePlan:
    return plan_service(service, ServiceFacts(PoolFacts(pool(), (node("n0", Product.A2),)), adapters=AdapterFacts(jobs)))


def test_a_service_that_takes_none_has_no_file_no_mount_and_no_flag() -> None:
    found = plan(tiny(), node("n0", Product.A2))

    assert [item["kind"] for item in found.objects] == ["Deployment", "Service"]
    assert found.adapters is None
    assert "adapters" not in json.dumps(found.objects)
    assert not any("lora" in argument for argument in engine_of(found)["args"])


def test_the_file_is_a_config_map_that_pods_mount_whether_it_is_there_or_not() -> None:
    found = whole(taking(("support", "pvc://adapters/team/support")))

    assert [item["kind"] for item in found.objects] == ["ConfigMap", "Deployment", "Service"]
    file = child(found, "ConfigMap")
    assert file["metadata"]["name"] == "chat-adapters"
    assert json.loads(file["data"]["adapters.json"]) == {"adapters": [{"name": "support", "path": "/adapters/team/support", "share": 0.0}]}
    volumes = {volume["name"]: volume for volume in pod_of(found)["volumes"]}
    assert volumes["adapters-file"]["configMap"] == {"name": "chat-adapters", "optional": True}
    assert volumes["adapters"]["persistentVolumeClaim"] == {"claimName": "adapters", "readOnly": True}
    mounts = {mount["mountPath"]: mount for mount in engine_of(found)["volumeMounts"]}
    assert mounts["/adapters"] == {"name": "adapters", "mountPath": "/adapters", "readOnly": True}
    assert mounts["/etc/glm5/adapters"] == {"name": "adapters-file", "mountPath": "/etc/glm5/adapters", "readOnly": True}


def test_a_folder_of_the_claim_is_all_that_the_engine_sees_of_it() -> None:
    found = whole(taking(("support", "pvc://adapters/team/support"), storage="pvc://adapters/team"))

    mounts = {mount["mountPath"]: mount for mount in engine_of(found)["volumeMounts"]}
    assert mounts["/adapters"]["subPath"] == "team"
    assert file_of(found.adapters) == [{"name": "support", "path": "/adapters/support", "share": 0.0}]  # type: ignore[arg-type]


def test_model_and_adapters_in_one_claim_are_one_volume() -> None:
    found = whole(taking(storage="pvc://weights/adapters", model=_model("pvc://weights/tiny")))

    claims = [volume for volume in pod_of(found)["volumes"] if "persistentVolumeClaim" in volume]
    assert [volume["persistentVolumeClaim"]["claimName"] for volume in claims] == ["weights"]
    mounts = {mount["mountPath"]: mount for mount in engine_of(found)["volumeMounts"]}
    assert (mounts["/adapters"]["name"], mounts["/adapters"]["subPath"]) == (claims[0]["name"], "adapters")


def _model(source: str) -> Json:
    return {"name": "tiny-glm5", "weights": "bf16", "source": source, "memory": "1Gi"}


def test_a_change_of_the_list_replaces_no_pod() -> None:
    before, after = whole(taking()), whole(taking(("support", "job://tune")), TUNE)

    assert before.revision == after.revision
    assert before.adapters is not None
    assert after.adapters is not None
    assert before.adapters.digest != after.adapters.digest


def test_a_jobs_adapter_comes_with_its_checksum_once_it_is_published() -> None:
    service = taking(("support", "job://tune"))

    assert file_of(planned(service, TUNE)) == [{"name": "support", "path": "/adapters/support", "sha256": SHA, "share": 0.0}]


@pytest.mark.parametrize(
    ("jobs", "why"),
    [
        ((), "there is no GLM5FinetuneJob tune"),
        ((JobFacts("tune"),), "GLM5FinetuneJob tune has not published it yet"),
        ((JobFacts("tune", ended=True),), "GLM5FinetuneJob tune has published no adapter"),
        ((replace(TUNE, path="pvc://other/support"),), "pvc://other/support isn't within adapterStorage pvc://adapters"),
        ((replace(TUNE, path="pvc://adapters2/support"),), "pvc://adapters2/support isn't within adapterStorage pvc://adapters"),
        ((replace(DEPLOYING, phase="RolledBack"),), "was rolled back"),
    ],
    ids=["no job", "training", "failed", "elsewhere", "in a claim whose name begins alike", "rolled back"],
)
def test_what_can_not_be_loaded_is_left_out_and_told(jobs: tuple[JobFacts, ...], why: str) -> None:
    found = whole(taking(("support", "job://tune"), ("other", "pvc://adapters/other")), *jobs)

    assert found.adapters is not None
    assert [entry["name"] for entry in file_of(found.adapters)] == ["other"]
    assert why in found.adapters.adapters[0].left_out
    assert [(item.reason, why in item.message) for item in found.warnings] == [("AdapterWaits", True)]


@pytest.mark.parametrize("jobs", [(), (JobFacts("tune"),)], ids=["gone", "made anew and not ended"])
def test_a_jobs_adapter_stays_loaded_when_the_job_is_cleaned_up(jobs: tuple[JobFacts, ...]) -> None:
    recorded = AdapterReport(name="support", source="job://tune", path="pvc://adapters/support", sha256=SHA, state="Loaded")

    found = planned(taking(("support", "job://tune")), *jobs, recorded=(recorded,))

    assert file_of(found) == [{"name": "support", "path": "/adapters/support", "sha256": SHA, "share": 0.0}]


def test_what_was_recorded_of_another_source_says_nothing() -> None:
    recorded = AdapterReport(name="support", source="job://old", path="pvc://adapters/old", sha256=SHA, state="Loaded")

    assert file_of(planned(taking(("support", "job://tune")), recorded=(recorded,))) == []


@pytest.mark.parametrize(
    ("phase", "there"),
    [("", False), ("Waiting", False), ("Loading", True), ("Evaluating", True), ("Canary", True), ("Deployed", True), ("RolledBack", False)],
)
def test_a_deployed_adapter_is_there_from_loading_on_until_it_is_rolled_back(phase: str, there: bool) -> None:
    found = planned(taking(), replace(DEPLOYING, phase=phase))

    assert [entry["name"] for entry in file_of(found)] == (["support"] if there else [])


def test_a_deployment_to_another_service_is_no_business_of_this_one() -> None:
    assert file_of(planned(taking(), replace(DEPLOYING, service="other"))) == []


def test_a_removed_deployment_takes_its_adapter_along_unless_the_service_lists_the_folder() -> None:
    assert file_of(planned(taking(), TUNE)) == []
    assert [entry["name"] for entry in file_of(planned(taking(("support", "pvc://adapters/support")), TUNE))] == ["support"]


def test_a_listed_folder_that_a_job_deploys_is_one_adapter_with_its_checksum_and_share() -> None:
    found = planned(taking(("support", "pvc://adapters/support")), replace(DEPLOYING, phase="Canary", share=0.25))

    assert file_of(found) == [{"name": "support", "path": "/adapters/support", "sha256": SHA, "share": 0.25}]


def test_of_two_jobs_with_one_name_the_older_one_is_loaded() -> None:
    newer = replace(DEPLOYING, name="again", began="2026-02-01T00:00:00Z", path="pvc://adapters/new")

    assert [entry["path"] for entry in file_of(planned(taking(), newer, DEPLOYING))] == ["/adapters/support"]


def test_the_newest_deployment_gets_its_share_first_and_those_before_it_what_is_left() -> None:
    first = replace(DEPLOYING, phase="Deployed", share=1.0)
    second = replace(DEPLOYING, name="b", began="2026-02-01T00:00:00Z", path="pvc://adapters/b", adapter="b", phase="Canary", share=0.1)

    during = {entry["name"]: entry["share"] for entry in file_of(planned(taking(), first, second))}
    after = {entry["name"]: entry["share"] for entry in file_of(planned(taking(), first, replace(second, phase="Deployed", share=1.0)))}
    back = {entry["name"]: entry["share"] for entry in file_of(planned(taking(), first, replace(second, phase="RolledBack", share=0.0)))}

    assert during == {"support": 0.9, "b": 0.1}
    assert after == {"support": 0.0, "b": 1.0}
    assert back == {"support": 1.0}


def test_flags_and_memory_follow_the_limits() -> None:
    args = engine_of(whole(taking(adapterLimits={"count": 8, "rank": 64})))["args"]

    assert {"--enable-lora", "--lora-dir=/adapters", "--max-loras=8", "--max-lora-rank=64"} <= set(args)
    assert {"--max-loras=4", "--max-lora-rank=16"} <= set(engine_of(whole(taking()))["args"])


@pytest.mark.parametrize("argument", ["--enable-lora", "--max_loras=9", "--adapters-file=/x", "--lora-modules"])
def test_flags_of_adapters_come_from_the_spec_alone(argument: str) -> None:
    found = whole(taking(engine={"args": [argument]}))

    assert found.stalled is not None
    assert found.stalled.reason == "AdapterFlags"
    assert argument.partition("=")[0] in found.stalled.message


def test_engine_vllm_takes_no_adapters_of_ours() -> None:
    found = whole(taking(engine={"name": "vllm"}))

    assert found.stalled is not None
    assert found.stalled.reason == "AdaptersNeedNative"
