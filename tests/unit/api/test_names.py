"""Names of children fit their limits and stay different for different owners."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm5_operator.api import names

DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
OWNERS = st.from_regex(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)


@given(OWNERS)
def test_every_derived_name_of_a_legal_service_is_a_dns_label(owner: str) -> None:
    for derived in (names.deployment_name(owner), names.client_service_name(owner), names.fit(owner)):
        assert DNS_LABEL.fullmatch(derived), derived


@given(OWNERS, OWNERS)
def test_two_services_never_share_a_child_name(one: str, other: str) -> None:
    if one != other:
        assert names.deployment_name(one) != names.deployment_name(other)
        assert names.client_service_name(one) != names.client_service_name(other)


def test_names_that_share_their_first_60_characters_get_different_children() -> None:
    one, other = "a" * 60 + "-b1", "a" * 60 + "-b2"
    assert names.deployment_name(one) != names.deployment_name(other)


@pytest.mark.parametrize(("owner", "expected"), [("chat", "chat-engine"), ("a" * 56, "a" * 56 + "-engine")])
def test_a_name_that_fits_is_not_touched(owner: str, expected: str) -> None:
    assert names.deployment_name(owner) == expected


def test_a_name_that_is_one_too_long_keeps_its_suffix_and_gets_a_hash() -> None:
    name = names.deployment_name("a" * 57)
    assert len(name) == 63
    assert re.fullmatch(r"a{47}-[0-9a-f]{8}-engine", name)


def test_a_cut_at_a_dash_leaves_one_dash() -> None:
    assert "--" not in names.fit("a" * 53 + "-" + "b" * 20)


def test_the_selector_is_part_of_the_labels_of_every_child() -> None:
    assert names.selector_labels("chat").items() <= names.child_labels("chat").items()
