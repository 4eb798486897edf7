"""What every planned pod has, whatever its engine. Nothing is faked."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from glm5_operator.api import names
from glm5_operator.api.common import quantity_bytes
from glm5_operator.api.service import GLM5Service
from glm5_operator.plan.pod import quantity
from glm5_operator.plan.service import ServicePlan
from tests.unit.plan.builders import RESOURCE, child, engine_of, env_of, plan, pod_of, pool, service, tiny

BOTH = [pytest.param(tiny(), id="native"), pytest.param(service(), id="vllm")]


@pytest.fixture(params=BOTH)
def planned(request: pytest.FixtureRequest) -> ServicePlan:
    return plan(request.param)


def tensor(cards: int) -> dict[str, Any]:
    return {"parallelism": {"tensor": cards}}


def seconds(probe: dict[str, Any]) -> int:
    return int(probe["periodSeconds"]) * int(probe["failureThreshold"])


def test_cards_are_requested_and_limited_and_the_pod_is_pinned_to_its_pool(planned: ServicePlan) -> None:
    resources, pod = engine_of(planned)["resources"], pod_of(planned)
    assert planned.resolved is not None

    assert resources["requests"][RESOURCE] == resources["limits"][RESOURCE] == str(planned.resolved.cards)
    assert resources["requests"]["memory"] == resources["limits"]["memory"] == planned.resolved.memory
    assert "cpu" not in resources["limits"], "throttling stretches every step"
    assert pod["nodeSelector"] == {"glm5.dev/pool": "inference"}
    assert pod["tolerations"] == [{"key": "glm5.dev/role", "operator": "Equal", "value": "inference", "effect": "NoSchedule"}]


def test_the_deployment_selects_its_pods_and_the_service_only_those_in_traffic(planned: ServicePlan) -> None:
    deployment, client = child(planned, "Deployment"), child(planned, "Service")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selector = deployment["spec"]["selector"]["matchLabels"]

    assert selector.items() <= labels.items()
    assert "glm5.dev/serving" not in selector, "taking the label off leaves the pod running and owned"
    assert client["spec"]["selector"] == {**selector, "glm5.dev/serving": "true"}
    assert client["spec"]["selector"].items() <= labels.items()
    assert labels["glm5.dev/revision"] == planned.revision


def test_all_children_carry_the_recommended_labels(planned: ServicePlan) -> None:
    for manifest in planned.objects:
        assert names.child_labels("chat").items() <= manifest["metadata"]["labels"].items()
        assert manifest["metadata"]["namespace"] == "prod"


def test_the_pod_has_no_api_token_and_no_service_links(planned: ServicePlan) -> None:
    assert pod_of(planned)["automountServiceAccountToken"] is False
    assert pod_of(planned)["enableServiceLinks"] is False


def test_a_native_pod_meets_the_restricted_standard() -> None:
    pod, container = pod_of(plan(tiny())), engine_of(plan(tiny()))["securityContext"]

    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
        "fsGroupChangePolicy": "OnRootMismatch",
        "supplementalGroups": [1000],
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}


def test_the_exceptions_of_a_vllm_pod_are_root_with_one_capability_and_a_writable_root() -> None:
    pod, container = pod_of(plan(service())), engine_of(plan(service()))["securityContext"]

    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsNonRoot"]) == (0, False)
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]},
        "readOnlyRootFilesystem": False,
    }


def test_every_writable_place_has_a_size_and_shared_memory_counts_as_memory(planned: ServicePlan) -> None:
    volumes = {volume["name"]: volume for volume in pod_of(planned)["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in engine_of(planned)["volumeMounts"]}

    assert {mounts["/dev/shm"], mounts["/tmp"], mounts[env_of(planned)["HOME"]]} == {"shm", "tmp", "home"}
    assert all("sizeLimit" in volumes[name]["emptyDir"] for name in ("shm", "tmp", "home"))
    shm = volumes["shm"]["emptyDir"]
    assert shm["medium"] == "Memory"
    assert quantity_bytes(shm["sizeLimit"]) < quantity_bytes(engine_of(planned)["resources"]["limits"]["memory"])


def test_the_large_checkpoints_get_64_gib_of_shared_memory() -> None:
    shm = next(volume for volume in pod_of(plan(service()))["volumes"] if volume["name"] == "shm")

    assert shm["emptyDir"]["sizeLimit"] == "64Gi"


@pytest.mark.parametrize(
    ("wanted", "startup"),
    [
        (tiny(), timedelta(seconds=304)),
        (service("GLM-5.1", "w4a8"), timedelta(seconds=1854)),
        (service("GLM-5.1", "w8a8"), timedelta(seconds=3324)),
        (service("GLM-5.2", "w8a8"), timedelta(seconds=3322)),
        # A fine-tune of a large model under its own name: nothing tells its size but the cards that it fits on.
        (service("my-glm-5.1-ft", "w8a8", {"engine": {"name": "vllm"}, **tensor(16)}, memory="192Gi"), timedelta(minutes=60)),
        (service("my-glm-5.1-ft", "w8a8", {"engine": {"name": "vllm"}, **tensor(8)}, memory="1Ti"), timedelta(seconds=2348)),
        (tiny({"engine": {"name": "vllm"}}), timedelta(seconds=556)),
        (tiny({"startup": {"timeout": "25m"}}), timedelta(minutes=25)),
        (tiny({"startup": {"timeout": "24h"}}), timedelta(hours=24)),
        (service("GLM-5.1", "w8a8", {"startup": {"timeout": "10s"}}), timedelta(seconds=10)),
    ],
)
def test_all_timers_follow_the_weights_or_the_setting(wanted: GLM5Service, startup: timedelta) -> None:
    planned = plan(wanted)
    allowed = startup.total_seconds()

    assert planned.startup == startup
    assert allowed <= seconds(engine_of(planned)["startupProbe"]) < allowed + 10
    assert child(planned, "Deployment")["spec"]["progressDeadlineSeconds"] > allowed
    if wanted.spec.engine_name == "vllm":
        assert int(env_of(planned)["VLLM_ENGINE_READY_TIMEOUT_S"]) == allowed


def test_a_load_of_25_minutes_survives_the_defaults_of_the_large_models() -> None:
    """Liveness starts only after the start-up check passed; that one lasts longer than the load."""
    assert seconds(engine_of(plan(service()))["startupProbe"]) > 25 * 60


@pytest.mark.parametrize(("timeout", "drain"), [("1s", 1), ("300s", 300), ("1h30m", 5400), ("500ms", 1)])
def test_the_grace_period_covers_leaving_traffic_draining_and_ending(timeout: str, drain: int) -> None:
    planned = plan(tiny({"drain": {"timeout": timeout}}))
    leaving = engine_of(planned)["lifecycle"]["preStop"]["sleep"]["seconds"]

    assert leaving > 0
    assert pod_of(planned)["terminationGracePeriodSeconds"] >= leaving + drain + 10


def test_readiness_is_lost_after_one_failed_check_and_liveness_after_a_minute(planned: ServicePlan) -> None:
    container = engine_of(planned)

    assert container["readinessProbe"]["failureThreshold"] == 1
    assert container["readinessProbe"]["periodSeconds"] <= 5
    assert seconds(container["livenessProbe"]) >= 60
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_a_native_replica_is_ready_only_after_a_token() -> None:
    container = engine_of(plan(tiny()))

    assert container["startupProbe"]["httpGet"]["path"] == container["readinessProbe"]["httpGet"]["path"] == "/health/ready"
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"


AUTH = {"auth": {"secretRef": {"name": "chat-key", "key": "token"}}}


@pytest.mark.parametrize(("wanted", "variable"), [(tiny(AUTH), "GLM5_API_KEY"), (service("GLM-5.1", "w8a8", AUTH), "VLLM_API_KEY")])
def test_the_api_key_is_a_reference_and_never_a_value(wanted: GLM5Service, variable: str) -> None:
    assert env_of(plan(wanted))[variable] == {"secretKeyRef": {"name": "chat-key", "key": "token"}}


def test_without_auth_there_is_no_key(planned: ServicePlan) -> None:
    assert not {"GLM5_API_KEY", "VLLM_API_KEY"} & env_of(planned).keys()


def test_stated_environment_replaces_the_planned_and_empty_values_stay_empty() -> None:
    stated = {"engine": {"env": [{"name": "OMP_NUM_THREADS", "value": "8"}, {"name": "DEBUG"}], "args": ["--seed=7"]}}
    planned = plan(tiny(stated))

    assert env_of(planned)["OMP_NUM_THREADS"] == "8"
    assert {"name": "DEBUG"} in engine_of(planned)["env"], "the API server drops an empty value"
    assert engine_of(planned)["args"][-1] == "--seed=7"
    assert [entry["name"] for entry in engine_of(planned)["env"]].count("OMP_NUM_THREADS") == 1


def test_npu_pods_get_the_collective_and_allocator_environment(planned: ServicePlan) -> None:
    env = env_of(planned)

    assert env["HCCL_OP_EXPANSION_MODE"] == "AIV"
    assert env["HCCL_BUFFSIZE"] == "200"
    assert env["PYTORCH_NPU_ALLOC_CONF"] == "expandable_segments:True"
    assert env["OMP_PROC_BIND"] == "false"
    assert int(env["OMP_NUM_THREADS"]) >= 1
    assert "ASCEND_VISIBLE_DEVICES" not in env, "the device plugin's business"
    assert "PYTORCH_ALLOC_CONF" not in env, "setting both aborts torch_npu"


def test_replicas_spread_over_nodes_where_they_can(planned: ServicePlan) -> None:
    (spread,) = pod_of(planned)["topologySpreadConstraints"]

    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")


def test_one_replica_has_two_children_and_two_have_a_disruption_budget() -> None:
    assert [entry["kind"] for entry in plan(tiny()).objects] == ["Deployment", "Service"]
    budget = child(plan(tiny({"replicas": 2})), "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["selector"]["matchLabels"] == names.selector_labels("chat")


def test_scaling_to_zero_keeps_the_objects() -> None:
    assert child(plan(tiny({"replicas": 0})), "Deployment")["spec"]["replicas"] == 0


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"replicas": 5}, True),
        ({"rollout": {"maxSurge": 3}}, True),
        ({"rollout": {"paused": True}}, True),
        ({"engine": {"args": ["--seed=1"]}}, False),
        ({"drain": {"timeout": "10s"}}, False),
        ({"context": {"maxTokens": 512}}, False),
    ],
)
def test_the_revision_changes_exactly_when_pods_must(change: dict[str, Any], same: bool) -> None:
    assert (plan(tiny(change)).revision == plan(tiny()).revision) == same


def test_a_taint_of_the_pool_restarts_no_pod() -> None:
    assert plan(tiny(), of=pool({"taint": True})).revision == plan(tiny()).revision


def test_the_endpoint_is_the_clients_base_url() -> None:
    assert plan(tiny()).endpoint == "http://chat-api.prod.svc.cluster.local:8000/v1"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (2**30, "1Gi"),
        (2**40, "1Ti"),
        (10**9, "1G"),
        (64 * 10**9, "64G"),
        (1500 * 10**6, "1500M"),
        (268435456, "256Mi"),
        (1234, "1234"),
        (1536, "1536"),
    ],
)
def test_quantities_are_written_as_the_api_server_writes_them_back(size: int, text: str) -> None:
    assert quantity(size) == text
    assert quantity_bytes(text) == size
