"""`glm5 status` reads a real API server and says what serves and why the rest doesn't."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.api.cli.conftest import Site

pytestmark = pytest.mark.api


def _row(text: str, name: str) -> str:
    return next(line.strip() for line in text.splitlines() if name in line.split())


def test_a_service_nobody_looked_at_is_unknown(site: Site) -> None:
    site.deploy("--no-wait")
    row = _row(site.glm5("status", "-n", site.namespace).stdout, "chat")
    assert row.split()[:6] == [site.namespace, "chat", "GLM-5.1", "w8a8", "0/1", "Unknown"]
    assert row.endswith("the operator hasn't looked at it yet")


def test_a_serving_service_shows_revision_and_endpoint_and_no_reason(site: Site) -> None:
    site.deploy("--no-wait")
    site.report(("Ready", "True", "Serving", "all good"), readyReplicas=1, revision="1a2b", endpoint="http://x/v1")
    row = _row(site.glm5("status", "-n", site.namespace).stdout, "chat")
    assert row.split()[4:] == ["1/1", "True", "1a2b", "http://x/v1"]


def test_a_stalled_service_shows_the_reason_and_what_to_change(site: Site) -> None:
    site.deploy("--no-wait")
    site.report(("Ready", "False", "Stalled", "see Stalled"), ("Stalled", "True", "PoolNotFound", "create NPUPool x"))
    row = _row(site.glm5("status", "-n", site.namespace).stdout, "chat")
    assert row.endswith("PoolNotFound: create NPUPool x")


def test_a_status_older_than_the_spec_is_not_shown_as_ready(site: Site) -> None:
    site.deploy("--no-wait")
    site.report(("Ready", "True", "Serving", ""))
    site.deploy("--no-wait", spec={"replicas": 2})
    assert _row(site.glm5("status", "-n", site.namespace).stdout, "chat").split()[4:6] == ["0/2", "Unknown"]


def test_all_namespaces_are_asked_for_as_in_kubectl(site: Site) -> None:
    site.deploy("--no-wait")
    for words in (("-A",), ("--all-namespaces", "-n", "elsewhere")):
        assert _row(site.glm5("status", *words).stdout, site.namespace).split()[:2] == [site.namespace, "chat"]
    assert site.namespace not in site.glm5("status", "-n", "elsewhere").stdout.split("NPUPools")[0]


def test_pools_are_listed_with_their_cards(site: Site) -> None:
    site.deploy("--no-wait")
    path = f"/apis/glm5.dev/v1alpha1/npupools/{site.pool}"
    pool = site.cluster.http.get(path).json()
    status = {"product": "A3", "nodes": 2, "cards": {"total": 32, "held": 16, "free": 16}}
    site.cluster.http.put(f"{path}/status", json={**pool, "status": status}).raise_for_status()
    assert _row(site.glm5("status").stdout, site.pool).split()[:7] == [site.pool, "Inference", "A3", "2", "32", "16", "Unknown"]


def test_the_objects_are_data_when_asked_for(site: Site) -> None:
    site.deploy("--no-wait")
    data = json.loads(site.glm5("status", "chat", "-n", site.namespace, "-o", "json").stdout)
    assert [service["metadata"]["name"] for service in data["services"]] == ["chat"]
    assert "managedFields" not in data["services"][0]["metadata"]
    assert site.pool in {pool["metadata"]["name"] for pool in data["pools"]}
    documents = list(yaml.safe_load_all(site.glm5("status", "-n", site.namespace, "-o", "yaml").stdout))
    assert {"GLM5Service", "NPUPool"} == {document["kind"] for document in documents}


def test_a_service_that_does_not_exist_is_said_so(site: Site) -> None:
    run = site.glm5("status", "absent", "-n", site.namespace)
    assert run.exit_code == 3
    assert "GLM5Service absent: doesn't exist" in run.stderr


def test_a_user_who_may_not_see_pools_still_sees_services(site: Site) -> None:
    site.deploy("--no-wait")
    rules = [{"apiGroups": ["glm5.dev"], "resources": ["glm5services"], "verbs": ["list"]}]
    meta = {"name": "viewer", "namespace": site.namespace}
    subjects = [{"kind": "ServiceAccount", "name": "default", "namespace": site.namespace}]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "viewer"}
    base = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": meta}
    roles = [{**base, "kind": "Role", "rules": rules}, {**base, "kind": "RoleBinding", "subjects": subjects, "roleRef": reference}]
    for role in roles:
        site.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(role))
    token = site.cluster.kubectl("-n", site.namespace, "create", "token", "default").strip()
    config = yaml.safe_load(site.cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    path = site.folder / "viewer.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    from tests.unit.cli.support import glm5

    run = glm5("status", "-n", site.namespace, "--kubeconfig", str(path))
    assert run.exit_code == 0
    assert "chat" in run.stdout
    assert "pools aren't shown" in run.stderr
    everything = glm5("status", "--kubeconfig", str(path))
    assert everything.exit_code == 6
    assert "forbidden" in everything.stderr


def test_a_service_nested_deeper_than_python_reads_hides_no_other(site: Site) -> None:
    site.deploy("--no-wait")
    http, path = site.cluster.http, f"/apis/glm5.dev/v1alpha1/namespaces/{site.namespace}/glm5services"
    chat = http.get(f"{path}/chat").json()
    metadata = {"name": "deep", "namespace": site.namespace}
    deep = {**chat, "metadata": metadata, "spec": {**chat["spec"], "podTemplate": {"spec": {"affinity": {"a": "DEEP"}}}}}
    body = json.dumps(deep).replace('"DEEP"', '{"a":' * 5_000 + "1" + "}" * 5_000)
    created = http.post(path, content=body, headers={"content-type": "application/json"})
    assert created.status_code == 201, created.text[:500]

    shown = site.glm5("status", "-n", site.namespace).stdout

    assert _row(shown, "chat")
    assert _row(shown, "deep")
    http.delete(f"{path}/deep").raise_for_status()
