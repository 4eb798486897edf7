"""`glm5-runtime doctor`: on a machine with nothing, with torch_npu and no card, and what it makes of a card's answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from glm5_runtime import doctor
from glm5_runtime.device import HostFacts
from glm5_runtime.ops.kernels import KERNELS
from tests.runtime.device.test_device import NPU, PLAIN
from tests.support.cann import bed

NOTHING = {"torch": "2.12.0", "torch_npu": "2.12.0", "missing": {}}
RIGHT = {name: {"state": "kernel", "apart": 0.001} for name in KERNELS}
CARD = {**NOTHING, "devices": ["Ascend910B3"], "memory": [64 << 30], "operators": RIGHT}


def run(*arguments: str, environ: Mapping[str, str] = os.environ) -> tuple[int, str]:
    command = [sys.executable, "-m", "glm5_runtime.cli", "doctor", *arguments]
    done = subprocess.run(command, env=dict(environ), capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


def examine(monkeypatch: pytest.MonkeyPatch, facts: HostFacts, probe: dict[str, Any]) -> dict[str, Any]:
    monkeypatch.setattr(doctor.devices, "read_host", lambda *_: facts)
    monkeypatch.setattr(doctor, "_probe", lambda *_, **__: probe)
    return doctor.examine({})


def test_a_machine_with_nothing_is_told_so_and_what_an_npu_lacks() -> None:
    code, table = run()
    assert code == 3
    assert table.splitlines()[-1] == "no NPU is usable here; `serve` takes the CPU"
    for part in ("driver: ", "device: ", "CANN: ", "torch_npu: not installed"):
        assert f"  - {part}" in table
    for name in KERNELS:
        assert f"\n{name} " in table


def test_the_json_holds_the_same_and_names_its_exit_code() -> None:
    code, text = run("--output", "json")
    report = json.loads(text)
    assert report["exit_code"] == code == 3
    assert (report["npu_usable"], report["cards"], report["torch"]["made_for"]) == (False, [], "2.12.0")
    assert [operator["name"] for operator in report["operators"]] == list(KERNELS)
    assert {operator["state"] for operator in report["operators"]} == {"unknown"}


def test_with_torch_npu_and_no_card_every_kernel_is_known_and_untried(npu_report: object) -> None:
    del npu_report  # it has made what is needed
    code, text = run("--output", "json", environ=bed.environment())
    report = json.loads(text)
    assert (code, report["torch_npu"]) == (3, {"version": "2.12.0", "made_for": "2.12.0", "error": None})
    assert {operator["state"] for operator in report["operators"]} == {"untried"}


def test_a_torch_npu_that_cannot_be_imported_says_why() -> None:
    """What Python and torch_npu print without CANN's libraries; torch_npu adds lines of its own at the end."""
    stderr = """Traceback (most recent call last):
  File "trial.py", line 21, in <module>
    import torch_npu
ImportError: libhccl.so: cannot open shared object file: No such file or directory. Please check that the cann package is installed.
[ERROR] 2026-11-30-02:11:44 (PID:27813, Device:-1, RankID:-1) ERR99999 UNKNOWN applicaiton exception
"""
    assert doctor._reason(stderr).startswith("ImportError: libhccl.so: cannot open shared object file")
    assert doctor._reason("") == ""


def test_a_card_with_all_kernels_right_is_the_only_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    report = examine(monkeypatch, NPU, CARD)
    assert (report["exit_code"], report["cards"]) == (0, [{"name": "Ascend910B3", "memory_bytes": 64 << 30}])
    assert "Ascend910B3, 64 GiB" in doctor.as_table(report)


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ({"state": "plain", "apart": 0.0, "reason": "aclnnSparseFlashAttention not in libopapi.so"}, "not in libopapi.so"),
        ({"state": "differs", "apart": 0.4}, "apart by 40.00%"),
        ({"state": "fails", "reason": "507015 aicore exception"}, "507015 aicore exception"),
    ],
)
def test_one_operator_that_is_not_its_kernel_or_not_right_is_named(
    monkeypatch: pytest.MonkeyPatch, state: dict[str, Any], shown: str
) -> None:
    report = examine(monkeypatch, NPU, CARD | {"operators": RIGHT | {"attend": state}})
    assert report["exit_code"] == 1
    assert report["verdict"].endswith(": attend")
    assert shown in doctor.as_table(report)


def test_a_kernel_that_torch_npu_does_not_know_is_named_without_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    report = examine(monkeypatch, PLAIN, NOTHING | {"missing": {"choose": "npu_lightning_indexer"}})
    state = next(operator for operator in report["operators"] if operator["name"] == "choose")
    assert (report["exit_code"], state["state"], state["reason"]) == (3, "plain", "torch_npu has no npu_lightning_indexer")


def test_a_usable_card_with_a_broken_torch_npu_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    report = examine(monkeypatch, NPU, {"error": "ImportError: undefined symbol: aclrtFoo"})
    assert report["exit_code"] == 3
    assert "aclrtFoo" in report["verdict"]


@pytest.mark.parametrize(
    ("name", "text", "version"),
    [
        ("ascend_toolkit_install.info", "package_name=Ascend-cann-toolkit\nversion=9.1.0\n", "9.1.0"),
        ("opp/version.info", "Version=8.5.0\n", "8.5.0"),
        ("version.cfg", "# version\nruntime_running_version=[9.1.0.1.2:9.1.0]\n", "9.1.0"),
        ("other.txt", "version=1\n", None),
    ],
)
def test_the_version_of_cann_is_read_from_the_file_that_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, text: str, version: str | None
) -> None:
    (tmp_path / "opp").mkdir()
    (tmp_path / name).write_text(text)
    monkeypatch.setattr(doctor, "_probe", lambda *_, **__: {"error": "not installed"})
    report = doctor.examine({"ASCEND_HOME_PATH": str(tmp_path)}, tmp_path)
    assert report["cann"] == {"home": str(tmp_path), "version": version, "made_for": "9.1.0"}


def test_the_version_of_the_driver_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "usr/local/Ascend/driver"
    folder.mkdir(parents=True)
    (folder / "version.info").write_text("Version=25.5.1\nascendhal_version=7.35\n")
    monkeypatch.setattr(doctor, "_probe", lambda *_, **__: {"error": "not installed"})
    assert doctor.examine({}, tmp_path)["driver"] == {"present": True, "version": "25.5.1"}
