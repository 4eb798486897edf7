"""Renders the operator's chart with the real helm and reads what comes out.

Used by tests/unit/chart and tests/api/chart. Nothing is faked: helm is built from its Go module (tests/cluster), and every
value goes through the chart's schema.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[2] / "charts" / "glm5-operator"
KUBE_VERSIONS = ("1.30.0", "1.35.4")
"""The oldest supported version and the one that the test clusters run."""

Document = dict[str, Any]


class RefusedError(Exception):
    """Helm did not render; the text is what the user would read."""


@dataclass(frozen=True, slots=True)
class Chart:
    """The chart and the program that renders it."""

    helm: Path
    scratch: Path

    def text(self, values: Mapping[str, Any] | str | None = None, *flags: str, release: str = "r", namespace: str = "glm5-system") -> str:
        """The rendered YAML. Values given as text are written as they are, so that YAML's own readings stay in the test."""
        argv = [str(self.helm), "template", release, str(CHART), "--namespace", namespace, *flags]
        if not any(flag.startswith("--kube-version") for flag in flags):
            argv += ["--kube-version", KUBE_VERSIONS[-1]]
        if values is not None:
            file = self.scratch / "values.yaml"
            file.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
            argv += ["--values", str(file)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            raise RefusedError(done.stderr)
        return done.stdout

    def render(self, values: Mapping[str, Any] | str | None = None, *flags: str, **names: str) -> list[Document]:
        """The rendered objects."""
        return [document for document in yaml.safe_load_all(self.text(values, *flags, **names)) if document]


def only(documents: Sequence[Document], kind: str, suffix: str = "") -> Document:
    """The one object of that kind (whose name ends in suffix)."""
    found = [document for document in documents if document["kind"] == kind and document["metadata"]["name"].endswith(suffix)]
    assert len(found) == 1, f"{len(found)} objects of kind {kind} with a name that ends in {suffix!r}"
    return found[0]


def pod_templates(documents: Sequence[Document]) -> dict[str, Document]:
    """Every pod (template) in the output by "Kind/name", hooks and tests included."""
    pods: dict[str, Document] = {}
    for document in documents:
        name = f"{document['kind']}/{document['metadata']['name']}"
        if document["kind"] == "Pod":
            pods[name] = document
        elif "template" in document.get("spec", {}):
            pods[name] = document["spec"]["template"]
    return pods


def containers(documents: Sequence[Document]) -> Iterator[Document]:
    """Every container of every pod."""
    for pod in pod_templates(documents).values():
        yield from pod["spec"].get("initContainers", [])
        yield from pod["spec"]["containers"]


def environment(documents: Sequence[Document]) -> dict[str, str]:
    """The operator container's environment (values only)."""
    (container,) = only(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    return {item["name"]: item["value"] for item in container["env"] if "value" in item}


def default_values() -> Document:
    """values.yaml as a tree."""
    values: Document = yaml.safe_load((CHART / "values.yaml").read_text())
    return values


def paths(tree: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every key of a values tree with its value, blocks before their leaves."""
    for key, value in tree.items():
        yield (*prefix, key), value
        if isinstance(value, dict):
            yield from paths(value, (*prefix, key))


def at(path: Sequence[str], value: object) -> Document:
    """A tree with one leaf."""
    tree: Any = value
    for key in reversed(path):
        tree = {key: tree}
    assert isinstance(tree, dict)
    return tree
