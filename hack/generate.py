"""Writes what is said once in code and needed elsewhere: the CRDs, the chart's copies and roles, the API and settings pages.

Run by `make crds`; `make verify` runs it with --check, which writes nothing and names each file that isn't what it would write.
It must not decide anything: sources are `glm5_operator.api`, `glm5_operator.kube.rights`, `glm5_operator.settings` and values.yaml.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from glm5_operator import settings
from glm5_operator.agent import settings as agent_settings
from glm5_operator.api import schema
from glm5_operator.kube import rights

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).resolve().parent.parent
CHART_FILES = Path("charts/glm5-operator/files")
OURS_ALONE = (Path("crds"), CHART_FILES / "crds", CHART_FILES / "rbac")
"""Folders in which nothing lies that isn't generated."""
KEEP = {"helm.sh/resource-policy": "keep"}
BANNER = "Written by hack/generate.py; `make crds` writes it anew."
BOUNDS = {
    "minimum": "≥",
    "maximum": "≤",
    "minLength": "length ≥",
    "maxLength": "length ≤",
    "minItems": "items ≥",
    "maxItems": "items ≤",
}

Json = dict[str, Any]


def main(arguments: list[str]) -> int:
    """Write every generated file; with --check, say what differs and write nothing."""
    if arguments == ["--check"]:
        faults = differences(ROOT)
        sys.stderr.write("".join(f"{fault}\n" for fault in faults) + ("run `make crds` and commit what it writes\n" if faults else ""))
        return 1 if faults else 0
    if arguments:
        sys.stderr.write("usage: python hack/generate.py [--check]\n")
        return 2
    write(ROOT)
    return 0


def write(root: Path) -> None:
    """Write every generated file and remove those that nothing generates any more."""
    files = generated(root)
    for old in _left_over(root, files):
        (root / old).unlink()
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def differences(root: Path) -> list[str]:
    """What a commit of the tree as it stands would get wrong about generated files; other uncommitted changes are nobody's business."""
    files = generated(root)
    listed = subprocess.run(["git", "ls-files", "-z", "--", *map(str, files)], cwd=root, capture_output=True, text=True, check=True)
    in_git = set(listed.stdout.split("\0"))
    faults = [f"{path}: nothing generates it any more" for path in _left_over(root, files)]
    for path, text in files.items():
        target = root / path
        if not target.is_file():
            faults.append(f"{path}: missing")
        elif target.read_text() != text:
            faults.append(f"{path}: differs from what the code says")
        elif str(path) not in in_git:
            faults.append(f"{path}: not added to git")
    return faults


def _left_over(root: Path, files: Iterable[Path]) -> list[Path]:
    found = {path.relative_to(root) for folder in OURS_ALONE for path in (root / folder).glob("*")}
    return sorted(found - set(files))


def generated(root: Path) -> dict[Path, str]:
    """Every generated file by its path from the repository's root."""
    crds = schema.crds()
    return {
        **{Path("crds") / name: schema.render(crd) for name, crd in crds.items()},
        **{CHART_FILES / "crds" / f"{crd['metadata']['name']}.yaml": chart_crd(crd) for crd in crds.values()},
        **{CHART_FILES / "rbac" / f"{name}.yaml": role_rules(table) for name, table in rights.TABLES.items()},
        CHART_FILES.parent / "README.md": chart_page((root / CHART_FILES.parent / "values.yaml").read_text()),
        Path("docs/api.md"): api_page(crds.values()),
        Path("docs/settings.md"): settings.docs_table() + agent_settings.docs_table(),
    }


def chart_crd(crd: Json) -> str:
    """The CRD with the annotation that keeps it when the release is uninstalled; nothing else may differ from crds/."""
    metadata = {**crd["metadata"], "annotations": {**crd["metadata"].get("annotations", {}), **KEEP}}
    return f"# {BANNER}\n" + yaml.safe_dump({**crd, "metadata": metadata}, sort_keys=False, width=160, allow_unicode=True)


def role_rules(table: Iterable[rights.Right]) -> str:
    """The rules of one role, each behind a comment that says what needs it."""
    lines = [f"# {BANNER}"]
    for right in table:
        lines += [
            f"# {right.why}",
            f"- apiGroups: {_flow(right.groups)}",
            f"  resources: {_flow(right.resources)}",
            f"  verbs: {_flow(right.verbs)}",
        ]
    return "\n".join(lines) + "\n"


def _flow(words: Iterable[str]) -> str:
    return "[" + ", ".join(word or '""' for word in words) + "]"


