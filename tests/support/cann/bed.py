"""Runs one of the tests' modules in a process that has the device `npu`, and reads the JSON that it prints."""

import json
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from tests.cluster.steps import Step, run_steps
from tests.support.cann.stub import cann_stub
from tests.support.cann.wheel import torch_npu

ROOT = Path(__file__).parents[3]
_SECONDS = 300


def prepare(console: Console) -> None:
    """Make what is missing in the cache, with visible progress. Raises UnavailableError where it can't be made."""
    wheel = Step("torch_npu wheel", torch_npu)
    run_steps([wheel, Step("stand-in for CANN", cann_stub, after=(wheel.name,))], console)


def environment() -> dict[str, str]:
    """Variables of a process that imports torch_npu from the cache."""
    paths = [str(torch_npu()), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        # Without the variables of a CANN that is really here: torch_npu would look for the rest of it.
        **{name: value for name, value in os.environ.items() if not name.startswith("ASCEND_")},
        "PYTHONPATH": ":".join(path for path in paths if path),
        "LD_LIBRARY_PATH": str(cann_stub()),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # the runtime imports it by itself
        "OMP_NUM_THREADS": "1",
    }


def run_module(name: str, *arguments: str) -> object:
    """What `python -m NAME ARGUMENTS` prints as its last line, parsed; raises AssertionError with its output when it fails."""
    command = [sys.executable, "-m", name, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert done.returncode == 0, f"{name} ended with {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    answer: object = json.loads(done.stdout.splitlines()[-1])
    return answer
