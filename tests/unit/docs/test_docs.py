"""The documentation says what is there: links, make targets, reasons, metrics; and both languages say the same."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from glm5_operator.metrics import Metrics
from glm5_runtime.cli import ServeArguments
from glm5_runtime.server.counts import Counts
from glm5_runtime.server.metrics import Metrics as RuntimeMetrics

ROOT = Path(__file__).resolve().parents[3]
OPERATOR = ROOT / "operator" / "glm5_operator"
OPERATIONS = ROOT / "docs" / "operations.md"
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PAIRS = [
    ("README.md", "README.zh-CN.md"),
    ("docs/operations.md", "docs/operations.zh-CN.md"),
    ("docs/doctor.md", "docs/doctor.zh-CN.md"),
    ("docs/health.md", "docs/health.zh-CN.md"),
    ("docs/runtime.md", "docs/runtime.zh-CN.md"),
    ("docs/fine-tuning-data.md", "docs/fine-tuning-data.zh-CN.md"),
    ("docs/fine-tuning.md", "docs/fine-tuning.zh-CN.md"),
    ("docs/training.md", "docs/training.zh-CN.md"),
]


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def pages() -> list[Path]:
    return [path for path in tracked("*.md") if "tests/fixtures" not in str(path)]


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text())


def anchors(path: Path) -> set[str]:
    """Headings as GitHub makes anchors of them."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(path: Path) -> Iterator[str]:
    for target in LINK.findall(prose(path)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            yield target


@pytest.mark.parametrize("page", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    assert list(broken_links(page)) == []


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        target
        for page in pages()
        for target in re.findall(r"(?:`|^)(?:[A-Z]+=\w+ )?make ([a-z][a-z0-9-]*)", page.read_text(), re.MULTILINE)
    }
    assert named
    assert named <= targets


def test_every_file_that_is_named_exists() -> None:
    named = {
        (page, path)
        for page in pages()
        for path in re.findall(r"`((?:operator|runtime|tests|charts|crds|manifests|hack|docs|benchmarks)/[\w./-]+)`", prose(page))
    }
    assert {path for _, path in named if not (ROOT / path).exists()} == set()


# --- reasons ----------------------------------------------------------------------------------------------------------------

CAMEL = re.compile(r"^[A-Z][a-z0-9]+([A-Z0-9][a-z0-9]*)*$")
STABLE_WORDS = {"Reason", "Cause", "Stage"}
"""Enumerations whose values become reasons."""
REASON_ARGUMENT = {"Finding": 0, "settled": 0, "on_its_way": 0, "stuck": 0, "failing": 0, "WriteFault": 0, "ApiFailure": 0, "Condition": 2}


def texts(node: ast.AST) -> Iterator[str]:
    """String constants that the expression may be: itself, or the arms of a conditional."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from texts(node.body)
        yield from texts(node.orelse)


def reasons_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            place = REASON_ARGUMENT.get(name)
            given = [keyword.value for keyword in node.keywords if keyword.arg == "reason"]
            if place is not None and len(node.args) > place:
                given.append(node.args[place])
            for argument in given if place is not None else []:
                yield from texts(argument)
        elif isinstance(node, ast.ClassDef) and (node.name in STABLE_WORDS or node.name.endswith("Error")):
            for line in node.body:
                if isinstance(line, ast.Assign) and (node.name in STABLE_WORDS or getattr(line.targets[0], "id", "") == "reason"):
                    yield from texts(line.value)


def reasons_in_code() -> set[str]:
    files = [path for folder in ("status", "plan", "controllers", "kube") for path in (OPERATOR / folder).rglob("*.py")]
    found = {reason for path in files for reason in reasons_in(ast.parse(path.read_text()))}
    return {reason for reason in found if CAMEL.match(reason)}


def reasons_in_docs() -> set[str]:
    section = OPERATIONS.read_text().split("\n## Conditions\n")[1].split("\n## ")[0]
    return {word for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for word in re.findall(r"`(\w+)`", row)}


def test_every_reason_that_the_code_can_give_is_explained_in_operations() -> None:
    assert len(reasons_in_code()) > 50, "the collector finds the reasons"
    assert reasons_in_code() - reasons_in_docs() == set()


def test_operations_explains_no_reason_that_the_code_cannot_give() -> None:
    assert reasons_in_docs() - reasons_in_code() == set()


def test_metrics_that_the_docs_name_exist() -> None:
    exposed = {line.split()[2] for line in Metrics().exposition().decode().splitlines() if line.startswith("# TYPE")}
    live = set(re.findall(r'live_gauge\(\s*"(\w+)"', (OPERATOR / "app.py").read_text()))
    named = set(re.findall(r"`(glm5_operator_\w+)`", OPERATIONS.read_text()))
    assert named
    assert named <= exposed | live


def test_the_runtime_page_names_every_flag_with_its_default() -> None:
    text = (ROOT / "docs" / "runtime.md").read_text()
    for name, field in ServeArguments.model_fields.items():
        flag = f"--{name.replace('_', '-')}"
        (row,) = [line for line in text.splitlines() if line.startswith("|") and f"`{flag}`" in line.split("|")[1]]
        if field.default is not None and not field.is_required() and name != "drain_timeout":
            assert ("off" if field.default is False else str(field.default)) in row, row


def test_the_runtime_page_names_every_metric_that_the_runtime_exposes() -> None:
    exposed = {
        line.split()[2] for line in RuntimeMetrics("m", lambda: None, Counts()).render().decode().splitlines() if line.startswith("# TYPE")
    }
    named = set(re.findall(r"`((?:vllm|glm5):\w+)`", (ROOT / "docs" / "runtime.md").read_text()))
    assert named == {name for name in exposed if not name.endswith("_created")}


# --- two languages ----------------------------------------------------------------------------------------------------------


def blocks(path: Path) -> list[tuple[str, str]]:
    """Code blocks without comments: what a reader copies must not differ."""
    found = FENCE.findall(path.read_text())
    return [(language, re.sub(r" *#.*$", "", text, flags=re.MULTILINE)) for language, text in found if language not in {"mermaid", "text"}]


def links(path: Path) -> list[str]:
    targets = [target.partition("#")[0].replace(".zh-CN", "") for target in LINK.findall(prose(path))]
    return sorted(target for target in targets if target)


def shape(path: Path) -> list[str]:
    """The outline: depth of each heading, and each row of a table by its number of cells."""
    lines = prose(path).splitlines()
    return [re.match(r"#+", line)[0] if line.startswith("#") else f"|{line.count(' | ')}" for line in lines if line[:1] in {"#", "|"}]  # type: ignore[index]


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_both_languages_have_the_same_outline_commands_and_links(english: str, chinese: str) -> None:
    left, right = ROOT / english, ROOT / chinese
    assert shape(left) == shape(right)
    assert blocks(left) == blocks(right)
    assert links(left) == links(right)


# --- what no file may say ---------------------------------------------------------------------------------------------------


def test_no_tracked_file_names_a_package_index_or_a_place_on_somebodys_machine() -> None:
    # Put together here, so that this file doesn't find itself.
    forbidden = [
        "pypi" + ".org",
        "python" + "hosted.org",
        "proxy.golang" + ".org",
        "registry.npmjs" + ".org",
        "download.pytorch" + ".org",
        "/" + "work/",
    ]
    found = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {word}" for word in forbidden if word in text]
    assert found == []
