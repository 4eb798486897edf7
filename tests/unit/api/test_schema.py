"""The CRDs are structural, carry every rule, and stand in the repository as the models give them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from glm5_operator.api import schema
from glm5_operator.api.common import ApiObject
from glm5_operator.api.rules import RULES

Json = dict[str, Any]
ROOT = Path(__file__).parents[3]
CRDS = schema.crds()


def nodes(node: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Every schema node below and with this one."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in node:
            yield from nodes(node[key], f"{path}[]")


ALL = [(path, node) for crd in CRDS.values() for path, node in nodes(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])]


@pytest.mark.parametrize("name", CRDS)
def test_the_files_in_the_repository_are_what_the_models_give(name: str) -> None:
    assert (ROOT / "crds" / name).read_text() == schema.render(CRDS[name]), "run `make crds`"


def test_no_other_file_lies_beside_the_crds() -> None:
    assert {path.name for path in (ROOT / "crds").iterdir()} == set(CRDS)


def test_rendering_twice_gives_the_same_text() -> None:
    for name, crd in schema.crds().items():
        assert schema.render(crd) == schema.render(CRDS[name])
        assert yaml.safe_load(schema.render(crd)) == crd


def test_every_rule_stands_in_a_crd() -> None:
    written = {rule["rule"] for _, node in ALL for rule in node.get("x-kubernetes-validations", [])}
    assert {rule.cel for rule in RULES.values()} == written


def test_every_message_is_one_line_and_ends_without_a_stop() -> None:
    for rule in RULES.values():
        assert "\n" not in rule.message, rule.id
        assert not rule.message.endswith("."), rule.id


def test_no_node_has_what_a_structural_schema_forbids() -> None:
    forbidden = {"$ref", "$defs", "title", "const", "oneOf", "allOf", "not"}
    for path, node in ALL:
        assert not forbidden & set(node), path
        assert node.get("additionalProperties") is not False, path
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path


def test_null_is_nowhere_a_type_nor_a_default() -> None:
    for path, node in ALL:
        assert node.get("type") != "null", path
        assert node.get("default", 0) is not None, path


def test_the_only_default_is_one_replica_which_scale_needs() -> None:
    assert [(path, node["default"]) for path, node in ALL if "default" in node] == [(".spec.replicas", 1)]


def test_every_list_says_how_it_merges() -> None:
    for path, node in ALL:
        if node.get("type") == "array":
            assert node.get("x-kubernetes-list-type") in ("atomic", "set", "map"), path


def test_every_field_of_the_specs_is_bounded_so_that_rules_stay_cheap() -> None:
    for path, node in ALL:
        if path.startswith(".spec") and node.get("type") == "string":
            assert "maxLength" in node or "enum" in node, path
        if path.startswith(".spec") and node.get("type") == "array":
            assert "maxItems" in node, path


def test_every_field_has_a_description() -> None:
    for path, node in ALL:
        if ".podTemplate." not in path and not path.endswith("[]") and path != ".metadata":
            assert node.get("description"), path


def test_a_union_has_no_structural_form_and_says_where_it_is() -> None:
    class Odd(ApiObject):
        spec: int | str

    with pytest.raises(schema.UnsupportedSchemaError, match=r"\.spec: a union of 2 types"):
        schema.structural(Odd)
