"""podTemplates over planned pods: what merges, and what can't be undone. A podTemplate is whatever a user wrote."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glm5_operator.plan.merge import merge
from glm5_operator.plan.service import ServicePlan
from tests.unit.plan.builders import RESOURCE, child, engine_of, env_of, plan, pod_of, pool, tiny


def engine(**fields: object) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "engine", **fields}]}}


def beside(**fields: object) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "sidecar", "image": "exporter:1", **fields}]}}


def first(**fields: object) -> dict[str, Any]:
    return {"spec": {"initContainers": [{"name": "first", "image": "fetch:1", **fields}]}}


def token_volume(name: str, **token: str) -> dict[str, Any]:
    return {"name": name, "projected": {"sources": [{"configMap": {"name": "ca"}}, {"serviceAccountToken": {"path": "token", **token}}]}}


def with_template(template: dict[str, Any]) -> ServicePlan:
    return plan(tiny({"podTemplate": template}))


def test_lists_merge_by_their_key_and_keep_the_planned_entries() -> None:
    planned = with_template(
        {
            "metadata": {"annotations": {"team": "nlp"}, "labels": {"env": "prod"}},
            "spec": {
                "runtimeClassName": "ascend",
                "imagePullSecrets": [{"name": "registry"}],
                "containers": [
                    {
                        "name": "engine",
                        "env": [{"name": "HTTPS_PROXY", "value": "http://proxy"}, {"name": "OMP_NUM_THREADS", "value": "4"}],
                        "volumeMounts": [{"name": "driver", "mountPath": "/usr/local/Ascend/driver", "readOnly": True}],
                        "resources": {"requests": {"cpu": "2"}},
                    },
                    {"name": "sidecar", "image": "exporter:1"},
                ],
                "volumes": [{"name": "driver", "hostPath": {"path": "/usr/local/Ascend/driver"}}],
                "tolerations": [{"key": "maintenance", "operator": "Exists"}],
            },
        }
    )
    pod, container = pod_of(planned), engine_of(planned)

    assert child(planned, "Deployment")["spec"]["template"]["metadata"]["labels"]["env"] == "prod"
    assert [entry["name"] for entry in pod["containers"]] == ["engine", "sidecar"]
    assert [volume["name"] for volume in pod["volumes"]] == ["model", "shm", "tmp", "home", "driver"]
    assert [entry["key"] for entry in pod["tolerations"]] == ["glm5.dev/role", "maintenance"]
    assert env_of(planned)["HTTPS_PROXY"] == "http://proxy"
    assert env_of(planned)["OMP_NUM_THREADS"] == "4"
    assert container["resources"]["requests"] == {"cpu": "2", "memory": "1Gi", RESOURCE: "1"}
    assert len(container["volumeMounts"]) == 5


def test_the_services_template_lies_over_the_pools() -> None:
    site = pool({"podTemplate": engine(env=[{"name": "PROXY", "value": "site"}, {"name": "SITE", "value": "a"}])})
    planned = plan(tiny({"podTemplate": engine(env=[{"name": "PROXY", "value": "mine"}])}), of=site)

    assert (env_of(planned)["PROXY"], env_of(planned)["SITE"]) == ("mine", "a")


def test_an_entry_with_a_source_is_replaced_as_a_whole() -> None:
    planned = with_template(
        {
            "spec": {
                "volumes": [{"name": "home", "persistentVolumeClaim": {"claimName": "cache"}}],
                "containers": [{"name": "engine", "env": [{"name": "HOME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}],
            }
        }
    )

    assert next(volume for volume in pod_of(planned)["volumes"] if volume["name"] == "home") == {
        "name": "home",
        "persistentVolumeClaim": {"claimName": "cache"},
    }
    assert next(entry for entry in engine_of(planned)["env"] if entry["name"] == "HOME") == {
        "name": "HOME",
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}},
    }


def test_another_way_to_check_replaces_the_planned_one_and_keeps_its_timing() -> None:
    probe = engine_of(with_template(engine(startupProbe={"tcpSocket": {"port": "http"}})))["startupProbe"]

    assert "httpGet" not in probe
    assert probe["tcpSocket"] == {"port": "http"}
    assert probe["failureThreshold"] > 1


def test_null_removes_what_is_not_guaranteed() -> None:
    assert "livenessProbe" not in engine_of(with_template(engine(livenessProbe=None)))


def test_merging_leaves_the_planned_pod_and_the_template_as_they_were() -> None:
    base: dict[str, Any] = {"spec": {"containers": [{"name": "engine", "env": []}]}}
    over: dict[str, Any] = {
        "metadata": {"annotations": {"team": "nlp"}},
        "spec": {"containers": [{"name": "engine", "env": [{"name": "A", "value": "1"}]}], "tolerations": [{"key": "a"}]},
    }
    before = copy.deepcopy((base, over))

    merged = merge(base, over)
    merged["metadata"]["annotations"]["team"] = "other"
    merged["spec"]["containers"][0]["env"][0]["value"] = "2"
    merged["spec"]["tolerations"][0]["key"] = "b"

    assert (base, over) == before


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ({"spec": {"nodeSelector": {"glm5.dev/pool": "other"}}}, "spec.nodeSelector[glm5.dev/pool]"),
        ({"spec": {"nodeSelector": {"glm5.dev/pool": None}}}, "spec.nodeSelector[glm5.dev/pool]"),
        ({"spec": {"nodeSelector": None}}, "spec.nodeSelector[glm5.dev/pool]"),
        ({"spec": None}, "spec.nodeSelector[glm5.dev/pool]"),
        ({"spec": {"nodeName": "n7"}}, "spec.nodeName"),
        ({"spec": {"restartPolicy": "Never"}}, "spec.restartPolicy"),
        ({"spec": {"tolerations": None}}, "spec.tolerations"),
        ({"spec": {"automountServiceAccountToken": True}}, "spec.automountServiceAccountToken"),
        ({"metadata": {"labels": {"app.kubernetes.io/name": "mine"}}}, "metadata.labels[app.kubernetes.io/name]"),
        ({"metadata": {"labels": {"glm5.dev/serving": "false"}}}, "metadata.labels[glm5.dev/serving]"),
        ({"metadata": {"labels": {"glm5.dev/service": None}}}, "metadata.labels[glm5.dev/service]"),
        ({"metadata": None}, "metadata.labels"),
        ({"spec": {"containers": None}}, "spec.containers[engine]"),
        (engine(resources={"limits": {RESOURCE: "2"}}), f"resources.limits[{RESOURCE}]"),
        (engine(resources={"requests": {RESOURCE: None}}), f"resources.requests[{RESOURCE}]"),
        (engine(resources=None), f"resources.limits[{RESOURCE}]"),
        (engine(ports=[{"name": "http", "containerPort": 9000}]), "ports[http]"),
        (engine(ports=None), "ports[http]"),
        (beside(resources={"limits": {RESOURCE: "1"}}), f"spec.containers[sidecar].resources.limits[{RESOURCE}]"),
        (beside(resources={"requests": {"huawei.com/npu": 1}}), "spec.containers[sidecar].resources.requests[huawei.com/npu]"),
        (first(resources={"limits": {"huawei.com/Ascend310P": "0"}}), "spec.initContainers[first].resources.limits[huawei.com/Ascend310P]"),
        (engine(resources={"limits": {"huawei.com/Ascend910-memory": 4}}), "resources.limits[huawei.com/Ascend910-memory]"),
        (engine(env=[{"name": "ASCEND_VISIBLE_DEVICES", "value": "0-7"}]), "spec.containers[engine].env[ASCEND_VISIBLE_DEVICES]"),
        (beside(env=[{"name": "ASCEND_VISIBLE_DEVICES", "value": "0"}]), "spec.containers[sidecar].env[ASCEND_VISIBLE_DEVICES]"),
        (first(env=[{"name": "ASCEND_RT_VISIBLE_DEVICES"}]), "spec.initContainers[first].env[ASCEND_RT_VISIBLE_DEVICES]"),
        (engine(env=[{"name": "GLM5_API_KEY", "value": "known-to-all"}]), "spec.auth.secretRef"),
        (engine(env=[{"name": "VLLM_API_KEY", "value": "known-to-all"}]), "env[VLLM_API_KEY]"),
        (engine(command=["sleep", "infinity"]), "spec.containers[engine].command"),
        (engine(command=None), "spec.containers[engine].command"),
        (engine(args=["--max-sequences=1"]), "spec.engine.args"),
        ({"spec": {"volumes": [token_volume("x", audience="vault")]}}, "spec.volumes[x].projected.sources[1].serviceAccountToken"),
        (engine(resources={"limits": {"memory": "512Mi"}}), "spec.containers[engine].resources.limits[memory]"),
        (engine(resources={"limits": {"memory": "much"}}), "isn't a quantity"),
        ({"spec": {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "512Mi"}}]}}, "resources.limits[memory]"),
        ({"spec": {"volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]}}, "spec.model.memory"),
        ({"spec": {"terminationGracePeriodSeconds": 319}}, "spec.drain.timeout"),
        ({"spec": {"terminationGracePeriodSeconds": None}}, "spec.terminationGracePeriodSeconds"),
        ({"spec": {"terminationGracePeriodSeconds": "1h"}}, "spec.terminationGracePeriodSeconds"),
    ],
)
def test_a_template_can_not_undo_what_the_plan_guarantees(template: dict[str, Any], path: str) -> None:
    for planned, whose in (
        (with_template(template), "spec.podTemplate may not"),
        (plan(tiny(), of=pool({"podTemplate": template})), "of NPUPool inference may not"),
    ):
        assert planned.stalled is not None
        assert planned.stalled.reason == "PodTemplateRefused"
        assert path in planned.stalled.message
        assert whose in planned.stalled.message


def test_stating_the_planned_number_of_cards_again_is_no_change() -> None:
    assert with_template(engine(resources={"limits": {RESOURCE: 1}})).stalled is None


def test_taking_the_environment_away_does_not_take_the_api_key_away() -> None:
    key = {"auth": {"secretRef": {"name": "chat", "key": "key"}}}
    for wanted, variable in ((tiny(key), "GLM5_API_KEY"), (tiny({**key, "engine": {"name": "vllm"}}), "VLLM_API_KEY")):
        planned = plan(wanted, of=pool({"podTemplate": engine(env=None)}))

        assert planned.stalled is not None
        assert f"env[{variable}]" in planned.stalled.message


def test_what_planning_does_not_guarantee_may_be_changed() -> None:
    planned = with_template(
        {
            "spec": {
                "terminationGracePeriodSeconds": 900,
                "initContainers": [{"name": "wait", "image": "busybox:1", "resources": {"limits": {"cpu": "1", "memory": "64Mi"}}}],
                "containers": [
                    {"name": "engine", "resources": {"limits": {"memory": "3Gi"}}},
                    {"name": "sidecar", "image": "exporter:1", "resources": {"requests": {"example.com/fpga": "1"}}},
                ],
                "volumes": [
                    {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}},
                    {"name": "ca", "projected": {"sources": [{"configMap": {"name": "ca"}}]}},
                ],
            }
        }
    )

    assert planned.stalled is None
    assert planned.resolved is not None
    assert (planned.resolved.memory, planned.resolved.shm) == ("3Gi", "2Gi"), "the status says what runs"


def test_a_memory_limit_that_was_taken_away_exceeds_nothing() -> None:
    planned = with_template(engine(resources={"limits": {"memory": None}}))

    assert planned.stalled is None
    assert planned.resolved is not None
    assert planned.resolved.memory == "1Gi", "what is requested"


def test_the_status_names_the_image_that_the_templates_left() -> None:
    site = pool({"podTemplate": engine(image="registry.example/runtime:0.2.0")})
    for planned, image in (
        (plan(tiny(), of=site), "registry.example/runtime:0.2.0"),
        (plan(tiny({"podTemplate": engine(image="own:3")}), of=site), "own:3"),
        (plan(tiny()), "glm5-runtime:0.1.0"),
    ):
        assert planned.resolved is not None
        assert planned.resolved.image == engine_of(planned)["image"] == image


def test_the_service_may_override_what_is_the_pools_own_wish() -> None:
    site = pool({"podTemplate": {"metadata": {"labels": {"team": "site"}}, "spec": {"terminationGracePeriodSeconds": 3600}}})
    planned = plan(
        tiny({"podTemplate": {"metadata": {"labels": {"team": "nlp"}}, "spec": {"terminationGracePeriodSeconds": 400}}}), of=site
    )

    assert planned.stalled is None


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ({"$patch": "replace", "spec": {}}, "$patch"),
        ({"spec": {"$retainKeys": ["containers"]}}, "spec.$retainKeys"),
        (engine(**{"$patch": "delete"}), "spec.containers[0].$patch"),
        (engine(securityContext={"capabilities": {"$deleteFromPrimitiveList/drop": ["ALL"]}}), "$deleteFromPrimitiveList/drop"),
        ({"spec": {"affinity": {"nodeAffinity": {"$patch": "replace"}}}}, "spec.affinity.nodeAffinity.$patch"),
    ],
)
def test_directives_of_patches_are_refused_by_name_instead_of_planned_as_fields(template: dict[str, Any], path: str) -> None:
    planned = with_template(template)

    assert planned.stalled is not None
    assert planned.stalled.reason == "PodTemplateRefused"
    assert f"{path} is a directive" in planned.stalled.message


@pytest.mark.parametrize(
    "template",
    [
        {"spec": "text"},
        {"spec": {"containers": "engine"}},
        {"spec": {"containers": ["engine"]}},
        {"spec": {"containers": [{"image": "x:1"}]}},
        {"spec": {"containers": [{"name": ["engine"]}]}},
        {"spec": {"volumes": {"name": "x"}}},
        {"spec": {"tolerations": "all"}},
        {"spec": {"nodeSelector": ["glm5.dev/pool"]}},
        {"metadata": {"labels": 3}},
        engine(env={"A": "1"}),
        engine(resources="all"),
        engine(ports="http"),
        engine(volumeMounts=[{"name": "x"}]),
        {"spec": {"initContainers": "abc"}},
        {"spec": {"initContainers": {"a": 1}}},
        {"spec": {"ephemeralContainers": 5}},
        {"spec": {"imagePullSecrets": "x"}},
        engine(volumeMounts="/data"),
        engine(envFrom="settings"),
        beside(env="A=1"),
        beside(env=[{"name": ["A"]}]),
        beside(volumeMounts=[{"mountPath": {}}]),
    ],
)
def test_a_malformed_template_is_refused_by_name_and_breaks_nothing(template: dict[str, Any]) -> None:
    planned = with_template(template)

    assert planned.stalled is not None
    assert planned.stalled.reason == "PodTemplateRefused"


def test_a_list_of_another_shape_is_named_by_its_path() -> None:
    for template, path in (
        ({"spec": {"initContainers": {"a": 1}}}, "spec.initContainers must be a list of objects"),
        (engine(envFrom="settings"), "spec.containers[0].envFrom must be a list of objects"),
    ):
        stalled = with_template(template).stalled
        assert stalled is not None
        assert path in stalled.message


def test_maps_whose_keys_users_choose_may_hold_any_of_them() -> None:
    spread = {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"ports": "a"}}}
    spec = {"nodeSelector": {"env": "prod"}, "topologySpreadConstraints": [spread]}
    planned = with_template({"metadata": {"labels": {"env": "prod"}, "annotations": {"volumes": "none"}}, "spec": spec})

    assert planned.stalled is None
    assert pod_of(planned)["nodeSelector"]["env"] == "prod"


KEYS = st.sampled_from(
    [
        "spec",
        "metadata",
        "labels",
        "containers",
        "name",
        "engine",
        "env",
        "resources",
        "limits",
        "ports",
        "nodeSelector",
        "tolerations",
        "volumes",
        "initContainers",
        "projected",
        "sources",
        "emptyDir",
        "volumeMounts",
        "mountPath",
        "shm",
        "memory",
        "$patch",
        "x",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS, JSON, max_size=4))
def test_no_template_can_stop_the_planner_or_take_the_pin_away(template: dict[str, Any]) -> None:
    planned = with_template(template)

    if planned.stalled is None:
        assert pod_of(planned)["nodeSelector"]["glm5.dev/pool"] == "inference"
        assert engine_of(planned)["resources"]["limits"][RESOURCE] == "1"
    else:
        assert planned.stalled.reason == "PodTemplateRefused"


SPEC = [
    "affinity",
    "containers",
    "ephemeralContainers",
    "hostAliases",
    "imagePullSecrets",
    "initContainers",
    "nodeSelector",
    "resourceClaims",
]
CONTAINER = [
    "args",
    "env",
    "envFrom",
    "image",
    "lifecycle",
    "name",
    "ports",
    "readinessProbe",
    "resources",
    "volumeDevices",
    "volumeMounts",
]
EITHER = [
    "securityContext",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
    "volumes",
    "labels",
    "annotations",
]
PLACES = st.sampled_from([engine, beside, first, lambda **fields: {"spec": fields}, lambda **fields: {"metadata": fields}])
TEMPLATES = st.builds(
    lambda place, fields: place(**fields),
    PLACES,
    st.dictionaries(st.sampled_from([*SPEC, *CONTAINER, *EITHER]), JSON, min_size=1, max_size=3),
)


@settings(max_examples=300, deadline=None)
@given(TEMPLATES, TEMPLATES)
@example(beside(env=None), beside(env=[{"name": "A"}]))
def test_any_value_at_any_field_gives_a_plan_or_a_refusal(of_pool: dict[str, Any], of_service: dict[str, Any]) -> None:
    planned = plan(tiny({"podTemplate": of_service}), of=pool({"podTemplate": of_pool}))

    assert planned.stalled is None or planned.stalled.reason == "PodTemplateRefused"
