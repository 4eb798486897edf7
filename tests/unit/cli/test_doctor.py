"""`glm5 doctor --from`: folders that people collected, bundles of our own, and files that are neither."""

from __future__ import annotations

import io
import json
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from glm5_operator.cli import bundle
from glm5_operator.cli.gather import Collected
from glm5_operator.health.doctor.evidence import Text
from tests.unit.cli.support import glm5

OUTPUTS = Path(__file__).parents[2] / "fixtures" / "npu-smi"
PLOG = Path(__file__).parents[2] / "fixtures" / "plog"


def ascend_node(name: str = "node-1", **facts: object) -> dict[str, Any]:
    stated = {"observedAt": "2026-11-30T12:00:00Z", "tool": {"state": "Working"}, "driver": "25.5.1", **facts}
    return {"apiVersion": "glm5.dev/v1alpha1", "kind": "AscendNode", "metadata": {"name": name}, "spec": {}, "status": {"facts": stated}}


def pod(**container: object) -> dict[str, Any]:
    engine = {"name": "engine", "resources": {"limits": {"huawei.com/Ascend910": "1"}}, **container}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "prod", "name": "chat-0"}, "spec": {"containers": [engine]}}


def troubles(*words: str) -> dict[str, dict[str, list[str]]]:
    run = glm5("doctor", *words, "-o", "json")
    return {entry["node"]: {one["name"]: one["evidence"] for one in entry["troubles"]} for entry in json.loads(run.stdout)["nodes"]}


def test_a_folder_of_outputs_and_logs_is_diagnosed_and_ends_with_4(tmp_path: Path) -> None:
    (tmp_path / "smi.log").write_text((OUTPUTS / "synthetic_info_910b3_npu3_alarm.txt").read_text())
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver" / "version.info").write_text("Version=24.1.rc1\n")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "engine.log").write_text((PLOG / "hccl_ei0006.txt").read_text())
    (tmp_path / "core").write_bytes(b"\0ELF EI0006")
    run = glm5("doctor", "--from", str(tmp_path))
    assert (run.exit_code, run.stderr) == (4, "error: 2 troubles found\n")
    assert run.stdout.splitlines()[:3] == [
        "no node: CardFault",
        "  cause     npu-smi reports faults of cards",
        "  evidence  card 3 (NPU 3 chip 0): Alarm",
    ]
    assert list(troubles("--from", str(tmp_path))[""]) == ["CardFault", "HcclConnectTimeout"]


def test_objects_of_kubectl_are_read_as_json_and_yaml_alone_and_in_lists(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(ascend_node(missing=[7])))
    (tmp_path / "pods.json").write_text(json.dumps({"kind": "List", "items": [pod(env=[{"name": "RANK_SIZE", "value": "1"}])]}))
    event = {"kind": "Event", "metadata": {}, "reason": "FailedScheduling", "message": "0/1 nodes: ModeNotFit"}
    (tmp_path / "e.json").write_text(json.dumps(event))
    assert troubles("--from", str(tmp_path)) == {
        "node-1": {"CardMissing": ["card 7 isn't listed any more"], "HamiModeMismatch": ["e.json: FailedScheduling: 0/1 nodes: ModeNotFit"]}
    }


def test_the_runtimes_own_report_is_told_in_its_words(tmp_path: Path) -> None:
    report = {"npu_usable": False, "lacking": ["CANN: ASCEND_HOME_PATH is not set"], "driver": {"version": None}}
    (tmp_path / "doctor.json").write_text(json.dumps(report))
    assert troubles("--from", str(tmp_path)) == {"": {"NpuLacks": ["CANN: ASCEND_HOME_PATH is not set"]}}


