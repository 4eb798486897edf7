"""`make bench-train` runs, part by part, and its last line has the names that its readers look for; what it measures is not judged here."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.engine.figures import Figure
from benchmarks.train.__main__ import AIMS, PARTS, recoveries, result
from benchmarks.train.verl_formula import gae_loop
from tests.runtime.train.rl.vectors import same, verl

ROOT = Path(__file__).parents[3]
KEYS = ["sft_x_peft", "sft_x_trl", "sft_mem", "gae_x", "grpo_x", "bucket_x", "checkpoint_overhead", "recover_s"]
DEADLINE = 600
"""Seconds: five trainers are set up, and a busy machine imports theirs slowly."""


@pytest.mark.timeout(DEADLINE + 10)
def test_every_part_runs_and_gives_its_figures() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'runtime'}"}
    command = [sys.executable, "-m", "benchmarks.train.parts", *PARTS, "--tiny"]

    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    figures = {name: values for line in lines for name, values in line.items()}
    assert set(KEYS) - set(figures) == {"recover_s"}
    assert all(values and all(map(math.isfinite, values)) for values in figures.values())


def test_the_last_line_has_the_eight_figures_and_says_why_one_is_missing(tmp_path: Path) -> None:
    assert list(AIMS) == KEYS
    printed = tmp_path / "e2e.txt"
    printed.write_text(
        'noise\n{"fault": "rank", "recover_s": 23.5, "of_it_load_s": 14.0, "attempts": 2}\n'
        '{"fault": "operator", "recover_s": 1.0, "attempts": 1}\n'
    )

    seconds, _ = recoveries(printed)
    _, why = recoveries(None)

    assert seconds == [9.5]  # the operator's end starts no other attempt
    found = result({"gae_x": Figure("gae_x", [11.0, 12.0, 40.0])}, why)
    assert (found["gae_x"], found["sft_mem"], found["recover_s"]) == (12.0, None, None)
    assert "needs the test cluster" in str(found["recover_s_reason"])
    printed.write_text("nothing of it")
    assert "no figures of a second attempt" in recoveries(printed)[1]


@pytest.mark.parametrize("at", range(4))
def test_the_loop_that_gae_is_measured_against_gives_what_verl_gives(at: int) -> None:
    found = verl("gae/67")
    pair = verl(f"gae/67/{at}")

    _, returns = gae_loop(found["rewards"], found["values"], found["mask"], pair["gamma"], pair["lam"])

    assert same(returns, pair["returns"])