def chart_page(values: str) -> str:
    """The chart's README: every value with its default and the comment above it."""
    rows: list[str] = []
    path: list[str] = []
    comment: list[str] = []
    for line in values.splitlines():
        text = line.strip()
        depth = (len(line) - len(line.lstrip())) // 2
        if text.startswith("#"):
            comment.append(text.removeprefix("#").strip())
        elif not text:
            comment = []
        else:
            key, _, default = text.partition(":")
            path = [*path[:depth], key]
            if default or comment:
                shown = f"`{default.strip()}`" if default else ""
                rows.append(f"| `{'.'.join(path)}` | {shown} | {_cell(' '.join(comment))} |")
            comment = []
    parts = [
        "# glm5-operator",
        f"<!-- {BANNER} -->",
        "Installs the operator that serves GLM-5 on Ascend NPUs. Installing, upgrading, removing: `docs/operations.md` of the repository.",
        "A schema checks the values: unknown keys and wrong types are refused with their path; null counts as left out.",
        "| value | default | meaning |\n| --- | --- | --- |\n" + "\n".join(rows),
    ]
    return "\n\n".join(parts) + "\n"


def api_page(crds: Iterable[Json]) -> str:
    """docs/api.md: every field of every kind with type, default, limits and the rules that check it."""
    parts = [
        "# API reference",
        f"<!-- {BANNER} -->",
        "Group `glm5.dev`. The same text is in the cluster: `kubectl explain glm5service.spec.model`.",
        "The operator never writes `spec`; what it decided stands in `status.resolved`.",
    ]
    for crd in crds:
        for version in crd["spec"]["versions"]:
            parts += _kind_section(crd["spec"], version)
    return "\n\n".join(parts) + "\n"


def _kind_section(spec: Json, version: Json) -> Iterator[str]:
    names, schema = spec["names"], version["schema"]["openAPIV3Schema"]
    short = "".join(f", short `{name}`" for name in names.get("shortNames", []))
    yield f"## {names['kind']} ({version['name']})"
    yield f"{schema.get('description', '')}\n\nScope: {spec['scope'].lower()}. Plural `{names['plural']}`{short}."
    for part in ("spec", "status"):
        if part in schema["properties"]:
            yield f"### {names['kind']} {part}"
            yield _field_table(part, schema["properties"][part])
    rules: dict[str, list[str]] = {}
    for path, text in _rules("", schema):
        rules.setdefault(text, []).append(f"`{path or '.'}`")
    if rules:
        yield f"### {names['kind']}: what the API server refuses"
        yield "| message | at |\n| --- | --- |\n" + "\n".join(f"| {_cell(text)} | {', '.join(at)} |" for text, at in rules.items())
    columns = version.get("additionalPrinterColumns", [])
    if columns:
        yield f"### {names['kind']} columns of `kubectl get`"
        yield "| column | from |\n| --- | --- |\n" + "\n".join(_column(column) for column in columns)


def _column(column: Json) -> str:
    wide = " (with `-o wide`)" if column.get("priority") else ""
    return f"| {column['name']}{wide} | `{_cell(column['jsonPath'])}` |"


def _field_table(prefix: str, schema: Json) -> str:
    rows = [
        f"| `{path}` | {_type(node)} | {_limits(node, required)} | {_cell(node.get('description', ''))} |"
        for path, node, required in _fields(prefix, schema)
    ]
    return "| field | type | limits | meaning |\n| --- | --- | --- | --- |\n" + "\n".join(rows)


def _fields(prefix: str, schema: Json) -> Iterator[tuple[str, Json, bool]]:
    required = schema.get("required", [])
    for name, node in schema.get("properties", {}).items():
        path = f"{prefix}.{name}"
        yield path, node, name in required
        if node.get("x-kubernetes-preserve-unknown-fields"):
            continue  # somebody else's schema, of which the CRD names only what its rules read
        yield from _fields(path, node)
        if node.get("type") == "array":
            yield from _fields(f"{path}[]", node.get("items", {}))
        elif isinstance(node.get("additionalProperties"), dict):
            yield from _fields(f"{path}.*", node["additionalProperties"])


def _type(node: Json) -> str:
    if node.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if node.get("type") == "array":
        return f"list of {_type(node.get('items', {}))}"
    if isinstance(node.get("additionalProperties"), dict):
        return f"map of {_type(node['additionalProperties'])}"
    return str(node.get("type", "any")) + (f" ({node['format']})" if "format" in node else "")


def _limits(node: Json, required: bool) -> str:
    words = ["required"] if required else []
    if "default" in node:
        words.append(f"default `{_plain(node['default'])}`")
    if "enum" in node:
        words.append("one of " + ", ".join(f"`{value}`" for value in node["enum"]))
    words += [f"{sign} {node[key]}" for key, sign in BOUNDS.items() if key in node]
    if "pattern" in node:
        words.append(f"matches `{_cell(node['pattern'])}`")
    return "; ".join(words)


def _plain(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")


def _rules(path: str, node: Json) -> Iterator[tuple[str, str]]:
    for rule in node.get("x-kubernetes-validations", []):
        yield path, rule.get("message") or rule.get("messageExpression") or rule["rule"]
    for name, child in node.get("properties", {}).items():
        yield from _rules(f"{path}.{name}".lstrip("."), child)
    if isinstance(node.get("items"), dict):
        yield from _rules(f"{path}[]", node["items"])
    if isinstance(node.get("additionalProperties"), dict):
        yield from _rules(f"{path}.*", node["additionalProperties"])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
