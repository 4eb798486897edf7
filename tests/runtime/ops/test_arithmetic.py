"""`doctor --compute`: the verdict on the devices, from real products on the CPU and from devices that are played."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from glm5_runtime import doctor
from glm5_runtime.cli import app
from glm5_runtime.ops import arithmetic

ENVIRON = {**os.environ, "GLM5_DEVICE": "cpu"}


def verdict_of(program: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: float = 60) -> tuple[str, str]:
    """What is said when the trial's process is this program."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    found = doctor.compute(ENVIRON, seconds=seconds)
    return found["outcome"], found["message"]


def test_a_cpu_computes_and_the_one_line_is_written_for_kubelet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLM5_DEVICE", "cpu")

    done = CliRunner().invoke(app, ["doctor", "--compute", f"--result={tmp_path / 'word'}"])

    assert done.exit_code == doctor.PASSED
    word = json.loads((tmp_path / "word").read_text())
    assert word == json.loads(done.stdout)
    assert word["outcome"] == "Passed"
    assert "1 x cpu" in word["message"]


@pytest.mark.parametrize("wrong", [lambda product: product * 1.05, lambda product: product * float("nan")], ids=["off", "not a number"])
def test_wrong_numbers_are_found_with_their_type_and_by_how_much(wrong: object, monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch.Tensor.__matmul__

    def product(left: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        found = right(left, other)
        return wrong(found) if left.dtype is torch.float32 else found  # type: ignore[operator,no-any-return]

    monkeypatch.setattr(torch.Tensor, "__matmul__", product)

    found = arithmetic.run("cpu")

    assert len(found["faults"]) == 1
    assert "float32" in found["faults"][0]


def test_a_device_that_raises_is_named_with_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "_apart", lambda *_: (_ for _ in ()).throw(RuntimeError("error code is 507018\nstack")))

    assert arithmetic.run("cpu")["faults"] == ["cpu: error code is 507018"]


@pytest.mark.parametrize(
    ("program", "outcome", "words"),
    [
        ('echo imported; echo \'{"devices": 8, "faults": []}\'', "Passed", "8 x cpu"),
        ('echo imported; echo \'{"devices": 8, "faults": ["npu:3: products are off"]}\'', "Failed", "npu:3"),
        ('echo imported; echo \'{"devices": 0, "faults": []}\'', "Failed", "shows no device"),
        ("echo imported; kill -SEGV $$", "Failed", "ended with -11"),
        ("echo imported; kill -KILL $$", "Skipped", "memory"),
        ("echo 'ImportError: libascendcl.so' >&2; exit 1", "Skipped", "libascendcl"),
    ],
)
def test_only_what_happens_after_the_imports_speaks_against_a_device(
    program: str, outcome: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said, message = verdict_of(program, monkeypatch, tmp_path)

    assert said == outcome, message
    assert words in message


@pytest.mark.parametrize(("program", "outcome"), [("echo imported; exec sleep 60", "Failed"), ("exec sleep 60", "Skipped")])
def test_a_hang_is_the_devices_fault_once_torch_is_there(
    program: str, outcome: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert verdict_of(program, monkeypatch, tmp_path, seconds=1)[0] == outcome


def test_a_card_that_cannot_be_opened_for_want_of_a_mount_says_nothing_of_the_card(tmp_path: Path) -> None:
    found = doctor.compute({"ASCEND_VISIBLE_DEVICES": "0,1"}, tmp_path)

    assert found["outcome"] == "Skipped"
    assert "driver" in found["message"]
    assert "\n" not in found["message"]
