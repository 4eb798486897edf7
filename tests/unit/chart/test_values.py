"""What users and GitOps overlays put into values: nulls, empties, typos, numbers (cases E01, E02, E05)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.chart import Chart, RefusedError, at, containers, default_values, environment, only, paths, pod_templates

ALL = list(paths(default_values()))
BLOCKS = [path for path, value in ALL if isinstance(value, dict) and value]
RESOURCES = {(*owner, "resources", part) for owner in ((), ("agent",)) for part in ("requests", "limits")}
OPEN = {*RESOURCES, ("global",)}  # keys of the cluster, and of umbrella charts
CLOSED = [path for path in BLOCKS if path not in OPEN]
LEAVES = [path for path, value in ALL if not (isinstance(value, dict) and value)]

# Values that only show when something else is on; the rest is seen with defaults around it.
PREREQUISITES: dict[str, dict[str, Any]] = {
    "metrics.serviceMonitor.interval": at(("metrics", "serviceMonitor", "enabled"), value=True),
    "metrics.serviceMonitor.labels": at(("metrics", "serviceMonitor", "enabled"), value=True),
    "metrics.podMonitor.interval": at(("metrics", "podMonitor", "enabled"), value=True),
    "metrics.podMonitor.labels": at(("metrics", "podMonitor", "enabled"), value=True),
    "metrics.prometheusRule.labels": at(("metrics", "prometheusRule", "enabled"), value=True),
    "networkPolicy.apiServerPorts": at(("networkPolicy", "enabled"), value=True),
    "networkPolicy.progressPort": at(("networkPolicy", "enabled"), value=True),
    "networkPolicy.metricsFrom": at(("networkPolicy", "enabled"), value=True),
}
# One value per leaf that differs from the default and can be found again in the output.
MARKERS: dict[str, tuple[Any, str]] = {
    "global.imageRegistry": ("marker.local", "marker.local/"),
    "nameOverride": ("marker", '"marker"'),
    "fullnameOverride": ("marker", "name: marker"),
    "replicas": (2, "replicas: 2"),
    "image.registry": ("marker.local", "marker.local/glm5-operator"),
    "image.repository": ("marker", '"marker:0.1.0"'),
    "image.tag": ("marker1", "glm5-operator:marker1"),
    "image.digest": ("f" * 64, "@sha256:" + "f" * 64),
    "image.pullPolicy": ("Always", "imagePullPolicy: Always"),
    "engines.native.image.registry": ("marker.local", "marker.local/glm5-runtime"),
    "engines.native.image.repository": ("marker", '"marker:0.1.0"'),
    "engines.native.image.tag": ("marker1", "glm5-runtime:marker1"),
    "engines.native.image.digest": ("f" * 64, "@sha256:" + "f" * 64),
    "engines.vllm.image.registry": ("marker.local", "marker.local/ascend"),
    "engines.vllm.image.repository": ("marker", "quay.io/marker:"),
    "engines.vllm.image.tag": ("marker1", "vllm-ascend:marker1"),
    "engines.vllm.image.digest": ("f" * 64, "@sha256:" + "f" * 64),
    "engines.pullPolicy": ("Always", '"Always"'),
    "imagePullSecrets": ([{"name": "marker"}], "- name: marker"),
    "clusterDomain": ("marker.local", '"marker.local"'),
    "logLevel": ("debug", '"debug"'),
    "logFormat": ("json", '"json"'),
    "watchNamespaces": (["marker", "other"], '"marker,other"'),
    "extraEnv": ([{"name": "MARKER", "value": "x"}], '"MARKER"'),
    "resources.requests.cpu": ("123m", "cpu: 123m"),
    "resources.requests.memory": ("123Mi", "memory: 123Mi"),
    "resources.limits.memory": ("1234Mi", "memory: 1234Mi"),
    "podAnnotations": ({"marker": "x"}, "marker: x"),
    "podLabels": ({"marker": "x"}, "marker: x"),
    "nodeSelector": ({"marker": "x"}, "marker: x"),
    "tolerations": ([{"key": "marker", "operator": "Exists"}], "key: marker"),
    "affinity": ({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"marker": "x"}}}, "marker: x"),
    "priorityClassName": ("marker", '"marker"'),
    "terminationGracePeriodSeconds": (123, "terminationGracePeriodSeconds: 123"),
    "podSecurityContext.runAsUser": (1234, "runAsUser: 1234"),
    "podSecurityContext.runAsGroup": (1234, "runAsGroup: 1234"),
    "podSecurityContext.fsGroup": (1234, "fsGroup: 1234"),
    "tmpSizeLimit": ("123Mi", 'sizeLimit: "123Mi"'),
    "serviceAccount.create": (False, ""),
    "serviceAccount.name": ("marker", "serviceAccountName: marker"),
    "serviceAccount.annotations": ({"marker": "x"}, "marker: x"),
    "rbac.create": (False, ""),
    "rbac.aggregate": (False, ""),
    "crds.install": (False, ""),
    "admission.enabled": (False, ""),
    "admission.exemptNamespaces": (["marker"], "- marker"),
    "admission.daemonSetNamespaces": (["marker"], "request.namespace in ['marker']"),
    "admission.resources": (["marker.local/card"], "k == 'marker.local/card'"),
    "agent.enabled": (False, ""),
    "agent.nodeSelector": ({"marker": "x"}, "marker: x"),
    "agent.tolerations": ([{"key": "marker", "operator": "Exists"}], "key: marker"),
    "agent.resources.requests.cpu": ("123m", "cpu: 123m"),
    "agent.resources.requests.memory": ("123Mi", "memory: 123Mi"),
    "agent.resources.limits.memory": ("1234Mi", "memory: 1234Mi"),
    "agent.priorityClassName": ("marker", 'priorityClassName: "marker"'),
    "agent.extraEnv": ([{"name": "MARKER", "value": "x"}], '"MARKER"'),
    "agent.kubeletDir": ("/marker", 'value: "/marker"'),
    "agent.stateDir": ("/marker", 'path: "/marker"'),
    "agent.maxUnavailable": (7, "maxUnavailable: 7"),
    "cleanup.enabled": (False, ""),
    "cleanup.timeoutSeconds": (123, "activeDeadlineSeconds: 123"),
    "metrics.serviceMonitor.enabled": (True, "kind: ServiceMonitor"),
    "metrics.serviceMonitor.interval": ("123s", '"123s"'),
    "metrics.serviceMonitor.labels": ({"marker": "x"}, "marker: x"),
    "metrics.podMonitor.enabled": (True, "kind: PodMonitor"),
    "metrics.podMonitor.interval": ("123s", '"123s"'),
    "metrics.podMonitor.labels": ({"marker": "x"}, "marker: x"),
    "metrics.prometheusRule.enabled": (True, "kind: PrometheusRule"),
    "metrics.prometheusRule.labels": ({"marker": "x"}, "marker: x"),
    "networkPolicy.enabled": (True, "kind: NetworkPolicy"),
    "networkPolicy.apiServerPorts": ([12345], "port: 12345"),
    "networkPolicy.progressPort": (12346, "port: 12346"),
    "networkPolicy.metricsFrom": ([{"podSelector": {"matchLabels": {"marker": "x"}}}], "marker: x"),
}


def merged(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    out = dict(left)
    for key, value in right.items():
        out[key] = merged(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


def empties(tree: object, path: str = "") -> Iterator[str]:
    """Paths of keys with nothing under them, which the API server would drop or refuse."""
    if tree is None or tree in ({}, [], ""):
        yield path
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from empties(value, f"{path}.{key}")
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from empties(value, f"{path}[{index}]")


def assert_sound(documents: list[dict[str, Any]]) -> None:
    for document in documents:
        if document["kind"] != "CustomResourceDefinition":  # tested against crds/ itself
            # "" is the core group, and an empty selector of parameters is every pool.
            found = [path for path in empties(document) if "apiGroups" not in path and not path.endswith("paramRef.selector")]
            assert not found, f"{document['kind']}/{document['metadata']['name']}: empty {found}"


def test_the_table_of_markers_covers_every_leaf_of_values_yaml() -> None:
    assert sorted(MARKERS) == sorted(".".join(path) for path in LEAVES)


@pytest.mark.parametrize("leaf", LEAVES, ids=".".join)
def test_every_documented_value_changes_the_output(chart: Chart, leaf: tuple[str, ...]) -> None:
    name = ".".join(leaf)
    value, marker = MARKERS[name]
    base = PREREQUISITES.get(name, {})
    if name == "serviceAccount.create":
        base = at(("serviceAccount", "name"), "existing")
    before = chart.text(base)
    after = chart.text(merged(base, at(leaf, value)))
    assert before != after
    assert marker in after
    assert not marker or marker not in before


@pytest.mark.parametrize("path", [path for path, _ in ALL], ids=".".join)
@pytest.mark.parametrize("empty", ["null", "{}", "[]", '""'])
def test_a_key_that_is_null_or_empty_renders_soundly_or_is_refused_by_its_path(chart: Chart, path: tuple[str, ...], empty: str) -> None:
    text = "".join(f"{'  ' * depth}{key}:" + ("\n" if depth < len(path) - 1 else f" {empty}\n") for depth, key in enumerate(path))
    refusal = ""
    try:
        assert_sound(chart.render(text))
    except RefusedError as error:
        refusal = str(error)
    if refusal:
        assert empty != "null", f"null must count as left out: {refusal}"
        assert f"at '/{'/'.join(path)}'" in refusal


def test_all_blocks_null_at_once_render_the_defaults_that_a_pod_needs(chart: Chart) -> None:
    documents = chart.render("".join(f"{key}: null\n" for key in default_values()))
    assert_sound(documents)
    assert {container["image"] for container in containers(documents)} == {"glm5-operator:0.1.0"}
    assert environment(documents)["GLM5_OPERATOR_SITE_VLLM_IMAGE"] == "quay.io/ascend/vllm-ascend:v0.23.0"


@pytest.mark.parametrize("block", [(), *CLOSED], ids=lambda path: ".".join(path) or "top")
def test_a_misspelt_key_is_refused_with_the_path_of_its_block(chart: Chart, block: tuple[str, ...]) -> None:
    where = "/" + "/".join(block) if block else ""
    with pytest.raises(RefusedError, match=rf"at '{where}': additional properties 'mispelt' not allowed"):
        chart.render(at((*block, "mispelt"), 1))


def test_it_renders_as_a_part_of_an_umbrella_chart(chart: Chart) -> None:
    assert chart.render({"enabled": True, "global": {"imageRegistry": "", "storageClass": "fast"}})


SPREAD = {
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
    "imagePullSecrets": [{"name": "registry"}],
    "priorityClassName": "system-cluster-critical",
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
}


@pytest.mark.parametrize("key", SPREAD)
def test_what_places_a_pod_is_in_every_pod_template_hooks_included(chart: Chart, key: str) -> None:
    pods = pod_templates(chart.render({key: SPREAD[key]}))
    agent = pods.pop("DaemonSet/r-glm5-operator-agent")["spec"]
    assert agent.get(key) == SPREAD[key] if key in {"imagePullSecrets", "priorityClassName"} else agent.get(key) != SPREAD[key]
    assert len(pods) == 3
    for name, pod in pods.items():
        given = pod["spec"].get(key)
        if key == "tolerations":  # beside those of our own taints
            given = [toleration for toleration in given if not toleration["key"].startswith("glm5.dev/")]
        assert given == SPREAD[key], name


@pytest.mark.parametrize(
    ("values", "at_path"),
    [
        ({"replicas": "2"}, "/replicas"),
        ({"replicas": 3}, "/replicas"),
        ({"replicas": 0}, "/replicas"),
        ({"logLevel": "verbose"}, "/logLevel"),
        ({"watchNamespaces": "all"}, "/watchNamespaces"),
        ({"watchNamespaces": ["Team_A"]}, "/watchNamespaces/0"),
        ({"extraEnv": {"A": "b"}}, "/extraEnv"),
        ({"extraEnv": [{"name": "A"}]}, "/extraEnv/0"),
        ({"extraEnv": [{"name": "A-B", "value": ""}]}, "/extraEnv/0/name"),
        ({"tolerations": [{"key": "a", "operator": "exists"}]}, "/tolerations/0/operator"),
        ({"podLabels": {"app.kubernetes.io/name": "x"}}, "/podLabels"),
        ({"podAnnotations": {"a": 1}}, "/podAnnotations/a"),
        ({"podSecurityContext": {"runAsUser": 0}}, "/podSecurityContext/runAsUser"),
        ({"podSecurityContext": {"runAsNonRoot": False}}, "/podSecurityContext"),
        ({"tmpSizeLimit": "64 MB"}, "/tmpSizeLimit"),
        ({"terminationGracePeriodSeconds": "30"}, "/terminationGracePeriodSeconds"),
        ({"rbac": {"create": "false"}}, "/rbac/create"),
        ({"networkPolicy": {"apiServerPorts": ["6443"]}}, "/networkPolicy/apiServerPorts/0"),
    ],
)
def test_a_wrong_type_or_value_is_refused_with_its_path(chart: Chart, values: dict[str, Any], at_path: str) -> None:
    with pytest.raises(RefusedError, match=f"at '{at_path}"):
        chart.render(values)


def test_environment_values_are_strings_whatever_yaml_makes_of_them(chart: Chart) -> None:
    text = "extraEnv:\n" + "".join(
        f"  - {{name: {name}, value: {value}}}\n"
        for name, value in {"A": "true", "B": "8080", "C": "1048576", "D": "0.5", "E": "'1e6'", "F": "52428800", "G": "-1"}.items()
    )
    env = environment(chart.render(text))
    assert [env[name] for name in "ABCDEFG"] == ["true", "8080", "1048576", "0.5", "1e6", "52428800", "-1"]
    env = environment(chart.render(None, "--set", "extraEnv[0].name=A,extraEnv[0].value=true,extraEnv[1].name=B,extraEnv[1].value=1048576"))
    assert (env["A"], env["B"]) == ("true", "1048576")


def test_environment_from_a_secret_keeps_its_reference(chart: Chart) -> None:
    reference = {"secretKeyRef": {"name": "proxy", "key": "url"}}
    documents = chart.render({"extraEnv": [{"name": "HTTPS_PROXY", "valueFrom": reference}]})
    (container,) = only(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert {"name": "HTTPS_PROXY", "valueFrom": reference} in container["env"]


def test_without_a_service_account_of_its_own_the_chart_asks_for_the_name_of_one(chart: Chart) -> None:
    with pytest.raises(RefusedError, match=r"serviceAccount\.name: name an existing ServiceAccount"):
        chart.render({"serviceAccount": {"create": False}})
    documents = chart.render({"serviceAccount": {"create": False, "name": "mine"}})
    accounts = {document["metadata"]["name"] for document in documents if document["kind"] == "ServiceAccount"}
    assert accounts == {"r-glm5-operator-agent", "r-glm5-operator-cleanup"}
    assert only(documents, "RoleBinding", "operator")["subjects"][0]["name"] == "mine"
