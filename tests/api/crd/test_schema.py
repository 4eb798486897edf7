"""The rest of the CRDs on a real API server: types, bounds, subresources, printed columns, explanations, samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from glm5_operator.api.finetune import GLM5FinetuneJob
from glm5_operator.api.pool import NPUPool
from glm5_operator.api.service import GLM5Service
from glm5_operator.cli import documents
from tests.api.crd.conftest import Api
from tests.api.crd.documents import REMOVED, TINY, Json, pool, service
from tests.cluster.api import ApiCluster
from tests.support.crds import CRDS

pytestmark = pytest.mark.api

SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"
CLIENT_SIDE_LIMIT = 262_144  # bytes of annotations; client-side apply stores the whole object in one

WRONG: dict[str, tuple[str, Json]] = {
    "an unknown field": ("spec.modle", service({"modle": {}})),
    "two adapters of one name": (
        "spec.adapters[1]",
        service(TINY, {"adapterStorage": "pvc://a", "adapters": [{"name": "a", "source": "job://b"}, {"name": "a", "source": "job://c"}]}),
    ),
    "an adapter without a source": ("spec.adapters[0].source", service(TINY, {"adapterStorage": "pvc://a", "adapters": [{"name": "a"}]})),
    "no room for an adapter": ("spec.adapterLimits.count", service(TINY, {"adapterStorage": "pvc://a", "adapterLimits": {"count": 0}})),
    "no model": ("spec.model", service({"model": REMOVED})),
    "no weights form": ("spec.model.weights", service({"model": {"weights": REMOVED}})),
    "an unknown weights form": ("spec.model.weights", service({"model": {"weights": "fp8"}})),
    "an empty source": ("spec.model.source", service({"model": {"source": ""}})),
    "replicas below zero": ("spec.replicas", service({"replicas": -1})),
    "replicas as text": ("spec.replicas", service({"replicas": "2"})),
    "half a replica": ("spec.replicas", service({"replicas": 0.5})),
    "an unknown engine": ("spec.engine.name", service({"engine": {"name": "sglang"}})),
    "a context of no tokens": ("spec.context.maxTokens", service({"context": {"maxTokens": 0}})),
    "a page of 20 tokens": ("spec.kvCache.pageSize", service({"kvCache": {"pageSize": 20}})),
    "an unknown strategy": ("spec.rollout.strategy", service({"rollout": {"strategy": "BlueGreen"}})),
    "the same variable twice": ("spec.engine.env[1]", service({"engine": {"env": [{"name": "A"}, {"name": "A"}]}})),
    "a variable of a number": ("spec.engine.env[0].value", service({"engine": {"env": [{"name": "A", "value": 1}]}})),
    "a secret without a key": ("spec.auth.secretRef.key", service({"auth": {"secretRef": {"name": "a"}}})),
    "an unknown role": ("spec.role", pool({"role": "Serving"})),
    "an empty selector, which would match every node": (
        "spec.nodeSelector",
        pool({"nodeSelector": REMOVED}) | {"spec": {"role": "Inference", "nodeSelector": {}}},
    ),
    "a node named twice": ("spec.nodeNames[1]", pool({"nodeSelector": REMOVED, "nodeNames": ["a", "a"]})),
    "an unknown product": ("spec.product", pool({"product": "910B"})),
    "a product as a number": ("spec.product", pool({"product": 950})),
}


@pytest.mark.parametrize(("field", "document"), WRONG.values(), ids=WRONG)
def test_a_wrong_document_is_refused_at_its_field(api: Api, field: str, document: Json) -> None:
    verdict = api.create(document)
    assert not verdict.accepted
    assert any(field in f"{place} {message}" for place, message in verdict.causes), verdict.causes


EVERYTHING: Json = {
    "model": {"servedName": "glm", "memory": "512Gi"},
    "replicas": 2,
    "engine": {
        "name": "native",
        "image": "registry.example/glm5-runtime:0.1.0",
        "args": ["--seed", "1"],
        "env": [{"name": "A", "value": "b"}],
    },
    "parallelism": {"tensor": 8, "pipeline": 1, "data": 2, "expert": 16},
    "context": {"maxTokens": 40960, "maxSequences": 16, "maxBatchedTokens": 4096},
    "kvCache": {"pageSize": 128, "dtype": "bf16", "prefixCache": True},
    "speculative": {"tokens": 3},
    "rollout": {"strategy": "Surge", "maxSurge": 1, "maxUnavailable": 0, "paused": False},
    "drain": {"timeout": "300s"},
    "startup": {"timeout": "1h"},
    "auth": {"secretRef": {"name": "key", "key": "token"}},
    "adapterStorage": "pvc://adapters/tuned",
    "adapters": [{"name": "support", "source": "job://tune"}, {"name": "sales", "source": "pvc://adapters/tuned/sales"}],
    "adapterLimits": {"count": 8, "rank": 64},
    "podTemplate": {
        "metadata": {"annotations": {"a": "b"}},
        "spec": {
            "containers": [{"name": "engine", "resources": {"limits": {"cpu": "8"}}}],
            "runtimeClassName": "ascend",
            "tolerations": [],
        },
    },
}


def test_a_spec_with_every_field_is_stored_as_it_was_sent_and_read_by_the_model(api: Api) -> None:
    sent = service(EVERYTHING)
    assert set(sent["spec"]) == {field.alias for field in GLM5Service.model_fields["spec"].annotation.model_fields.values()}  # type: ignore[union-attr]
    stored = api.create(sent, dry_run=False).body
    assert stored["spec"] == sent["spec"]
    read = GLM5Service.parse(stored)
    assert read.spec.pod_template == sent["spec"]["podTemplate"]
    assert read.spec.engine_name == "native"


def test_a_ten_line_service_gets_no_default_but_one_replica(api: Api) -> None:
    stored = api.create(service(), dry_run=False).body
    assert stored["spec"] == {**service()["spec"], "replicas": 1}


def test_memory_may_be_a_number_of_bytes(api: Api) -> None:
    stored = api.create(service(TINY, {"model": {"memory": 4294967296}}), dry_run=False).body
    assert GLM5Service.parse(stored).spec.memory_bytes == 4294967296


def test_a_service_with_200_kilobytes_in_its_pod_template_is_stored_whole(api: Api) -> None:
    template = {"metadata": {"annotations": {"note": "x" * 200_000}}}
    stored = api.create(service({"podTemplate": template}), dry_run=False).body
    assert stored["spec"]["podTemplate"] == template


@pytest.mark.parametrize("path", sorted(CRDS.glob("*.yaml")), ids=lambda path: path.name)
def test_a_crd_is_far_below_the_limit_of_client_side_apply(path: Path) -> None:
    assert len(path.read_bytes()) < CLIENT_SIDE_LIMIT / 3


def test_applying_the_crds_again_changes_nothing_either_way(installed: ApiCluster) -> None:
    installed.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRDS))
    before = [item["metadata"]["generation"] for item in _crds(installed)]
    assert installed.kubectl("apply", "-f", str(CRDS)).count("glm5.dev") == 4
    assert installed.kubectl("apply", "-f", str(CRDS)).count(" unchanged") == 4
    assert [item["metadata"]["generation"] for item in _crds(installed)] == before


def _crds(cluster: ApiCluster) -> list[Json]:
    items: list[Json] = cluster.http.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").json()["items"]
    return [item for item in items if item["spec"]["group"] == "glm5.dev"]


def test_a_null_as_templates_print_it_means_an_absent_field(api: Api) -> None:
    stored = api.create(service({"drain": None, "engine": {"image": None, "name": "vllm"}}), dry_run=False).body
    assert stored["spec"] == {**service({"engine": {"name": "vllm"}})["spec"], "replicas": 1}


def test_kubectl_scale_changes_the_replicas_and_reads_the_selector(installed: ApiCluster, api: Api) -> None:
    assert api.create(service(), dry_run=False).accepted
    api.set_status(service(), {"replicas": 1, "selector": "glm5.dev/service=chat"})
    installed.kubectl("-n", api.namespace, "scale", "glm5", "chat", "--replicas=3")
    scale = api.http.get(f"/apis/glm5.dev/v1alpha1/namespaces/{api.namespace}/glm5services/chat/scale").json()
    assert (scale["spec"]["replicas"], scale["status"]) == (3, {"replicas": 1, "selector": "glm5.dev/service=chat"})


def test_status_is_not_written_with_the_spec_nor_the_spec_with_the_status(api: Api) -> None:
    stored = api.create({**service(), "status": {"readyReplicas": 7}}, dry_run=False).body
    assert "status" not in stored
    path = f"/apis/glm5.dev/v1alpha1/namespaces/{api.namespace}/glm5services/chat/status"
    written = api.http.put(path, json={**stored, "spec": {**stored["spec"], "pool": "other"}, "status": {"readyReplicas": 1}}).json()
    assert (written["spec"]["pool"], written["status"]) == ("inference", {"readyReplicas": 1})


def _table(text: str) -> list[dict[str, str]]:
    header, *rows = text.splitlines()
    starts = [header.index(name) for name in header.split()]
    ends = [*starts[1:], None]
    return [{header[a:b].strip(): row[a:b].strip() for a, b in zip(starts, ends, strict=True)} for row in rows]


def test_kubectl_get_says_whether_it_serves_how_many_which_revision_and_why_not(installed: ApiCluster, api: Api) -> None:
    assert api.create(service(), dry_run=False).accepted
    why = {
        "type": "Ready",
        "status": "False",
        "reason": "ImagePullFailed",
        "message": "no such image",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    api.set_status(service(), {"readyReplicas": 0, "revision": "1a2b3c", "conditions": [why], "cardsHeld": 16})
    row = _table(installed.kubectl("-n", api.namespace, "get", "glm5", "-o", "wide"))[0]
    assert row.pop("AGE")
    assert row == {
        "NAME": "chat",
        "MODEL": "GLM-5.1",
        "WEIGHTS": "w8a8",
        "REPLICAS": "1",
        "SERVING": "0",
        "READY": "False",
        "REASON": "ImagePullFailed",
        "REVISION": "1a2b3c",
        "POOL": "inference",
        "CARDS": "16",
        "ENDPOINT": "",
        "MESSAGE": "no such image",
    }


def test_kubectl_get_all_and_get_ascend_list_services(installed: ApiCluster, api: Api) -> None:
    assert api.create(service(), dry_run=False).accepted
    for category in ("all", "ascend"):
        assert "glm5service.glm5.dev/chat" in installed.kubectl("-n", api.namespace, "get", category, "-o", "name")


def test_kubectl_get_npupool_shows_role_product_and_cards(installed: ApiCluster, api: Api) -> None:
    document = pool(name="columns")
    assert api.create(document, dry_run=False).accepted
    try:
        api.set_status(
            document, {"product": "A3", "nodes": 2, "cards": {"total": 32, "held": 16, "free": 16}, "resourceName": "huawei.com/Ascend910"}
        )
        row = next(row for row in _table(installed.kubectl("get", "npupool")) if row["NAME"] == "columns")
        assert (row["ROLE"], row["PRODUCT"], row["NODES"], row["CARDS"], row["FREE"]) == ("Inference", "A3", "2", "32", "16")
    finally:
        api.delete(document)


@pytest.mark.parametrize("kind", ["glm5service", "glm5finetunejob", "npupool"])
def test_kubectl_explain_describes_every_field(installed: ApiCluster, kind: str) -> None:
    crd = next(
        document for path in CRDS.glob("*.yaml") if (document := yaml.safe_load(path.read_text()))["spec"]["names"]["singular"] == kind
    )
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for path in _objects(schema):
        text = installed.kubectl("explain", ".".join([kind, *path]))
        assert "<no description>" not in text, path


def _objects(schema: Json, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Paths of all objects with fields, but for Kubernetes' own metadata and what is inside a podTemplate."""
    found = [path]
    for name, child in schema.get("properties", {}).items():
        inner: dict[str, Any] = child.get("items", child)
        if "properties" in inner and name != "podTemplate":
            found += _objects(inner, (*path, name))
    return found


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_a_sample_is_taken_by_the_api_server_and_is_about_ten_lines(api: Api, path: Path) -> None:
    text = path.read_text()
    (document,) = documents.load(text, path.name)  # as kubectl reads it
    assert api.create(document).accepted
    if document["kind"] != "NetworkPolicy":
        {"GLM5Service": GLM5Service, "GLM5FinetuneJob": GLM5FinetuneJob, "NPUPool": NPUPool}[document["kind"]].parse(document)
    assert document["kind"] != "GLM5Service" or len([line for line in text.splitlines() if not line.startswith("#")]) <= 10
