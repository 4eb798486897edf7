"""Every make target does its own set-up: on a fresh clone none needs another one first. `make -n` says what would run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = re.findall(r"^([a-z0-9-]+):.*##", MAKEFILE, re.MULTILINE)


def would_run(target: str, venv: Path) -> list[str]:
    argv = ["make", "--no-print-directory", "-n", f"VENV={venv}", target]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_makes_the_environment_before_it_uses_it(target: str, tmp_path: Path) -> None:
    commands = [line for line in would_run(target, tmp_path / "none") if not line.lstrip("@").startswith(("echo ", "grep "))]
    assert target == "help" or "hack/venv.sh" in commands[0], commands


def test_every_target_is_phony_and_says_what_it_does() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert set(phony.split()) == set(TARGETS)
