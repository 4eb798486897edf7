"""Every CEL rule of the CRDs on a real API server: what it takes, what it refuses, and what it then says."""

from __future__ import annotations

import pytest

from glm5_operator.api.rules import RULES
from tests.api.crd.case import Case
from tests.api.crd.cases import CASES
from tests.api.crd.conftest import Api
from tests.api.crd.documents import TINY, Json, service
from tests.support.image_tags import IMAGES

pytestmark = pytest.mark.api


def test_every_rule_of_the_crds_has_a_row() -> None:
    assert sorted(case.rule for case in CASES) == sorted(RULES)


def _store(api: Api, document: Json) -> None:
    status = document.get("status")
    created = api.create({key: value for key, value in document.items() if key != "status"}, dry_run=False)
    assert created.accepted, created.causes
    if status is not None:
        api.set_status(document, status)


@pytest.mark.parametrize("case", [case for case in CASES if case.before is None], ids=lambda case: case.rule)
def test_a_rule_takes_the_good_document_and_refuses_the_bad_one_for_this_reason_only(api: Api, case: Case) -> None:
    accepted = api.create(case.accepted)
    assert accepted.accepted, accepted.causes
    rejected = api.create(case.rejected)
    assert _prefixed(rejected.messages, RULES[case.rule].message), rejected.causes
    assert case.says in RULES[case.rule].message


@pytest.mark.parametrize("case", [case for case in CASES if case.before is not None], ids=lambda case: case.rule)
def test_a_rule_about_changes_takes_the_good_change_and_refuses_the_bad_one(api: Api, case: Case) -> None:
    assert case.before is not None
    _store(api, case.before)
    try:
        accepted = api.update(case.accepted)
        assert accepted.accepted, accepted.causes
        rejected = api.update(case.rejected)
        assert _prefixed(rejected.messages, RULES[case.rule].message), rejected.causes
        assert case.says in RULES[case.rule].message
    finally:
        api.delete(case.before)


def _prefixed(messages: set[str], expected: str) -> bool:
    # The server writes `Invalid value: "the value": message`, or `… : message` alone for objects.
    return bool(messages) and all(message.endswith(expected) for message in messages)


def test_the_pool_may_change_once_no_card_is_held(api: Api) -> None:
    _store(api, {**service(), "status": {"cardsHeld": 16}})
    refused = api.update(service({"pool": "other"}))
    assert [field for field, _ in refused.causes] == ["spec.pool"]
    api.set_status(service(), {"cardsHeld": 0})
    assert api.update(service({"pool": "other"}), dry_run=False).accepted


def test_a_service_never_looked_at_may_change_its_pool(api: Api) -> None:
    _store(api, service())
    assert api.update(service({"pool": "other"})).accepted


@pytest.mark.parametrize(("image", "taken"), IMAGES.items())
def test_an_image_is_taken_only_with_a_version_a_date_or_a_digest(api: Api, image: str, taken: bool) -> None:
    assert api.create(service({"engine": {"image": image}})).accepted is taken


@pytest.mark.parametrize("group", ["containers", "initContainers"])
def test_an_image_of_a_pod_template_meets_the_same_rules_and_is_named_in_the_refusal(api: Api, group: str) -> None:
    def document(image: str) -> Json:
        return service({"podTemplate": {"spec": {group: [{"name": "fetch", "image": image, "command": ["sh"]}]}}})

    assert api.create(document("busybox:1.36")).accepted
    assert [field for field, _ in api.create(document("busybox")).causes] == [f"spec.podTemplate.spec.{group}[0].image"]


@pytest.mark.parametrize(
    ("argument", "taken"),
    [
        ("--seed=1", True),
        ("--port-range=1", True),
        ("--gpu-memory-utilization=0.9", True),
        ("model", True),
        ("--port=1", False),
        ("-tp", False),
        ("--max_model_len=8", False),
        ("--no-enable-prefix-caching", False),
        ("--quantization", False),
        ("--api_key=k", False),
    ],
)
def test_an_argument_is_taken_only_where_no_field_says_the_same(api: Api, argument: str, taken: bool) -> None:
    assert api.create(service({"engine": {"args": ["--seed", "1", argument]}})).accepted is taken


