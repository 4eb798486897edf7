"""What the chart renders, whatever the values: safe pods, stable output, CRDs as in crds/, nothing that a cluster may lack."""

from __future__ import annotations

import re
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from glm5_operator import settings
from glm5_operator.agent import settings as agent_settings
from glm5_operator.agent.gauges import CardGauges
from glm5_operator.api import names
from glm5_operator.controllers import pool_metrics
from glm5_operator.controllers.remedies import Remedies
from glm5_operator.kube import Cache
from glm5_operator.metrics import Metrics
from tests.support.chart import CHART, KUBE_VERSIONS, Chart, RefusedError, at, containers, environment, only, pod_templates

ROOT = CHART.parents[1]
AGENT = "DaemonSet/r-glm5-operator-agent"
EVERYTHING: dict[str, Any] = {
    "replicas": 2,
    "networkPolicy": {"enabled": True, "metricsFrom": [{"namespaceSelector": {}}]},
    "metrics": {kind: {"enabled": True} for kind in ("serviceMonitor", "podMonitor", "prometheusRule")},
    "extraEnv": [{"name": "A", "value": 1}],
    "nodeSelector": {"a": "b"},
}


def crds(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {item["metadata"]["name"]: item for item in documents if item["kind"] == "CustomResourceDefinition"}


@pytest.mark.parametrize("values", [None, EVERYTHING], ids=["defaults", "everything"])
def test_two_renders_are_the_same(chart: Chart, values: dict[str, Any] | None) -> None:
    assert chart.text(values) == chart.text(values)


@pytest.mark.parametrize("version", KUBE_VERSIONS)
def test_it_renders_for_the_oldest_and_the_newest_supported_kubernetes(chart: Chart, version: str) -> None:
    assert chart.render(EVERYTHING, f"--kube-version={version}")


@pytest.mark.parametrize("version", ["1.29.9", "1.20.0"])
def test_an_older_kubernetes_is_refused_in_one_sentence(chart: Chart, version: str) -> None:
    with pytest.raises(RefusedError, match=r"chart requires kubeVersion: >=1\.30"):
        chart.render(None, f"--kube-version={version}")


def test_vendor_builds_of_kubernetes_are_accepted(chart: Chart) -> None:
    assert chart.render(None, "--kube-version=v1.31.2-r0-CCE24.1.3")


def test_by_default_nothing_needs_an_api_that_a_bare_cluster_lacks(chart: Chart) -> None:
    built_in = {"v1", "apps/v1", "batch/v1", "rbac.authorization.k8s.io/v1", "apiextensions.k8s.io/v1", "admissionregistration.k8s.io/v1"}
    assert {document["apiVersion"] for document in chart.render()} <= built_in


def test_every_pod_but_the_node_agent_meets_the_restricted_pod_security_standard(chart: Chart) -> None:
    pods = pod_templates(chart.render(EVERYTHING))
    assert pods.pop(AGENT)["spec"]["containers"][0]["securityContext"]["privileged"] is True
    for name, pod in pods.items():
        context = pod["spec"]["securityContext"]
        assert (context["runAsNonRoot"], context["runAsUser"], context["seccompProfile"]) == (True, 1000, {"type": "RuntimeDefault"}), name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod["spec"].keys()
        assert all(set(volume) == {"name", "emptyDir"} and "sizeLimit" in volume["emptyDir"] for volume in pod["spec"].get("volumes", []))
        for container in pod["spec"]["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]


def test_no_pod_gets_service_links_because_they_would_read_as_unknown_settings(chart: Chart) -> None:
    assert all(pod["spec"]["enableServiceLinks"] is False for pod in pod_templates(chart.render()).values())


def test_the_operator_knows_every_setting_that_the_chart_gives_it(chart: Chart) -> None:
    values = {**EVERYTHING, "watchNamespaces": ["a", "b"], "logFormat": "json", "logLevel": "debug", "engines": {"pullPolicy": "Always"}}
    loaded = settings.load(environment(chart.render(values)))
    assert loaded.scope.namespaces == ("a", "b")
    assert (loaded.log.level, loaded.log.format) == ("debug", "json")
    assert loaded.site.native_image == "glm5-runtime:0.1.0"
    assert loaded.site.image_pull_policy == "Always"


def test_the_defaults_of_chart_and_operator_are_the_same(chart: Chart) -> None:
    assert settings.load(environment(chart.render())) == settings.Settings()


def test_the_agent_knows_every_setting_that_the_chart_gives_it_and_the_names_of_cards(chart: Chart) -> None:
    (container,) = only(chart.render(at(("admission", "resources"), ["acme.com/npu", "b.c/d"])), "DaemonSet")["spec"]["template"]["spec"][
        "containers"
    ]
    given = {item["name"]: item.get("value", "node-1") for item in container["env"]}

    assert agent_settings.load(given).node.resources == ("acme.com/npu", "b.c/d")


def test_helm_lint_has_nothing_to_say(chart: Chart) -> None:
    done = subprocess.run([chart.helm, "lint", "--strict", CHART], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("values", [None, {"tolerations": []}, {"tolerations": [{"key": "a", "operator": "Exists"}]}], ids=str)
def test_taints_of_ours_on_every_node_do_not_lock_the_operator_out(chart: Chart, values: dict[str, Any] | None) -> None:
    """Of a role; and where one node is all there is, of its quarantine and its move, which nobody but the operator takes off."""
    keys = (names.ROLE_TAINT, names.HEALTH_TAINT, names.MOVE_TAINT)
    taints = [{"key": key, "operator": "Exists", "effect": names.TAINT_EFFECT} for key in keys]
    pods = pod_templates(chart.render(values))
    assert pods.pop(AGENT)["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert pods
    assert all(pod["spec"]["tolerations"][: len(taints)] == taints for pod in pods.values())


@pytest.mark.parametrize("values", [None, {"crds": {"install": False}}], ids=str)
def test_a_policy_that_needs_a_crd_never_fails_closed(chart: Chart, values: dict[str, Any] | None) -> None:
    """An API server that doesn't find the kind of a policy's parameters would refuse every pod of the cluster."""
    policies = [item for item in chart.render(values) if item["kind"] == "ValidatingAdmissionPolicy" and "paramKind" in item["spec"]]
    assert len(policies) == 2
    assert {item["spec"]["failurePolicy"] for item in policies} == {"Ignore"}


def test_the_test_pod_has_no_api_token(chart: Chart) -> None:
    assert only(chart.render(), "Pod")["spec"]["automountServiceAccountToken"] is False


def test_one_replica_has_no_disruption_budget_and_two_have_one_and_prefer_two_nodes(chart: Chart) -> None:
    assert "PodDisruptionBudget" not in {document["kind"] for document in chart.render()}
    documents = chart.render({"replicas": 2})
    assert only(documents, "PodDisruptionBudget")["spec"]["minAvailable"] == 1
    assert "podAntiAffinity" in only(documents, "Deployment")["spec"]["template"]["spec"]["affinity"]


def test_selectors_select_the_operator_alone(chart: Chart) -> None:
    documents = chart.render(EVERYTHING)
    pods = pod_templates(documents)
    selectors = {
        "Deployment": only(documents, "Deployment")["spec"]["selector"]["matchLabels"],
        "Service": only(documents, "Service")["spec"]["selector"],
        "PodDisruptionBudget": only(documents, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
    }
    agents = only(documents, "DaemonSet")["spec"]["selector"]["matchLabels"]
    assert [name for name, pod in pods.items() if agents.items() <= pod["metadata"]["labels"].items()] == [AGENT]
    for kind, selector in selectors.items():
        chosen = [name for name, pod in pods.items() if selector.items() <= pod["metadata"]["labels"].items()]
        assert chosen == ["Deployment/r-glm5-operator"], kind


def test_cleanup_runs_before_the_operator_goes_with_rights_of_its_own(chart: Chart) -> None:
    hooks = [item for item in chart.render() if item["metadata"].get("annotations", {}).get("helm.sh/hook") == "pre-delete"]
    kinds = sorted(item["kind"] for item in hooks)
    assert kinds == ["ClusterRole", "ClusterRoleBinding", "Job", "Role", "RoleBinding", "ServiceAccount"]
    assert all("hook-succeeded" in item["metadata"]["annotations"]["helm.sh/hook-delete-policy"] for item in hooks)
    weights = {item["kind"]: int(item["metadata"]["annotations"]["helm.sh/hook-weight"]) for item in hooks}
    assert weights["ServiceAccount"] < weights["RoleBinding"] < weights["Job"]
    pod = only(hooks, "Job")["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == only(hooks, "ServiceAccount")["metadata"]["name"]
    assert pod["containers"][0]["args"] == ["cleanup"]


def test_crds_are_those_of_the_crds_folder_plus_the_annotation_that_keeps_them(chart: Chart) -> None:
    rendered = crds(chart.render())
    assert rendered
    for crd in rendered.values():
        assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    sources = [yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("*.yaml")]
    assert rendered == {item["metadata"]["name"]: item for item in sources}


def test_crds_hold_no_empty_list_or_map_that_would_differ_from_the_live_object_for_ever() -> None:
    for path in (ROOT / "crds").glob("*.yaml"):
        found = [line.strip() for line in path.read_text().splitlines() if line.endswith((" []", " {}"))]
        assert set(found) <= {"status: {}"}, path.name  # the subresource, which the server keeps


def test_crds_fit_into_the_annotation_of_a_client_side_apply() -> None:
    for path in (ROOT / "crds").glob("*.yaml"):
        assert len(path.read_bytes()) < 262_144 // 2, f"{path.name}: leave room for later versions"


def test_without_crds_the_notes_say_what_to_apply(chart: Chart) -> None:
    assert crds(chart.render(at(("crds", "install"), value=False))) == {}


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load((CHART / "files" / "alerts.yaml").read_text()) for rule in group["rules"]]


def test_metrics_that_alerts_name_exist() -> None:
    expressions = "\n".join(rule["expr"] for rule in rules())
    metrics = Metrics()
    Remedies(metrics)
    pool_metrics.register(metrics, Cache())
    pages = (metrics.exposition() + CardGauges("node-1", lambda: None).exposition()).decode()
    exposed = {line.split()[2] for line in pages.splitlines() if line.startswith("# TYPE")}
    named = set(re.findall(r"\bglm5_\w+", expressions))
    assert named
    assert named <= exposed
    assert set(re.findall(r"\bglm5:\w+", expressions)) <= {rule.get("record") for rule in rules()}


def test_rules_name_no_series_of_npu_exporter_that_its_documentation_does_not() -> None:
    """dlug_api_004 of MindCluster; facts/ascend.md has the list."""
    documented = {"health_status", "temperature", "utilization", "hbm_used_memory"}

    assert set(re.findall(r"\bnpu_chip_info_(\w+)", "\n".join(rule["expr"] for rule in rules()))) == documented


def test_what_is_only_said_in_a_dry_run_fires_no_alert() -> None:
    asked = [rule["expr"] for rule in rules() if "glm5_nodes_in_remedy{" in rule["expr"]]

    assert len(asked) == 2
    assert all('dry="false"' in expression for expression in asked)


def test_monitoring_objects_are_made_only_when_asked_for(chart: Chart) -> None:
    asked = chart.render(EVERYTHING)
    assert only(asked, "ServiceMonitor")["spec"]["endpoints"][0]["path"] == "/metrics"
    pods = only(asked, "PodMonitor")["spec"]
    agents = [
        name for name, pod in pod_templates(asked).items() if pods["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    ]
    assert agents == [AGENT]
    (port,) = pod_templates(asked)[AGENT]["spec"]["containers"][0]["ports"]
    assert [(endpoint["port"], endpoint["path"]) for endpoint in pods["podMetricsEndpoints"]] == [(port["name"], "/metrics")]
    assert only(asked, "PrometheusRule")["spec"]["groups"] == yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())


def test_a_network_policy_that_limits_scrapes_still_lets_the_test_pod_in(chart: Chart) -> None:
    documents = chart.render(EVERYTHING)
    (rule,) = only(documents, "NetworkPolicy", "r-glm5-operator")["spec"]["ingress"]
    labels = only(documents, "Pod")["metadata"]["labels"]
    selectors = [peer["podSelector"]["matchLabels"] for peer in rule["from"] if "podSelector" in peer]
    assert any(selector.items() <= labels.items() for selector in selectors)


def test_agents_let_in_whoever_may_scrape_and_nobody_where_nobody_does(chart: Chart) -> None:
    def ingress(values: dict[str, Any]) -> Any:  # noqa: ANN401 - of a rendered object
        return only(chart.render({"networkPolicy": {"enabled": True}, **values}), "NetworkPolicy", "-agent")["spec"].get("ingress")

    ports = [{"port": "probes", "protocol": "TCP"}]
    assert ingress({}) is None
    assert ingress({"metrics": {"podMonitor": {"enabled": True}}}) == [{"ports": ports}]
    assert ingress({"networkPolicy": {"enabled": True, "metricsFrom": [{"podSelector": {}}]}}) == [
        {"ports": ports, "from": [{"podSelector": {}}]}
    ]


def test_names_stay_inside_their_limits_for_the_longest_release_and_namespace(chart: Chart) -> None:
    documents = chart.render(release="r" * 53, namespace="n" * 63)
    for document in documents:
        role = document["kind"].startswith(("ClusterRole", "ValidatingAdmission"))  # those names never become labels
        assert len(document["metadata"]["name"]) <= (253 if role else 63), document["kind"]
    names = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert len(names) == len(set(names))


def test_the_chart_packs_what_it_reads_and_leaves_nothing_else_in(chart: Chart, tmp_path: Path) -> None:
    subprocess.run([chart.helm, "package", CHART, "--destination", tmp_path], check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tgz")
    with tarfile.open(archive) as opened:
        packed = {name.removeprefix("glm5-operator/") for name in opened.getnames()}
    on_disk = {str(path.relative_to(CHART)) for path in CHART.rglob("*") if path.is_file()} - {".helmignore"}
    assert packed - {".helmignore"} == on_disk


def test_the_images_that_artifact_hub_lists_are_those_that_the_chart_uses(chart: Chart) -> None:
    annotations = yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]
    listed = {item["image"] for item in yaml.safe_load(annotations["artifacthub.io/images"])}
    documents = chart.render()
    used = {container["image"] for container in containers(documents)} | {environment(documents)["GLM5_OPERATOR_SITE_NATIVE_IMAGE"]}
    assert listed == used
    kinds = {item["name"]: item["kind"] for item in yaml.safe_load(annotations["artifacthub.io/crds"])}
    assert kinds == {name: crd["spec"]["names"]["kind"] for name, crd in crds(documents).items()}
