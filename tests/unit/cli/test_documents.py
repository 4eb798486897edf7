"""Files are read as kubectl reads them, and every fault is one line with file, field and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from glm5_operator.cli import documents
from glm5_operator.cli.errors import CliError, ExitCode
from tests.api.crd.documents import pool, service
from tests.support.trainers import finetune
from tests.unit.cli.support import glm5


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-4", 0.0002),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-3.25", -3.25),
        ("12", 12),
        ("0x10", 16),
        ("1:30", "1:30"),
        ("2026-11-29", "2026-11-29"),
        ("0.1.0", "0.1.0"),
        ("300s", "300s"),
        ("1_000", 1000),
        ("on", True),
        ("no", False),
        ("~", None),
        ("", None),
        ("'2e-4'", "2e-4"),
        ("e5", "e5"),
        ("NO", False),
    ],
)
def test_a_scalar_is_read_as_kubectl_reads_it(text: str, value: object) -> None:
    assert documents.load(f"value: {text}", "x")[0] == {"value": value}


def test_json_is_read_too() -> None:
    assert documents.load('{"a": [1, 2.5, null, "x"]}', "x") == [{"a": [1, 2.5, None, "x"]}]


def test_empty_documents_are_left_out() -> None:
    assert documents.load("---\n---\na: 1\n---\n# only a remark\n", "x") == [{"a": 1}]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\na: 2", "key 'a' stands twice in line 2"),
        ("spec:\n  b: {c: 1, c: 2}", "stands twice"),
        ("a: [1", "is no YAML"),
        ("- a", "is no object but list"),
        ("just text", "is no object but str"),
        ("!!python/object/apply:os.system ['true']", "is no YAML"),
        ("a: \tb\n\tc", "is no YAML"),
    ],
)
def test_text_that_is_no_document_is_refused_with_its_line(text: str, says: str) -> None:
    with pytest.raises(CliError, match=says) as caught:
        documents.load(text, "cr.yaml")
    assert caught.value.code is ExitCode.INPUT
    assert str(caught.value).startswith("error: cr.yaml: ")
    assert "\n" not in str(caught.value)


def test_merge_keys_work_and_are_no_double_key() -> None:
    text = "base: &b {x: 1}\na:\n  <<: *b\n  z: 2\n"
    assert documents.load(text, "x")[0]["a"] == {"x": 1, "z": 2}


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "no such file or directory"), (b"", "is empty"), (b"# nothing\n", "is empty"), (b"a: \xff", "is no UTF-8 text")],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "cr.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CliError, match=says) as caught:
        documents.read(str(path))
    assert str(path) in str(caught.value)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="is a directory"):
        documents.read(str(tmp_path))


def test_services_and_pools_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    run = finetune("default", pool="training") | {"apiVersion": "glm5.dev/v1alpha1"}
    path.write_text(yaml.safe_dump_all([pool(), service(), run, service(name="other")]))
    found = documents.objects([str(path)])
    assert [[one.metadata.name for one in some] for some in found] == [["chat", "other"], ["tune"], ["inference"]]


def test_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text("kind: Deployment\n")
    with pytest.raises(CliError, match="kind is 'Deployment'; only GLM5Service, GLM5FinetuneJob and NPUPool"):
        documents.objects([str(path)])


def test_every_fault_of_an_object_is_a_line_with_file_field_and_remedy(tmp_path: Path) -> None:
    path = tmp_path / "cr.yaml"
    path.write_text(yaml.safe_dump(service({"replicas": "2", "modle": 1})))
    with pytest.raises(CliError) as caught:
        documents.objects([str(path)])
    assert str(caught.value).splitlines() == [
        f"error: {path}: spec.replicas: should be a valid integer; `kubectl explain glm5service` lists the fields",
        f"error: {path}: spec.modle: is not a field; `kubectl explain glm5service` lists the fields",
    ]


@pytest.mark.parametrize("text", ["0x_", "0b_", "-0x_", "0o_"])
def test_a_prefix_without_digits_is_text_as_for_kubectl(text: str) -> None:
    assert documents.load(f"value: {text}", "x")[0] == {"value": text}


BOMB = "a0: &a0 [x]\n" + "".join(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 10))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\n? [1, 2]\n: 3", "a key must be text in line 2"),
        ("? {a: 1}\n: 3", "a key must be text in line 1"),
        ("a: 1\nb: " + "9" * 5000, "no value of kind int in line 2"),
        ("a: 1\nb: 0x" + "f" * 5000, "no value of kind int in line 2"),
        ("a: !!int abc", "no value of kind int in line 1"),
        ("a: !!float abc", "no value of kind float in line 1"),
        ("a: !!int ''", "no value of kind int in line 1"),
        ("a: !!timestamp 2020-13-45", "no value of kind timestamp in line 1"),
        ("a: !!timestamp never", "no value of kind timestamp in line 1"),
        ("? !!timestamp 2020-10-10\n: 1", "a key must be text in line 1"),
        ("!!int abc: 1", "no value of kind int in line 1"),
        ("a: " + "[" * 20000, "nests too deeply"),
        ("a: " + "{b: " * 20000, "nests too deeply"),
        (BOMB, "values with its aliases"),
        ("spec: &spec\n  podTemplate: *spec", "values with its aliases"),
        ("a: \0", "is no YAML"),
    ],
    ids=lambda text: text[:20],
)
def test_what_python_cannot_hold_is_a_message_and_no_traceback(text: str, says: str) -> None:
    with pytest.raises(CliError, match=says) as caught:
        documents.load(text, "cr.yaml")
    assert caught.value.code is ExitCode.INPUT
    assert str(caught.value).startswith("error: cr.yaml: ")
    assert "\n" not in str(caught.value)


def test_a_file_larger_than_any_object_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "cr.yaml"
    path.write_bytes(b"a: 1\n" * (2 * 2**20))
    run = glm5("plan", "-f", str(path))
    assert run.exit_code == 3
    assert run.stderr == f"error: {path}: is larger than 3 MiB; the API server takes no such object\n"
    run = glm5("plan", "-f", "-", stdin="#" * (4 * 2**20))
    assert (run.exit_code, run.stderr) == (3, "error: -: is larger than 3 MiB; the API server takes no such object\n")