SOURCES = {
    "pvc://weights": True,
    "pvc://weights/": True,
    "pvc://weights/a/b.c/d_e": True,
    "hostpath:///data/weights/GLM-5.1": True,
    "hostpath:///data/.cache/GLM-5": True,
    "image:///models/glm5": True,
    "pvc:///weights": False,
    "pvc://": False,
    "pvc://weights/../other": False,
    "pvc://weights/..": False,
    "pvc://weights//x": False,
    "pvc://weights/a b": False,
    "hostpath:///": False,
    "hostpath:///data/./x": False,
    "hostpath:///..": False,
    "hostpath:////data": False,
    "hostPath:///data": False,
    "image://models": False,
    "https://modelscope.example/GLM-5.1": False,
    "modelscope://ZhipuAI/GLM-5.1": False,
    "/data/GLM-5.1": False,
    "GLM-5.1": False,
    "pvc://weights/a\\b": False,
    "pvc://weights/a\n/..": False,
}


@pytest.mark.parametrize(("source", "taken"), SOURCES.items())
def test_a_source_is_taken_only_in_a_form_that_works(api: Api, source: str, taken: bool) -> None:
    assert api.create(service({"model": {"source": source}})).accepted is taken


DURATIONS: dict[object, bool] = {
    "300s": True,
    "1h30m": True,
    "1h": True,
    "1h0m0s500ms": True,
    3600: False,
    "3600": False,
    0: False,
    "0s": False,
    -5: False,
    "-5s": False,
    "abc": False,
    0.5: False,
    "0.5h": False,
    "": False,
    "30s1m": False,
    "1d": False,
    "25h": False,
    "999999999h": False,
}


@pytest.mark.parametrize(("timeout", "taken"), DURATIONS.items(), ids=repr)
def test_a_start_up_timeout_is_a_duration_with_units_and_within_its_bounds(api: Api, timeout: object, taken: bool) -> None:
    assert api.create(service({"startup": {"timeout": timeout}})).accepted is taken


NAMES = {
    "a": True,
    "a" * 40: True,
    "a" * 52: True,
    "a" * 53: True,
    "a" * 58: True,
    "a" * 62: True,
    "a" * 63: True,
    "a" * 64: False,
    "a" * 253: False,
    "glm.5.prod": False,
    "a" * 62 + "-": False,
    "a" * 62 + "-a": False,
    "5-chat": False,
}


@pytest.mark.parametrize(("name", "taken"), NAMES.items(), ids=lambda value: f"{len(value)}-{value[-6:]}" if isinstance(value, str) else "")
def test_a_name_is_taken_only_where_its_children_can_be_named_after_it(api: Api, name: str, taken: bool) -> None:
    verdict = api.create(service(name=name))
    assert verdict.accepted is taken
    assert taken or any("metadata.name" in f"{field} {message}" for field, message in verdict.causes)


@pytest.mark.parametrize("model", ["GLM-5", "GLM-5.1", "GLM-5.2", "GLM-5.3"])
def test_each_known_model_takes_its_own_longest_context(api: Api, model: str) -> None:
    from glm5_operator.api.known import CONTEXT_LIMIT

    limit = CONTEXT_LIMIT[model]
    assert api.create(service({"model": {"name": model}, "context": {"maxTokens": limit}})).accepted
    assert not api.create(service({"model": {"name": model}, "context": {"maxTokens": limit + 1}})).accepted


def test_an_engine_that_nobody_names_is_native_for_a_model_without_a_recipe(api: Api) -> None:
    refused = api.create(service(TINY, {"parallelism": {"data": 2}}))
    assert _prefixed(refused.messages, RULES["native-data-spreads-experts"].message)
    assert api.create(service(TINY, {"parallelism": {"data": 2}, "engine": {"name": "vllm"}})).accepted


def test_native_named_for_a_known_model_takes_nothing_that_only_vllm_honours(api: Api) -> None:
    refused = api.create(service({"engine": {"name": "native"}, "model": {"weights": "w8a8c8"}, "parallelism": {"pipeline": 8}}))
    expected = {RULES[rule].message for rule in ("native-no-pipeline", "native-weights")}
    assert {message.split(": ", 1)[1] if message.startswith("Invalid value") else message for message in refused.messages} == expected
