"""The pod of a compute check: where it runs, what it holds, and what of a pool's podTemplate it takes."""

from __future__ import annotations

from typing import Any

from glm5_operator.api.pool import NPUPool
from glm5_operator.plan.compute_check import LONGEST_SECONDS, CheckInput, compute_check_pod
from glm5_operator.plan.facts import Finding, Manifest, Site
from glm5_operator.plan.pod import POD_SECURITY, RESTRICTED
from tests.unit.plan.builders import RESOURCE


def planned(template: dict[str, Any] | None = None, role: str = "Inference") -> Manifest | Finding:
    document = {
        "apiVersion": "glm5.dev/v1alpha1",
        "kind": "NPUPool",
        "metadata": {"name": "cards"},
        "spec": {"role": role, "nodeSelector": {"rack": "a"}, **({"podTemplate": template} if template else {})},
    }
    pool = NPUPool.parse(document)
    return compute_check_pod(CheckInput("npu-0.rack", "20261130t170000", pool, RESOURCE, 8, "glm5-system", Site()))


def made(template: dict[str, Any] | None = None, role: str = "Inference") -> Manifest:
    pod = planned(template, role)
    assert not isinstance(pod, Finding), pod
    return pod


def test_it_holds_the_cards_of_its_node_alone_restricted_and_for_minutes() -> None:
    pod = made()
    spec, (container,) = pod["spec"], pod["spec"]["containers"]

    assert (pod["metadata"]["namespace"], pod["metadata"]["name"]) == ("glm5-system", "npu-0.rack-check-20261130t170000")
    assert container["resources"]["limits"][RESOURCE] == container["resources"]["requests"][RESOURCE] == "8"
    assert (spec["restartPolicy"], spec["activeDeadlineSeconds"]) == ("Never", LONGEST_SECONDS)
    assert spec["securityContext"] == POD_SECURITY
    assert container["securityContext"] == RESTRICTED
    assert spec["automountServiceAccountToken"] is False
    # By the scheduler and through its pool, as the admission policy asks of every pod with cards.
    assert "nodeName" not in spec
    assert spec["nodeSelector"] == {"glm5.dev/pool": "cards"}
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["npu-0.rack"]}]}
    assert {"key": "glm5.dev/health", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]
    assert (container["command"], container["args"]) == (["glm5-runtime", "doctor"], ["--compute", "--result=/dev/termination-log"])


def test_of_the_pools_pod_template_it_takes_what_names_nothing_in_another_namespace() -> None:
    engine = {
        "name": "engine",
        "image": "registry.example/glm5-runtime:0.1.0",
        "args": ["--flag"],
        "env": [{"name": "GLM5_DEVICE", "value": "cpu"}, {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        "envFrom": [{"secretRef": {"name": "s"}}],
        "volumeMounts": [{"name": "driver", "mountPath": "/usr/local/Ascend/driver"}, {"name": "own", "mountPath": "/own"}],
    }
    volumes = [
        {"name": "driver", "hostPath": {"path": "/usr/local/Ascend/driver"}},
        {"name": "own", "persistentVolumeClaim": {"claimName": "own"}},
    ]
    sidecar = {"name": "proxy", "image": "proxy:1"}
    pod = made({"spec": {"containers": [engine, sidecar], "volumes": volumes, "imagePullSecrets": [{"name": "pull"}]}})
    (container,) = pod["spec"]["containers"]

    assert container["image"] == "registry.example/glm5-runtime:0.1.0"
    assert {entry["name"]: entry.get("value") for entry in container["env"]}["GLM5_DEVICE"] == "cpu"
    assert "secret" not in str(container).lower()
    assert [volume["name"] for volume in pod["spec"]["volumes"]] == ["tmp", "home", "driver"]
    assert [mount["mountPath"] for mount in container["volumeMounts"]][-1] == "/usr/local/Ascend/driver"
    assert pod["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    assert container["args"] == ["--compute", "--result=/dev/termination-log"]


def test_of_a_training_pool_the_trainers_part_counts() -> None:
    containers = [{"name": name, "env": [{"name": "WHOSE", "value": name}]} for name in ("engine", "trainer")]
    (container,) = made({"spec": {"containers": containers}}, role="Training")["spec"]["containers"]

    assert {entry["name"]: entry.get("value") for entry in container["env"]}["WHOSE"] == "trainer"


def test_cards_that_a_pod_template_names_are_refused_with_where_that_stands() -> None:
    template = {"spec": {"containers": [{"name": "engine", "env": [{"name": "ASCEND_VISIBLE_DEVICES", "value": "0"}]}]}}
    finding = planned(template)

    assert isinstance(finding, Finding)
    assert "ASCEND_VISIBLE_DEVICES" in finding.message
    assert "NPUPool cards" in finding.message
