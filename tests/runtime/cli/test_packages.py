"""An environment without the runtime's packages, as `make demo` leaves it: one line with the remedy, no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.serving import TINY

WITHOUT = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if f"{{name}}.".startswith({missing!r} + "."):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Nothing())
sys.argv = ["glm5-runtime", *{words!r}]
from glm5_runtime.cli import main
main()
"""


def run(missing: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The command in a process that has no package of that name."""
    script = WITHOUT.format(missing=missing, words=words)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("uvicorn", ("serve", "--model", str(TINY), "--device", "cpu")),
        ("safetensors", ("quantize", "--model", str(TINY), "--output", "OUT")),
        ("numpy", ("check", "--model", str(TINY), str(Path(__file__)))),
    ],
)
def test_a_package_that_is_not_installed_is_one_line_with_the_remedy(missing: str, words: tuple[str, ...], tmp_path: Path) -> None:
    done = run(missing, *(str(tmp_path / word) if word == "OUT" else word for word in words))

    assert done.returncode == 1
    remedy = "the runtime's packages are missing; in a clone: pip install '.[runtime]'"
    assert done.stderr == f"glm5-runtime {words[0]}: {remedy} (no {missing})\n"


def test_a_module_of_our_own_that_is_missing_is_a_fault_of_ours_and_keeps_its_traceback() -> None:
    done = run("glm5_runtime.server.service", "serve", "--model", str(TINY), "--device", "cpu")

    assert "Traceback" in done.stderr
    assert "pip install" not in done.stderr