def test_a_bundle_says_the_same_as_what_it_was_made_of(tmp_path: Path) -> None:
    source, made = tmp_path / "in", tmp_path / "out.tar.gz"
    for name in ("node-1", "node-2"):
        (source / name).mkdir(parents=True)
        (source / name / "ascendnode.json").write_text(json.dumps(ascend_node(name, missing=[1] if name == "node-2" else None)))
    (source / "node-1" / "engine.log").write_text("x\nEI0006\n")
    first = glm5("doctor", "--from", str(source), "--bundle", str(made), "-o", "json")
    assert first.exit_code == 4
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    again = troubles("--from", str(made))
    assert {node: list(found) for node, found in again.items()} == {"node-1": ["HcclConnectTimeout"], "node-2": ["CardMissing"]}
    assert list(troubles("--from", str(made), "--node", "node-2")) == ["node-2"]
    assert glm5("doctor", "--from", str(made), "--node", "node-9").exit_code == 3
    with tarfile.open(made) as archive:
        assert archive.getnames()[:2] == ["bundle.json", "diagnosis.json"]
    assert glm5("doctor", "--from", str(made), "--bundle", str(made)).stderr.startswith(f"error: {made}: is there already")
    other = glm5("doctor", "--from", str(source), "--node", "node-9")
    assert (other.exit_code, other.stderr) == (3, f"error: {source}: nothing of a node node-9; it tells of node-1, node-2\n")


def test_what_a_bundle_concluded_is_no_evidence_when_it_was_unpacked_into_a_folder(tmp_path: Path) -> None:
    (tmp_path / "diagnosis.json").write_text('{"evidence": ["engine.log: EI0006"]}')
    (tmp_path / "smi.txt").write_text((OUTPUTS / "info_910b3_8card_idle_24.1.rc1.txt").read_text())
    assert troubles("--from", str(tmp_path)) == {"": {}}


SECRET = "hunter2-hunter2"


def test_a_bundle_holds_no_values_that_look_secret(tmp_path: Path) -> None:
    secret_pod = pod(
        env=[{"name": "GLM5_API_KEY", "value": SECRET}, {"name": "HCCL_IF_IP", "value": "10.0.0.1"}],
        args=["--api-key", SECRET, f"--hf-token={SECRET}", "--port=8000"],
    )
    secret_pod["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": SECRET}
    text = Text("log of pod prod/chat-0", f"Authorization: Bearer {SECRET}\nGET /?api_key={SECRET}\nnormal line, tokens: 7\n")
    path = tmp_path / "b.tar.gz"
    bundle.write(str(path), [Collected("node-1", ascend_node(), pods=(secret_pod,), texts=(text,))], {}, {})
    with tarfile.open(path) as archive:
        content = "\n".join(file.read().decode() for member in archive if (file := archive.extractfile(member)))
    assert SECRET not in content
    assert "10.0.0.1" in content
    assert "--port=8000" in content
    assert "normal line, tokens: 7" in content


def test_a_machine_that_is_well_ends_with_0(tmp_path: Path) -> None:
    (tmp_path / "smi.txt").write_text((OUTPUTS / "info_910b3_8card_idle_24.1.rc1.txt").read_text())
    run = glm5("doctor", "--from", str(tmp_path))
    assert (run.exit_code, run.stdout, run.stderr) == (0, "", "nothing wrong found on 1 node\n")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("x.tar.gz", b"no archive", "not a gzip file"),
        ("x.tar.gz", b"", "empty"),
        ("folder/", b"", "has no files"),
        ("absent", None, "no such file or directory"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, name: str, content: bytes | None, says: str) -> None:
    path = tmp_path / name
    if name.endswith("/"):
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    run = glm5("doctor", "--from", str(path))
    assert (run.exit_code, len(run.stderr.splitlines())) == (3, 1)


