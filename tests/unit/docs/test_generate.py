"""What hack/generate.py writes says all that its sources say. That the files are up to date is `make verify`'s question."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from glm5_operator.kube import rights
from tests.support.chart import default_values, paths

ROOT = Path(__file__).resolve().parents[3]
CRDS = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "hack" / "generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", rights.TABLES)
def test_role_files_hold_exactly_the_table_with_its_reasons(generate: ModuleType, name: str) -> None:
    text = generate.role_rules(rights.TABLES[name])
    rules = [(tuple(rule["apiGroups"]), tuple(rule["resources"]), tuple(rule["verbs"])) for rule in yaml.safe_load(text)]
    assert rules == [(right.groups, right.resources, right.verbs) for right in rights.TABLES[name]]
    assert all(f"# {right.why}\n" in text for right in rights.TABLES[name])


def test_no_right_is_a_wildcard_reaches_secrets_or_makes_pods() -> None:
    for right in (right for table in rights.TABLES.values() for right in table):
        assert "*" not in {*right.groups, *right.resources, *right.verbs}
        assert not {"secrets", "pods/exec", "pods/log", "serviceaccounts/token"} & set(right.resources)
        assert "pods" not in right.resources or not {"create", "patch", "update", "delete"} & set(right.verbs)


@pytest.mark.parametrize("crd", CRDS, ids=lambda crd: str(crd["spec"]["names"]["kind"]))
def test_the_charts_crd_differs_by_one_annotation(generate: ModuleType, crd: dict[str, Any]) -> None:
    copy = yaml.safe_load(generate.chart_crd(crd))
    assert copy["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert copy == crd


def fields(prefix: str, schema: dict[str, Any]) -> Iterator[str]:
    for name, node in schema.get("properties", {}).items():
        yield f"{prefix}.{name}"
        if not node.get("x-kubernetes-preserve-unknown-fields"):
            yield from fields(f"{prefix}.{name}", node)


@pytest.mark.parametrize("crd", CRDS, ids=lambda crd: str(crd["spec"]["names"]["kind"]))
def test_the_api_page_has_a_row_for_every_field_and_a_sentence_for_every_rule(generate: ModuleType, crd: dict[str, Any]) -> None:
    page = generate.api_page([crd])
    (version,) = crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    named = [path for part in ("spec", "status") for path in fields(part, schema["properties"][part])]
    assert len(named) > 10
    assert [path for path in named if f"| `{path}` |" not in page] == []
    messages = [rule["message"] for rule in schema.get("x-kubernetes-validations", [])]
    assert messages
    assert [text for text in messages if text.replace("|", "\\|") not in page] == []


def test_the_charts_page_has_a_row_for_every_value(generate: ModuleType) -> None:
    page = generate.chart_page((ROOT / "charts" / "glm5-operator" / "values.yaml").read_text())
    leaves = [".".join(path) for path, value in paths(default_values()) if not (isinstance(value, dict) and value)]
    assert [leaf for leaf in leaves if f"| `{leaf}` |" not in page] == []


def test_a_list_in_the_values_page_stands_in_its_cell(generate: ModuleType) -> None:
    page = generate.chart_page("a:\n  # Says | why.\n  b: [1, 2]\nc: {}\n")
    assert "| `a.b` | `[1, 2]` | Says \\| why. |" in page
    assert "| `c` | `{}` |  |" in page
