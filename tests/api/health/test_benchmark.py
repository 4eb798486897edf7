"""`make bench-health` runs, part by part, on control planes of its own; what it measures is not judged here."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.health.__main__ import AIMS, PARTS

ROOT = Path(__file__).parents[3]
DEADLINE = 500
"""Seconds: four control planes and operators are started, and a busy machine is slow at that."""


@pytest.mark.timeout(DEADLINE + 10)
def test_every_part_runs_and_gives_its_figures() -> None:
    command = [sys.executable, "-m", "benchmarks.health.parts", *PARTS, "--tiny"]

    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=DEADLINE, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    figures = {name: values for line in done.stdout.splitlines() for name, values in json.loads(line).items()}
    assert set(AIMS) <= set(figures)
    assert all(values and all(map(math.isfinite, values)) for values in figures.values())