@pytest.mark.parametrize(
    "text",
    [
        '{"kind": "Pod"',
        '{"kind":"Pod","metadata":7}',
        "[1,2]",
        '{"kind":"PodList","items":7}',
        '{"kind":"Node","metadata":{"name":"a","labels":7}}',
        '{"kind":"Pod","spec":7}',
        "\x1b[31mEI0006",
    ],
)
def test_broken_objects_are_read_as_text(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    run = glm5("doctor", "--from", str(tmp_path))
    assert run.exit_code in {0, 4}
    assert "\x1b" not in run.stdout


def test_an_archive_from_elsewhere_writes_nothing_and_follows_no_link(tmp_path: Path) -> None:
    path = tmp_path / "evil.tar"
    with tarfile.open(path, "w") as archive:
        link = tarfile.TarInfo("passwd")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        entry = tarfile.TarInfo("../../escape.log")
        entry.size = 6
        archive.addfile(entry, io.BytesIO(b"EI0006"))
    assert list(troubles("--from", str(path))[""]) == ["HcclConnectTimeout"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["evil.tar"]


def test_a_bundle_made_of_somebodys_files_names_no_place_outside_of_itself(tmp_path: Path) -> None:
    (tmp_path / "ascendnode.json").write_text(json.dumps(ascend_node("../../../etc", missing=[7])))
    glm5("doctor", "--from", str(tmp_path), "--bundle", str(tmp_path / "out.tar.gz"))
    with tarfile.open(tmp_path / "out.tar.gz") as archive:
        assert all(".." not in name.split("/") and not name.startswith("/") for name in archive.getnames())
        assert any(name.endswith("etc/ascendnode.json") for name in archive.getnames())


def test_of_too_much_the_first_files_are_read_and_the_rest_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small archive may hold more than fits into memory."""
    monkeypatch.setattr(bundle, "MOST_TOGETHER", 3 * 2**20)
    with tarfile.open(tmp_path / "bomb.tar.gz", "w:gz") as archive:
        for number in range(8):
            entry = tarfile.TarInfo(f"{number}.log")
            entry.size = 2**20
            archive.addfile(entry, io.BytesIO(b"EI0006 " + b"a" * (entry.size - 7)))
    assert [len(found.texts) for found in bundle.read(str(tmp_path / "bomb.tar.gz"))] == [3]
    monkeypatch.setattr(bundle, "MOST_UNPACKED", 2 * 2**20)
    run = glm5("doctor", "--from", str(tmp_path / "bomb.tar.gz"))
    assert run.stderr.startswith("2.log and what comes after it isn't read")


def test_the_end_of_a_long_file_counts_in_an_archive_as_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MOST_BYTES", 100)
    (tmp_path / "engine.log").write_text("x" * 1000 + "the end")
    with tarfile.open(tmp_path / "logs.tar", "w") as archive:
        archive.add(tmp_path / "engine.log", "engine.log")
    assert [text.text[-7:] for found in bundle.read(str(tmp_path / "logs.tar")) for text in found.texts] == ["the end"]


def test_a_log_that_is_one_line_of_megabytes_is_read_and_the_terminal_gets_no_control_characters(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[2J.log").write_text("\x1b[31mEI0006 " + "EI0006 a" * 2**17)
    run = glm5("doctor", "--from", str(tmp_path))
    assert "HcclConnectTimeout" in run.stdout
    assert "\x1b" not in run.stdout + run.stderr


@pytest.mark.parametrize(
    "item",
    [
        {"kind": "AscendNode"},
        {"kind": "Node", "metadata": {"name": "\ud800", "annotations": 3}},
        {"npu_usable": False, "lacking": 3},
        {
            "kind": "ConfigMap",
            "metadata": {"name": "cluster-info-device-0", "namespace": "mindx-dl"},
            "data": {"cluster-info-device-0": []},
        },
        pod(securityContext={"capabilities": {"drop": True, "add": 1}}, volumeMounts=[{"name": ["x"], "mountPath": "/dev/shm"}]),
        {**pod(), "spec": {"volumes": [{"name": []}], "containers": [{"resources": {"limits": {"huawei.com/Ascend910": "2"}}}]}},
    ],
    ids=lambda item: str(item.get("kind")),
)
def test_objects_of_any_shape_end_in_words_and_in_no_traceback(tmp_path: Path, item: dict[str, Any]) -> None:
    (tmp_path / "node-1").mkdir()
    (tmp_path / "node-1" / "ascendnode.json").write_text(json.dumps(ascend_node()))
    (tmp_path / "node-1" / "item.json").write_text(json.dumps(item))
    for form in ("table", "json", "yaml"):
        run = glm5("doctor", "--from", str(tmp_path), "-o", form)
        assert run.exit_code in {0, 3, 4}, run.output
