"""Names that only overflow after a suffix (case B08): each name that admission accepts gives children that Kubernetes accepts."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.plan.builders import plan, service, tiny

SERVICE_NAME = re.compile(r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")  # RFC 1035, and what admission asks of a GLM5Service
LABEL_VALUE = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")
POD_SUFFIX = len("-6f7d9c8b4d-x2x9z")


def labels_in(value: object) -> list[str]:
    """Every label value anywhere in a manifest."""
    if isinstance(value, dict):
        found = [text for key in ("labels", "matchLabels", "selector", "nodeSelector") for text in strings(value.get(key))]
        return found + [text for inner in value.values() for text in labels_in(inner)]
    return [text for inner in value for text in labels_in(inner)] if isinstance(value, list) else []


def strings(value: object) -> list[str]:
    return [text for text in value.values() if isinstance(text, str)] if isinstance(value, dict) else []


def check(name: str, namespace: str = "prod") -> set[str]:
    planned = plan(tiny({"replicas": 2}, name=name))
    assert planned.stalled is None
    for manifest in planned.objects:
        assert SERVICE_NAME.match(manifest["metadata"]["name"]), manifest["metadata"]["name"]
        assert all(len(text) <= 63 and LABEL_VALUE.match(text) for text in labels_in(manifest))
    host = planned.endpoint.removeprefix("http://").partition(":")[0]
    assert all(len(part) <= 63 for part in host.split("."))
    return {manifest["metadata"]["name"] for manifest in planned.objects}


@pytest.mark.parametrize("length", [1, 40, 52, 53, 58, 62, 63])
def test_names_of_any_accepted_length_have_children_that_fit(length: int) -> None:
    assert len(check("c" + "x" * (length - 1))) == 3


def test_a_long_name_whose_cut_would_end_in_a_dash_stays_a_name() -> None:
    for length in range(40, 63):
        check("c" + "x" * (length - 2) + "-" + "y" * (63 - length))


def test_two_long_names_that_share_60_characters_get_different_children() -> None:
    shared = "c" * 60

    assert not check(f"{shared}-a") & check(f"{shared}-b")


def test_children_of_different_kinds_end_differently_and_never_meet_another_service() -> None:
    assert check("chat") == {"chat-engine", "chat-api", "chat-pdb"}
    assert not check("chat") & check("chat-api")


def test_a_namespace_of_63_characters_fits_the_endpoint() -> None:
    planned = plan(service(name="c" * 63, namespace="n" * 63))

    assert all(len(part) <= 63 for part in planned.endpoint.split("://")[1].split(":")[0].split("."))


@settings(max_examples=100, deadline=None)
@given(st.from_regex(r"\A[a-z]([-a-z0-9]{0,61}[a-z0-9])?\Z"))
def test_every_name_that_admission_accepts_works(name: str) -> None:
    check(name)
