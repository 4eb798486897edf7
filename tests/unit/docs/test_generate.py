"""What hack/generate.py writes says all that its sources say, and --check finds each file that isn't what it writes.

That this tree's files are up to date is `make verify`'s question.
"""

from __future__ import annotations

import importlib.util
import subprocess
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


def test_no_right_is_a_wildcard_reaches_secrets_or_makes_pods_outside_the_operators_namespace() -> None:
    for table, right in ((table, right) for table, rows in rights.TABLES.items() for right in rows):
        assert "*" not in {*right.groups, *right.resources, *right.verbs}
        assert not {"secrets", "pods/exec", "pods/log", "serviceaccounts/token"} & set(right.resources)
        made = {"create", "update", "delete"} & set(right.verbs) if "pods" in right.resources else set()  # patch is for one annotation
        assert made == ({"create", "delete"} if table == "namespace" and made else set()), "compute checks"


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
    assert messages or crd["spec"]["names"]["kind"] == "AscendNode", "of the kinds only AscendNode isn't written by users"
    assert [text for text in messages if text.replace("|", "\\|") not in page] == []


def test_the_charts_page_has_a_row_for_every_value(generate: ModuleType) -> None:
    page = generate.chart_page((ROOT / "charts" / "glm5-operator" / "values.yaml").read_text())
    leaves = [".".join(path) for path, value in paths(default_values()) if not (isinstance(value, dict) and value)]
    assert [leaf for leaf in leaves if f"| `{leaf}` |" not in page] == []


def test_a_list_in_the_values_page_stands_in_its_cell(generate: ModuleType) -> None:
    page = generate.chart_page("a:\n  # Says | why.\n  b: [1, 2]\nc: {}\n")
    assert "| `a.b` | `[1, 2]` | Says \\| why. |" in page
    assert "| `c` | `{}` |  |" in page


# --- make verify ------------------------------------------------------------------------------------------------------------

CRD = Path("crds/glm5.dev_npupools.yaml")


def git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example", *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def tree(generate: ModuleType, tmp_path: Path) -> Path:
    """A repository with the generated files and what they are read from, all committed."""
    values = tmp_path / "charts" / "glm5-operator" / "values.yaml"
    values.parent.mkdir(parents=True)
    values.write_text((ROOT / "charts" / "glm5-operator" / "values.yaml").read_text())
    generate.write(tmp_path)
    (tmp_path / "docs" / "operations.md").write_text("by hand\n")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "all")
    return tmp_path


def test_a_tree_as_generated_has_no_differences_whatever_else_is_uncommitted(generate: ModuleType, tree: Path) -> None:
    (tree / "docs" / "operations.md").write_text("changed by hand, not committed\n")
    (tree / "charts" / "glm5-operator" / "notes.txt").write_text("new, not committed\n")
    assert generate.differences(tree) == []


def test_a_changed_a_missing_and_a_left_over_file_are_named(generate: ModuleType, tree: Path) -> None:
    (tree / CRD).write_text((tree / CRD).read_text() + "# by hand\n")
    (tree / "docs" / "settings.md").unlink()
    (tree / "crds" / "glm5.dev_olds.yaml").write_text("old\n")
    assert generate.differences(tree) == [
        "crds/glm5.dev_olds.yaml: nothing generates it any more",
        f"{CRD}: differs from what the code says",
        "docs/settings.md: missing",
    ]


def test_a_changed_file_differs_even_when_it_is_committed(generate: ModuleType, tree: Path) -> None:
    (tree / CRD).write_text("something else\n")
    git(tree, "commit", "-am", "by hand")
    assert generate.differences(tree) == [f"{CRD}: differs from what the code says"]


def test_a_new_generated_file_must_be_added_to_git(generate: ModuleType, tree: Path) -> None:
    git(tree, "rm", "--cached", str(CRD))
    assert generate.differences(tree) == [f"{CRD}: not added to git"]
    git(tree, "add", str(CRD))
    assert generate.differences(tree) == []


def test_checking_writes_nothing_and_writing_mends(generate: ModuleType, tree: Path) -> None:
    (tree / CRD).write_text("something else\n")
    (tree / "crds" / "glm5.dev_olds.yaml").write_text("old\n")
    generate.differences(tree)
    assert (tree / CRD).read_text() == "something else\n"
    generate.write(tree)
    assert generate.differences(tree) == []
