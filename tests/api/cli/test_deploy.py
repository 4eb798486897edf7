"""`glm5 deploy` on a real API server: what it applies, what it waits for, and how it ends. The test plays the operator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from glm5_operator.cli import deploy
from tests.api.cli.conftest import Site
from tests.cluster.api import ApiCluster, ApiOptions
from tests.unit.cli.support import glm5

pytestmark = pytest.mark.api

SERVES = ("Ready", "True", "Serving", "1 of 1 replicas serve")
STALLED = ("Stalled", "True", "PoolHasNoNodes", "no node belongs to NPUPool inference: label nodes")
NOT_READY = ("Ready", "False", "PoolHasNoNodes", "no node belongs to NPUPool inference: label nodes")


def test_a_model_is_deployed_from_a_cluster_file_to_an_endpoint(site: Site) -> None:
    thread = site.when_applied(lambda: site.report(SERVES, endpoint="http://chat-api.ns.svc.cluster.local:8000/v1", revision="1a2b"))
    run = site.deploy("--timeout", "30")
    thread.join(10)
    assert (run.exit_code, run.stdout) == (0, "http://chat-api.ns.svc.cluster.local:8000/v1\n")
    assert run.stderr.splitlines()[:2] == [f"applied NPUPool {site.pool}", "applied GLM5Service chat"]
    assert f"kubectl -n {site.namespace} port-forward service/chat-api 8000" in run.stderr
    assert site.service()["spec"]["model"]["name"] == "GLM-5.1"
    assert [entry["manager"] for entry in site.service()["metadata"]["managedFields"] if not entry.get("subresource")] == ["glm5-cli"]


def test_the_outcome_is_data_when_asked_for(site: Site) -> None:
    site.when_applied(lambda: site.report(SERVES, endpoint="http://x/v1", revision="1a2b"))
    run = site.deploy("--timeout", "30", "-o", "json")
    expected = {"namespace": site.namespace, "service": "chat", "ready": "True", "endpoint": "http://x/v1", "revision": "1a2b"}
    assert json.loads(run.stdout) == expected


def test_without_waiting_it_ends_after_applying(site: Site) -> None:
    run = site.deploy("--no-wait", "-o", "yaml")
    assert run.exit_code == 0
    assert yaml.safe_load(run.stdout)["ready"] == "Unknown"


def test_deploying_the_same_again_changes_nothing(site: Site) -> None:
    site.deploy("--no-wait")
    before = site.service()["metadata"]["resourceVersion"]
    site.deploy("--no-wait")
    assert site.service()["metadata"]["resourceVersion"] == before


def test_a_status_of_an_older_generation_is_not_taken_for_the_answer(site: Site) -> None:
    site.deploy("--no-wait")
    site.report(SERVES, endpoint="http://x/v1")
    run = site.deploy("--timeout", "1", spec={"replicas": 2})
    assert run.exit_code == 7
    assert "waiting for the operator" in run.stderr


def test_a_service_that_stays_stalled_ends_with_the_reason(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy, "STALL_GRACE", 1.0)
    site.when_applied(lambda: site.report(NOT_READY, STALLED))
    run = site.deploy("--timeout", "30")
    assert run.exit_code == 4
    expected = f"error: GLM5Service {site.namespace}/chat: PoolHasNoNodes: no node belongs to NPUPool inference: label nodes"
    assert run.stderr.splitlines()[-1] == expected


def test_a_stall_that_passes_is_waited_for(site: Site) -> None:
    site.when_applied(lambda: site.report(NOT_READY, STALLED), lambda: site.report(SERVES, endpoint="http://x/v1"))
    run = site.deploy("--timeout", "30")
    assert (run.exit_code, run.stdout) == (0, "http://x/v1\n")
    assert "chat: PoolHasNoNodes" in run.stderr


def test_time_that_is_up_says_what_was_still_missing(site: Site) -> None:
    site.when_applied(lambda: site.report(("Ready", "False", "ImagePullFailed", "no such image")))
    run = site.deploy("--timeout", "2")
    assert run.exit_code == 7
    assert "isn't ready after 2 s: ImagePullFailed: no such image; see `glm5 status`" in run.stderr


def test_an_operator_that_does_not_look_is_asked_about(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy, "UNSEEN_AFTER", 0.5)
    run = site.deploy("--timeout", "2")
    assert run.exit_code == 7
    assert "is it running? kubectl -n glm5-system get pods" in run.stderr


def test_what_the_api_server_refuses_is_a_line_for_each_field(site: Site) -> None:
    run = site.deploy("--timeout", "30", spec={"engine": {"image": "x:latest"}, "rollout": {"maxSurge": 0, "maxUnavailable": 0}})
    assert run.exit_code == 6
    errors = [line for line in run.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 3
    assert any(line.startswith("error: spec.engine.image: ") and "name a version or date tag" in line for line in errors)
    assert any(line.startswith("error: spec.rollout.maxUnavailable: ") for line in errors)


def test_a_namespace_that_is_missing_is_named_with_the_command_that_makes_it(site: Site) -> None:
    path = site.cluster_file()
    Path(path).write_text(Path(path).read_text().replace(f"namespace: {site.namespace}", "namespace: absent-one"))
    run = site.glm5("deploy", "--cluster-config", path, "--model", "glm-5.1")
    assert run.exit_code == 6
    assert "kubectl create namespace absent-one" in run.stderr


def test_a_field_that_another_tool_owns_is_taken_only_by_force(site: Site) -> None:
    site.deploy("--no-wait", spec={"replicas": 1})
    site.cluster.kubectl(
        "-n", site.namespace, "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(_replicas(site, 3))
    )
    refused = site.deploy("--no-wait", spec={"replicas": 2})
    assert refused.exit_code == 6
    assert ".spec.replicas" in refused.stderr
    assert "--force-conflicts" in refused.stderr
    assert site.service()["spec"]["replicas"] == 3
    assert site.deploy("--no-wait", "--force-conflicts", spec={"replicas": 2}).exit_code == 0
    assert site.service()["spec"]["replicas"] == 2


def _replicas(site: Site, count: int) -> dict[str, object]:
    service = site.service()
    metadata = {"name": "chat", "namespace": site.namespace}
    return {
        "apiVersion": service["apiVersion"],
        "kind": service["kind"],
        "metadata": metadata,
        "spec": {**service["spec"], "replicas": count},
    }


def test_a_service_deleted_while_waiting_ends_the_wait(site: Site) -> None:
    site.when_applied(lambda: site.cluster.http.delete(site.path))
    run = site.deploy("--timeout", "30")
    assert run.exit_code == 6
    assert "was deleted while waiting" in run.stderr


def test_a_dead_server_and_missing_credentials_are_told_apart(tmp_path: Path, site: Site) -> None:
    path = tmp_path / "kubeconfig"
    config = site.cluster.kubeconfig.read_text().replace(site.cluster.server, "https://127.0.0.1:9")
    path.write_text(config)
    for words in (("status",), ("deploy", "--cluster-config", site.cluster_file(), "--model", "GLM-5.1")):
        run = glm5(*words, "--kubeconfig", str(path))
        assert run.exit_code == 5
        assert "no connection to the API server" in run.stderr.splitlines()[-1]
    run = glm5("status", "--kubeconfig", str(tmp_path / "absent"))
    assert run.exit_code == 3
    assert "no such file" in run.stderr


def test_a_cluster_without_our_kinds_is_told_to_install_the_operator(site: Site) -> None:
    with ApiCluster.start(options=ApiOptions(kwok=False)) as bare:
        for words in (("status",), ("deploy", "--cluster-config", site.cluster_file(), "--model", "GLM-5.1")):
            run = glm5(*words, "--kubeconfig", str(bare.kubeconfig))
            assert run.exit_code == 5
            assert "install the operator: helm install" in run.stderr
