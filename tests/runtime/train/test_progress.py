"""How a run is told to people: a bar on a real terminal (a pty), lines elsewhere."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest

from glm5_runtime.train.progress import Progress

DEADLINE = 60.0
TELL = """
import logging, sys
from glm5_runtime.train.progress import Progress, reporter
logging.basicConfig(level="INFO", format="%(message)s")
with reporter() as report:
    for step in (1, 2, 3):
        report(Progress(step, 3, step / 3, loss=4.0 / step, learning_rate=2e-4, tokens_per_second=1234.0, eta_seconds=65.0 * (3 - step)))
        if "fail" in sys.argv and step == 2:
            raise RuntimeError("the rank is gone")
"""
LAST = "step 3/3 epoch 1.00 loss 1.3333 rate 0.0002 1234 tokens/s ETA 0:00:00"


def on_terminal(*arguments: str) -> str:
    """What a terminal of 120 columns is sent."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "20"}
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "CI"):
        environment.pop(name, None)
    with subprocess.Popen([sys.executable, "-c", TELL, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        try:
            return _until_closed(ours)
        finally:
            process.kill()
            os.close(ours)


def _until_closed(terminal: int) -> str:
    said, end = b"", time.monotonic() + DEADLINE
    while True:
        ready, _, _ = select.select([terminal], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            pytest.fail(f"still open after {DEADLINE:g} s; so far: {said!r}")
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # how Linux says that the other side is closed
            return said.decode()
        if not piece:
            return said.decode()
        said += piece


def shown(said: str) -> list[str]:
    """The lines that stay on the screen: what a carriage return and 'erase line' take back is gone."""
    lines = re.sub(r"\r\n", "\n", said).split("\n")
    return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", re.split(r"\r\x1b\[2K", line)[-1]) for line in lines]


def test_on_a_terminal_a_bar_stays_in_its_line() -> None:
    said = on_terminal()

    assert "\x1b[2K" in said, "it is drawn anew in its place"
    full = [line for line in shown(said) if "step " in line]
    assert [line.lstrip("━ ").rstrip() for line in full] == [LAST]
    assert full[0].startswith("━" * 10)
    assert "\x1b[?25h" in said.rpartition("\x1b[?25l")[2], "the cursor is there again"


def test_a_run_that_fails_leaves_the_terminal_usable_and_its_last_step_to_be_seen() -> None:
    said = on_terminal("fail")

    assert "\x1b[?25h" in said.rpartition("\x1b[?25l")[2]
    assert any("step 2/3" in line for line in shown(said))
    assert "RuntimeError: the rank is gone" in said


def test_where_nobody_looks_on_each_step_is_a_line() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in {"FORCE_COLOR", "TTY_COMPATIBLE"}}
    done = subprocess.run([sys.executable, "-c", TELL], capture_output=True, text=True, timeout=DEADLINE, check=True, env=environment)

    assert [line.partition(" epoch")[0] for line in done.stderr.splitlines()] == ["step 1/3", "step 2/3", "step 3/3"]
    assert done.stderr.splitlines()[-1] == LAST
    assert done.stdout == ""


def test_numbers_that_are_not_finite_are_null_in_json() -> None:
    """D11: JSON has no NaN, and who reads it would fail on the whole line."""
    found = Progress(3, 9, 0.3, loss=float("nan"), gradient_norm=float("inf"), learning_rate=1e-4).to_json()

    assert (found["loss"], found["gradient_norm"], found["learning_rate"]) == (None, None, 1e-4)
