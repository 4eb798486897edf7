"""Durations and quantities are read as Kubernetes reads them, and faults of a document are all named with their paths."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm5_operator.api.common import InvalidObjectError, format_duration, parse_duration, quantity_bytes
from glm5_operator.api.pool import NPUPool
from glm5_operator.api.service import GLM5Service
from tests.api.crd.documents import TINY, pool, service


@pytest.mark.parametrize(
    ("text", "seconds"), [("300s", 300), ("1h30m", 5400), ("500ms", 0.5), ("2m1s5ms", 121.005), ("0s", 0), ("168h", 604800)]
)
def test_a_duration_is_read_with_its_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "300", "-5s", "abc", "0.5h", "1d", "30s1m", "300s\n", " 1s", "1 s", "٣s", "99999999999s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="300s"):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=10**11))
def test_a_duration_survives_being_written_and_read(millis: int) -> None:
    value = timedelta(milliseconds=millis)
    assert parse_duration(format_duration(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("64Gi", 64 << 30), ("500M", 500_000_000), ("1.5Gi", 3 << 29), ("0", 0), ("0.1", 1), ("12k", 12000), ("2Ti", 2 << 40)],
)
def test_a_quantity_has_its_value_in_bytes(text: str, value: int) -> None:
    assert quantity_bytes(text) == value


@pytest.mark.parametrize("text", ["", "64GB", "-1Gi", "Gi", "1e9", "64 Gi", "1.Gi"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="64Gi"):
        quantity_bytes(text)


def test_every_fault_of_a_document_is_reported_with_its_path() -> None:
    wrong = service(
        {"model": {"weights": "fp8"}, "replicas": "2", "drain": {"timeout": 300}, "modle": {}, "engine": {"env": [{"name": 1}]}}
    )
    with pytest.raises(InvalidObjectError) as caught:
        GLM5Service.parse(wrong)
    faults = dict(caught.value.faults)
    assert set(faults) == {"spec.model.weights", "spec.replicas", "spec.drain.timeout", "spec.modle", "spec.engine.env[0].name"}
    assert faults["spec.modle"] == "is not a field"
    assert caught.value.kind == "GLM5Service"


def test_a_document_that_is_no_mapping_is_refused_without_a_crash() -> None:
    with pytest.raises(InvalidObjectError):
        GLM5Service.parse([])  # type: ignore[arg-type]


def test_fields_are_named_as_in_kubernetes_and_not_as_in_python() -> None:
    with pytest.raises(InvalidObjectError, match=r"spec\.context\.max_tokens"):
        GLM5Service.parse(service({"context": {"max_tokens": 4096}}))


@pytest.mark.parametrize("replicas", [True, "2", 2.0])
def test_a_type_is_not_converted_behind_the_users_back(replicas: object) -> None:
    with pytest.raises(InvalidObjectError, match=r"spec\.replicas"):
        GLM5Service.parse(service({"replicas": replicas}))


def test_a_status_of_a_newer_version_does_not_hide_the_spec() -> None:
    document = {**service(), "status": {"readyReplicas": 1, "somethingNew": {"a": 1}}}
    read = GLM5Service.parse(document)
    assert read.status is not None
    assert read.status.ready_replicas == 1


def test_an_object_is_immutable() -> None:
    read = GLM5Service.parse(service())
    with pytest.raises(ValueError, match="frozen"):
        read.spec.replicas = 2  # type: ignore[misc]


def test_a_service_goes_out_as_it_came_in() -> None:
    document = service(TINY, {"drain": {"timeout": "90s"}, "podTemplate": {"spec": {"x": [1, None]}}})
    assert GLM5Service.parse(document).manifest() == document


def test_a_pool_goes_out_as_it_came_in() -> None:
    assert NPUPool.parse(pool({"taint": True})).manifest() == pool({"taint": True})


@pytest.mark.parametrize(
    ("changes", "engine"), [({}, "vllm"), (TINY, "native"), ({"engine": {"name": "native"}}, "native"), ({"engine": {}}, "vllm")], ids=str
)
def test_the_engine_follows_the_model_where_nobody_names_it(changes: dict[str, object], engine: str) -> None:
    assert GLM5Service.parse(service(changes)).spec.engine_name == engine


def test_what_a_spec_leaves_out_has_its_default_when_asked() -> None:
    spec = GLM5Service.parse(service()).spec
    assert (spec.replicas, spec.drain_timeout, spec.served_name, spec.memory_bytes) == (1, timedelta(minutes=5), "GLM-5.1", None)
